"""The few lines of a document that an answer shows: from what the model has read, or marked as not read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tamis.core.ranking import Span
from tamis.serve.highlight import Marker

WIDTH = 320  # characters of a snippet
_BEFORE = 60  # of which stand before the first word of the query, or up to
_SENTENCE = 2 * _BEFORE  # from the start of its sentence

#: `passage`: the best passage, by the model. `read`: what the model has read. `unread`: the words of the
#: query are only where the model has not read. `text`: no model has read it, or it is not known what it has.
Source = Literal["passage", "read", "unread", "text"]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A part of a text, from its character `start` on. `highlights` and `best`, the words of the query and
    the best passage, are places within the part."""

    start: int
    text: str
    highlights: list[tuple[int, int]]
    best: tuple[int, int] | None
    source: Source

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def snippet(
    text: str,
    marker: Marker,
    *,
    passages: Sequence[Span] = (),
    read: int | None = None,
    searched: int = 20_000,
) -> Snippet:
    """The snippet of a text, given its best `passages`, and how many characters from its start the model has
    read (None: not known, or no model). Only the first `searched` are searched for words of the query.

    >>> from tamis.text.analyze import get_analyzer
    >>> marker = Marker(get_analyzer("english"), {"siev"})
    >>> found = snippet("Soup. " * 200 + "A sieve.", marker, read=500)
    >>> found.text[-8:], found.source
    ('A sieve.', 'unread')
    """
    if passages:
        best = max(passages, key=lambda each: each.score)
        start, stop = _whole_words(text, best.start, exactly=True)
        inside = (best.start - start, min(best.stop, stop) - start)
        return _of(text, marker, start, stop, "passage", inside)
    known = read is not None
    reach = min(searched, len(text) if read is None else read)
    found = marker.places(text[:reach])
    if found or reach >= min(searched, len(text)):
        start, stop = _whole_words(text, _densest(text, found), end=None if read is None else read)
        return _of(text, marker, start, stop, "read" if known else "text")
    begin = text.rfind(" ", 0, reach) + 1  # a word may have been read in part
    later = [(begin + start, begin + stop) for start, stop in marker.places(text[begin:searched])]
    start, stop = _whole_words(text, _densest(text, later))
    return _of(text, marker, start, stop, "unread" if later else "read")


def _of(
    text: str,
    marker: Marker,
    start: int,
    stop: int,
    source: Source,
    best: tuple[int, int] | None = None,
) -> Snippet:
    part = text[start:stop]
    return Snippet(start, part, marker.places(part), best, source)


def _densest(text: str, places: Sequence[tuple[int, int]]) -> int:
    """Where a snippet begins that shows the most different words of the query, and of such the most words;
    the first of those that are equal."""
    starts = [start for start, _ in places]
    words = [text[start:stop].casefold() for start, stop in places]
    best, begin = (0, 0), 0
    for first, start in enumerate(starts):
        last = bisect_left(starts, start + WIDTH - _SENTENCE)
        if last - first < best[0]:
            continue  # not even if all of them differed
        value = (len(set(words[first:last])), last - first)
        if value > best:
            best, begin = value, start
    return _before(text, begin)


def _before(text: str, start: int) -> int:
    """Where to begin so that a word has some context: at its sentence or the text, if these are near."""
    if start <= _SENTENCE:
        return 0
    first = start - _SENTENCE
    ends = [text.rfind(mark, first, start) + len(mark) for mark in (". ", "? ", "! ", "\n")]
    return max((end for end in ends if end > first), default=start - _BEFORE)


def _whole_words(text: str, start: int, *, end: int | None = None, exactly: bool = False) -> tuple[int, int]:
    """`WIDTH` characters from `start` on, up to `end` at most, without the halves of words at both ends,
    unless there are no whole ones."""
    end = len(text) if end is None else min(end, len(text))
    if not exactly:
        start = max(0, min(start, end - WIDTH))
        if start > 0 and not text[start - 1].isspace():
            start = text.find(" ", start, start + _BEFORE) + 1 or start
    stop = min(start + WIDTH, end)
    if stop < len(text) and (space := text.rfind(" ", start, stop + 1)) > start:
        stop = space
    return start, stop
