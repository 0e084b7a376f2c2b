"""A new segment from documents: they gather in parcels, which a crew of processes makes into compressed text
and sorted postings; in the end the postings are merged, term by term."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.index.crew import Crew, Result
from tamis.index.invert import Run
from tamis.index.parcels import Builder, Made, Part, SpilledRun, of_terms, renumbered
from tamis.index.postings import Encoded, PostingsWriter, batches
from tamis.index.segment import SegmentInfo, with_deleted, write_lengths
from tamis.index.vocabulary import by_hash
from tamis.storage.columns import ColumnInfo
from tamis.storage.document_store import Keep, StoreWriter, encoded
from tamis.storage.files import make_folder
from tamis.storage.markers import mark

PARCEL = 1 << 24  # bytes of documents; a full one is the least that is shared with other processes
_START = 4  # workers start when a quarter of the first parcel (one part in `_START`) is full
_AT_LEAST = 64  # bytes that a document counts as


class SegmentWriter:
    """Takes documents one by one; `close` writes the segment. The output depends on the documents alone, not
    on the number of processes."""

    def __init__(self, folder: Path, crew: Crew[Builder], *, keep: Keep | None = None) -> None:
        self._folder = folder
        self._crew = crew
        self._keep = keep
        make_folder(folder.parent)
        folder.mkdir()
        mark(folder)
        self._store = StoreWriter(folder)
        self.count = 0
        self._ids: list[bytes] = []  # of the open parcel
        self._parts: list[bytes] = []  # and its documents' titles, texts and metadata
        self._size = 0
        self._parcels = 0
        self._waiting: deque[list[bytes]] = deque()  # the ids of the parcels that are being made
        self._terms: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
        self._hashes: list[Array] = []  # of these, in their order
        # each process's own numbers of terms -> ours; by the first: a process may do a later parcel sooner
        self._numbers: dict[int, dict[int, Array]] = {}
        self._lengths: list[Array] = []
        self._runs: list[tuple[int, Run | SpilledRun]] = []  # by which process

    def add(self, document: Document) -> None:
        """Take a document; one that is refused (`InputError`) leaves everything as it was."""
        doc_id, title, text, metadata = encoded(document)
        if self.count + 1 >= 1 << 32:
            raise InputError("more than 4 billion documents in one segment", remedy="commit more often")
        self._ids.append(doc_id)
        self._parts += (title, text, metadata)
        self._size += max(len(title) + len(text) + len(metadata), _AT_LEAST)
        self.count += 1
        if self._size >= PARCEL:
            self._give_away()
        elif not self._parcels and self._size >= PARCEL // _START:
            self._crew.start()

    def _give_away(self) -> None:
        """Submit the open parcel, and collect finished runs of earlier ones."""
        self._parcels += 1
        self._submit("parcel", f"run-{self._parcels}", *self._take_parcel())
        for result in self._crew.ready():
            self._take_in(result)

    def _submit(self, method: str, *arguments: Any) -> None:
        """Have it done by any process; by this one as long as no parcel was full."""
        self._crew.submit(self._folder, method, self._folder, *arguments, here=not self._parcels)

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
        known = len(self._terms)
        numbers = np.fromiter(map(self._terms.__getitem__, made.new_terms), np.uint32, len(made.new_terms))
        of_process = self._numbers.setdefault(result.process, {0: np.zeros(0, np.uint32)})
        if len(numbers):
            of_process[made.first_term] = numbers
        self._hashes.append(made.hashes[numbers >= known])
        self._runs.append((result.process, made.run))

    def discard(self) -> None:
        """Let go of the files; the folder is removed with what no manifest names."""
        self._store.discard()

    def close(self) -> SegmentInfo:
        if not self._parcels:  # nothing needs to leave the memory, or this process
            self._submit("parcel", None, *self._take_parcel())
        elif self._ids:
            self._give_away()
        for result in self._crew.results():
            self._take_in(result)
        order = self._order_terms()
        columns, dropped = self._store.close(self._keep)
        columns |= write_lengths(self._folder, np.concatenate(self._lengths))
        columns |= self._write_postings(order)
        for path in self._folder.glob("run-*"):
            path.unlink()
        info = SegmentInfo(self._folder.name, self.count, columns)
        if not len(dropped):
            return info
        bits = np.zeros(self.count, dtype=bool)
        bits[dropped] = True
        return with_deleted(self._folder, info, bits, "deleted-at-first")

    def _order_terms(self) -> Array:
        """The order of the terms in the segment. This task is given away first, so that another process works
        on it while this one does its own part."""
        terms = list(self._terms)
        self._terms.clear()
        order = by_hash(np.concatenate(self._hashes), terms.__getitem__)
        lengths = np.fromiter(map(len, terms), np.uint32, len(terms))
        self._submit("terms", lengths, b"".join(terms), order)
        return order

    def _write_postings(self, order: Array) -> dict[str, ColumnInfo]:
        """Merge the runs; what comes of the terms is among the results too."""
        counts = self._renumber(order)
        columns: dict[str, ColumnInfo] = {}
        writer = PostingsWriter(self._folder, self._crew.member.positions)
        for first, last, parts in self._batches(batches(counts)):
            self._submit("encode", parts, first, last)
            for result in self._crew.ready():
                columns |= _written(result, writer)
        for result in self._crew.results():
            columns |= _written(result, writer)
        return columns | writer.close()

    def _batches(self, cuts: Array) -> Iterator[tuple[int, int, list[Part]]]:
        """Ranges of terms, and where their postings lie in the runs."""
        firsts = np.cumsum([0, *map(len, self._lengths)]).tolist()
        spans = [_spans(run, cuts) for _, run in self._runs]
        for batch, (first, last) in enumerate(itertools.pairwise(cuts.tolist())):
            parts = []
            for (_, run), document, span in zip(self._runs, firsts, spans, strict=False):
                terms, postings, positions = span[:, batch : batch + 2].tolist()
                if terms[0] < terms[1]:
                    parts.append(Part(run, document, tuple(terms), tuple(postings), tuple(positions)))
            yield first, last, parts

    def _renumber(self, order: Array) -> Array:
        """Give the terms of all runs their numbers in the segment; how many postings each has."""
        place = np.empty(len(order), np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        counts = np.zeros(len(place), np.int64)
        numbers = {
            process: place[np.concatenate([ours[first] for first in sorted(ours)])]
            for process, ours in self._numbers.items()
        }
        for at, (process, run) in enumerate(self._runs):
            own, in_run = of_terms(run, "terms", "counts")
            terms = numbers[process][own]
            self._runs[at] = (process, renumbered(run, terms))
            counts[terms] += in_run
        return counts


def _written(result: Result, writer: PostingsWriter) -> dict[str, ColumnInfo]:
    """Append postings; the columns that are written already are what there is to say of the others."""
    if isinstance(result.value, Encoded):
        writer.append(result.value)
        return {}
    columns: dict[str, ColumnInfo] = result.value
    return columns


def _spans(run: Run | SpilledRun, cuts: Array) -> Array:
    """Where the terms, the postings and the positions of each batch begin in a run."""
    terms, counts, occurrences = of_terms(run, "terms", "counts", "occurrences")
    places = np.searchsorted(terms, cuts)
    ends = [np.append(0, np.cumsum(values, dtype=np.int64)) for values in (counts, occurrences)]
    return np.stack([places, *(each[places] for each in ends)])
