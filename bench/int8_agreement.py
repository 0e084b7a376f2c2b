"""How much int8 changes a model's ranking: fp32 and int8 over the same candidates.

    python bench/int8_agreement.py MODEL --data DIR [--run run.bm25.txt]

DIR is a collection in the BEIR layout (corpus.jsonl, queries.jsonl) with qrels.txt and a TREC run. Reported
are Kendall's tau between the two orders, a query's mean and least, and nDCG@10 of both.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from tamis import Mono, Run
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.rank.given import Documents


def kendall_tau(one: np.ndarray, other: np.ndarray) -> float:
    """
    >>> kendall_tau(np.array([1, 2, 3]), np.array([1, 3, 2]))
    0.3333333333333333
    """
    above = np.triu_indices(len(one), 1)
    signs = [np.sign(np.subtract.outer(scores, scores))[above] for scores in (one, other)]
    return float((signs[0] * signs[1]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a checkpoint's folder")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", default="run.bm25.txt")
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
        kendall_tau(np.array(list(one.values())), np.array([other[identity] for identity in one]))
        for one, other in zip(margins["fp32"], margins["int8"], strict=True)
        if len(one) > 1
    ]
    print(f"Kendall's tau over {len(taus)} queries: mean {np.mean(taus):.4f}, least {min(taus):.4f}")


if __name__ == "__main__":
    main()
