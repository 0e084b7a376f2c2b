"""Whatever is typed: what is suggested is in the index, and words of the index stay as they are."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Document, Index
from tamis.index.suggest import (
    LEAST_DF,
    SHORTEST,
    distance,
    edits_allowed,
    edits_to_beginning,
    is_near,
    suggest,
    unknown_words,
)

LETTERS = "abcäßд"
words = st.text(LETTERS, min_size=1, max_size=8) | st.sampled_from(
    ["running", "runner", "nation", "national"]
)
texts = st.lists(words, min_size=1, max_size=6).map(" ".join)
queries = st.lists(words | st.sampled_from(["the", "7", "Runing", "natoinal"]), max_size=4).map(", ".join)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.lists(texts, max_size=8), min_size=1, max_size=3), st.lists(queries, max_size=6), st.data()
)
def test_a_suggestion_is_in_the_index_and_known_words_stay(
    parts: list[list[str]], asked: list[str], data: st.DataObject
) -> None:
    analyzer = data.draw(st.sampled_from(["english", "plain", "whitespace", "german"]))
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build([], Path(folder, "idx"), analyzer=analyzer)
        for number, part in enumerate(parts):
            index.add([Document(f"{number}-{place}", text) for place, text in enumerate(part)])
        ids = [*index.ids()]
        index.delete(data.draw(st.sets(st.sampled_from(ids), max_size=4)) if ids else [])
        for query in asked:
            check(index, query)


@settings(deadline=None)
@given(st.text(max_size=40), st.sampled_from(["english", "plain", "whitespace", "keyword", "turkish"]))
def test_any_text_is_a_query(query: str, analyzer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        texts = [query[::-1].encode(errors="replace").decode(), "İstanbul ǆ ß ﬁne", query[1:], query[:-1]]
        documents = [Document(str(n), text.encode(errors="replace").decode()) for n, text in enumerate(texts)]
        index = Index.build(documents, Path(folder, "idx"), analyzer=analyzer)
        check_any(index, query)


def check_any(index: Index, query: str) -> None:
    found = suggest(index, query)
    if found is not None:
        assert found.query != query
        left = [query[start:stop] for start, stop in unknown_words(index, found.query)]
        assert not set(left) & set(found.unknown)


def check(index: Index, query: str) -> None:
    places = set(unknown_words(index, query))
    unknown = {query[start:stop] for start, stop in places}
    found = suggest(index, query)
    if found is None:
        return
    assert set(found.unknown) <= unknown
    start = 0
    for before, after in zip(query.split(", "), found.query.split(", "), strict=True):
        # by its place: to "whitespace" a word with a comma is another than the word
        if before in found.unknown and (start, start + len(before)) in places:
            assert len(before) >= SHORTEST
            (term,) = index.analyzer.tokens(after)
            assert index.df(term) >= LEAST_DF
            assert distance(before.lower(), after.lower()) <= edits_allowed(before)
        else:
            assert before == after
        start += len(before) + len(", ")
    assert suggest(index, found.query) is None or len(unknown) > len(found.unknown)


@given(st.text(LETTERS, max_size=9), st.text(LETTERS, max_size=9), st.text(LETTERS, max_size=9))
def test_the_distance_is_one(one: str, other: str, third: str) -> None:
    assert distance(one, other) == distance(other, one)
    assert (distance(one, other) == 0) == (one == other)
    more, fewer = Counter(one) - Counter(other), Counter(other) - Counter(one)
    assert distance(one, other) >= max(more.total(), fewer.total())
    assert distance(one + third, other + third) <= distance(one, other)
    assert is_near(one, other) <= (distance(one, other) <= edits_allowed(one))


@given(
    st.text(LETTERS, min_size=1, max_size=9),
    st.lists(st.text(LETTERS, min_size=1, max_size=9), min_size=1),
    st.integers(1, 2),
)
def test_many_distances_at_once(word: str, terms: list[str], most: int) -> None:
    columns = np.zeros((max(map(len, terms)), len(terms)), dtype=np.uint32)
    for place, term in enumerate(terms):
        columns[: len(term), place] = [*map(ord, term)]
    found = edits_to_beginning(word, columns, np.array([*map(len, terms)]), most)
    for term, edits in zip(terms, found.tolist(), strict=True):
        least = min(distance(term, word[:end]) for end in range(len(word) + 1))
        assert edits == min(least, most + 1)
