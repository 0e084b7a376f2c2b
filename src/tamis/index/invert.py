"""From documents to posting lists in bounded memory: the tokens of a parcel of documents are sorted into a
run, which may wait in a file until all are merged. Only the vocabulary grows with the collection. Runs come
from several processes, each with its own term numbers. They agree on the order of terms without
communication: by hash, and by bytes if two hashes are equal. The lists of a run and of the segment are in
that order, so merging is one pass from beginning to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tamis.base.arrays import Array
from tamis.index.compiled import numba_installed
from tamis.index.vocabulary import by_hash, encoded, hashes
from tamis.text import wordbreak
from tamis.text.analyze import Analyzer

KNOWN_SURFACES = 1 << 21
COMPILE_AFTER = 1 << 22  # bytes of text from which the compiled tokenizer is worth loading
_WAITING = 1 << 18  # bytes that it takes at a time


class _Surfaces(dict[str, int]):
    """Surface token -> term number, or -1 where the analyzer drops it; each distinct surface is analysed
    once."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._term = analyzer.term
        self.terms: dict[str, int] = {}

    def __missing__(self, surface: str) -> int:
        if len(self) >= KNOWN_SURFACES:  # a cache: dropped entries are analysed again
            self.clear()
        number = self[surface] = self.analyse(surface)
        return number

    def analyse(self, surface: str) -> int:
        term = self._term(surface)
        return -1 if term is None else self.terms.setdefault(term, len(self.terms))


class _CompiledTokens:
    """Term numbers of ASCII texts by the compiled tokenizer; each distinct short token is analysed once."""

    def __init__(self, surfaces: _Surfaces) -> None:
        from tamis.index.ascii_tokens import AsciiTokens

        self._surfaces = surfaces
        self._new_table = AsciiTokens
        self._table = AsciiTokens()
        self._terms = np.zeros(1 << 16, dtype=np.int32)  # of the table's tokens
        self._known = 0

    def terms(self, texts: Sequence[bytes]) -> tuple[Array, Array] | None:
        """The texts' term numbers and where each text ends; None if a token is too long for this way."""
        if self._table.known >= KNOWN_SURFACES:
            self._table, self._known = self._new_table(), 0
        raw = b"\n".join(texts)
        ends = np.cumsum([len(text) + 1 for text in texts])  # the line break belongs to the text before it
        ends[-1] -= 1
        found = self._table.number(raw, ends)
        self._analyse_new()
        if found is None:
            return None
        tokens, token_ends, long_tokens = found
        tokens[long_tokens[:, 0]] = 0
        terms = self._terms[tokens]
        for place, start, stop in long_tokens.tolist():
            terms[place] = self._surfaces[raw[start:stop].decode("ascii")]
        return terms, token_ends

    def _analyse_new(self) -> None:
        if self._table.known > len(self._terms):
            self._terms = np.resize(self._terms, 2 * self._table.known)
        new = map(self._surfaces.analyse, self._table.tokens(self._known, self._table.known))
        self._terms[self._known : self._table.known] = np.fromiter(new, dtype=np.int32)
        self._known = self._table.known


@dataclass(frozen=True, slots=True)
class Run:
    """Postings of some consecutive documents, in the order of terms. Numbers of documents begin at 0."""

    terms: Array  # numbers of those that occur
    counts: Array  # of their postings
    occurrences: Array
    documents: Array
    tfs: Array
    positions: Array | None


class Inverter:
    """Makes runs of documents' texts, and numbers the terms as they come."""

    def __init__(self, analyzer: Analyzer, *, positions: bool) -> None:
        self._split = analyzer.split
        self._surfaces = _Surfaces(analyzer)
        self._positions = positions
        self._hashes = np.zeros(0, np.uint64)  # of the terms
        self._may_compile = analyzer.split is wordbreak.split and numba_installed()
        self._compiled: _CompiledTokens | None = None
        self._seen = 0  # bytes

    @property
    def known(self) -> int:
        """How many terms have numbers."""
        return len(self._hashes)

    def invert(self, texts: Sequence[bytes]) -> tuple[Run, Array, list[bytes], Array]:
        """The postings of texts in UTF-8, how many terms each text has, and the terms that are new with their
        hashes; their numbers go on from the last."""
        self._seen += sum(map(len, texts))
        if self._may_compile and self._compiled is None and self._seen >= COMPILE_AFTER:
            self._compiled = _CompiledTokens(self._surfaces)
        tokens, per_text = self._tokens(texts)
        kept = tokens >= 0
        lengths = np.diff(np.append(0, np.cumsum(kept))[np.append(0, np.cumsum(per_text))])
        new_terms = encoded(islice(self._surfaces.terms, len(self._hashes), None))
        new_hashes = hashes(new_terms)
        self._hashes = np.concatenate([self._hashes, new_hashes])
        terms = self._used(tokens[kept])
        rank = np.zeros(len(self._surfaces.terms), np.uint32)
        rank[terms] = np.arange(len(terms), dtype=np.uint32)
        texts_of = np.repeat(np.arange(len(per_text), dtype=np.uint32), per_text)
        # one sort brings the postings into order: by term, then by place among the tokens, hence by text and
        # position
        low = np.flatnonzero(kept).astype(np.uint32) if self._positions else texts_of[kept]
        key = rank[tokens[kept]].astype(np.uint64) << np.uint64(32) | low
        del tokens, kept, low
        key.sort()
        low = key.astype(np.uint32)
        text = texts_of[low] if self._positions else low
        positions = None
        if self._positions:
            positions = low - (np.cumsum(per_text) - per_text).astype(np.uint32)[text]
            key = (key >> np.uint64(32) << np.uint64(32)) | text
        new = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else np.zeros(0, np.int64)
        tfs = np.diff(np.append(new, len(key))).astype(np.uint32)
        rank_of = (key[new] >> np.uint64(32)).astype(np.int64)
        counts = np.bincount(rank_of, minlength=len(terms))
        occurrences = np.bincount(rank_of, weights=tfs, minlength=len(terms))
        run = Run(
            terms.astype(np.uint32),
            counts.astype(np.uint32),
            occurrences.astype(np.uint32),
            text[new],
            tfs,
            positions,
        )
        return run, lengths.astype(np.uint32), new_terms, new_hashes

    def _used(self, tokens: Array) -> Array:
        """The numbers of the terms that occur, in the order of terms."""
        used = np.flatnonzero(np.bincount(tokens, minlength=len(self._hashes)))

        def term(place: int) -> bytes:
            return encoded(islice(self._surfaces.terms, int(used[place]), None))[0]

        return used[by_hash(self._hashes[used], term)]

    def _tokens(self, texts: Sequence[bytes]) -> tuple[Array, Array]:
        """The term numbers of all tokens, -1 for those that are dropped, and how many each text has."""
        tokens: list[Array] = []
        counts: list[Array] = []
        waiting: list[bytes] = []  # ASCII texts for the compiled way
        size = 0

        def plainly(text: bytes) -> None:
            surfaces = self._split(text.decode())
            numbers = map(self._surfaces.__getitem__, surfaces)
            tokens.append(np.fromiter(numbers, dtype=np.int32, count=len(surfaces)))
            counts.append(np.array([len(surfaces)]))

        def take_waiting() -> None:
            nonlocal waiting, size
            if waiting:
                assert self._compiled is not None
                found = self._compiled.terms(waiting)
                if found is None:
                    for text in waiting:
                        plainly(text)
                else:
                    tokens.append(found[0])
                    counts.append(np.diff(found[1], prepend=0))
                waiting, size = [], 0

        for text in texts:
            if self._compiled is not None and text.isascii():
                waiting.append(text)
                size += len(text)
                if size >= _WAITING:
                    take_waiting()
            else:
                take_waiting()
                plainly(text)
        take_waiting()
        none = np.zeros(0, np.int32)
        return np.concatenate([none, *tokens]), np.concatenate([none, *counts]).astype(np.int64)
