"""The measures against trec_eval itself (its code, through pytrec_eval), query by query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis import Index, Query, Ranking
from tamis.core.ranking import Run
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries, strictly_decreasing

pytrec_eval = pytest.importorskip("pytrec_eval")

DEMO = Path(tamis.__file__).parent / "demo_data"
TREC = {
    "AP": "map",
    "AP@3": "map_cut_3",
    "nDCG": "ndcg",
    "nDCG@10": "ndcg_cut_10",
    "nDCG@3": "ndcg_cut_3",
    "P@5": "P_5",
    "P@10": "P_10",
    "R@3": "recall_3",
    "R@1000": "recall_1000",
    "RR": "recip_rank",
    "Rprec": "Rprec",
    "Bpref": "bpref",
    "Success@1": "success_1",
}


def agree(
    qrels: dict[str, dict[str, int]], run: dict[str, Ranking] | Run, rel: int = 1, judged_only: bool = False
) -> None:
    names = {_with(name, rel): trec for name, trec in TREC.items()}
    found = evaluate(qrels, run, list(names), unjudged="condensed" if judged_only else "nonrelevant")
    scores = {
        qid: dict(zip(ranking.ids, strictly_decreasing(ranking.scores).tolist(), strict=True))
        for qid, ranking in run.items()
    }
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrels, set(TREC.values()), relevance_level=rel, judged_docs_only_flag=judged_only
    )
    theirs = evaluator.evaluate(scores)
    for name, trec in names.items():
        for qid, value in found.per_query[name].items():
            assert value == pytest.approx(theirs.get(qid, {trec: 0.0})[trec], abs=1e-9), (name, qid)


def _with(name: str, rel: int) -> str:
    if rel == 1 or name.startswith("nDCG"):  # it has grades, not a threshold
        return name
    measure, at, k = name.partition("@")
    return f"{measure}(rel={rel}){at}{k}"


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    index = Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), tmp_path_factory.mktemp("index") / "idx")
    return (index.bm25() % 100).run(read_queries(DEMO / "queries.jsonl"))


@pytest.mark.parametrize("judged_only", [False, True])
def test_on_the_demo_collection(demo_run: Run, judged_only: bool) -> None:
    agree(read_qrels(DEMO / "qrels.txt"), demo_run, judged_only=judged_only)


@st.composite
def collections(draw: st.DrawFn) -> tuple[dict[str, dict[str, int]], dict[str, Ranking]]:
    """Judgments with grades 0 to 3 and a run over the same 12 documents, some of them judged, some tied."""
    documents = [f"d{i}" for i in range(12)]
    judged = draw(st.lists(st.sampled_from([None, 0, 0, 1, 2, 3]), min_size=12, max_size=12))
    grades = {docid: grade for docid, grade in zip(documents, judged, strict=True) if grade is not None}
    ids = draw(st.permutations(documents))[: draw(st.integers(1, 12))]
    scores = sorted(draw(st.lists(st.integers(0, 5), min_size=len(ids), max_size=len(ids))), reverse=True)
    ranking = Ranking(Query("q", ""), ids, np.array(scores, dtype=np.float64))
    return {"q": {**grades, "always": 3}}, {"q": ranking}


@given(collections(), st.integers(1, 3), st.booleans())
def test_on_anything(
    collection: tuple[dict[str, dict[str, int]], dict[str, Ranking]], rel: int, judged_only: bool
) -> None:
    agree(*collection, rel, judged_only)


def test_geometric_means(demo_run: Run) -> None:
    qrels = {**read_qrels(DEMO / "qrels.txt"), "never answered": {"d1": 1}}
    run = Run([*demo_run.values(), Ranking(Query("never answered", ""), ("x",), np.array([1.0]))])
    scores = {
        qid: dict(zip(ranking.ids, strictly_decreasing(ranking.scores).tolist(), strict=True))
        for qid, ranking in run.items()
    }
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"gm_map"})
    logs = [each["gm_map"] for each in evaluator.evaluate(scores).values()]
    theirs = pytrec_eval.compute_aggregated_measure("gm_map", logs)
    ours = evaluate(qrels, run, ["AP"], mean="geometric").mean["AP"]
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert ours < evaluate(qrels, run, ["AP"]).mean["AP"]
