"""The documents that two systems rank most differently: examples to inspect.

A document that only one of the runs has for a query is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Literal, get_args

from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.evaluate.measures import check_ranking
from tamis.formats import Qrels

Direction = Literal["both", "up", "down"]


@dataclass(frozen=True, slots=True)
class Move:
    """A document of a query, and its rank in both runs."""

    query: str
    document: str
    before: int
    after: int
    grade: int | None  # None if it is not judged

    @property
    def change(self) -> int:
        """The number of ranks that it went up; negative if it went down."""
        return self.before - self.after


def moved(
    before: Mapping[str, Ranking],
    after: Mapping[str, Ranking],
    n: int = 10,
    *,
    qrels: Qrels | None = None,
    rel: int | None = None,
    direction: Direction = "both",
) -> list[Move]:
    """The documents whose rank changed most from one run to another, over all queries that both contain.

    Equal changes are sorted by query, then by rank. With `rel`, only documents of at least that grade are
    listed.

    >>> import numpy as np
    >>> from tamis.base.documents import Query
    >>> bm25 = {"q": Ranking(Query("q", ""), ("d1", "d2", "d3"), np.array([3.0, 2.0, 1.0]))}
    >>> mono = {"q": Ranking(Query("q", ""), ("d3", "d1", "d2"), np.array([0.9, 0.2, 0.1]))}
    >>> moved(bm25, mono, 1, qrels={"q": {"d3": 1}})
    [Move(query='q', document='d3', before=3, after=1, grade=1)]
    """
    if n < 1:
        raise InputError(f"cannot list {n} documents", remedy="use a number of at least 1")
    if direction not in get_args(Direction):
        raise InputError(f"no direction {direction!r}", remedy=f"use {', '.join(get_args(Direction))}")
    if rel is not None and qrels is None:
        raise InputError("a grade without judgments", remedy="give the judgments too")
    if not before.keys() & after.keys():
        raise InputError("the runs have no query in common", remedy="check that the query ids match")
    wanted = (
        move
        for move in _moves(before, after, qrels or {})
        if (rel is None or (move.grade is not None and move.grade >= rel))
        and (
            move.change > 0 if direction == "up" else move.change < 0 if direction == "down" else move.change
        )
    )
    # nsmallest is stable
    return nsmallest(n, wanted, key=lambda move: -abs(move.change))


def _moves(
    before: Mapping[str, Ranking], after: Mapping[str, Ranking], qrels: Mapping[str, Mapping[str, int]]
) -> Iterator[Move]:
    for qid, ranking in after.items():
        if qid not in before:
            continue
        for each in (before[qid], ranking):
            check_ranking(each)
        stood = {doc_id: rank for rank, doc_id in enumerate(before[qid].ids, start=1)}
        grades = qrels.get(qid, {})
        for rank, doc_id in enumerate(ranking.ids, start=1):
            if doc_id in stood:
                yield Move(qid, doc_id, stood[doc_id], rank, grades.get(doc_id))
