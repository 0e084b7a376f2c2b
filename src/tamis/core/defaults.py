"""Pipelines with a name of their own, and the one that people get who name none.

A name stands for its pipeline wherever a stage may stand, as if the pipeline stood there in parentheses:
`fast % 10`, `fast >> duo(k=10)`. It is replaced when an expression is read, so that what is printed, and what
runs and caches are known by, is the pipeline itself.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Of `fast`: how many BM25 finds, what reads them all, and how many of them mono reads: the first when both
#: rankings are fused, because a very small model misjudges what is unlike the texts that it has learned from.
CANDIDATES, FIRST_READER, READ = 100, "mono-nano", 22

#: By name: chosen on the frontier of quality and time, see docs/tradeoff.md.
NAMED: Mapping[str, str] = {
    "fast": f"bm25 % {CANDIDATES} >> fuse(mono(model={FIRST_READER}), k=10) % {READ} >> mono"
}

#: What `tamis search`, `tamis serve` and the page begin with.
INTERACTIVE = "fast"

#: What `tamis serve` begins with where it has no index to search.
RERANKING = "mono"
