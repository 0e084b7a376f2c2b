"""Compare tamis with Anserini's own runs: measures, and the score of every document both found.

    python bench/parity_anserini.py --data DIR

DIR holds one folder a collection in the BEIR layout, with Anserini's own runs beside it as
`anserini.{bm25,bm25-1.2-0.75,ql,bm25-rm3}.txt`.
Exits with 1 if a bar is missed: nDCG@10 and AP within 0.002 (0.005 for RM3), BM25 scores within 2e-4 relative
(Anserini rounds its scores to break ties).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

import tamis
from tamis.cli import status_of
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries

SETS = ("cacm", "vaswani", "cranfield", "multihop-rag", "2wikimultihop")
PIPELINES = {
    "bm25": "bm25 % 100",
    "bm25-1.2-0.75": "bm25(k1=1.2, b=0.75) % 100",
    "ql": "ql % 100",
    "bm25-rm3": "bm25 >> rm3 % 100",
}
MEASURES = ("nDCG@10", "AP")


def worst_score_difference(ours: tamis.Run, theirs: tamis.Run) -> tuple[float, int, int]:
    """The largest relative difference over shared documents, how many were shared, and how many there are."""
    worst, shared, total = 0.0, 0, 0
    for qid, ranking in theirs.items():
        total += len(ranking)
        known = dict(zip(ours[qid].ids, ours[qid].scores.tolist(), strict=True)) if qid in ours else {}
        for identity, score in zip(ranking.ids, ranking.scores.tolist(), strict=True):
            if identity in known:
                shared += 1
                worst = max(worst, abs(known[identity] - score) / abs(score) if score else 0.0)
    return worst, shared, total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the collections")
    parser.add_argument("--sets", nargs="+", default=SETS, help=f"the names of some ({' '.join(SETS)})")
    arguments = parser.parse_args()
    failed = 0
    print("collection     run            nDCG@10 ours  theirs  AP ours  theirs  max rel. score   shared")
    for name in arguments.sets:
        folder = arguments.data / name
        queries = read_queries(folder / "queries.jsonl")
        qrels = read_qrels(folder / "qrels.txt")
        with tempfile.TemporaryDirectory() as place:
            index = tamis.Index.build(read_corpus(folder / "corpus.jsonl"), Path(place) / "idx")
            for run_name, expression in PIPELINES.items():
                theirs = tamis.Run.read(folder / f"anserini.{run_name}.txt")
                ours = index.pipeline(expression).run([q for q in queries if q.id in theirs])
                judged = {qid: grades for qid, grades in qrels.items() if qid in theirs}
                mine, other = (evaluate(judged, each, MEASURES).mean for each in (ours, theirs))
                relative, shared, total = worst_score_difference(ours, theirs)
                allowed = 0.005 if "rm3" in run_name else 0.002
                good = all(abs(mine[m] - other[m]) <= allowed for m in MEASURES)
                good &= relative <= 2e-4 or "bm25" not in run_name or "rm3" in run_name
                failed += not good
                a, b, c, d = (each[measure] for measure in MEASURES for each in (mine, other))
                print(
                    f"{name:14} {run_name:14} {a:12.4f} {b:7.4f} {c:8.4f} {d:7.4f}"
                    f" {relative:15.1e} {shared / total:8.2%} {'' if good else '  MISSED'}"
                )
    print("all bars met" if not failed else f"{failed} bars missed")
    sys.exit(int(failed > 0))


if __name__ == "__main__":
    np.seterr(all="raise", under="ignore")
    sys.exit(status_of(main))
