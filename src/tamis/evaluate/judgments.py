"""Judgments from a caller instead of a file, with the same checks as for files."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from tamis.base.errors import InputError
from tamis.formats import Qrels


def checked(qrels: Qrels) -> Qrels:
    """The judgments with integer grades; equal values such as 1.0 or numpy's are converted, others refused: a
    measure would silently truncate 0.5 to 0.

    >>> checked({"q1": {"d1": 2.0, "d2": True}})
    {'q1': {'d1': 2, 'd2': 1}}
    >>> checked({"q1": {"d1": 0.5}})
    Traceback (most recent call last):
    tamis.base.errors.InputError: query 'q1': the grade 0.5 of 'd1' is not a whole number: give 0, 1, 2, ...
    """
    if not isinstance(qrels, Mapping):  # callers without a type checker, as in the checks below
        raise InputError(
            f"the judgments are a {type(qrels).__name__}", remedy="give a dict, {qid: {docid: grade}}"
        )
    return {qid: _checked_grades(qid, grades) for qid, grades in qrels.items()}


def with_relevant(qrels: Qrels) -> Qrels:
    """The judgments of queries that have a relevant document; for the others recall, AP and nDCG are
    undefined.

    >>> with_relevant({"q1": {"d1": 1, "d2": 0}, "q2": {"d1": 0}})
    {'q1': {'d1': 1, 'd2': 0}}
    """
    graded = checked(qrels)
    return {qid: grades for qid, grades in graded.items() if any(grade > 0 for grade in grades.values())}


def _checked_grades(qid: str, grades: dict[str, int]) -> dict[str, int]:
    if not isinstance(grades, Mapping):
        problem = f"the judgments of query {qid!r} are a {type(grades).__name__}"
        raise InputError(problem, remedy="give a dict, {docid: grade}")
    if set(map(type, grades.values())) <= {int}:  # as from a file: a cheap check, and no copy
        return grades
    return {docid: _grade(qid, docid, grade) for docid, grade in grades.items()}


def _grade(qid: str, docid: str, grade: Any) -> int:
    if isinstance(grade, Integral | np.bool_):
        return int(grade)
    if isinstance(grade, Real) and (value := float(grade)).is_integer():
        return int(value)
    problem = f"query {qid!r}: the grade {grade!r} of {docid!r} is not a whole number"
    raise InputError(problem, remedy="give 0, 1, 2, ...")
