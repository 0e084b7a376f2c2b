"""Searches that are given up: at once, at any of their checks, and without a trace in the next search."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tamis import Document, Index, Query
from tamis.base.interrupt import check, interruptible, waiting
from tamis.core.ranking import Ranking
from tamis.index import dependence
from tamis.index import search as searching
from tamis.index.dependence import SDM

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
QUERY = " ".join(WORDS[:4] * 2)


class GivenUp(Exception):
    pass


class Checks:
    """Raises at the check of this number, from 1; counts those before."""

    def __init__(self, last: int) -> None:
        self.last, self.count = last, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count >= self.last:
            raise GivenUp


@contextmanager
def given_up_at(last: int) -> Iterator[Checks]:
    checks = Checks(last)
    with interruptible(checks, np.ones(1, dtype=bool)):
        yield checks


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    r = random.Random(7)
    documents = [Document(f"d{n}", " ".join(r.choices(WORDS, k=r.randrange(3, 12)))) for n in range(300)]
    made = Index.build(documents[:200], tmp_path_factory.mktemp("interrupt") / "idx", positions=True)
    made.add(documents[200:])
    made.delete(["d3", "d250"])
    return made


PIPELINES = [
    "bm25 % 20",
    "bm25(variant=robertson) % 20",
    "ql(variant=exact) % 20",
    "sdm % 20",
    "bm25 >> rm3(docs=5) % 20",
    "fuse(bm25, sdm) % 20",
    "bm25 % 20 >> ltr(ql, weights=0.5, idf=1, matched=1)",
]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_search_ends_at_any_of_its_checks_and_the_next_is_as_ever(index: Index, pipeline: str) -> None:
    stage = index.pipeline(pipeline)
    expected = stage(QUERY)
    with given_up_at(1_000_000) as all_of_them:
        assert stage(QUERY) == expected
    assert all_of_them.count > 0
    for last in {1, 2, all_of_them.count // 2, all_of_them.count - 1, all_of_them.count} - {0}:
        with given_up_at(last) as checks, pytest.raises(GivenUp):
            stage(QUERY)
        assert checks.count == last
    assert stage(QUERY) == expected


@pytest.mark.parametrize("pipeline", ["bm25 % 20", "ql(variant=exact) % 20"])
def test_the_kernel_gives_up_where_nobody_waits(index: Index, pipeline: str) -> None:
    pytest.importorskip("numba")
    retriever = index.pipeline(pipeline).stage  # type: ignore[attr-defined]
    retriever.backend = "numba"
    expected = retriever(QUERY)
    nobody = np.zeros(2, dtype=bool)
    with interruptible(lambda: None, nobody):
        assert retriever(QUERY).ids == ()  # which `check` must keep from being used
    assert retriever(QUERY) == expected
    with interruptible(lambda: None, np.array([False, True])):
        assert retriever(QUERY) == expected


def test_another_thread_is_not_interrupted(index: Index) -> None:
    found: list[Ranking] = []
    with given_up_at(1):
        thread = threading.Thread(target=lambda: found.append((index.bm25() % 5)(QUERY)))
        thread.start()
        thread.join()
        with pytest.raises(GivenUp):
            check()
        mine = waiting()
    assert len(found[0]) == 5
    assert waiting() is not mine


# -- sdm
# ------------------------------------------------------------------------------------------------------------


def test_sdm_takes_memory_for_the_collection_and_not_for_the_query(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependence, "_KEPT", 1)  # counts of one feature at a time

    def peak(words: int) -> int:
        query = " ".join(random.Random(words).choices(WORDS, k=words))
        tracemalloc.start()
        try:
            index.sdm().apply([Ranking(Query("q", query))], 10)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(20)  # entries of terms are kept
    assert peak(400) < 4 * peak(20)


@pytest.mark.parametrize(("kept", "at_once"), [(1, 1 << 15), (1 << 24, 7), (3000, 64)])
def test_sdm_in_parts_scores_as_in_one(
    index: Index, monkeypatch: pytest.MonkeyPatch, kept: int, at_once: int
) -> None:
    rankings = [Ranking(Query("q", query)) for query in (QUERY, "kappa kappa iota", "alpha", "none at all")]
    expected = SDM(index).apply(rankings)
    monkeypatch.setattr(dependence, "_KEPT", kept)
    monkeypatch.setattr(dependence, "AT_ONCE", at_once)
    found = SDM(index).apply(rankings)
    assert [each.ids for each in found] == [each.ids for each in expected]
    assert all(np.array_equal(a.scores, b.scores) for a, b in zip(found, expected, strict=True))


def test_sdm_equals_a_count_by_hand(index: Index) -> None:
    """All places of each pair in each document, counted in plain Python."""
    texts = {document.id: index.analyzer.tokens(document.contents) for document in index}
    tokens = sum(map(len, texts.values()))
    query = ["alpha", "beta", "alpha"]

    def ordered(text: list[str], a: str, b: str) -> int:
        return sum(text[i : i + 2] == [a, b] for i in range(len(text)))

    def unordered(text: list[str], a: str, b: str) -> int:
        return sum(
            any(text[j] == b for j in range(max(i - 7, 0), min(i + 8, len(text))) if j != i)
            for i in range(len(text))
            if text[i] == a
        )

    features = [(0.85, {d: text.count(t) for d, text in texts.items()}) for t in query]
    for a, b in (("alpha", "beta"), ("beta", "alpha")):
        features.append((0.10, {d: ordered(text, a, b) for d, text in texts.items()}))
        features.append((0.05, {d: unordered(text, a, b) for d, text in texts.items()}))
    found = index.sdm().apply([Ranking(Query("q", " ".join(query)))], 1000)[0]
    matching = {d for _, tf in features for d, count in tf.items() if count}
    assert set(found.ids) == matching
    for hit in found:
        score = sum(
            weight * np.log((tf[hit.id] + 1000 * sum(tf.values()) / tokens) / (len(texts[hit.id]) + 1000))
            for weight, tf in features
        )
        assert hit.score == pytest.approx(score, abs=1e-5)


def test_tables_have_a_largest_size(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many postings there are: then the formula is evaluated for each posting, with equal scores."""
    stage = index.ql() % 20
    expected = stage(QUERY)
    used: list[str] = []
    monkeypatch.setattr(searching, "MOST_CELLS", 0)
    monkeypatch.setattr(searching, "LARGEST_TABLES", 1)
    untabled = searching.untabled
    monkeypatch.setattr(searching, "untabled", lambda *args: used.append("untabled") or untabled(*args))
    found = stage(QUERY)
    assert used == ["untabled"] * len(index.segments)
    assert found.ids == expected.ids
    assert np.array_equal(found.scores, expected.scores)
