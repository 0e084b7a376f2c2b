"""From documents to posting lists in bounded memory: tokens gather in a buffer, a full buffer is sorted and
spilled as a run, and at the end the runs are merged. Only the vocabulary grows with the collection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tamis.columns import Array
from tamis.errors import InputError
from tamis.files import storage_errors
from tamis.retrieve.compiled import numba_installed
from tamis.retrieve.postings import Postings
from tamis.text import wordbreak
from tamis.text.analyze import Analyzer

RUN_TOKENS = 1 << 22
KNOWN_SURFACES = 1 << 21
COMPILE_AFTER = 20_000  # documents from which the compiled tokenizer is worth loading
_WAITING = 1 << 18  # characters that it takes at a time


class _Surfaces(dict[str, int]):
    """Surface token -> term number, or -1 where the analyzer drops it; each distinct surface is analysed
    once."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._term = analyzer.term
        self.terms: dict[str, int] = {}

    def __missing__(self, surface: str) -> int:
        if len(self) >= KNOWN_SURFACES:  # a cache: what is dropped is analysed again
            self.clear()
        number = self[surface] = self.analyse(surface)
        return number

    def analyse(self, surface: str) -> int:
        term = self._term(surface)
        return -1 if term is None else self.terms.setdefault(term, len(self.terms))


class _CompiledTokens:
    """Term numbers of ASCII texts by the compiled tokenizer; each distinct short token is analysed once."""

    def __init__(self, surfaces: _Surfaces) -> None:
        from tamis.retrieve.ascii_tokens import AsciiTokens

        self._surfaces = surfaces
        self._new_table = AsciiTokens
        self._table = AsciiTokens()
        self._terms = np.zeros(1 << 16, dtype=np.int32)  # of the table's tokens
        self._known = 0

    def terms(self, texts: Sequence[str]) -> tuple[Array, Array] | None:
        """The texts' term numbers and where each text ends; None if a token is too long for this way."""
        if self._table.known >= KNOWN_SURFACES:
            self._table, self._known = self._new_table(), 0
        raw = "\n".join(texts).encode("ascii")
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
        for number in range(self._known, self._table.known):
            self._terms[number] = self._surfaces.analyse(self._table.token(number))
        self._known = self._table.known


class Run:
    """Sorted postings of some consecutive documents, in a file or, for the last run, in memory."""

    def __init__(self, terms: Array, postings: Postings, spill: Path | None) -> None:
        self._terms, self._counts = terms, postings.counts
        self._vocabulary = 0
        self._starts = np.concatenate([[0], np.cumsum(postings.counts)])
        self._position_starts: Array | None = None
        self._columns: dict[str, Array | Path] = {"documents": postings.documents, "tfs": postings.tfs}
        if postings.positions is not None:
            totals = np.concatenate([[0], np.cumsum(postings.tfs, dtype=np.int64)])
            self._position_starts = totals[self._starts]
            self._columns["positions"] = postings.positions
        if spill is not None:
            for name, values in list(self._columns.items()):
                path = spill.with_suffix(f".{name}")
                with storage_errors(path), path.open("wb") as file:
                    # not ndarray.tofile, whose error on a full disk has no errno
                    file.write(values.astype("<u4").data)  # type: ignore[union-attr]
                self._columns[name] = path

    def widen(self, vocabulary: int) -> None:
        """Terms first seen after this run have no postings in it."""
        self._vocabulary = vocabulary

    def counts(self) -> Array:
        counts = np.zeros(self._vocabulary, dtype=np.int64)
        counts[self._terms] = self._counts
        return counts

    def read(self, first: int, last: int) -> Postings:
        low, high = np.searchsorted(self._terms, [first, last])
        counts = np.zeros(last - first, dtype=np.int64)
        counts[self._terms[low:high] - first] = self._counts[low:high]
        start, stop = int(self._starts[low]), int(self._starts[high])
        positions = None
        if self._position_starts is not None:
            positions = self._slice(
                "positions", int(self._position_starts[low]), int(self._position_starts[high])
            )
        return Postings(
            counts, self._slice("documents", start, stop), self._slice("tfs", start, stop), positions
        )

    def _slice(self, name: str, start: int, stop: int) -> Array:
        values = self._columns[name]
        if isinstance(values, Path):
            # read, not mapped: mapped pages would count as this process's memory
            return np.fromfile(values, dtype="<u4", count=stop - start, offset=4 * start)
        return values[start:stop]


class Inverter:
    """Takes documents' texts in order; `finish` gives their vocabulary, lengths and sorted runs."""

    def __init__(
        self,
        analyzer: Analyzer,
        spill_folder: Path,
        *,
        positions: bool,
        run_tokens: int = RUN_TOKENS,
        compile_after: int = COMPILE_AFTER,
    ) -> None:
        self._split = analyzer.split
        self._surfaces = _Surfaces(analyzer)
        self._spill_folder = spill_folder
        self._positions = positions
        self._buffer = np.empty(run_tokens, dtype=np.int32)
        self._filled = 0
        self._ends: list[int] = []  # of the documents in the buffer
        self._lengths: list[Array] = []
        self._runs: list[Run] = []
        self._documents = 0
        can_compile = analyzer.split is wordbreak.split and numba_installed()
        self._compile_after = compile_after if can_compile else None
        self._compiled: _CompiledTokens | None = None
        self._waiting: list[str] = []  # ASCII texts for the compiled way
        self._waiting_size = 0

    def add(self, text: str) -> None:
        if self._compiled is not None and text.isascii():
            self._waiting.append(text)
            self._waiting_size += len(text)
            if self._waiting_size >= _WAITING:
                self._take_waiting()
            return
        self._take_waiting()
        self._add_plainly(text)
        if self._compile_after is not None and self._documents + len(self._ends) >= self._compile_after:
            self._compiled, self._compile_after = _CompiledTokens(self._surfaces), None

    def _add_plainly(self, text: str) -> None:
        surfaces = self._split(text)
        self._reserve(len(surfaces))
        stop = self._filled + len(surfaces)
        self._buffer[self._filled : stop] = np.fromiter(
            map(self._surfaces.__getitem__, surfaces), dtype=np.int32, count=len(surfaces)
        )
        self._filled = stop
        self._ends.append(stop)

    def _take_waiting(self) -> None:
        if not self._waiting:
            return
        texts, self._waiting, self._waiting_size = self._waiting, [], 0
        assert self._compiled is not None
        found = self._compiled.terms(texts)
        if found is None:
            for text in texts:
                self._add_plainly(text)
            return
        terms, ends = found
        self._reserve(len(terms))
        self._buffer[self._filled : self._filled + len(terms)] = terms
        self._ends += (ends + self._filled).tolist()
        self._filled += len(terms)

    def _reserve(self, tokens: int) -> None:
        """Room in the buffer for the next documents."""
        if self._filled + tokens > len(self._buffer):
            self._close_run(spill=True)
            if tokens > len(self._buffer):
                self._buffer = np.empty(tokens, dtype=np.int32)

    def _close_run(self, *, spill: bool) -> None:
        if not self._ends:
            return
        tokens = self._buffer[: self._filled]
        per_document = np.diff(np.array(self._ends), prepend=0)
        documents = np.repeat(np.arange(len(per_document), dtype=np.uint64), per_document)
        starts = np.cumsum(per_document) - per_document
        kept = np.flatnonzero(tokens >= 0)
        key = tokens[kept].astype(np.uint64) << np.uint64(32)
        lengths = np.bincount(documents[kept].astype(np.int64), minlength=len(per_document))
        # one sort brings the postings into order: by term, then by place in the buffer, hence by document and
        # position
        key |= kept.astype(np.uint64) if self._positions else documents[kept]
        key.sort()
        term = (key >> np.uint64(32)).astype(np.int64)
        low = (key & np.uint64(0xFFFFFFFF)).astype(np.int64)
        document = documents[low].astype(np.int64) if self._positions else low
        new = np.flatnonzero((np.diff(term, prepend=-1) != 0) | (np.diff(document, prepend=-1) != 0))
        tfs = np.diff(np.append(new, len(key))).astype(np.uint32)
        terms, counts = _runs_of(term[new])
        positions = None
        if self._positions:
            positions = (low - starts[document]).astype(np.uint32)
        numbers = (document[new] + self._documents).astype(np.uint32)
        path = self._spill_folder / f"run-{len(self._runs)}" if spill else None
        self._runs.append(Run(terms, Postings(counts, numbers, tfs, positions), path))
        self._lengths.append(lengths.astype(np.uint32))
        self._documents += len(per_document)
        if self._documents >= 1 << 32:
            raise InputError("more than 4 billion documents in one segment", remedy="commit more often")
        self._filled, self._ends = 0, []

    def finish(self) -> tuple[list[str], Array, list[Run]]:
        """The terms in the order first seen, the documents' lengths, and the runs."""
        self._take_waiting()
        self._close_run(spill=False)
        terms = list(self._surfaces.terms)
        for run in self._runs:
            run.widen(len(terms))
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.uint32)
        return terms, lengths, self._runs


def _runs_of(values: Array) -> tuple[Array, Array]:
    """The distinct values of a sorted array and how often each occurs."""
    first = np.flatnonzero(np.diff(values, prepend=-1))
    return values[first], np.diff(np.append(first, len(values)))
