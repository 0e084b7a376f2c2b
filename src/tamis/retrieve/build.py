"""A new segment from documents: they gather in parcels, which a crew of processes makes into compressed text
and sorted postings; in the end the postings are merged, term by term."""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path

import numpy as np

from tamis.columns import Array, ColumnInfo
from tamis.corpus import Keep, StoreWriter, encoded
from tamis.documents import Document
from tamis.errors import InputError
from tamis.processes import Crew, Result
from tamis.retrieve.invert import Run, hashes, in_order
from tamis.retrieve.parcels import Builder, Made, Part, SpilledRun, of_terms, renumbered
from tamis.retrieve.postings import PostingsWriter, batches
from tamis.retrieve.segment import SegmentInfo, with_deleted, write_terms

PARCEL = 1 << 24  # bytes of documents; the first full parcel starts the other processes
_AT_LEAST = 64  # bytes that a document counts as


class SegmentWriter:
    """Takes documents one by one; `close` writes the segment. What it writes depends on the documents alone,
    not on how many processes the crew has."""

    def __init__(self, folder: Path, crew: Crew[Builder], *, keep: Keep | None = None) -> None:
        self._folder = folder
        self._crew = crew
        self._keep = keep
        folder.mkdir(parents=True)
        self._store = StoreWriter(folder)
        self.count = 0
        self._ids: list[bytes] = []  # of the open parcel
        self._parts: list[bytes] = []  # and its documents' titles, texts and metadata
        self._size = 0
        self._parcels = 0
        self._waiting: deque[list[bytes]] = deque()  # the ids of the parcels that are being made
        self._terms: dict[bytes, int] = {}
        self._numbers: dict[int, list[int]] = {}  # each process's own numbers of terms -> ours
        self._lengths: list[Array] = []
        self._runs: list[tuple[int, Run | SpilledRun]] = []  # by which process

    def add(self, document: Document) -> None:
        """Take a document; one that is refused (`InputError`) leaves everything as it was."""
        identity, title, text, metadata = encoded(document)
        if self.count + 1 >= 1 << 32:
            raise InputError("more than 4 billion documents in one segment", remedy="commit more often")
        self._ids.append(identity)
        self._parts += (title, text, metadata)
        self._size += max(len(title) + len(text) + len(metadata), _AT_LEAST)
        self.count += 1
        if self._size >= PARCEL:
            self._give_away()

    def _give_away(self) -> None:
        """Have the open parcel made into a run, and take in what is ready of those before it."""
        name = f"run-{self._parcels}"
        self._crew.submit(self._folder, "parcel", self._folder, name, *self._take_parcel())
        self._parcels += 1
        for result in self._crew.ready():
            self._take_in(result)

    def _take_parcel(self) -> tuple[Array, bytes]:
        lengths = np.fromiter(map(len, self._parts), np.uint32, len(self._parts))
        parts = b"".join(self._parts)
        self._waiting.append(self._ids)
        self._ids, self._parts, self._size = [], [], 0
        return lengths, parts

    def _take_in(self, result: Result) -> None:
        """Append what came of the next parcel."""
        made: Made = result.value
        self._store.append(made.frames, self._waiting.popleft())
        self._lengths.append(made.lengths)
        numbers = self._numbers.setdefault(result.process, [])
        numbers += [self._terms.setdefault(term, len(self._terms)) for term in made.new_terms]
        self._runs.append((result.process, made.run))

    def discard(self) -> None:
        """Let go of the files; the folder is removed with what no manifest names."""
        self._store.discard()

    def close(self) -> SegmentInfo:
        if not self._parcels:  # nothing needs to leave the memory
            self._take_in(Result(0, self._crew.member.parcel(self._folder, None, *self._take_parcel())))
        elif self._ids:
            self._give_away()
        for result in self._crew.results():
            self._take_in(result)
        columns, dropped = self._store.close(self._keep)
        lengths = np.concatenate(self._lengths)
        columns |= self._write_inverted(lengths)
        for path in self._folder.glob("run-*"):
            path.unlink()
        info = SegmentInfo(self._folder.name, self.count, columns)
        if not len(dropped):
            return info
        bits = np.zeros(self.count, dtype=bool)
        bits[dropped] = True
        return with_deleted(self._folder, info, bits, "deleted-at-first")

    def _write_inverted(self, lengths: Array) -> dict[str, ColumnInfo]:
        terms = list(self._terms)
        order = in_order(hashes(terms), terms.__getitem__)
        columns, _ = write_terms(self._folder, [terms[number] for number in order.tolist()], lengths)
        place = np.empty(len(terms), np.uint32)
        place[order] = np.arange(len(terms), dtype=np.uint32)
        self._terms = {}
        counts = self._renumber(place)
        return columns | self._write_postings(batches(counts))

    def _renumber(self, place: Array) -> Array:
        """Give the terms of all runs their numbers in the segment; how many postings each has."""
        numbers = {process: place[np.array(ours)] for process, ours in self._numbers.items() if ours}
        counts = np.zeros(len(place), np.int64)
        for at, (process, run) in enumerate(self._runs):
            own, in_run = of_terms(run, "terms", "counts")
            terms = numbers[process][own] if len(own) else own
            self._runs[at] = (process, renumbered(run, terms))
            counts[terms] += in_run
        self._numbers = {}
        return counts

    def _write_postings(self, cuts: Array) -> dict[str, ColumnInfo]:
        """Write the lists in batches of terms, cut so."""
        writer = PostingsWriter(self._folder, self._crew.member.positions)
        firsts = list(itertools.accumulate(map(len, self._lengths), initial=0))
        spans = [_spans(run, cuts) for _, run in self._runs]
        for batch, (first, last) in enumerate(itertools.pairwise(cuts.tolist())):
            parts = [
                Part(run, document, *map(tuple, span[:, batch : batch + 2].tolist()))
                for (_, run), document, span in zip(self._runs, firsts, spans, strict=False)
                if span[0, batch] < span[0, batch + 1]
            ]
            if not self._parcels:
                writer.append(self._crew.member.encode(self._folder, parts, first, last))
                continue
            self._crew.submit(self._folder, "encode", self._folder, parts, first, last)
            for result in self._crew.ready():
                writer.append(result.value)
        for result in self._crew.results():
            writer.append(result.value)
        return writer.close()


def _spans(run: Run | SpilledRun, cuts: Array) -> Array:
    """Where the terms, the postings and the positions of each batch begin in a run."""
    terms, counts, occurrences = of_terms(run, "terms", "counts", "occurrences")
    places = np.searchsorted(terms, cuts)
    ends = [np.append(0, np.cumsum(values, dtype=np.int64)) for values in (counts, occurrences)]
    return np.stack([places, *(each[places] for each in ends)])
