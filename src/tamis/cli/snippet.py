"""The part of a text that shows best why it was found."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from tamis.cli.console import printable
from tamis.text.analyze import Analyzer

LONGEST = 20_000  # characters of a document that are looked at
_CHUNK = re.compile(r"\S+")
_WORD = re.compile(r"\w+(?:['’]\w+)*")


class Piece(NamedTuple):
    """A stretch of text, and whether it is one of the words looked for."""

    text: str
    found: bool


def highlight(text: str, analyzer: Analyzer, terms: Collection[str]) -> list[Piece]:
    """The text in pieces; found are the words that the analyzer turns into one of the terms.

    >>> from tamis.text.analyze import get_analyzer
    >>> highlight("The sieves.", get_analyzer("english"), {"siev"})
    [Piece(text='The ', found=False), Piece(text='sieves', found=True), Piece(text='.', found=False)]
    """
    pieces = []
    end = 0
    for start, stop, _ in _matches(text, analyzer, terms):
        pieces += [Piece(text[end:start], False), Piece(text[start:stop], True)]
        end = stop
    pieces.append(Piece(text[end:], False))
    return [piece for piece in pieces if piece.text]


def snippet(text: str, analyzer: Analyzer, terms: Mapping[str, float], width: int) -> list[Piece]:
    """About `width` characters around the terms that together weigh most, each counted once, highlighted.

    >>> from tamis.text.analyze import get_analyzer
    >>> text = "Soup comes first. Then flour goes through the fine sieve of a cook."
    >>> "".join(piece.text for piece in snippet(text, get_analyzer("english"), {"siev": 1}, 40))
    '… through the fine sieve of a cook.'
    """
    line = printable(text[:LONGEST])
    if len(line) <= width and len(text) <= LONGEST:
        return highlight(line, analyzer, terms)
    start, stop = _window(line, analyzer, terms, width - 4)  # room for the dots
    before, after = "… " if start else "", " …" if stop < len(line) or len(text) > LONGEST else ""
    return highlight(before + line[start:stop].strip() + after, analyzer, terms)


def _window(line: str, analyzer: Analyzer, terms: Mapping[str, float], width: int) -> tuple[int, int]:
    matches = _matches(line, analyzer, terms)
    best, centre, stop = 0.0, 0, 0
    for i, (start, _, _) in enumerate(matches):
        while stop < len(matches) and matches[stop][1] <= start + width:
            stop += 1
        inside = matches[i:stop]
        # exact, so that equal sets weigh the same in whatever order they are gone through
        weight = math.fsum(terms[term] for term in {term for _, _, term in inside})
        if weight > best:
            best, centre = weight, (start + inside[-1][1]) // 2
    start = max(0, min(centre - width // 2, len(line) - width))
    stop = start + width
    # whole words, unless a word is as long as the window
    if start and (space := line.find(" ", start, stop)) >= 0:
        start = space + 1
    if stop < len(line) and (space := line.rfind(" ", start, stop)) > start:
        stop = space
    return start, stop


def _matches(text: str, analyzer: Analyzer, terms: Collection[str]) -> list[tuple[int, int, str]]:
    """Start, end and term of the words that are looked for."""
    # Preparing to split other alphabets takes longer than most searches: do without where no term needs it.
    plain = all(map(str.isascii, terms))
    matches = []
    for chunk in _CHUNK.finditer(text):
        end = chunk.start()
        for surface in (
            _WORD.findall(chunk[0]) if plain and not chunk[0].isascii() else analyzer.split(chunk[0])
        ):
            start = text.find(surface, end)
            end = start + len(surface)
            term = analyzer.term(surface)
            if term is not None and term in terms:
                matches.append((start, end, term))
    return matches
