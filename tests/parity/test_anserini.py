"""First stages against Lucene and Anserini on the demo collection (tests/assets/anserini_demo/README.md).

The scores were taken from Lucene before Anserini rounds them, so ours can be held to them bit by bit.
`bench/parity_anserini.py` compares with published run files of five collections.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tamis
from tamis import Index, Query, Ranking
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.index.feedback import RM3
from tamis.index.retriever import Retriever
from tamis.index.score import BM25, Model, QueryLikelihood, TfIdf
from tamis.index.search import Backend

ASSETS = Path(__file__).parents[1] / "assets" / "anserini_demo"
DEMO = Path(tamis.__file__).parent / "demo_data"
BACKENDS: list[Backend] = ["numba", "numpy"]
MODELS: dict[str, Model] = {
    "bm25": BM25(k1=0.9, b=0.4),
    "bm25-1.2-0.75": BM25(k1=1.2, b=0.75),
    "bm25-k1-0": BM25(k1=0.0, b=0.4),
    "bm25-b-0": BM25(k1=0.9, b=0.0),
    "bm25-b-1": BM25(k1=0.9, b=1.0),
    "ql": QueryLikelihood(mu=1000.0),
    "ql-jelinek-mercer": QueryLikelihood(smoothing="jelinek-mercer", lam=0.1),
    "tfidf": TfIdf(),
}
# How far a score may be from Lucene's, where it need not be the same float32: its logarithm is Java's, which
# may differ in the last bit of a double, and its lambda is a float32.
RELATIVE = {"ql": 1e-6, "ql-jelinek-mercer": 1e-6}


@dataclass(frozen=True)
class Demo:
    index: Index
    queries: dict[str, Query]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    index = Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), tmp_path_factory.mktemp("demo") / "idx")
    return Demo(index, {query.id: query for query in read_queries(DEMO / "queries.jsonl")})


def expected(name: str) -> list[dict[str, Any]]:
    records = [
        json.loads(line) for line in lzma.decompress((ASSETS / f"{name}.jsonl.xz").read_bytes()).splitlines()
    ]
    assert len(records) >= 40
    return records


def theirs(record: dict[str, Any], demo: Demo) -> Ranking:
    return Ranking(
        demo.queries[record["query"]], tuple(record["ids"]), np.array(record["scores"], dtype=np.float32)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_documents_and_scores_are_those_of_lucene(demo: Demo, name: str, backend: Backend) -> None:
    retriever = Retriever(demo.index, MODELS[name], backend=backend)
    for record in expected(name):
        other = theirs(record, demo)
        assert len(other) >= 30
        ours = (retriever % len(other))(other.query)
        assert ours.ids == other.ids
        np.testing.assert_allclose(ours.scores, other.scores, rtol=RELATIVE.get(name, 0.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_feedback_expands_and_finds_as_anserini_does(demo: Demo, backend: Backend) -> None:
    retriever, rm3 = Retriever(demo.index, BM25(), backend=backend), RM3(terms=10, docs=10, weight=0.5)
    for record in expected("bm25-rm3"):
        other = theirs(record, demo)
        expanded = rm3.expand(demo.index, retriever(other.query))
        assert {term: np.float32(weight) for term, weight in expanded.items()} == {
            term: np.float32(weight) for term, weight in record["weights"].items()
        }
        assert (retriever >> rm3 % 100)(other.query).ids == other.ids
        assert (retriever >> rm3 % 100)(other.query).scores.tolist() == other.scores.tolist()


@pytest.mark.parametrize(
    ("name", "pipeline", "tolerance"),
    [
        ("bm25", "bm25 % 100", 0.002),
        ("bm25-1.2-0.75", "bm25(k1=1.2, b=0.75) % 100", 0.002),
        ("ql", "ql % 100", 0.002),
        ("bm25-rm3", "bm25 >> rm3 % 100", 0.005),
    ],
)
def test_pipelines_are_as_effective_as_anserini(
    demo: Demo, name: str, pipeline: str, tolerance: float
) -> None:
    others = [theirs(record, demo) for record in expected(name)]
    judged = read_qrels(DEMO / "qrels.txt")
    qrels = {other.query.id: judged[other.query.id] for other in others}
    measures = ("nDCG@10", "AP")
    our_run = demo.index.pipeline(pipeline).run([other.query for other in others])
    ours = evaluate(qrels, our_run, measures).mean
    wanted = evaluate(qrels, {other.query.id: other for other in others}, measures).mean
    assert ours == pytest.approx(wanted, abs=tolerance)
    assert wanted["nDCG@10"] > 0.5
