"""Compare an index in a cluster of OpenSearch with one on disk: measures, orders, scores, and time.

    python bench/parity_opensearch.py --data DIR --cluster 127.0.0.1:9200

DIR holds one folder a collection in the BEIR layout. Each is indexed on disk and in the cluster, where the
index is deleted afterwards. Exits with 1 if a bar is missed: nDCG@10 and AP within 0.001, and the same first
ten documents but where scores are equal to seven digits.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from parity_anserini import worst_score_difference

import tamis
from tamis.cli import status_of
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.index.opensearch import writer
from tamis.index.opensearch.connection import connect
from tamis.index.score import BM25, QueryLikelihood

SETS = ("cacm", "cranfield", "vaswani")
SIMILARITIES = (BM25(0.9, 0.4), BM25(1.2, 0.75), QueryLikelihood(1000.0))
PIPELINES = ("bm25 % 1000", "bm25(k1=1.2, b=0.75) % 1000", "ql % 1000", "bm25 >> rm3 % 1000")
MEASURES = ("nDCG@10", "AP")
BAR = 0.001


def equal(one: tamis.Ranking, other: tamis.Ranking, depth: int = 10) -> bool:
    """Whether the first documents are the same but for ties."""
    if len(one) != len(other):
        return False
    for mine, theirs in zip(one.head(depth), other.head(depth), strict=True):
        if mine.id != theirs.id and not np.isclose(mine.score, theirs.score, rtol=1e-6):
            return False
    return True


def timed(index: tamis.Index, expression: str, queries: Sequence[tamis.Query]) -> tuple[tamis.Run, float]:
    """A run, and its milliseconds a query once the caches are warm."""
    pipeline = index.pipeline(expression)
    pipeline.run(queries)
    started = time.perf_counter()
    run = pipeline.run(queries)
    return run, (time.perf_counter() - started) * 1000 / len(queries)


def compare(name: str, folder: Path, disk: tamis.Index, cluster: tamis.Index) -> int:
    """Print the lines of a collection; how many bars were missed."""
    queries = read_queries(folder / "queries.jsonl")
    qrels = read_qrels(folder / "qrels.txt")
    missed = 0
    for expression in PIPELINES:
        mine, disk_ms = timed(disk, expression, queries)
        theirs, cluster_ms = timed(cluster, expression, queries)
        a, b = (evaluate(qrels, each, MEASURES).mean for each in (mine, theirs))
        first_ten = sum(equal(mine[qid], theirs[qid]) for qid in mine)
        whole = sum(mine[qid].ids == theirs[qid].ids for qid in mine)
        relative, _, _ = worst_score_difference(mine, theirs)
        good = all(abs(a[m] - b[m]) <= BAR for m in MEASURES) and first_ten == len(queries)
        missed += not good
        values = " ".join(f"{each[m]:8.4f}" for m in MEASURES for each in (a, b))
        print(
            f"{name:10} {expression:30} {values} {first_ten:6}/{len(queries)} {whole:8}/{len(queries)}"
            f" {relative:9.1e} {disk_ms:8.2f} {cluster_ms:8.2f} {'' if good else '  MISSED'}"
        )
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the collections")
    parser.add_argument("--cluster", required=True, metavar="HOST:PORT", help="a node of the cluster")
    parser.add_argument("--shards", type=int, default=3, metavar="N", help="parts of each index (3)")
    parser.add_argument("--sets", nargs="+", default=SETS, help=f"the names of some ({' '.join(SETS)})")
    arguments = parser.parse_args()
    missed = 0
    print(
        "                                           nDCG@10               AP"
        "           same ten  same thousand      rel.  ms a query\n"
        "collection pipeline                           disk  cluster     disk  cluster"
        "                          score     disk  cluster"
    )
    for name in arguments.sets:
        folder = arguments.data / name
        address = f"opensearch://{arguments.cluster}/tamis-parity-{secrets.token_hex(4)}"
        with tempfile.TemporaryDirectory() as place:
            disk = tamis.Index.build(read_corpus(folder / "corpus.jsonl"), Path(place) / "idx")
            wanted = writer.Wanted(similarities=SIMILARITIES, shards=arguments.shards)
            try:
                writer.build(read_corpus(folder / "corpus.jsonl"), address, wanted=wanted)
                missed += compare(name, folder, disk, tamis.Index.open(address))
            finally:
                connection = connect(address)
                connection.request("DELETE", f"/{connection.address.index}")
    print("all bars met" if not missed else f"{missed} bars missed")
    sys.exit(int(missed > 0))


if __name__ == "__main__":
    sys.exit(status_of(main))
