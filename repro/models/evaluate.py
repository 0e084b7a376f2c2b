"""What a model is worth on collections that it never saw: the tables of the model cards.

    python evaluate.py MODEL [--duo MODEL] --data DIR [--out results.json]

MODEL is a folder or a bundled model. trec-dl-2019: the given BM25 run's first 100 reranked; wikiqa and
trecqa: each question's own sentences ranked; the others: BM25's first 100 of the collection reranked. Means
with 95 % intervals (BCa bootstrap over queries), and the difference to BM25. All in int8 on the processor.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import tamis
from tamis.evaluate.measures import evaluate
from tamis.evaluate.significance import bootstrap_interval, t_test
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.rank.given import Documents, GivenRun
from tamis.ranking import Ranking, Run
from tamis.stage import Stage

#: The collections, each with its measure.
GIVEN = {"trec-dl-2019": "nDCG@10"}
SENTENCES = {"wikiqa-test": "AP", "trecqa-test": "AP"}
SEARCHED = {"cacm": "nDCG@10", "cranfield": "nDCG@10", "vaswani": "nDCG@10"}
DEPTH = 100


@dataclass(frozen=True, slots=True)
class Row:
    """A pipeline on a collection."""

    collection: str
    measure: str
    pipeline: str
    queries: int
    mean: float
    low: float
    high: float
    difference: float | None = None  # to BM25
    p: float | None = None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("model")
    arguments.add_argument("--duo", help="a model to settle the first 20 with")
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--only", action="append", help="a collection's name")
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    rows: list[Row] = []
    for name, measure in (GIVEN | SENTENCES | SEARCHED).items():
        if not given.only or name in given.only:
            rows += collection(given.data / name, measure, given.model, given.duo)
            for row in rows[-3 if given.duo else -2 :]:
                print(_line(row), flush=True)
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def collection(folder: Path, measure: str, model: str, duo: str | None) -> list[Row]:
    """BM25, mono, and mono with duo."""
    queries = list(read_queries(folder / "queries.jsonl"))
    qrels = read_qrels(folder / "qrels.txt")
    judged = [query for query in queries if query.id in qrels]
    with tempfile.TemporaryDirectory() as scratch:
        documents = list(read_corpus(folder / "corpus.jsonl"))
        index = tamis.Index.build(documents, Path(scratch) / "index")
        runs = {"BM25": first(folder, index, judged, qrels)}
        texts = Documents(documents, only={document.id for document in documents})
        candidates = GivenRun(runs["BM25"], texts)
        stages: dict[str, Stage] = {"BM25 >> mono": candidates >> tamis.Mono(model=model)}
        if duo:
            stages["BM25 >> mono % 20 >> duo"] = (
                candidates >> tamis.Mono(model=model) >> tamis.Duo(model=duo, k=20)
            )
        for name, stage in stages.items():
            runs[name] = stage.run(judged)
    values = {name: evaluate(qrels, run, [measure]).per_query[measure] for name, run in runs.items()}
    return [_row(folder.name, measure, name, found, values["BM25"]) for name, found in values.items()]


def first(folder: Path, index: tamis.Index, queries: list[tamis.Query], qrels: Qrels) -> Run:
    """The candidates, in BM25's order."""
    if folder.name in GIVEN:
        return Run.read(folder / "run.bm25.txt", queries=queries)
    if folder.name not in SENTENCES:
        return (index.bm25() % DEPTH).run(queries)
    own = []
    for ranking in (index.bm25() % len(index))(queries):
        found = dict(zip(ranking.ids, ranking.scores.tolist(), strict=True))
        ids = sorted(qrels[ranking.query.id], key=lambda each: -found.get(each, 0.0))
        scores = np.array([found.get(each, 0.0) for each in ids], np.float32)
        own.append(Ranking(ranking.query, tuple(ids), scores, ranking.kind))
    return Run(own)


def _row(name: str, measure: str, pipeline: str, values: dict[str, float], baseline: dict[str, float]) -> Row:
    own = np.array(list(values.values()))
    interval = bootstrap_interval(own)
    if values is baseline:
        return Row(name, measure, pipeline, len(own), float(own.mean()), interval.low, interval.high)
    differences = own - np.array([baseline[query] for query in values])
    mean, difference, p = float(own.mean()), float(differences.mean()), t_test(differences)
    return Row(name, measure, pipeline, len(own), mean, interval.low, interval.high, difference, p)


def _line(row: Row) -> str:
    """A line of a Markdown table."""
    against = "" if row.difference is None or row.p is None else f"{row.difference:+.4f} (p = {row.p:.2g})"
    figures = f"{row.mean:.4f} [{row.low:.3f}, {row.high:.3f}]"
    return f"| {row.collection} | {row.queries} | {row.pipeline} | {row.measure} | {figures} | {against} |"


if __name__ == "__main__":
    main()
