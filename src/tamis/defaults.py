"""Pipelines with a name of their own, and the one that people get who name none.

A name stands for its pipeline wherever a stage may stand, as if the pipeline stood there in parentheses:
`fast % 10`, `fast >> duo(k=10)`. It is replaced when an expression is read, so that what is printed, and what
runs and caches are known by, is the pipeline itself.
"""

from __future__ import annotations

from collections.abc import Mapping

#: A model so small that it reads a hundred candidates in the time that the last one takes for a few.
FIRST_READER = "mono-tiny"
CANDIDATES, READ = 100, 20  # of the first stage, and of the first reader

#: By name: chosen on the frontier of quality and time, see docs/tradeoff.md.
NAMED: Mapping[str, str] = {
    "fast": f"bm25 % {CANDIDATES} >> mono(model={FIRST_READER}) % {READ} >> mono",
}

#: What `tamis search`, `tamis serve` and the page begin with.
INTERACTIVE = "fast"
