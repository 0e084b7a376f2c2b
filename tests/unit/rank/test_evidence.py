"""Evidence in whole sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Span
from tamis.rank.evidence import apart, whole_sentences
from tamis.text.segment import sentences, word_windows

TEXT = "Soup is hot. A tamis is a fine sieve. Onions are sweet. Dr. Lee cooks."


def shown(*parts: str, text: str = TEXT) -> list[str]:
    spans = [Span(text.index(part), text.index(part) + len(part), 0.5) for part in parts]
    return [text[start:stop] for start, stop, _ in whole_sentences(text, spans)]


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("tamis", "A tamis is a fine sieve."),
        ("A tamis is a fine sieve.", "A tamis is a fine sieve."),
        ("fine sieve. Onions", "A tamis is a fine sieve. Onions are sweet."),
        ("hot. A", "Soup is hot. A tamis is a fine sieve."),
        ("Lee", "Dr. Lee cooks."),
        (TEXT, TEXT),
    ],
)
def test_a_passage_is_shown_in_whole_sentences(part: str, whole: str) -> None:
    assert shown(part) == [whole]


def test_a_sentence_of_two_passages_is_shown_with_the_better_one() -> None:
    assert shown("sieve. Onions", "are sweet. Dr.") == [
        "A tamis is a fine sieve. Onions are sweet.",
        "Dr. Lee cooks.",
    ]
    assert shown("a fine", "tamis") == ["A tamis is a fine sieve."], "the second has nothing of its own"


def test_a_sentence_without_an_end_is_not_followed_for_ever() -> None:
    text = f"Soup is hot. {'pan ' * 2_000}sieve {'pan ' * 2_000}"
    assert shown("sieve", text=text) == ["sieve"]
    assert shown("hot", text=text) == ["Soup is hot."]


def test_only_the_neighbourhood_of_a_long_text_is_split() -> None:
    text = "One pan. " * 1_000_000
    start = 4_500_000
    assert whole_sentences(text, [Span(start + 4, start + 6, 0.5)]) == [Span(start, start + 8, 0.5)]


@pytest.mark.parametrize("text", ["", "\U0001f600 \U0001f600", "one"])
def test_odd_texts(text: str) -> None:
    spans = [Span(0, len(text), 1.0)] if text else []
    assert whole_sentences(text, spans) == spans


@given(st.permutations(range(5)), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=5))
def test_nothing_is_shown_twice_and_what_was_read_is_shown(
    order: list[int], more: list[tuple[int, int]]
) -> None:
    """However far each grows."""
    spans = [Span(10 * number, 10 * number + 7, 1.0) for number in order]
    each = zip(spans, more, strict=False)
    grown = [Span(max(0, span.start - left), span.stop + right, 1.0) for span, (left, right) in each]
    found = apart(spans, grown)
    seen = [character for start, stop, _ in found for character in range(start, stop)]
    assert len(seen) == len(set(seen))
    assert found[0] == grown[0]
    for span in spans:
        assert set(seen).issuperset(range(span.start, span.stop))


def test_a_passage_keeps_its_side_of_a_better_one() -> None:
    """The sentence that both are in is too long to complete the first, and ends with the second."""
    text = ("word " * 400).strip()
    spans = [Span(300, 599, 0.9), Span(900, 1_199, 0.8)]
    for one, other in zip(whole_sentences(text, spans), spans, strict=True):
        assert one.start <= other.start < other.stop <= one.stop and one.score == other.score


@given(st.permutations(range(12)))
def test_passages_that_do_not_overlap_are_shown_whole(order: list[int]) -> None:
    text = "Dr. Lee sieves the soup, and then the sauce. " * 12
    spans = [Span(*each, float(-n)) for n, each in enumerate(word_windows(text, 10, 10))]
    some = [spans[number % len(spans)] for number in dict.fromkeys(n % len(spans) for n in order)]
    found = whole_sentences(text, some)
    covered = {character for start, stop, _ in found for character in range(start, stop)}
    for start, stop, _ in some:
        assert covered.issuperset(n for n in range(start, stop) if text[n] != " ")
    edges = {edge for each in sentences(text) for edge in each}
    assert {found[0].start, found[0].stop} <= edges
