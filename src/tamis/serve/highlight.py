"""The positions of query words in a text."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from tamis.text.analyze import Analyzer, get_analyzer

_CHUNK = re.compile(r"\S+")
_LONGEST_KEPT = 40  # characters; longer ones are rare, and would fill the memory


class Marker:
    """Finds the words that an analyzer turns into one of some terms, in one text after the other.

    >>> Marker(get_analyzer("english"), {"siev"}).places("The sieves, a sieve.")
    [(4, 10), (14, 19)]
    """

    def __init__(self, analyzer: Analyzer, terms: Collection[str]) -> None:
        self._analyzer, self._terms = analyzer.name, frozenset(terms)
        # every answer waits for this: a word that was seen before is not looked at again
        self._known: dict[str, tuple[tuple[int, int], ...]] = {}

    def places(self, text: str) -> list[tuple[int, int]]:
        """Start and end of the words."""
        if not self._terms:
            return []
        known, found = self._known, []
        for chunk in _CHUNK.finditer(text):
            word = chunk[0]
            inside = known.get(word)
            if inside is None:
                inside = known[word] = self._look(word)
            if inside:
                at = chunk.start()
                found += [(at + start, at + end) for start, end in inside]
        return found

    def _look(self, word: str) -> tuple[tuple[int, int], ...]:
        # texts repeat words, and stemming one takes longer than a lookup here
        words = (_kept if len(word) <= _LONGEST_KEPT else _words)(word, self._analyzer)
        return tuple((start, end) for start, end, term in words if term in self._terms)


def _words(chunk: str, analyzer_name: str) -> tuple[tuple[int, int, str], ...]:
    """Start, end and term of the words between two spaces."""
    analyzer = get_analyzer(analyzer_name)
    words, end = [], 0
    for surface in analyzer.split(chunk):
        start = chunk.find(surface, end)
        end = start + len(surface)
        term = _term(surface, analyzer_name)
        if term is not None:
            words.append((start, end, term))
    return tuple(words)


@lru_cache(20_000)
def _term(surface: str, analyzer_name: str) -> str | None:
    return get_analyzer(analyzer_name).term(surface)


_kept = lru_cache(20_000)(_words)
