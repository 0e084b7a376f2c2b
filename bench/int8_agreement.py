"""How much int8 changes a model's ranking: fp32 and int8 over the same candidates.

    python bench/int8_agreement.py MODEL --data DIR [--run run.bm25.txt]

DIR is a collection in the BEIR layout (corpus.jsonl, queries.jsonl) with qrels.txt and a TREC run. Reported
are Kendall's tau between the two orders, a query's mean and least, and nDCG@10 of both.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from rerank_cpu import kendall_tau

from tamis import Mono, Run
from tamis.cli import status_of
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.rank.given_run import Documents


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a bundled model or a folder")
    parser.add_argument("--data", type=Path, required=True, help="the collection's folder")
    parser.add_argument("--run", default="run.bm25.txt", help="a file of it (run.bm25.txt)")
    arguments = parser.parse_args()
    data: Path = arguments.data
    queries = list(read_queries(data / "queries.jsonl"))
    bare = Run.read(data / arguments.run, queries=queries)
    wanted = {identity for ranking in bare.values() for identity in ranking.ids}
    texts = Documents(read_corpus(data / "corpus.jsonl"), only=wanted)
    given = list(Run.read(data / arguments.run, queries=queries, texts=texts).values())
    qrels = read_qrels(data / "qrels.txt")
    margins: dict[str, list[dict[str, float]]] = {}
    for precision in ("fp32", "int8"):
        stage = Mono(arguments.model, score="logit", precision=precision)  # type: ignore[arg-type]
        stage.prepare()
        started = time.perf_counter()
        ranked = stage(given)
        seconds = time.perf_counter() - started
        ndcg = evaluate(qrels, Run(ranked), ["nDCG@10"]).mean["nDCG@10"]
        print(f"{precision}: nDCG@10 {ndcg:.4f}, {seconds:.1f} s, {stage.tally}")
        margins[precision] = [dict(zip(r.ids, r.scores.tolist(), strict=True)) for r in ranked]
    taus = [
        kendall_tau(one, other)
        for one, other in zip(margins["fp32"], margins["int8"], strict=True)
        if len(one) > 1
    ]
    print(f"Kendall's tau over {len(taus)} queries: mean {np.mean(taus):.4f}, least {min(taus):.4f}")


if __name__ == "__main__":
    sys.exit(status_of(main))
