"""Which documents moved most between two runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Query, Ranking, Run
from tamis.base.errors import InputError
from tamis.evaluate.moved import Direction, Move, moved


def run(**rankings: str) -> Run:
    """Documents are letters."""
    return Run(
        Ranking(Query(qid, ""), tuple(ids), np.arange(len(ids), 0, -1.0)) for qid, ids in rankings.items()
    )


BEFORE = run(q1="abcde", q2="xyz", q3="k")
AFTER = run(q1="eabcd", q2="zyx", q4="k")


def test_the_largest_changes_of_all_queries_come_first() -> None:
    assert moved(BEFORE, AFTER, 4) == [
        Move("q1", "e", 5, 1, None),
        Move("q2", "z", 3, 1, None),  # of equal changes: queries as they come, then ranks
        Move("q2", "x", 1, 3, None),
        Move("q1", "a", 1, 2, None),
    ]
    assert [move.change for move in moved(BEFORE, AFTER, 3)] == [4, 2, -2]


def test_what_did_not_move_is_not_listed() -> None:
    assert len(moved(BEFORE, AFTER, 100)) == 7  # y stands where it stood, k is in no query of both
    assert moved(BEFORE, BEFORE, 100) == []


def test_documents_of_one_run_alone_have_no_change() -> None:
    assert moved(run(q="abc"), run(q="xc")) == [Move("q", "c", 3, 2, None)]


@pytest.mark.parametrize(("direction", "found"), [("up", "ez"), ("down", "xabcd"), ("both", "ezxabcd")])
def test_one_direction(direction: Direction, found: str) -> None:
    assert "".join(move.document for move in moved(BEFORE, AFTER, 9, direction=direction)) == found


def test_grades() -> None:
    qrels = {"q1": {"e": 2, "a": 0}, "q2": {"x": 1}}
    found = {move.document: move.grade for move in moved(BEFORE, AFTER, 9, qrels=qrels)}
    assert found == {"e": 2, "a": 0, "x": 1, "z": None, "b": None, "c": None, "d": None}
    assert [move.document for move in moved(BEFORE, AFTER, 9, qrels=qrels, rel=1)] == ["e", "x"]


@given(st.permutations(range(8)), st.permutations(range(8)), st.integers(1, 8))
def test_nothing_left_out_moved_further(one: list[int], two: list[int], n: int) -> None:
    before, after = run(q="".join(map(str, one))), run(q="".join(map(str, two)))
    everything = moved(before, after, 8)
    assert sorted(abs(move.change) for move in everything) == sorted(
        change for i in range(8) if (change := abs(one.index(i) - two.index(i)))
    )
    assert moved(before, after, n) == everything[:n]
    for move in everything:
        assert move.change == one.index(int(move.document)) - two.index(int(move.document))


def test_runs_of_other_queries() -> None:
    with pytest.raises(InputError, match="the runs have no query in common"):
        moved(run(p="a"), run(q="a"))


def test_a_document_twice() -> None:
    with pytest.raises(InputError, match="the document 'a' comes twice"):
        moved(run(q="aa"), run(q="a"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"n": 0}, "0 documents"),
        ({"rel": 1}, "a grade without judgments"),
        ({"direction": "left"}, "no direction 'left'"),
    ],
)
def test_mistakes(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        moved(BEFORE, AFTER, **options)  # type: ignore[arg-type]
