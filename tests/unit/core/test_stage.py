"""Stages: how they are put together, how deep they look, what identifies them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking
from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import ScoreKind
from tamis.core.stage import Pipeline, Stage, TopK
from tamis.index.feedback import RM3
from tamis.index.score import BM25


class Numbers(Stage):
    """Finds the documents 0, 1, 2, ... and remembers how it was asked."""

    def __init__(self, name: str = "numbers", found: int = 20) -> None:
        self.name, self.found = name, found
        self.depths: list[int | None] = []
        self.batches: list[int] = []
        self.prepared = 0

    @property
    def expression(self) -> Call:
        return Call(self.name)

    def prepare(self) -> None:
        self.prepared += 1

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.depths.append(depth)
        self.batches.append(len(rankings))
        ids = tuple(f"{n:02d}" for n in range(self.found))
        scores = -np.arange(self.found, dtype=np.float32)
        return [replace(r, ids=ids, scores=scores, kind=ScoreKind.RETRIEVAL) for r in rankings]


class Reversed(Numbers):
    """A reranker: its candidates, the last one first."""

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.depths.append(depth)
        return [r.rescored(np.arange(len(r), dtype=np.float32), ScoreKind.LOGIT) for r in rankings]


# -- putting together
# ------------------------------------------------------------------------------------------------------------


def test_then_and_keep_print_as_the_expression() -> None:
    first, second, third = Numbers("a"), Reversed("b"), Reversed("c")
    assert repr(first >> second) == "a >> b"
    assert repr(first % 5 >> second % 3 >> third) == "a % 5 >> b % 3 >> c"
    assert repr((first >> second) % 3) == "a >> b % 3"
    assert repr(first % 9 % 4 % 7) == "a % 4"


def test_grouping_does_not_matter() -> None:
    first, second, third = Numbers("a"), Reversed("b"), Reversed("c")
    left, right = (first >> second) >> third, first >> (second >> third)
    assert isinstance(left, Pipeline)
    assert isinstance(right, Pipeline)
    assert left.stages == right.stages == (first, second, third)


@pytest.mark.parametrize("k", [0, -1, 2.5, True, "5", None])
def test_only_whole_numbers_can_be_kept(k: object) -> None:
    with pytest.raises(InputError, match="use a whole number of at least 1"):
        Numbers() % k  # type: ignore[operator]


def test_only_stages_can_follow() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        Numbers() >> "rm3"  # type: ignore[operator]


def test_a_pipeline_ranks_step_by_step() -> None:
    assert (Numbers() % 5 >> Reversed())("q").ids == ("04", "03", "02", "01", "00")
    assert (Numbers() % 5 >> Reversed() % 2)("q").ids == ("04", "03")
    assert (Numbers() >> Reversed() % 2)("q").ids == ("19", "18")


def test_one_query_or_several() -> None:
    stage = Numbers(found=1)
    assert stage("sieve").query == Query("0", "sieve")
    assert stage(Query("q7", "sieve")).query.id == "q7"
    assert stage(Ranking(Query("q8", "sieve"))).query.id == "q8"
    assert [r.query.id for r in stage(["sieve", Query("q9", "flour"), "bread"])] == ["0", "q9", "2"]
    assert stage([]) == []


# -- depth
# ------------------------------------------------------------------------------------------------------------


def test_a_stage_is_told_how_much_will_be_looked_at() -> None:
    first, second = Numbers("a"), Reversed("b")
    (first % 5 >> second % 3)("q")
    assert (first.depths, second.depths) == ([5], [3])
    (first >> second)("q")
    assert (first.depths[1:], second.depths[1:]) == ([None], [None])
    (first % 5).apply([Ranking(Query("q", ""))], 2)
    assert first.depths[2:] == [2]
    (first >> second).apply([Ranking(Query("q", ""))], 2)  # only the last stage may stop early
    assert (first.depths[3:], second.depths[2:]) == ([None], [2])


def test_a_stage_that_gives_more_than_asked_is_cut() -> None:
    assert (Numbers(found=20) % 5)("q").ids == ("00", "01", "02", "03", "04")
    assert len(TopK(Numbers(found=20), 5).apply([Ranking(Query("q", ""))], 2)[0]) == 2


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document(f"d{n}", "sieve" if n < 1200 else "flour bread") for n in range(2400)]
    return Index.build(documents, tmp_path_factory.mktemp("stage") / "idx", positions=True)


@pytest.mark.parametrize("name", ["bm25", "ql", "tfidf", "sdm"])
def test_first_stages_find_a_thousand_unless_told(large: Index, name: str) -> None:
    assert len(large.pipeline(name)("sieve")) == 1000
    assert len(large.pipeline(f"{name} % 5")("sieve")) == 5
    assert len(large.pipeline(f"{name} % 5000")("sieve")) == 1200


def test_feedback_searches_as_deep_as_asked(large: Index) -> None:
    assert len(large.pipeline("bm25 % 3 >> rm3")("sieve")) == 1000
    assert len(large.pipeline("bm25 % 3 >> rm3 % 1100")("sieve")) == 1100


# -- what identifies a stage
# ------------------------------------------------------------------------------------------------------------


def test_a_fingerprint_says_what_a_stage_is(tmp_path: Path) -> None:
    index = Index.build([Document("d1", "sieve")], tmp_path / "idx")
    pipeline = "bm25(k1=1.2) % 100 >> rm3 % 10"
    before = index.pipeline(pipeline).fingerprint
    assert len(before) == 16
    assert index.pipeline(pipeline).fingerprint == before
    assert Index.open(tmp_path / "idx").pipeline(pipeline).fingerprint == before
    assert (index.bm25(k1=1.2) % 100 >> RM3() % 10).fingerprint == before
    others = [
        "bm25(k1=1.3) % 100 >> rm3 % 10",
        "bm25(k1=1.2) % 99 >> rm3 % 10",
        "bm25(k1=1.2) % 100 >> rm3(terms=11) % 10",
        "bm25(k1=1.2) % 100",
        "ql % 100 >> rm3 % 10",
    ]
    assert len({before, *(index.pipeline(other).fingerprint for other in others)}) == 1 + len(others)


def test_a_fingerprint_changes_with_the_commit_and_the_filter(tmp_path: Path) -> None:
    index = Index.build([Document("d1", "sieve")], tmp_path / "idx")
    stage = index.bm25() % 10
    before = stage.fingerprint
    assert (index.bm25(only=["d1"]) % 10).fingerprint != before
    assert (index.bm25(without=["d1"]) % 10).fingerprint != before
    assert index.bm25(only=["d1"]).fingerprint != index.bm25(without=["d1"]).fingerprint
    index.add([Document("d2", "flour")])
    assert stage.fingerprint != before  # the same stage, now over the new commit
    assert (Index.open(tmp_path / "idx").bm25() % 10).fingerprint == stage.fingerprint
    other = Index.build([Document("d1", "sieve")], tmp_path / "other")
    assert (other.bm25() % 10).fingerprint != before  # the same documents are not the same index


# -- runs
# ------------------------------------------------------------------------------------------------------------


def test_a_run_prepares_once_and_goes_in_batches() -> None:
    first, second = Numbers("a", found=3), Reversed("b")
    told: list[int] = []
    queries = [Query(f"q{n}", "") for n in range(130)]
    run = (first % 2 >> second % 1).run(queries, progress=told.append)
    assert (first.prepared, second.prepared) == (1, 1)
    assert first.batches == told == [64, 64, 2]
    assert list(run) == [query.id for query in queries]
    assert {ranking.ids for ranking in run.values()} == {("01",)}
    assert run.manifest["pipeline"] == "a % 2 >> b % 1"
    assert run.manifest["fingerprint"] == (first % 2 >> second % 1).fingerprint
    assert run.manifest["queries"] == 130
    assert run.manifest["seconds"] >= 0


def test_a_retriever_prepares_the_compiled_kernel(large: Index) -> None:
    large.pipeline("bm25 >> rm3 % 10").prepare()
    assert "tamis.index.kernel" in sys.modules
    assert large.bm25(backend="numba")("sieve") == large.bm25(backend="numpy")("sieve")


def test_what_a_retriever_finds_comes_with_texts_and_origin(large: Index) -> None:
    retriever, asked = large.bm25(), Ranking(Query("q", "sieves"))
    found = (retriever % 2)("sieve")
    assert found.kind is ScoreKind.RETRIEVAL
    assert found.origin is retriever
    assert [document.text for document in found.documents()] == ["sieve", "sieve"]
    # idf log(1 + 1200.5 / 1200.5) = 0.693147; 1 / (1 + 0.9 * (0.6 + 0.4 * 1/1.5)) = 1 / 1.78
    assert found.scores.tolist() == pytest.approx([0.3894085] * 2, rel=1e-6)
    assert [line.term for line in retriever.explain(asked, retriever(asked), "d7")] == ["siev"]
    assert retriever.model == BM25()
