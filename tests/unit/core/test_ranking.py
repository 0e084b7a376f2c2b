"""Rankings, runs, and the one sort order."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import Document, Query, Ranking, Run
from tamis.base.errors import InputError, TamisError
from tamis.core.ranking import Hit, ScoreKind, best_first

QUERY = Query("q1", "sieve")


def ranking(ids: str = "abc", scores: tuple[float, ...] = (3.0, 2.0, 1.0)) -> Ranking:
    return Ranking(QUERY, tuple(ids), np.array(scores, dtype=np.float32), ScoreKind.RETRIEVAL)


class Shelf:
    """Texts from a dictionary."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def document(self, identity: str) -> Document:
        return Document(identity, self.texts[identity])


@pytest.mark.parametrize(
    ("scores", "ids", "expected"),
    [
        ([1.0, 3.0, 2.0], "abc", [1, 2, 0]),
        ([2.0, 2.0, 2.0], "cab", [1, 2, 0]),  # equal scores: by id
        ([1.0, 2.0, 1.0, 2.0], "dcba", [3, 1, 2, 0]),
        ([0.0, -0.0], "ba", [1, 0]),  # both zeros are one score
        ([-1.0, np.inf, -np.inf], "abc", [1, 0, 2]),
        ([1.0, 1.0], ["d10", "d9"], [0, 1]),  # ids are text, not numbers
        ([1.0, 1.0], ["é", "z"], [1, 0]),  # by code point
        ([], "", []),
        ([5.0], "a", [0]),
    ],
)
def test_best_first(scores: list[float], ids: str | list[str], expected: list[int]) -> None:
    assert best_first(np.array(scores), list(ids)).tolist() == expected


def test_a_score_must_be_a_number() -> None:
    with pytest.raises(TamisError, match="a score is not a number: check the stage that made it"):
        best_first(np.array([1.0, np.nan]), ["a", "b"])


def test_a_ranking_does_not_change() -> None:
    scores = np.array([3.0, 2.0, 1.0])
    made = Ranking(QUERY, ("a", "b", "c"), scores)
    with pytest.raises(FrozenInstanceError):
        made.ids = ("b",)  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        made.scores[0] = 9.0
    with pytest.raises(ValueError, match="read-only"):
        made.head(2).scores[0] = 9.0
    scores[0] = 9.0  # the caller's array stays the caller's
    assert made.scores.tolist() == [3.0, 2.0, 1.0]


def test_a_bare_query_is_a_ranking() -> None:
    bare = Ranking(QUERY)
    assert len(bare) == 0
    assert list(bare) == []
    assert bare.kind is ScoreKind.NONE
    assert bare.head(5) is bare


def test_one_score_an_id() -> None:
    with pytest.raises(TamisError, match="2 ids with 1 scores"):
        Ranking(QUERY, ("a", "b"), np.array([1.0]))


def test_hits_count_from_one() -> None:
    assert list(ranking("ab", (2.0, 1.5))) == [Hit(1, "a", 2.0), Hit(2, "b", 1.5)]


def test_head() -> None:
    assert ranking().head(2).ids == ("a", "b")
    assert ranking().head(2).scores.tolist() == [3.0, 2.0]
    assert ranking().head(2).kind is ScoreKind.RETRIEVAL
    assert ranking().head(99) == ranking()


def test_rescored_is_in_its_new_order() -> None:
    old = ranking()
    new = old.rescored(np.array([0.5, 0.9, 0.5]), ScoreKind.PROBABILITY)
    assert new.ids == ("b", "a", "c")
    assert new.scores.tolist() == [0.9, 0.5, 0.5]
    assert new.kind is ScoreKind.PROBABILITY
    assert old == ranking()


def test_reordered_follows_the_order_not_the_scores() -> None:
    old = ranking()
    new = old.reordered(np.array([2, 0, 1]), np.array([0.5, 0.5, 1.0]), ScoreKind.PROBABILITY)
    assert new.ids == ("c", "a", "b")
    assert new.scores.tolist() == [1.0, 0.5, 0.5]
    assert new.kind is ScoreKind.PROBABILITY
    assert old.reordered(np.array([2, 1, 0]), np.ones(3), ScoreKind.PROBABILITY).ids == ("c", "b", "a")
    assert old == ranking()
    empty = Ranking(QUERY)
    assert empty.reordered(np.zeros(0, np.int64), np.zeros(0), ScoreKind.LOGIT).kind is ScoreKind.LOGIT


def test_reordered_scores_never_increase() -> None:
    raised = np.nextafter(0.5, 1.0)  # by rounding, not by mistake
    new = ranking().reordered(np.array([0, 1, 2]), np.array([0.5, raised, 0.1]), ScoreKind.PROBABILITY)
    assert new.scores.tolist() == [0.5, 0.5, 0.1]
    for wrong in ([1.0, 2.0, 0.5], [1.0, np.nan, 0.5]):
        with pytest.raises(TamisError, match="the scores increase along the order"):
            ranking().reordered(np.array([0, 1, 2]), np.array(wrong), ScoreKind.LOGIT)


@pytest.mark.parametrize(
    ("order", "scores"), [([0, 1], 3), ([0, 1, 1], 3), ([0, 1, 3], 3), ([-1, 0, 1], 3), ([0, 1, 2], 4)]
)
def test_reordered_takes_each_candidate_once(order: list[int], scores: int) -> None:
    with pytest.raises(TamisError, match="do not belong to these candidates"):
        ranking().reordered(np.array(order), np.zeros(scores), ScoreKind.LOGIT)


def test_equality_is_of_query_order_scores_and_kind() -> None:
    assert ranking() == ranking()
    assert ranking() != ranking("acb")
    assert ranking() != ranking("abc", (3.0, 2.0, 0.5))
    assert ranking() != Ranking(QUERY, tuple("abc"), np.array([3.0, 2.0, 1.0]), ScoreKind.LOGIT)
    assert ranking() != Ranking(Query("q2", "sieve"), tuple("abc"), np.array([3.0, 2.0, 1.0]))
    assert ranking() != "abc"


def test_documents_come_in_order() -> None:
    texts = Shelf({"a": "flour", "b": "sieve"})
    made = Ranking(QUERY, ("b", "a"), np.array([2.0, 1.0]), texts=texts)
    assert [document.text for document in made.documents()] == ["sieve", "flour"]
    with pytest.raises(TamisError, match="the candidates of query 'q1' have no texts"):
        ranking().documents()


def test_a_run_is_a_mapping() -> None:
    run = Run([ranking()], {"pipeline": "bm25"})
    assert dict(run) == {"q1": ranking()}
    assert run.manifest == {"pipeline": "bm25"}
    assert repr(run) == "<Run of 1 queries, 3 results>"
    with pytest.raises(InputError, match="the query id 'q1' occurs twice"):
        Run([ranking(), ranking()])


def test_a_run_that_is_written_and_read_has_its_order_without_ties(tmp_path: Path) -> None:
    # equal scores, in an order that is neither that of ids nor its reverse
    tied = Ranking(QUERY, ("b", "c", "a", "d"), np.array([7.5, 7.5, 7.5, 7.0], dtype=np.float32))
    empty = Ranking(Query("q2", "nothing"))
    Run([tied, empty]).write(tmp_path / "tied.run", tag="mine")
    # the next float32 below 7.5 is 7.4999995, then 7.499999
    assert (tmp_path / "tied.run").read_text().splitlines() == [
        "q1 Q0 b 1 7.5 mine",
        "q1 Q0 c 2 7.4999995 mine",
        "q1 Q0 a 3 7.499999 mine",
        "q1 Q0 d 4 7.0 mine",
    ]
    texts = Shelf({"b": "sieve"})
    read = Run.read(tmp_path / "tied.run", queries=[QUERY], texts=texts)
    assert list(read) == ["q1"]
    again = read["q1"]
    assert again.query == QUERY
    assert again.ids == tied.ids
    assert again.kind is ScoreKind.RETRIEVAL
    assert (np.diff(again.scores.astype(np.float32)) < 0).all()
    np.testing.assert_allclose(again.scores, tied.scores, rtol=1e-6)
    assert again.head(1).documents()[0].text == "sieve"


def test_a_run_read_without_queries_knows_their_ids_only(tmp_path: Path) -> None:
    Run([ranking()]).write(tmp_path / "some.run")
    assert Run.read(tmp_path / "some.run")["q1"].query == Query("q1", "")


def test_a_ranking_is_a_sequence_of_hits_that_knows_its_ids() -> None:
    ranking = Ranking(Query("q", "sieve"), ("d1", "d2", "d3"), np.array([3.0, 2.0, 1.0]))
    assert ranking[0] == (1, "d1", 3.0) and ranking[-1] == (3, "d3", 1.0)
    assert [hit.id for hit in ranking[1:]] == ["d2", "d3"] and ranking[1:][0].rank == 2
    assert "d2" in ranking and "d4" not in ranking
    with pytest.raises(IndexError):
        ranking[3]


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({"q": {2: 1.0}}, "query 'q': the document id 2 is int, not str: give it as text"),
        ({1: {"d": 1.0}}, "the query id 1 is int, not str: give it as text"),
        ({"q": {"d": "a"}}, "query 'q': a score is not a number: give each document one"),
        ({"q": [("d", 1.0)]}, "query 'q': a list of scores: give each query a dict"),
    ],
)
def test_scores_that_make_no_run(scores: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Run.from_scores(scores)
