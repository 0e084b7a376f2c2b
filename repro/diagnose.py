"""What a ranker's scores do when texts are changed: the behavioural tests of BERT rankers, as a table.

    python repro/diagnose.py [--model mono] [--demo DIR] [--queries 100] [--depth 3] [--write FILE]

The demo collection's queries and BM25's first candidates; DIR is what `tamis demo --keep DIR` made. A
minute on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import tamis
from tamis.cli import status_of
from tamis.evaluate.diagnose import Effect, effects
from tamis.formats import read_queries


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--model", default="mono", help="a bundled model or a folder (mono)")
    arguments.add_argument("--demo", type=Path, default=Path("demo"), help="folder of the demo (demo)")
    arguments.add_argument("--queries", type=int, default=100, help="how many (100)")
    arguments.add_argument("--depth", type=int, default=3, help="candidates of each (3)")
    arguments.add_argument("--write", type=Path, help="a file of Markdown for the table")
    given = arguments.parse_args()
    index = tamis.Index.open(given.demo / "index")
    first = index.bm25() % given.depth
    rankings = [first(query) for query in islice(read_queries(given.demo / "queries.jsonl"), given.queries)]
    text = table(effects(tamis.Mono(given.model), rankings))
    print(text, end="")
    if given.write:
        given.write.write_text(text, encoding="utf-8")


def table(found: Sequence[Effect]) -> str:
    """As Markdown."""
    lines = ["| change | pairs | log-odds, mean | 95 % | raised | lowered |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {effect.change} | {effect.pairs} | {effect.mean:+.2f} | {effect.low:+.2f} to {effect.high:+.2f} "
        f"| {effect.raised:.0%} | {effect.lowered:.0%} |"
        for effect in found
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(status_of(main))
