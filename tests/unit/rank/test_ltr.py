"""Learning to rank by a linear model: features and scores worked by hand, and weights that are found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Document, Index, Query, Ranking
from tamis.base.arrays import Array
from tamis.base.errors import ExpressionError, InputError, TamisError, UnknownDocumentError
from tamis.core.ranking import Run, ScoreKind, best_first
from tamis.evaluate.measures import evaluate
from tamis.index.dependence import SDM, Dependence
from tamis.rank.ltr import LTR, LinearModel
from tamis.rank.ltr_features import lexical, stage_scores
from tamis.train.ltr import coordinate_ascent, train_ltr

TEXTS = {"d1": "a b c", "d2": "b c a a", "d3": "c", "d4": "a"}
QUERY = Query("q1", "a b")
#: idf of a, which is in three of four documents, and of b, which is in two
A, B = math.log(1 + 1.5 / 3.5), math.log(1 + 2.5 / 2.5)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(*item) for item in TEXTS.items()]
    folder = tmp_path_factory.mktemp("ltr") / "idx"
    # two segments, and a document that was replaced
    index = Index.build(documents[:2], folder, analyzer="whitespace", positions=True)
    index.add([Document("d3", "a a a a a a b"), documents[3]])
    index.add([documents[2]], on_duplicate="replace")
    return index


def candidates(scores: dict[str, float] | None = None) -> Ranking:
    scores = {"d4": 3.0, "d1": 2.0, "d2": 1.0, "d3": 1.0} if scores is None else scores
    return Ranking(QUERY, tuple(scores), np.array(list(scores.values())), ScoreKind.RETRIEVAL)


# -- features


def test_what_an_index_knows_of_candidates(index: Index) -> None:
    found = lexical(candidates(), index)
    assert found["length"].tolist() == [1, 3, 4, 1]
    assert found["matched"].tolist() == [1, 2, 2, 0]
    assert found["idf"].tolist() == pytest.approx([A, A + B, A + B, 0])
    # a term counts once, however often the query has it
    again = replace(candidates(), query=Query("q1", "a a b b"))
    assert lexical(again, index)["matched"].tolist() == [1, 2, 2, 0]
    with pytest.raises(UnknownDocumentError, match="no document 'd9': take the candidates from this index"):
        lexical(candidates({"d1": 1.0, "d9": 0.5}), index)


@pytest.mark.parametrize("expression", ["bm25", "bm25 % 1", "tfidf", "ql", "ql(variant=exact)"])
def test_a_first_stage_scores_the_candidates_as_it_scores_what_it_finds(
    expression: str, index: Index
) -> None:
    all_of = index.pipeline(expression.removesuffix(" % 1"))("a b")
    found = dict(zip(all_of.ids, all_of.scores.tolist(), strict=True))
    assert set(found) == {"d1", "d2", "d4"}  # d3 holds no term of the query
    (scores,) = stage_scores(index.pipeline(expression), [candidates()])
    assert scores.tolist() == [found["d4"], found["d1"], found["d2"], min(0.0, *found.values())]
    (fewer,) = stage_scores(index.pipeline(expression), [candidates({"d2": 1.0})])
    assert fewer.tolist() == [found["d2"]]


def test_sequential_dependence_scores_the_candidates(index: Index) -> None:
    found = {hit.id: hit.score for hit in index.sdm()("a b")}
    (scores,) = stage_scores(index.sdm(), [candidates()])
    assert scores.tolist() == [found["d4"], found["d1"], found["d2"], min(found.values())]
    only = SDM(index, Dependence(terms=0.0, unordered=0.0), only=["d1", "d2", "d9"])
    assert only("a b").ids == ("d1",)
    assert SDM(index, only=["d2", "d4"])("a b").ids == ("d2", "d4")
    assert SDM(index, only=["d2"]).fingerprint != index.sdm().fingerprint


def test_any_other_stage_is_asked_as_it_is(index: Index) -> None:
    """The first of one list is fused with the first of the other: what is in neither has 0."""
    fused = index.pipeline("fuse(bm25 % 1, ql % 1)")
    assert fused("a b").ids == ("d2", "d4")
    (scores,) = stage_scores(fused, [candidates()])
    assert scores.tolist() == pytest.approx([1 / 61, 0.0, 1 / 61, 0.0])


# -- the stage


def test_scores_by_hand(index: Index) -> None:
    """Between 0 and 1 the scores are 1, 1/2, 0, 0; matched 1/2, 1, 1, 0; lengths 0, 2/3, 1, 0."""
    stage = LTR(score=0.25, matched=1.0, length=-0.25, index=index)
    found = stage(candidates())
    assert found.ids == ("d1", "d2", "d4", "d3")  # of equal ones d2 comes before d4
    assert found.scores.tolist() == pytest.approx([0.125 + 1 - 0.25 * 2 / 3, 0.75, 0.75, 0.0])
    assert found.kind is ScoreKind.COMBINED


def test_features_may_be_taken_as_they_are(index: Index) -> None:
    found = LTR(index.bm25(), weights=2, idf=-1.0, normalise="raw", index=index)(candidates())
    bm25 = {hit.id: hit.score for hit in index.bm25()("a b")}
    idf = {"d1": A + B, "d2": A + B, "d4": A, "d3": 0.0}
    assert {hit.id: hit.score for hit in found} == pytest.approx(
        {identity: 2 * bm25.get(identity, 0.0) - idf[identity] for identity in TEXTS}
    )


def test_all_candidates_stay_with_what_they_came_with(index: Index) -> None:
    before = replace(index.bm25()("a b"), evidence={"d1": ()})
    after = LTR(index.ql(), weights="-1")(before)
    assert sorted(after.ids) == sorted(before.ids)
    assert (after.texts, after.origin, after.evidence) == (before.texts, before.origin, before.evidence)
    attached = LTR(index.ql(), weights=1).attach(candidates())
    assert (attached.texts, attached.origin) == (None, None)
    nothing = index.bm25()("zebra")
    assert len(index.pipeline('ltr(bm25, sdm, weights="1 1", score=1, idf=1)')(nothing)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "ltr(score=1.0)",
        'ltr(bm25, sdm(terms=0.0), weights="0.5 -0.25", score=0.25)',
        "ltr(bm25 >> rm3 % 9, weights=1.0, length=0.5, idf=0.25, matched=-1.0, normalise=z)",
    ],
)
def test_it_prints_as_it_is_written(text: str, index: Index) -> None:
    assert repr(index.pipeline(f"bm25 % 1000 >> {text} % 10")) == f"bm25 % 1000 >> {text} % 10"


def test_what_it_depends_on(index: Index) -> None:
    assert LTR(score=1.0).resources == ""
    assert index.fingerprint in LTR(idf=1.0, index=index).resources
    assert index.fingerprint in LTR(index.bm25(), weights="1").resources


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ltr", "ltr without a feature: give a stage"),
        ("ltr(score=0.0)", "ltr without a feature"),
        ("ltr(bm25)", "ltr of 1 stages with 0 weights: give each its own"),
        ('ltr(bm25, weights="1 2")', "ltr of 1 stages with 2 weights"),
        ('ltr(bm25, weights="one")', "weights of ltr are 'one': write numbers"),
        ('ltr(bm25, weights="nan")', "ltr with a weight that is not finite"),
        ('ltr(bm25, weights="1", normalise=maxmin)', "normalise of ltr cannot be 'maxmin'"),
        ("ltr(speed=1)", "ltr has no option 'speed': it takes weights, score, length, idf, matched, norm"),
        ("ltr(index=1)", "ltr has no option 'index'"),
    ],
)
def test_what_is_refused(text: str, said: str, index: Index) -> None:
    with pytest.raises(ExpressionError, match=said.replace("(", r"\(")):
        index.pipeline(f"bm25 >> {text}")


def test_grades_are_whole_numbers(index: Index) -> None:
    found = index.bm25().run([Query("q1", "a b")])
    with pytest.raises(InputError, match=r"the grade 0\.5 of .* is not a whole number"):
        train_ltr(found, {"q1": {found["q1"].ids[0]: 0.5}}, ["score"], "RR", index=index)


def test_what_python_may_get_wrong(index: Index) -> None:
    with pytest.raises(InputError, match="idf of ltr needs an index"):
        LTR(idf=1.0)
    with pytest.raises(InputError, match="ltr of 'bm25': give stages"):
        LTR("bm25", weights="1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="normalise='no'"):
        LTR(score=1.0, normalise="no")  # type: ignore[arg-type]
    with pytest.raises(TamisError, match="ltr has no candidates to order for query '0'"):
        LTR(index.bm25(), weights="1")("a b")


def test_a_score_that_is_too_large_to_be_one(index: Index) -> None:
    with pytest.raises(TamisError, match="a score is not a finite number"):
        LTR(score=1e308, normalise="raw")(candidates())
    with pytest.raises(TamisError, match="a score is not a finite number"):
        LTR(index.bm25(), index.ql(), index.bm25(), weights="-1e308 1 -1e308")(candidates())


# -- the model


def test_a_model_is_saved_and_read(tmp_path: Path, index: Index) -> None:
    model = LinearModel({"score": 0.5, "sdm": 0.0, "ql": -0.25, "idf": 0.25}, "z", "AP", 0.75, 12, seed=3)
    assert str(model) == "ltr(ql, weights=-0.25, score=0.5, idf=0.25, normalise=z)"
    model.save(tmp_path / "ltr.json")
    assert LinearModel.read(tmp_path / "ltr.json") == model
    assert json.loads((tmp_path / "ltr.json").read_text())["stage"] == str(model)
    (tmp_path / "ltr.json").write_text("[1]")
    with pytest.raises(InputError, match=r"ltr\.json: not a model of ltr: give a file that it saved"):
        LinearModel.read(tmp_path / "ltr.json")


# -- coordinate ascent


def l1(weights: Array) -> float:
    return float(np.abs(weights).sum())


def test_the_ascent_finds_a_corner_and_its_sign() -> None:
    weights, value = coordinate_ascent(lambda w: -float(w[1]), 3)
    assert weights.tolist() == pytest.approx([0, -1, 0], abs=0.02) and value == pytest.approx(1, abs=0.02)
    assert coordinate_ascent(lambda w: -float(w[0]), 1)[0].tolist() == [-1.0]
    # one ascent is enough to change a sign, and to leave a feature out altogether
    assert coordinate_ascent(lambda w: -float(w[1]), 3, restarts=0)[1] == pytest.approx(1, abs=0.02)
    assert coordinate_ascent(lambda w: -abs(float(w[0])), 2, restarts=0)[0].tolist() == [0.0, 1.0]


def test_equal_weights_stay_where_nothing_is_better() -> None:
    weights, value = coordinate_ascent(lambda w: 0.5, 4, seed=7)
    assert (weights.tolist(), value) == ([0.25] * 4, 0.5)


def test_restarts_leave_a_local_peak() -> None:
    """A low hill all around equal weights, and a high one where both are negative."""

    def value(w: Array) -> float:
        return 2.0 if w[0] < 0 and w[1] < 0 else -float(abs(w[0] - 0.5))

    assert coordinate_ascent(value, 2, restarts=0)[1] == pytest.approx(0, abs=1e-9)
    assert coordinate_ascent(value, 2, restarts=20)[1] == 2.0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=4), st.integers(0, 5))
def test_an_ascent_never_ends_below_its_start(target: list[float], seed: int) -> None:
    goal = np.array(target)

    def value(w: Array) -> float:
        return -float(np.square(w - goal).sum())

    weights, found = coordinate_ascent(value, len(goal), seed=seed, restarts=1)
    assert l1(weights) == pytest.approx(1)
    assert found == value(weights) >= value(np.full(len(goal), 1 / len(goal)))
    again, same = coordinate_ascent(value, len(goal), seed=seed, restarts=1)
    assert (again.tolist(), same) == (weights.tolist(), found)


@pytest.mark.parametrize(("size", "restarts"), [(0, 1), (1, -1)])
def test_an_ascent_of_nothing(size: int, restarts: int) -> None:
    with pytest.raises(InputError, match="use at least 1"):
        coordinate_ascent(l1, size, restarts=restarts)


# -- training


@pytest.fixture
def judged(index: Index) -> tuple[Run, dict[str, dict[str, int]]]:
    """BM25 puts the short d4 first where a is asked for; the judges want the long ones."""
    queries = [Query("q1", "a"), Query("q2", "a b"), Query("q3", "c"), Query("q4", "zebra"), Query("q5", "a")]
    qrels = {"q1": {"d2": 2, "d1": 1}, "q2": {"d2": 1}, "q3": {"d2": 1, "d3": 0}, "q4": {"d1": 1}}
    return index.bm25().run(queries), {**qrels, "q5": {"d4": 0}, "q6": {"d1": 1}}


@pytest.mark.parametrize("measure", ["AP", "nDCG@10", "RR@10", "P@1", "IPrec@0.1"])
@pytest.mark.parametrize("normalise", ["minmax", "z"])
def test_what_is_trained_is_what_is_measured(
    measure: str, normalise: str, index: Index, judged: tuple[Run, dict[str, dict[str, int]]]
) -> None:
    """q5 has no relevant document and q6 no candidates: they do not count; q4 finds nothing and counts 0."""
    run, qrels = judged
    names = ["score", "length", "ql", "sdm(terms=0)", "matched", "idf"]
    model = train_ltr(run, qrels, names, measure, index=index, normalise=normalise)  # type: ignore[arg-type]
    counted = {qid: qrels[qid] for qid in ("q1", "q2", "q3", "q4")}
    reranked = index.pipeline(f"bm25 >> {model}").run([ranking.query for ranking in run.values()])
    assert model.value == pytest.approx(evaluate(counted, reranked, [measure]).mean[measure], abs=1e-12)
    assert model.value == pytest.approx(0.75)  # all that can be had
    assert evaluate(counted, run, [measure]).mean[measure] < 0.75
    assert (model.measure, model.queries, model.normalise, model.seed) == (measure, 4, normalise, 0)
    assert list(model.weights) == ["score", "length", "ql", "sdm(terms=0.0)", "matched", "idf"]
    assert all(weight == round(weight, 4) for weight in model.weights.values())


def test_training_is_repeatable(index: Index, judged: tuple[Run, dict[str, dict[str, int]]]) -> None:
    def trained(seed: int) -> LinearModel:
        return train_ltr(*judged, ["score", "length", "idf"], "AP", index=index, seed=seed)

    assert trained(1) == trained(1)
    assert trained(1).seed == 1


def test_ties_are_broken_as_rankings_break_them() -> None:
    """With equal scores the measure is that of the order by id."""
    ids = [f"d{number}" for number in range(99, 9, -1)]
    run = Run([candidates(dict.fromkeys(ids, 1.0))])
    model = train_ltr(run, {"q1": {"d71": 1}}, ["score"], "RR")
    place = best_first(np.ones(len(ids)), ids).tolist().index(ids.index("d71"))
    assert model.value == 1 / (place + 1) == 1 / 62


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (lambda run: train_ltr(run, {"q1": {"d1": 1}}, ["idf"]), "idf of ltr needs an index: give `index`"),
        (lambda run: train_ltr(run, {"q1": {"d1": 1}}, []), "ltr without a feature"),
        (lambda run: train_ltr(run, {"q1": {"d1": 1}}, ["score", "score"]), "the feature score comes twice"),
        (lambda run: train_ltr(run, {"q9": {"d1": 1}}, ["score"]), "no query with candidates has a relevant"),
        (lambda run: train_ltr(run, {"q1": {"d1": 1}}, ["bm25"]), "a first stage needs an index"),
        (lambda run: train_ltr(run, {"q1": {"d1": 1}}, ["score"], "ABC"), "'ABC' is not a measure"),
        (
            lambda run: train_ltr(run, {"q1": {"d1": 1}}, ["score"], seed=-1),
            "the seed -1: use a whole number",
        ),
    ],
)
def test_what_cannot_be_trained(train: Callable[[Run], LinearModel], said: str) -> None:
    with pytest.raises(TamisError, match=said):
        train(Run([candidates()]))
