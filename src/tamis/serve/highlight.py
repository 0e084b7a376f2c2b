"""Where a text has the words of a query."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from tamis.text.analyze import Analyzer, get_analyzer

_CHUNK = re.compile(r"\S+")
_LONGEST_KEPT = 40  # characters; longer ones are rare, and would fill the memory


def places(text: str, analyzer: Analyzer, terms: Collection[str]) -> list[tuple[int, int]]:
    """Start and end of the words that the analyzer turns into one of the terms.

    >>> places("The sieves, a sieve.", get_analyzer("english"), {"siev"})
    [(4, 10), (14, 19)]
    """
    if not terms:
        return []
    found = []
    for chunk in _CHUNK.finditer(text):
        word, at = chunk[0], chunk.start()
        # texts have the same words again and again, and stemming one takes longer than finding it here
        known = _kept if len(word) <= _LONGEST_KEPT else _words
        found += [(at + a, at + b) for a, b, term in known(word, analyzer.name) if term in terms]
    return found


def _words(chunk: str, analyzer_name: str) -> tuple[tuple[int, int, str], ...]:
    """Start, end and term of the words between two spaces."""
    analyzer = get_analyzer(analyzer_name)
    words, end = [], 0
    for surface in analyzer.split(chunk):
        start = chunk.find(surface, end)
        end = start + len(surface)
        term = analyzer.term(surface)
        if term is not None:
            words.append((start, end, term))
    return tuple(words)


_kept = lru_cache(20_000)(_words)
