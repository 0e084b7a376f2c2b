"""Splits a long text into passages that a model can read: sentences, windows of words or tokens, even chunks.

A passage is a pair of offsets, not a copy: characters start..stop of the text, `Document.text` for a document
(without the title), so that the passage of a score can be displayed in its context.

    sentences       Birch                  split by nupunkt, and at blank lines
    word windows    FirstP, MaxP, ...      150 words, a new one every 75
    token windows   PARADE                 225 tokens, a new one every 200
    even chunks     CEDR                   as few as fit the model; their lengths differ by at most one token

Words are those of `str.split`. The first window that reaches the end of the text is the last, and can be
shorter.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError

if TYPE_CHECKING:
    from nupunkt import PunktSentenceTokenizer

Keep = Literal["first", "sampled"]

_WORD = re.compile(r"\S+")
# A blank line ends a sentence, because headings have no full stop. So does the full stop of scripts without
# spaces after it, which nupunkt does not support.
_BREAK = re.compile(r"\n[^\S\n]*\n\s*|[。！？]+[」』”’）]*")
_LONG_WORD = re.compile(r"\S{80,}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PIECE = 1 << 16  # a long text is tokenised in pieces of this many characters


class Passage(NamedTuple):
    """Characters start..stop of a text."""

    start: int
    stop: int


# -- sentences
# ------------------------------------------------------------------------------------------------------------


def sentences(text: str) -> list[Passage]:
    """The sentences of a text, in order, without the white space between them.

    >>> text = "Dr. Lee left at 5 p.m. on Monday. Why?"
    >>> [text[start:stop] for start, stop in sentences(text)]
    ['Dr. Lee left at 5 p.m. on Monday.', 'Why?']
    """
    # the splitter takes over ten minutes for "!?!?..." of a million characters; no sentence ends within a
    # word
    plain = _LONG_WORD.sub(lambda word: "x" * len(word[0]), text)
    found = []
    splitter = _splitter()
    ends = [0, *(each.end() for each in _BREAK.finditer(plain)), len(plain)]
    for start, stop in pairwise(ends):
        part = plain[start:stop]
        found += [trimmed(text, start + a, start + b) for a, b in splitter.span_tokenize(part)]
    return [each for each in found if each.start < each.stop]


@cache
def _splitter() -> PunktSentenceTokenizer:
    # imported here, so that searches without sentences do not wait for it
    from nupunkt import load

    return load("default")


def trimmed(text: str, start: int, stop: int) -> Passage:
    """A part of a text without the white space at its ends."""
    part = text[start:stop]
    left = len(part) - len(part.lstrip())
    return Passage(start + left, start + left + len(part.strip()))


# -- windows
# ------------------------------------------------------------------------------------------------------------


def words(text: str, most: int | None = None) -> list[Passage]:
    """The words of a text, or the first `most` of them.

    >>> words(" a  sieve ")
    [Passage(start=1, stop=2), Passage(start=4, stop=9)]
    """
    return [Passage(*match.span()) for match in islice(_WORD.finditer(text), most)]


def windows(count: int, window: int, stride: int) -> list[tuple[int, int]]:
    """Start and stop of the windows over `count` units, each `window` long and `stride` after the previous
    one; the first that reaches the end is the last. Without units there are no windows.

    >>> windows(10, window=4, stride=3)
    [(0, 4), (3, 7), (6, 10)]
    >>> windows(8, window=4, stride=3), windows(3, window=4, stride=3)
    ([(0, 4), (3, 7), (6, 8)], [(0, 3)])
    """
    check_windows(window, stride)
    last = max(0, -(-(count - window) // stride))  # the first that reaches the end
    starts = range(0, (last + 1) * stride, stride) if count else ()
    return [(start, min(start + window, count)) for start in starts]


def word_windows(text: str, window: int = 150, stride: int = 75, most: int | None = None) -> list[Passage]:
    """Windows of words (Dai & Callan 2019), from the first letter of the first word to the last letter of the
    last. For long texts, `most` avoids computing windows that are not needed.

    >>> text = "one two three four five"
    >>> [text[start:stop] for start, stop in word_windows(text, window=3, stride=2)]
    ['one two three', 'three four five']
    >>> [text[start:stop] for start, stop in word_windows(text, window=3, stride=2, most=1)]
    ['one two three']
    """
    read = None if most is None else (most - 1) * stride + window
    return joined(words(text, read), window, stride)


def sentence_windows(text: str, window: int = 1, stride: int = 1) -> list[Passage]:
    """Windows of sentences; by default the sentences themselves."""
    return joined(sentences(text), window, stride)


def joined(units: Sequence[Passage], window: int, stride: int) -> list[Passage]:
    """Windows over consecutive passages."""
    return [
        Passage(units[first].start, units[after - 1].stop)
        for first, after in windows(len(units), window, stride)
    ]


def even_chunks(count: int, longest: int) -> list[tuple[int, int]]:
    """Start and stop of as few chunks of at most `longest` units as possible, of almost equal length
    (MacAvaney et al. 2019, CEDR); the longer ones come first.

    >>> even_chunks(10, longest=4)
    [(0, 4), (4, 7), (7, 10)]
    """
    if longest < 1:
        raise InputError(f"chunks of {longest} tokens", remedy="use a whole number of at least 1")
    chunks = -(-count // longest)
    size, longer = divmod(count, chunks) if chunks else (0, 0)
    ends = [number * size + min(number, longer) for number in range(chunks + 1)]
    return list(pairwise(ends))


def check_windows(window: int, stride: int) -> None:
    """Raise an error for empty windows, and for windows with gaps between them."""
    if window < 1 or not 1 <= stride <= window:
        raise InputError(
            f"windows of {window} with a stride of {stride}",
            remedy="use a window of at least 1, and a stride between 1 and the window",
        )


# -- limiting the passages
# ------------------------------------------------------------------------------------------------------------


def kept(count: int, most: int | None, keep: Keep = "first", *, seed: int = 0, document: str = "") -> Array:
    """The indices of the passages of a document that are read: all, or at most `most`.

    `first` keeps the first ones; `sampled` keeps the first, the last and a random sample of the rest, which
    depends only on the seed and the document's id.

    >>> kept(5, 3).tolist()
    [0, 1, 2]
    >>> kept(100, 4, "sampled", document="d1")[[0, -1]].tolist()
    [0, 99]
    """
    check_kept(most, keep)
    if most is None or count <= most:
        return np.arange(count)
    if keep == "first" or most == 1:
        return np.arange(most)
    digest = hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest()
    generator = np.random.default_rng([seed, int.from_bytes(digest[:16], "little")])
    middle = 1 + np.sort(generator.choice(count - 2, most - 2, replace=False))
    return np.concatenate([[0], middle, [count - 1]])


def check_kept(most: int | None, keep: str) -> None:
    """Raise an error for an invalid number of passages or an invalid rule."""
    if most is not None and most < 1:
        raise InputError(f"at most {most} passages", remedy="use a whole number of at least 1, or none")
    if keep not in get_args(Keep):
        raise InputError(f"keep={keep} is not a valid rule", remedy=f"use {' or '.join(get_args(Keep))}")


# -- tokens and their positions
# ------------------------------------------------------------------------------------------------------------


class TokenPlaces(NamedTuple):
    """The tokens of a text and the characters of each token."""

    ids: Array  # int32[n]
    starts: Array  # int64[n]
    stops: Array  # int64[n]


class LocatesTokens(Protocol):
    """The part of a tokenizer that is needed here; `tamis.models.tokenizer.Tokenizer` is one."""

    def places(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]: ...


def token_places(text: str, tokenizer: LocatesTokens, most: int | None = None) -> TokenPlaces:
    """The tokens of a text, or the first `most` of them, with their positions. `Tokenizer.encode` is faster,
    and returns only the first tokens of a very long text; this function reads it in pieces, split at white
    space if there is any."""
    # one character for one: the text after half a surrogate pair must keep its offsets
    plain = _SURROGATE.sub("\ufffd", text)
    ids: list[Array] = [np.zeros(0, np.int32)]
    places: list[Array] = [np.zeros((0, 2), np.int64)]
    count = 0
    for start, stop in pairwise(_piece_ends(plain)):
        if most is not None and count >= most:
            break
        own, offsets = tokenizer.places(plain[start:stop])
        ids.append(np.array(own, dtype=np.int32))
        places.append(np.array(offsets, dtype=np.int64).reshape(-1, 2) + start)
        count += len(ids[-1])
    starts, stops = np.concatenate(places)[:most].T
    return TokenPlaces(np.concatenate(ids)[:most], starts, stops)


def _piece_ends(text: str) -> list[int]:
    ends = [0]
    while len(text) - ends[-1] > _PIECE:
        stop = ends[-1] + _PIECE
        space = max(text.rfind(" ", ends[-1] + 1, stop), text.rfind("\n", ends[-1] + 1, stop))
        ends.append(space if space > 0 else stop)
    return [*ends, len(text)]


def cut_at_tokens(passage: Passage, starts: Sequence[int], size: int) -> list[Passage]:
    """Split a passage before every `size`-th token; the tokens start at the characters `starts` of the text.

    >>> cut_at_tokens(Passage(3, 20), [3, 5, 9, 12, 17], 2)
    [Passage(start=3, stop=9), Passage(start=9, stop=17), Passage(start=17, stop=20)]
    """
    inside = starts[bisect_right(starts, passage.start) : bisect_right(starts, passage.stop - 1)]
    # several tokens can share one character, which cannot be split
    cuts = dict.fromkeys([passage.start, *inside[size - 1 :: size], passage.stop])
    return [Passage(start, stop) for start, stop in pairwise(cuts)]
