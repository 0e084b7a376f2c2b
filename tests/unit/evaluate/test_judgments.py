"""Judgments that a caller gives: grades that are whole numbers, whatever their type, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.evaluate.candidates import Candidate
from tamis.evaluate.folds import Fold, make_folds
from tamis.evaluate.judgments import checked
from tamis.evaluate.measures import evaluate
from tamis.evaluate.tradeoff import trade_off
from tamis.evaluate.tune import cross_validate

RUN = {"1": Ranking(Query("1", ""), ("a", "b"), np.array([2.0, 1.0]))}
FOLDS = [Fold(("1",), ("2",)), Fold(("2",), ("1",))]


def never(_: object) -> Any:
    raise AssertionError("judgments are looked at first")


CALLERS: dict[str, Callable[[Any], object]] = {
    "evaluate": lambda qrels: evaluate(qrels, RUN, ["nDCG@10"]),
    "make_folds": lambda qrels: make_folds(qrels, 2),
    "cross_validate": lambda qrels: cross_validate(never, {"b": [1]}, [], qrels, FOLDS),
    "trade_off": lambda qrels: trade_off(list[Candidate](), [Query("1", "")], qrels, "RR"),
}


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(
    ("qrels", "problem"),
    [
        ({"1": {"a": 0.5, "b": 2}}, r"query '1': the grade 0\.5 of 'a' is not a whole number: give 0, 1, 2"),
        ({"1": {"a": 1, "b": np.float32(1.5)}}, "the grade .* of 'b' is not a whole number"),
        ({"1": {"a": float("nan")}}, "the grade nan of 'a' is not a whole number"),
        ({"1": {"a": float("inf")}}, "the grade inf of 'a' is not a whole number"),
        ({"1": {"a": 1}, "2": {"b": None}}, "query '2': the grade None of 'b' is not a whole number"),
        ({"1": {"a": "1"}}, "the grade '1' of 'a' is not a whole number"),
        ({"1": ["z"]}, r"the judgments of query '1' are a list: give a dict, \{docid: grade\}"),
        ({"1": None}, "the judgments of query '1' are a NoneType"),
        ([("1", "a", 1)], r"the judgments are a list: give a dict, \{qid: \{docid: grade\}\}"),
    ],
)
def test_what_is_no_judgment_is_refused(caller: str, qrels: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        CALLERS[caller](qrels)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [float, np.int8, np.int64, np.uint16, np.float32, np.float64])
def test_whole_numbers_of_any_type_are_grades(kind: Callable[[int], Any]) -> None:
    qrels = {"1": {"a": kind(1), "b": kind(2), "c": kind(0)}}
    plain = {"1": {"a": 1, "b": 2, "c": 0}}
    assert {type(grade) for grade in checked(qrels)["1"].values()} == {int}
    measures = ["nDCG@10", "AP", "ERR@10"]  # the last by an engine that is not ours
    assert evaluate(qrels, RUN, measures) == evaluate(plain, RUN, measures)


@pytest.mark.parametrize("kind", [bool, np.bool_])
def test_relevant_or_not_is_a_grade(kind: Callable[[int], Any]) -> None:
    assert evaluate({"1": {"a": kind(0), "b": kind(1)}}, RUN, ["RR"]).mean == {"RR": 0.5}


def test_grades_of_a_file_are_not_copied() -> None:
    grades = {"a": 1}
    assert checked({"1": grades})["1"] is grades
