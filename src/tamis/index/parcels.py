"""Tasks on a parcel of documents and on a batch of posting lists, for any process. The output depends on the
input only, not on the process or its earlier tasks. So an index is the same, byte for byte, for any number of
processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tamis.base.arrays import Array
from tamis.index.invert import Inverter, Run
from tamis.index.postings import Encoded, Postings, encode, join
from tamis.index.segment import write_terms
from tamis.storage.columns import ColumnInfo
from tamis.storage.document_store import Frames, pack_frames
from tamis.storage.files import storage_errors
from tamis.text.analyze import Analyzer, get_analyzer


@dataclass(frozen=True, slots=True)
class SpilledRun:
    """A run in a file: its columns one after the other, with their lengths."""

    path: Path
    terms: int
    postings: int
    positions: int

    def starts(self) -> dict[str, int]:
        sizes = [self.terms] * 3 + [self.postings] * 2
        names = ("terms", "counts", "occurrences", "documents", "tfs", "positions")
        return dict(zip(names, itertools.accumulate(sizes, initial=0), strict=True))


@dataclass(frozen=True, slots=True)
class Part:
    """The terms of a run that are in a batch: where they, their postings and their positions lie."""

    run: Run | SpilledRun
    first_document: int
    terms: tuple[int, int]
    postings: tuple[int, int]
    positions: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a parcel."""

    frames: Frames
    lengths: Array  # of its documents, in terms
    first_term: int  # the number of the first that is new to this process
    new_terms: list[bytes]
    hashes: Array  # of these
    run: Run | SpilledRun


class Builder:
    """Does the work for one segment after the other, and keeps the vocabulary of the one at hand."""

    def __init__(self, analyzer: Analyzer, *, positions: bool) -> None:
        self.positions = positions
        self._analyzer = analyzer
        self._folder: Path | None = None
        self._inverter = Inverter(analyzer, positions=positions)
        self._norms: Array | None = None

    def __reduce__(self) -> tuple[object, tuple[str, bool]]:
        """Another process gets one that has done nothing yet."""
        return _builder, (self._analyzer.name, self.positions)

    def _turn_to(self, folder: Path) -> None:
        if folder != self._folder:
            self._folder, self._norms = folder, None
            self._inverter = Inverter(self._analyzer, positions=self.positions)

    def parcel(self, folder: Path, spill: str | None, lengths: Array, parts: bytes) -> Made:
        """Documents for the segment in this folder, as the lengths of titles, texts and metadata and all
        these end to end; the run goes into the file `spill`, or stays in memory."""
        self._turn_to(folder)
        first_term = self._inverter.known
        run, in_terms, new_terms, hashes = self._inverter.invert(_contents(lengths, parts))
        kept = run if spill is None else write_run(folder / spill, run)
        return Made(pack_frames(lengths, parts), in_terms, first_term, new_terms, hashes, kept)

    def terms(self, folder: Path, lengths: Array, text: bytes, order: Array) -> dict[str, ColumnInfo]:
        """Write the vocabulary: terms that are given end to end, in this order."""
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = (ends - lengths)[order].tolist()
        return write_terms(
            folder, [text[start:end] for start, end in zip(starts, ends[order].tolist(), strict=True)]
        )

    def encode(self, folder: Path, parts: Sequence[Part], first: int, last: int) -> Encoded:
        """The posting lists of the terms first..last-1, from their parts in all runs."""
        self._turn_to(folder)
        if self._norms is None:
            self._norms = np.memmap(folder / "documents.norms", np.uint8, "r")
        return encode(join([_postings(part, first, last, self.positions) for part in parts]), self._norms)


def _builder(analyzer: str, positions: bool) -> Builder:
    return Builder(get_analyzer(analyzer), positions=positions)


def _contents(lengths: Array, parts: bytes) -> list[bytes]:
    """The indexed text of each document; see `Document.contents`."""
    texts = []
    at = 0
    for title, text, metadata in lengths.reshape(-1, 3).tolist():
        middle, end = at + title, at + title + text
        texts.append(parts[at:middle] + b"\n" + parts[middle:end] if title else parts[at:end])
        at = end + metadata
    return texts


def write_run(path: Path, run: Run) -> SpilledRun:
    columns = [run.terms, run.counts, run.occurrences, run.documents, run.tfs]
    if run.positions is not None:
        columns.append(run.positions)
    with storage_errors(path), path.open("wb") as file:
        for values in columns:
            # not ndarray.tofile, whose error on a full disk has no errno
            file.write(values.astype("<u4", copy=False).data)
    positions = 0 if run.positions is None else len(run.positions)
    return SpilledRun(path, len(run.terms), len(run.documents), positions)


def of_terms(run: Run | SpilledRun, *names: str) -> list[Array]:
    """The columns of a run that have one number a term."""
    if isinstance(run, Run):
        return [getattr(run, name) for name in names]
    starts = run.starts()
    return [np.fromfile(run.path, "<u4", run.terms, offset=4 * starts[name]) for name in names]


def renumbered(run: Run | SpilledRun, terms: Array) -> Run | SpilledRun:
    """The run with other numbers for its terms."""
    if isinstance(run, Run):
        return replace(run, terms=terms)
    with storage_errors(run.path), run.path.open("r+b") as file:
        file.write(terms.astype("<u4").data)
    return run


def _postings(part: Part, first: int, last: int, positions: bool) -> Postings:
    """A part as postings of the terms first..last-1."""
    spans = [part.terms, part.terms, part.postings, part.postings] + [part.positions] * positions
    names = ["terms", "counts", "documents", "tfs"] + ["positions"] * positions
    if isinstance(part.run, Run):
        found = [
            getattr(part.run, name)[start:stop] for name, (start, stop) in zip(names, spans, strict=True)
        ]
    else:
        found, starts = [], part.run.starts()
        with part.run.path.open("rb", buffering=0) as file:
            for name, (start, stop) in zip(names, spans, strict=True):
                # read, not mapped: mapped pages would count as this process's memory
                file.seek(4 * (starts[name] + start))
                found.append(np.fromfile(file, "<u4", stop - start))
    terms, in_run, documents, tfs = found[:4]
    counts = np.zeros(last - first, dtype=np.int64)
    counts[terms.astype(np.int64) - first] = in_run
    numbers = documents + np.uint32(part.first_document)
    return Postings(counts, numbers, tfs, found[4] if positions else None)
