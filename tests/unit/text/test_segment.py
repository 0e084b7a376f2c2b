"""Passages against a hand-split text, hand-computed windows, and texts that are hardly texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.models.tokenizer import Tokenizer
from tamis.text.segment import (
    Passage,
    cut_at_tokens,
    even_chunks,
    kept,
    sentence_windows,
    sentences,
    token_places,
    windows,
    word_windows,
    words,
)

GOLD = Path(__file__).parents[2] / "assets" / "sentences" / "english.txt"


def split(text: str) -> list[str]:
    return [text[start:stop] for start, stop in sentences(text)]


def gold() -> Iterator[list[str]]:
    lines = (line for line in GOLD.read_text("utf-8").splitlines() if not line.startswith("#"))
    for block in "\n".join(lines).split("\n\n"):
        if block.strip():
            yield block.strip().split("\n")


# -- sentences


def test_sentences_of_the_hand_split_set() -> None:
    """As docs/long-documents.md says: 70 of its 80 texts wholly right, 95 % of the ends found are ends, 92 %
    of the ends are found."""
    right, found_right, found, wanted = 0, 0, 0, 0
    for block in gold():
        text = " ".join(block)
        ends = set(np.cumsum([len(sentence) + 1 for sentence in block[:-1]]).tolist())
        own = {start for start, _ in sentences(text)[1:]}
        right += own == ends
        found_right, found, wanted = found_right + len(own & ends), found + len(own), wanted + len(ends)
    assert right >= 70
    assert found_right / found >= 0.95
    assert found_right / wanted >= 0.91


def test_a_blank_line_ends_a_sentence_and_a_line_break_does_not() -> None:
    assert split("A heading\n \n\nThe text goes\non. Here too.") == [
        "A heading",
        "The text goes\non.",
        "Here too.",
    ]


def test_full_stops_without_a_space_after_them() -> None:
    assert split("他来了。「好！」我走了。") == ["他来了。", "「好！」", "我走了。"]


def test_sentences_leave_out_the_space_around_them() -> None:
    assert sentences("  One.  Two!\t") == [Passage(2, 6), Passage(8, 12)]


@pytest.mark.parametrize("text", ["", " \n\n \t "])
def test_no_sentences(text: str) -> None:
    assert sentences(text) == words(text) == word_windows(text) == []


@pytest.mark.parametrize("text", ["word", "🙂🙂🙂", "\x00", "\ud800", "...", "no end to it"])
def test_one_sentence(text: str) -> None:
    assert split(text) == [text]


@pytest.mark.parametrize(
    "unit", ["!?", "a", "word ", "a. ", "... ", ". ", '"', "🙂", "\n", ".\n", "1.2.", "A.B. ", "\n\n."]
)
def test_long_texts_that_are_no_prose_take_no_longer(unit: str) -> None:
    """A megabyte of the first would take the bare splitter more than ten minutes."""
    text = unit * (200_000 // len(unit))
    started = time.process_time()
    found = sentences(text)
    assert time.process_time() - started < 10
    assert "".join("".join(text[start:stop].split()) for start, stop in found) == "".join(text.split())


def test_five_megabytes_without_an_end() -> None:
    text = "word " * 1_000_000
    assert sentences(text) == [Passage(0, len(text) - 1)]
    assert len(word_windows(text)) == 13_333  # (1,000,000 - 150) / 75, rounded up, and the first


# -- windows


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [(0, 1)]),
        (150, [(0, 150)]),
        (151, [(0, 150), (75, 151)]),
        (225, [(0, 150), (75, 225)]),
        (226, [(0, 150), (75, 225), (150, 226)]),
    ],
)
def test_windows_of_150_words_every_75(count: int, expected: list[tuple[int, int]]) -> None:
    assert windows(count, 150, 75) == expected
    text = "w " * count
    assert word_windows(text) == [Passage(2 * start, 2 * stop - 1) for start, stop in expected]


def test_windows_of_sentences() -> None:
    text = "One. Two! Three? Four."
    found = [text[start:stop] for start, stop in sentence_windows(text, window=2, stride=2)]
    assert found == ["One. Two!", "Three? Four."]


def test_even_chunks() -> None:
    assert even_chunks(0, 5) == []
    assert even_chunks(5, 5) == [(0, 5)]
    assert even_chunks(6, 5) == [(0, 3), (3, 6)]
    assert even_chunks(1001, 500) == [(0, 334), (334, 668), (668, 1001)]


@pytest.mark.parametrize(("window", "stride"), [(0, 1), (5, 0), (5, 6), (-1, -1)])
def test_windows_that_make_no_sense(window: int, stride: int) -> None:
    with pytest.raises(InputError, match="use a window of at least 1, and a stride between 1 and the window"):
        windows(10, window, stride)
    with pytest.raises(InputError, match="chunks of 0"):
        even_chunks(10, 0)


# -- at most so many


def test_kept() -> None:
    assert kept(3, None).tolist() == kept(3, 3).tolist() == kept(3, 5, "sampled").tolist() == [0, 1, 2]
    assert kept(9, 1, "sampled").tolist() == [0]
    assert kept(9, 2, "sampled").tolist() == [0, 8]
    assert kept(0, 5).tolist() == []


def test_a_sample_depends_on_the_seed_and_the_document_alone() -> None:
    drawn = kept(10_000, 16, "sampled", seed=1, document="d1").tolist()
    assert drawn == kept(10_000, 16, "sampled", seed=1, document="d1").tolist()
    assert drawn == sorted(set(drawn))
    assert (len(drawn), drawn[0], drawn[-1]) == (16, 0, 9_999)
    assert drawn != kept(10_000, 16, "sampled", seed=2, document="d1").tolist()
    assert drawn != kept(10_000, 16, "sampled", seed=1, document="d2").tolist()


def test_a_number_or_a_rule_that_makes_no_sense() -> None:
    with pytest.raises(InputError, match="at most 0 passages: use a whole number of at least 1, or none"):
        kept(3, 0)
    with pytest.raises(InputError, match="keep=last is not a valid rule: use first or sampled"):
        kept(3, 1, "last")  # type: ignore[arg-type]


# -- tokens


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model")))


def test_token_places_say_where_each_token_stands(tokenizer: Tokenizer) -> None:
    text = "The River, \ud800 Castle"
    ids, starts, stops = token_places(text, tokenizer)
    assert np.array_equal(ids, tokenizer.encode([text]).ids)
    places = list(zip(starts.tolist(), stops.tolist(), strict=True))
    assert (
        "".join(text[start:stop] for start, stop in places) == "TheRiver,Castle"
    )  # what is no character has no token


@pytest.mark.parametrize("text", ["river castle " * 20_000, "river\ncastle\n" * 20_000])
def test_tokens_of_a_text_read_in_pieces(tokenizer: Tokenizer, text: str) -> None:
    ids, starts, stops = token_places(text, tokenizer)
    some = tokenizer.encode([text[:13]]).ids
    assert np.array_equal(ids, np.tile(some, 20_000))
    assert text[starts[-1] : stops[-1]] in "castle"
    assert (np.diff(starts) > 0).all()


def test_tokens_of_nothing(tokenizer: Tokenizer) -> None:
    assert [len(each) for each in token_places("", tokenizer)] == [0, 0, 0]


def test_a_passage_is_cut_before_every_so_many_tokens() -> None:
    assert cut_at_tokens(Passage(0, 9), [0, 2, 4, 6, 8], 5) == [Passage(0, 9)]
    assert cut_at_tokens(Passage(0, 9), [0, 2, 4, 6, 8], 4) == [Passage(0, 8), Passage(8, 9)]
    assert cut_at_tokens(Passage(0, 0), [], 4) == []
    # three tokens for one character
    assert cut_at_tokens(Passage(0, 2), [0, 1, 1, 1], 2) == [Passage(0, 1), Passage(1, 2)]
