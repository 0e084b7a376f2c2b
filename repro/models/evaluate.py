"""What a model is worth on collections that it never saw: the tables of the model cards.

    python evaluate.py MODEL [--then STAGES] [--precision fp32] --data DIR [--out results.json]

MODEL is a folder or a bundled model. trec-dl-2019: the given BM25 run's first 100 reranked; wikiqa and
trecqa: each question's own sentences ranked; the others: BM25's first 100 of the collection reranked. Means
with 95 % intervals (BCa bootstrap over queries), and the difference to BM25. All in int8 on the processor,
unless --precision says otherwise. Where BM25 ranks the whole collection, the model is also interpolated with
it, by the alpha that is best on the other such collections.

--then has stages follow the model, such as `mono(model=duo)` or `duo(k=10)`: they rerank its first 20, and
are compared with the model alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import tamis
from tamis.cli import status_of
from tamis.core.ranking import Ranking, Run, ScoreKind
from tamis.core.registry import build
from tamis.core.runtime import Precision, Runtime
from tamis.evaluate.measures import evaluate
from tamis.evaluate.significance import bootstrap_interval, t_test
from tamis.formats import Qrels, read_corpus, read_qrels, read_queries
from tamis.rank.combine import min_max
from tamis.rank.given_run import Documents, GivenRun

#: The collections, each with its measure.
GIVEN = {"trec-dl-2019": "nDCG@10"}
SENTENCES = {"wikiqa-test": "AP", "trecqa-test": "AP"}
SEARCHED = {"cacm": "nDCG@10", "cranfield": "nDCG@10", "vaswani": "nDCG@10"}
COLLECTIONS = GIVEN | SENTENCES | SEARCHED
DEPTH = 100
BM25, MONO = "BM25", "BM25 >> mono"
REREAD = 20  # candidates that --then reranks


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
    difference: float | None = None  # to BM25; of stages that follow the model, to the model
    p: float | None = None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("model", help="a bundled model or a folder")
    arguments.add_argument("--then", metavar="STAGES", help=f"rerank the model's first {REREAD} by these")
    arguments.add_argument("--precision", choices=["int8", "fp32"], default="int8", help="(int8)")
    arguments.add_argument(
        "--data", type=Path, required=True, help="folder of the collections, in BEIR's layout"
    )
    arguments.add_argument(
        "--only", action="append", choices=COLLECTIONS, help="a collection; may be repeated (all)"
    )
    arguments.add_argument("--out", type=Path, help="a file of JSON for the figures")
    given = arguments.parse_args()
    rows: list[Row] = []
    searched: list[Ranked] = []
    for name, measure in COLLECTIONS.items():
        if given.only and name not in given.only:
            continue
        found = collection(given.data / name, measure, given.model, given.then, given.precision)
        searched += [found] if name in SEARCHED else []
        new = found.rows()
        print("\n".join(map(_line, new)), flush=True)
        rows += new
    for found in searched if len(searched) > 1 else ():
        rows.append(interpolated(found, [other for other in searched if other is not found]))
        print(_line(rows[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A collection's runs."""

    name: str
    measure: str
    qrels: Qrels
    runs: dict[str, Run]

    def values(self, run: Run) -> dict[str, float]:
        return evaluate(self.qrels, run, [self.measure]).per_query[self.measure]

    def rows(self) -> list[Row]:
        values = {name: self.values(run) for name, run in self.runs.items()}
        return [
            _row(self.name, self.measure, name, own, values[BM25 if name in (BM25, MONO) else MONO])
            for name, own in values.items()
        ]

    def interpolated(self, alpha: float) -> dict[str, float]:
        """The values of `BM25 >> interpolate(mono, alpha)`."""
        made = []
        for query, first in self.runs[BM25].items():
            mono = self.runs[MONO][query]
            places = {identity: place for place, identity in enumerate(mono.ids)}
            own = min_max(mono.scores)[[places[identity] for identity in first.ids]]
            mixed = alpha * min_max(first.scores) + (1 - alpha) * own
            made.append(first.rescored(mixed, ScoreKind.COMBINED))
        return self.values(Run(made))


def interpolated(found: Ranked, others: Sequence[Ranked]) -> Row:
    """With the alpha that is best for the mean over others."""
    alphas = np.arange(11) / 10
    means = [np.mean([np.mean(list(each.interpolated(a).values())) for each in others]) for a in alphas]
    best = float(alphas[int(np.argmax(means))])
    name = f"{BM25} >> interpolate(mono, alpha={best:g})"
    return _row(found.name, found.measure, name, found.interpolated(best), found.values(found.runs[BM25]))


def collection(
    folder: Path, measure: str, model: str, then: str | None = None, precision: Precision = "int8"
) -> Ranked:
    """BM25, mono, and what follows it."""
    queries = list(read_queries(folder / "queries.jsonl"))
    qrels = read_qrels(folder / "qrels.txt")
    judged = [query for query in queries if query.id in qrels]
    with tempfile.TemporaryDirectory() as scratch:
        documents = list(read_corpus(folder / "corpus.jsonl"))
        index = tamis.Index.build(documents, Path(scratch) / "index")
        runs = {BM25: first(folder, index, judged, qrels)}
        texts = Documents(documents, only={document.id for document in documents})
        candidates = GivenRun(runs[BM25], texts)
        runs[MONO] = (candidates >> tamis.Mono(model=model, device="cpu", precision=precision)).run(judged)
        if then:
            last = build(then, runtime=Runtime("cpu", precision))
            heads = Run([ranking.head(REREAD) for ranking in runs[MONO].values()])
            reread = (GivenRun(heads, texts) >> last).run(judged)
            runs[f"{MONO} >> {then}"] = Run(
                [_above(reread[query], rest) for query, rest in runs[MONO].items()]
            )
    return Ranked(folder.name, measure, qrels, runs)


def _above(first: Ranking, rest: Ranking) -> Ranking:
    """What was reranked, and behind it the others in their order."""
    ids = (*first.ids, *(identity for identity in rest.ids if identity not in set(first.ids)))
    return replace(rest, ids=ids, scores=-np.arange(len(ids), dtype=np.float32))


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
    sys.exit(status_of(main))
