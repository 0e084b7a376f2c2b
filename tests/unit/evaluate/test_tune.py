"""Tuning: that a fold never sees what it tests, what is chosen among equals, and that work is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Document, Index, Query, Ranking, ScoreKind, Stage
from tamis.base.errors import ExpressionError, InputError
from tamis.core.language import Call
from tamis.core.plan import rerankers
from tamis.core.runtime import Runtime
from tamis.evaluate.folds import Fold, folds_of
from tamis.evaluate.grid import (
    BIRCH,
    BIRCH_W4,
    BM25,
    INTERPOLATION,
    RM3,
    Setting,
    around,
    fill,
    parse_grid,
    pipelines_of,
    settings,
)
from tamis.evaluate.measures import evaluate
from tamis.evaluate.sweep import run_each
from tamis.evaluate.tune import cross_validate
from tamis.rank.combine import Fuse, Interpolate

DOCUMENTS = ("a", "b", "c", "d")
QUERIES = [Query(f"q{n}", "") for n in range(6)]
FOLDS = folds_of([["q0", "q1"], ["q2", "q3"], ["q4", "q5"]])


class First(Stage):
    """Ranks one document first and the others behind it: a system with one parameter, and a tally."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self, document: str) -> None:
        self.document = document

    @property
    def expression(self) -> Call:
        return Call("first", (), (("document", self.document),))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.seen.update({repr(self): len(rankings)})
        ids = (self.document, *(each for each in DOCUMENTS if each != self.document))
        return [Ranking(each.query, ids, np.arange(4, 0, -1.0), ScoreKind.RETRIEVAL) for each in rankings]


def first(setting: Setting) -> Stage:
    return First(str(setting["document"]))


def relevant(*documents: str) -> dict[str, dict[str, int]]:
    """One relevant document a query."""
    return {query.id: {document: 1} for query, document in zip(QUERIES, documents, strict=True)}


GRID = {"document": DOCUMENTS}


# -- cross-validation
# ------------------------------------------------------------------------------------------------------------


def test_each_fold_takes_what_is_best_in_its_training_queries() -> None:
    result = cross_validate(first, GRID, QUERIES, relevant("a", "a", "b", "b", "c", "c"), FOLDS, "RR")
    # trained on b b c c, b and c are equal and b comes first in the grid; on a a c c, c has a second where a
    # has c third; on a a b b, a and b are equal
    assert [choice.setting["document"] for choice in result.choices] == ["b", "c", "a"]
    assert [choice.train for choice in result.choices] == pytest.approx([2 / 3, 3 / 4, 3 / 4])
    assert [result.run[query.id].ids[0] for query in QUERIES] == ["b", "b", "c", "c", "a", "a"]
    assert list(result.run) == [query.id for query in QUERIES]
    assert result.left_out == []


def test_the_result_is_that_of_the_joined_run() -> None:
    qrels = relevant("a", "b", "b", "d", "c", "d")
    result = cross_validate(first, GRID, QUERIES, qrels, FOLDS, "RR")
    joined = evaluate(qrels, result.run, ["RR"])
    assert result.per_query == joined.per_query["RR"]
    assert result.mean == pytest.approx(joined.mean["RR"], abs=1e-12)
    for choice, fold in zip(result.choices, FOLDS, strict=True):
        assert choice.queries == 2
        assert choice.test == pytest.approx(np.mean([result.per_query[qid] for qid in fold.test]))


labels = st.lists(
    st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 3)).map(lambda grades: {**grades, "z": 1}),
    min_size=6,
    max_size=6,
)


@given(labels, labels, st.sampled_from([0, 1, 2]))
def test_labels_of_the_test_fold_cannot_change_its_choice(
    known: list[dict[str, int]], leaked: list[dict[str, int]], tested: int
) -> None:
    """Whatever is said of the queries that a fold tests, what it chooses by is the same to the last bit."""
    qrels = {query.id: grades for query, grades in zip(QUERIES, known, strict=True)}
    other = {query.id: grades for query, grades in zip(QUERIES, leaked, strict=True)}
    changed = {qid: (other if qid in FOLDS[tested].test else qrels)[qid] for qid in qrels}
    before = cross_validate(first, GRID, QUERIES, qrels, FOLDS, "AP")
    after = cross_validate(first, GRID, QUERIES, changed, FOLDS, "AP")
    assert after.choices[tested].setting == before.choices[tested].setting
    assert after.choices[tested].train == before.choices[tested].train
    assert [each.train[tested] for each in after.tried] == [each.train[tested] for each in before.tried]
    for qid in FOLDS[tested].test:
        assert after.run[qid] == before.run[qid]


def test_labels_of_training_queries_do_change_it() -> None:
    """So that the test above can fail."""
    before = cross_validate(first, GRID, QUERIES, relevant(*"aaaaaa"), FOLDS, "AP")
    after = cross_validate(first, GRID, QUERIES, relevant(*"aadddd"), FOLDS, "AP")
    assert (before.choices[0].setting["document"], after.choices[0].setting["document"]) == ("a", "d")


def test_validation_queries_are_seen_and_test_queries_are_not() -> None:
    folds = [Fold(train=("q0",), validation=("q1",), test=("q2", "q3"))]
    result = cross_validate(first, GRID, QUERIES[:4], relevant(*"bbddcc"), folds, "RR")
    assert result.choices[0].setting == {"document": "b"}
    assert list(result.run) == ["q2", "q3"]
    assert result.left_out == ["q0", "q1"]


def test_of_equal_settings_the_first_in_the_grid_wins() -> None:
    qrels = relevant(*"cccccc")
    both_ways = [
        cross_validate(first, {"document": order}, QUERIES, qrels, FOLDS, "Success@4").choices[0].setting
        for order in (("d", "b", "c"), ("c", "b", "d"))
    ]
    assert both_ways == [{"document": "d"}, {"document": "c"}]


def test_each_fold_may_have_settings_of_its_own() -> None:
    of_folds = [[{"document": "d"}, {"document": "b"}], [{"document": "b"}, {"document": "d"}]]
    qrels = relevant(*"cccccc")
    folds = folds_of([["q0", "q1", "q2"], ["q3", "q4", "q5"]])
    result = cross_validate(first, of_folds, QUERIES, qrels, folds, "P@4")
    assert [choice.setting["document"] for choice in result.choices] == [
        "d",
        "b",
    ]  # each the first of its own
    only = cross_validate(first, [[{"document": "a"}], [{"document": "c"}]], QUERIES, qrels, folds, "P@4")
    assert [each.train for each in only.tried] == [[0.25, None], [None, 0.25]]


def test_queries_without_a_relevant_document_are_ranked_and_do_not_count() -> None:
    qrels = relevant(*"aabbcc") | {"q1": {"a": 0}}
    result = cross_validate(first, GRID, QUERIES, qrels, FOLDS, "RR")
    assert "q1" in result.run
    assert "q1" not in result.per_query
    assert result.choices[0].queries == 1


@pytest.mark.parametrize(
    ("folds", "problem"),
    [
        ([Fold(("q0",), ("q9",))], "no test query of fold 1 has a relevant document"),
        ([Fold(("q0",), ("q1",)), Fold(("q9",), ("q1",))], "no training query of fold 2"),
        ([Fold(("q0", "lost"), ("q1",))], "the queries lack 1 of fold 1, such as 'lost'"),
        ([Fold(("q0", "q1"), ("q1",))], "the query 'q1' is in the training and the test part of one fold"),
        ([Fold(("q0",), ("q2",), ("q2",))], "the query 'q2' is in the training and the test part"),
        ([Fold(("q0",), ("q2",)), Fold(("q1",), ("q2",))], "the query 'q2' is in two folds: test each"),
        ([], "there are no folds: give at least one"),
    ],
)
def test_folds_that_cannot_be_tuned_on(folds: list[Fold], problem: str) -> None:
    qrels = relevant(*"aabbcc") | {"lost": {"a": 1}}
    with pytest.raises(InputError, match=problem):
        cross_validate(first, GRID, QUERIES, qrels, folds, "RR")


def test_settings_for_other_folds() -> None:
    with pytest.raises(InputError, match="1 lists of settings for 3 folds"):
        cross_validate(first, [[{"document": "a"}]], QUERIES, relevant(*"aabbcc"), FOLDS)


# -- shared work
# ------------------------------------------------------------------------------------------------------------


def test_each_setting_ranks_each_query_once() -> None:
    First.seen.clear()
    cross_validate(first, GRID, QUERIES, relevant(*"aabbcc"), FOLDS, "RR")
    assert First.seen == {f"first(document={document})": len(QUERIES) for document in DOCUMENTS}


def test_stages_that_pipelines_begin_with_alike_run_once() -> None:
    First.seen.clear()
    pipelines = [First("a") >> First(each) % k for each in ("b", "c") for k in (2, 3)]
    found = dict(run_each(pipelines, QUERIES))
    assert First.seen["first(document=a)"] == len(QUERIES)
    assert {number: found[number]["q0"].ids for number in sorted(found)} == {
        0: ("b", "a"),
        1: ("b", "a", "c"),
        2: ("c", "a"),
        3: ("c", "a", "b"),
    }


def test_stages_inside_of_others_run_once() -> None:
    First.seen.clear()
    pipelines: list[Stage] = [First("a") >> Interpolate(First("b"), alpha) for alpha in (0.0, 0.25, 0.5, 1.0)]
    pipelines += [(First("a") >> Fuse(First("b"), First("c"), k=k)) % 2 for k in (1, 60)]
    found = dict(run_each(pipelines, QUERIES))
    assert First.seen == {f"first(document={document})": len(QUERIES) for document in "abc"}
    for number, pipeline in enumerate(pipelines):
        assert list(found[number].values()) == list(pipeline.run(QUERIES).values())


def test_a_model_scores_each_pair_once_whatever_the_alpha(
    tmp_path: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    texts = {"a": "a sieve for flour", "b": "flour and water", "c": "the sieve of an old mill"}
    index = Index.build([Document(*item) for item in texts.items()], tmp_path / "idx")
    model = tiny_checkpoint(tmp_path / "model")
    queries = [Query("q1", "flour sieve"), Query("q2", "old mill water")]
    made: list[Stage] = []
    make = pipelines_of(
        f'bm25 >> interpolate(mono(model="{model.as_posix()}"), alpha={{alpha}})', index, Runtime(workers=1)
    )

    def pipeline_of(setting: Setting) -> Stage:
        made.append(make(setting))
        return made[-1]

    qrels = {"q1": {"a": 1}, "q2": {"b": 1}}
    folds = [Fold(("q1",), ("q2",)), Fold(("q2",), ("q1",))]
    result = cross_validate(pipeline_of, INTERPOLATION, queries, qrels, folds, "RR")
    assert len(made) == 11
    candidates = sum(len(index.bm25()(query)) for query in queries)
    assert sum(each.tally.inferences for stage in made for each in rerankers(stage)) == candidates
    assert set(result.run) == {"q1", "q2"}


# -- grids
# ------------------------------------------------------------------------------------------------------------


def test_the_grids_of_the_papers() -> None:
    assert [len(settings(grid)) for grid in BIRCH] == [11, 121, 1331]
    assert settings(INTERPOLATION)[3] == {"alpha": 0.3}
    assert len(settings(BM25)) == 400
    assert len(settings(RM3)) == 27_500
    assert settings(BIRCH[2])[1] == {"alpha": 0.0, "w2": 0.0, "w3": 0.1}  # the last changes fastest


def test_four_sentences_are_searched_around_the_best_three() -> None:
    found = around({"alpha": 0.4, "w2": 0.0, "w3": 1.0}, BIRCH[2], BIRCH_W4)
    assert len(found) == 3 * 2 * 2 * 11
    assert {each["alpha"] for each in found} == {0.3, 0.4, 0.5}
    assert {each["w2"] for each in found} == {0.0, 0.1}
    assert {each["w3"] for each in found} == {0.9, 1.0}
    assert {each["w4"] for each in found} == set(BIRCH_W4["w4"])


def test_there_is_nothing_around_a_setting_of_another_grid() -> None:
    with pytest.raises(InputError, match=r"alpha=0.45 is not in the grid"):
        around({"alpha": 0.45}, INTERPOLATION)


def test_grids_as_they_are_written() -> None:
    assert parse_grid(
        ["b=0.1:0.7:0.2", "n=10:30:10", "m=5,1:3:1", "x=true,none,sum,'a'".replace("'", '"')]
    ) == {
        "b": (0.1, 0.3, 0.5, 0.7),
        "n": (10, 20, 30),
        "m": (5, 1, 2, 3),
        "x": (True, None, "sum", "a"),
    }
    assert parse_grid(['model="C:/a, b","hub:c", d']) == {"model": ("C:/a, b", "hub:c", "d")}
    assert parse_grid(["down=3:1:-1", "short=0:1:0.4"]) == {"down": (3, 2, 1), "short": (0.0, 0.4, 0.8)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("k1", "is not a valid part of a grid"),
        ("k1=", "'' in 'k1=' is not a value"),
        ("k1=a b", "'a b' in 'k1=a b' is not a value"),
        ("k1=0:1", "is not a valid range"),
        ("k1=0:1:0", "is not a valid range"),
        ("k1=0:nan:1", "is not a valid range"),
        ("k1=1:0:0.1", "has 0 values"),
        ("k1=0:1:0.0000001", "has 10,000,001 values"),
        ("k1=1,1", "has a value twice"),
        ("k1=mono(model=x)", "is not a value"),
    ],
)
def test_grids_that_are_none(text: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_grid([text])
    assert problem in str(raised.value)


def test_a_grid_that_is_too_large() -> None:
    with pytest.raises(InputError, match="a grid of 1,000,000 settings"):
        parse_grid(["a=1:1000:1", "b=1:1000:1"])


def test_values_that_are_no_numbers_are_filled_in_too() -> None:
    filled = fill("duo(aggregate={how}, k={ k })", {"how": "sum", "k": None})
    assert filled == 'duo(aggregate="sum", k=none)'


def test_holes_and_names_must_agree() -> None:
    with pytest.raises(ExpressionError, match=r"the pipeline has \{k1\}"):
        fill("bm25(k1={k1})", {})
    with pytest.raises(ExpressionError, match="the grid has b, which is not in the pipeline"):
        fill("bm25(k1={k1})", {"k1": 1, "b": 1})


def test_stages_that_settings_share_are_made_once() -> None:
    pipeline_of = pipelines_of("normalise >> rm3(terms={n})")
    one, two = pipeline_of({"n": 5}), pipeline_of({"n": 6})
    assert repr(two) == "normalise >> rm3(terms=6)"
    assert one.parts[0] is two.parts[0]
