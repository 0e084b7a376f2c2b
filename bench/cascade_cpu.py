"""A cascade on one core: what leaving early saves, and what it costs in quality.

    python bench/cascade_cpu.py --model FOLDER --data DIR [--alpha 0 0.3] [--entropy 0.1] [--queries 10]

FOLDER has a model with exits. DIR is a collection in the BEIR layout (corpus.jsonl, queries.jsonl) with
qrels.txt and a TREC run (run.bm25.txt), whose first 100 candidates a query are reranked. `mono` is the same
model without its exits. All stages run in one process on one core in int8 (or `--precision`); each query goes
through all of them in turn, in an order that changes with the query, so that noise meets all alike. A time is
from the candidates' ids to their ranking, tokenising included.

Reported are, of all queries together, seconds, processor seconds (on a machine with other work the better
measure), how many times as fast as the first `--alpha` a stage is by both, inferences of the whole model, and
nDCG@10.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from machine import one_core, processor, versions

from tamis import Cascade, Mono, Ranking, Run
from tamis.cli import status_of
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.rank.given_run import Documents
from tamis.rank.reranker import Reranker

BAR = 1.3  # times as fast with alpha=0.3 as with 0


def candidates(data: Path, run: str, depth: int, count: int | None) -> list[Ranking]:
    """The first candidates of the first queries of a run."""
    queries = list(read_queries(data / "queries.jsonl"))
    heads = [each.head(depth) for each in Run.read(data / run, queries=queries).values()][:count]
    wanted = {identity for ranking in heads for identity in ranking.ids}
    texts = Documents(read_corpus(data / "corpus.jsonl"), only=wanted)
    return [each.head(depth) for each in Run.read(data / run, queries=queries, texts=texts).values()][:count]


def measure(stages: dict[str, Reranker], given: list[Ranking]) -> tuple[dict[str, Any], dict[str, Run]]:
    for stage in stages.values():
        stage.prepare()
        stage(given[0].head(8))
    figures: dict[str, Any] = {name: {"seconds": [], "cpu_seconds": [], "inferences": 0} for name in stages}
    ranked: dict[str, list[Ranking]] = {name: [] for name in stages}
    names = list(stages)
    for number, ranking in enumerate(given):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            stage, before = stages[name], stages[name].tally.inferences
            started, used = time.perf_counter(), time.process_time()
            ranked[name].append(stage(ranking))
            figures[name]["seconds"].append(time.perf_counter() - started)
            figures[name]["cpu_seconds"].append(time.process_time() - used)
            figures[name]["inferences"] += stage.tally.inferences - before
    return figures, {name: Run(each) for name, each in ranked.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a model with exits: a folder, or a name on the hub")
    parser.add_argument("--data", type=Path, required=True, help="the collection's folder")
    parser.add_argument("--run", default="run.bm25.txt", help="a file of it (run.bm25.txt)")
    parser.add_argument("--depth", type=int, default=100, help="candidates a query (100)")
    parser.add_argument("--queries", type=int, help="how many (all)")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.0, 0.3], help="(0 and 0.3)")
    parser.add_argument("--entropy", type=float, nargs="*", default=[], help="(none)")
    parser.add_argument("--precision", choices=["int8", "fp32"], default="int8", help="(int8)")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    arguments = parser.parse_args()
    one_core()
    options: dict[str, Any] = {"device": "cpu", "precision": arguments.precision, "workers": 1}
    model = arguments.model
    stages: dict[str, Reranker] = {
        **{f"alpha={alpha}": Cascade(model, alpha=alpha, **options) for alpha in arguments.alpha},
        **{f"entropy={each}": Cascade(model, entropy=each, **options) for each in arguments.entropy},
        "mono": Mono(model, **options),
    }
    given = candidates(arguments.data, arguments.run, arguments.depth, arguments.queries)
    figures, runs = measure(stages, given)
    judged = {ranking.query.id for ranking in given}
    qrels = {qid: each for qid, each in read_qrels(arguments.data / "qrels.txt").items() if qid in judged}
    base = figures[next(iter(stages))]
    for name, found in figures.items():
        found["nDCG@10"] = evaluate(qrels, runs[name], ["nDCG@10"]).mean["nDCG@10"]
        for measured in ("seconds", "cpu_seconds"):
            found[f"total_{measured}"] = sum(found[measured])
            found[f"times_{measured}"] = sum(base[measured]) / sum(found[measured])
    cascade = next(stage for stage in stages.values() if isinstance(stage, Cascade))
    layers = ", ".join(map(str, cascade.layers))
    print(
        f"{model}, exits after layers {layers}, {arguments.precision}; {arguments.data.name}: "
        f"{len(given)} queries, {sum(map(len, given)):,} candidates; 1 core of {processor()}"
    )
    print(f"{'':14}{'s':>9}{'CPU s':>9}{'faster':>9}{'by CPU s':>9}{'inferences':>12}{'nDCG@10':>9}")
    for name, found in figures.items():
        print(
            f"{name:14}{found['total_seconds']:9.2f}{found['total_cpu_seconds']:9.2f}"
            f"{found['times_seconds']:9.2f}{found['times_cpu_seconds']:9.2f}"
            f"{found['inferences']:12,}{found['nDCG@10']:9.4f}"
        )
    if next(iter(stages)) == "alpha=0.0" and "alpha=0.3" in figures:
        ratio = figures["alpha=0.3"]["times_seconds"]
        verdict = "reached" if ratio >= BAR else "MISSED"
        print(f"alpha=0.3 is {ratio:.2f} times as fast as alpha=0, at least {BAR}: {verdict}")
    if arguments.out:
        report = {
            "model": model,
            "layers": cascade.layers,
            "precision": arguments.precision,
            "data": arguments.data.name,
            "machine": processor(),
            "versions": versions(["onnxruntime", "numpy"]),
            "stages": figures,
        }
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(status_of(main))
