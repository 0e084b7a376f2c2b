"""A segment: some documents, their ids, lengths, vocabulary and posting lists, as immutable column files in
one folder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.interrupt import check
from tamis.index.fields import Fields
from tamis.index.lengths import norms
from tamis.index.postings import BLOCK, Postings, from_variable_bytes, write_postings
from tamis.index.vocabulary import by_bytes, encoded
from tamis.storage.columns import Column, ColumnInfo, find_string, smallest_unsigned, write_column
from tamis.storage.document_store import Store, StoreWriter
from tamis.storage.files import make_folder
from tamis.storage.markers import mark

KNOWN_TERMS = 1 << 16


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What the manifest remembers of a segment."""

    name: str
    documents: int
    columns: dict[str, ColumnInfo]
    deleted: str | None = None  # the file with one bit a document, written beside the columns
    deleted_info: ColumnInfo | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SegmentInfo:
        columns = {name: ColumnInfo(**info) for name, info in data["columns"].items()}
        deleted = data["deleted_info"]
        return cls(
            data["name"],
            data["documents"],
            columns,
            data["deleted"],
            ColumnInfo(**deleted) if deleted else None,
        )


@dataclass(frozen=True, slots=True)
class Term:
    """Where a term's postings lie in a segment, and its statistics among the documents that are not
    deleted."""

    number: int
    df: int
    cf: int
    postings: int  # how many are stored, deleted documents included
    first_block: int
    last_block: int
    first_posting: int
    max_tf: int  # as a byte
    overflow_place: Array
    overflow_tf: Array


def with_deleted(folder: Path, info: SegmentInfo, bits: Array, name: str) -> SegmentInfo:
    """Write which documents are deleted, and return the segment's new description."""
    path = folder / name
    path.unlink(missing_ok=True)  # left by a killed writer
    return replace(info, deleted=name, deleted_info=write_column(path, np.packbits(bits), "u1"))


def write_terms(folder: Path, terms: Sequence[bytes]) -> dict[str, ColumnInfo]:
    """Write the vocabulary, in the order of the terms' numbers."""
    ends = np.cumsum([0, *map(len, terms)], dtype=np.int64)
    return {
        "terms.text": write_column(folder / "terms.text", np.frombuffer(b"".join(terms), np.uint8), "u1"),
        "terms.ends": write_column(folder / "terms.ends", ends, smallest_unsigned(int(ends[-1]))),
        "terms.order": write_column(folder / "terms.order", by_bytes(terms), "u4"),
    }


def write_lengths(folder: Path, lengths: Array) -> dict[str, ColumnInfo]:
    """Write the documents' lengths, exact and rounded."""
    return {
        "documents.lengths": write_column(folder / "documents.lengths", lengths, "u4"),
        "documents.norms": write_column(folder / "documents.norms", norms(lengths), "u1"),
    }


class Segment:
    """Reads a segment."""

    def __init__(self, folder: Path, info: SegmentInfo, older: Segment | None = None) -> None:
        """`older` is the same segment with fewer deleted documents, if it is open."""
        self.info = info
        self.store = Store(folder, info.columns)
        self.fields: Fields = Fields(self.store) if older is None else older.fields
        self._columns = {
            name: Column(folder / name, column)
            for name, column in info.columns.items()
            if not name.startswith("store.")
        }
        self._mapped = [column for column in self._columns.values() if column.is_mapped]
        self.deleted: Array | None = None
        if info.deleted is not None:
            assert info.deleted_info is not None
            bits = Column(folder / info.deleted, info.deleted_info).all()
            self.deleted = np.unpackbits(bits, count=info.documents).astype(bool)
        self.has_positions = "postings.positions" in self._columns
        self.lengths = self.column("documents.lengths")
        self.norms = self.column("documents.norms")
        held = self.lengths if self.deleted is None else self.lengths[~self.deleted]
        self.documents = len(held)
        self.tokens = int(held.sum(dtype=np.int64))
        self.not_empty = int(np.count_nonzero(held))
        self.norm_range = (int(self.norms.min()), int(self.norms.max())) if len(self.norms) else (0, 0)
        self.codes = self.norms - np.uint8(self.norm_range[0])
        self._terms: dict[str, Term | None] = {}
        self._length_codes: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return self.info.documents

    def check_sizes(self) -> None:
        """That no file was cut short since it was opened: see `tamis.storage.columns`."""
        self.store.check_sizes()
        for column in self._mapped:
            column.check_size()

    def column(self, name: str) -> Array:
        """A whole column, checked."""
        return self._columns[name].all()

    def unchecked(self, name: str) -> Array:
        """A whole column of which the caller reads only parts that `term` has checked."""
        return self._columns[name].unchecked

    @cached_property
    def posting_columns(self) -> tuple[Array, ...]:
        """The columns that the search kernel reads, in its order."""
        names = ("block_first", "block_place", "block_pairs", "pairs", "documents", "tfs")
        return tuple(self.unchecked(f"postings.{name}") for name in names)

    @cached_property
    def live(self) -> Array | None:
        return None if self.deleted is None else ~self.deleted

    def length_codes(self) -> tuple[Array, Array]:
        """For exact lengths: each document's place among the distinct lengths, and these lengths."""
        if self._length_codes is None:
            values, codes = np.unique(self.lengths, return_inverse=True)
            self._length_codes = (codes.astype(np.uint32), values.astype(np.int64))
        return self._length_codes

    def terms(self) -> list[str]:
        text, ends = self.column("terms.text").tobytes(), self.column("terms.ends").tolist()
        return [text[a:b].decode("utf-8", "surrogatepass") for a, b in itertools.pairwise(ends)]

    def term(self, term: str) -> Term | None:
        """The term's entry, its posting data checked, or None where no live document holds it."""
        try:
            return self._terms[term]
        except KeyError:
            pass
        check()  # a list that is read for the first time is checked, which may take long
        columns = (self.column(f"terms.{name}") for name in ("text", "ends", "order"))
        number = find_string(term.encode("utf-8", "surrogatepass"), *columns)
        entry = None if number < 0 else self._entry(number)
        if len(self._terms) >= KNOWN_TERMS:
            self._terms.clear()
        self._terms[term] = entry
        return entry

    def _entry(self, number: int) -> Term | None:
        def pair(name: str) -> tuple[int, int]:
            values = self._columns[f"postings.{name}"].slice(number, number + 2)
            return int(values[0]), int(values[1])

        first, last = pair("term_postings")
        first_block, last_block = pair("term_blocks")
        if first == last:
            return None
        self._check(first, last, first_block, last_block)
        pairs = self.unchecked("postings.block_pairs")
        in_pairs = self.unchecked("postings.pairs")[int(pairs[first_block]) : int(pairs[last_block])]
        overflow = self.column("postings.overflow_place")
        low, high = np.searchsorted(overflow, [first, last])
        df = last - first
        cf = int(self._columns["postings.term_occurrences"].slice(number, number + 1)[0])
        entry = Term(
            number,
            df,
            cf,
            df,
            first_block,
            last_block,
            first,
            int(in_pairs.max()) >> 8,
            overflow[low:high].astype(np.int64),
            self.column("postings.overflow_tf")[low:high].astype(np.int64),
        )
        if self.deleted is None:
            return entry
        documents, tfs = self.decode(entry)
        held = ~self.deleted[documents]
        df, cf = int(np.count_nonzero(held)), int(tfs[held].sum())
        if not df:
            return None
        return Term(number, df, cf, *(getattr(entry, name) for name in Term.__slots__[3:]))

    def _check(self, first: int, last: int, first_block: int, last_block: int) -> None:
        """Verify the checksums of everything that reading this list will touch."""
        columns = self._columns
        columns["postings.tfs"].slice(first, last)
        columns["postings.block_first"].slice(first_block, last_block)
        place = columns["postings.block_place"].slice(first_block, last_block)
        pairs = columns["postings.block_pairs"].slice(first_block, last_block + 1)
        columns["postings.pairs"].slice(int(pairs[0]), int(pairs[-1]))
        final = int(place[-1])
        in_final = (last - first) - (last_block - first_block - 1) * BLOCK
        columns["postings.documents"].slice(int(place[0]) >> 1, (final >> 1) + (in_final << (final & 1)))

    def decode(self, term: Term) -> tuple[Array, Array]:
        """The term's documents and tfs, deleted documents included."""
        return self._decode(
            np.array([term.first_posting]), np.array([term.postings]), np.array([term.first_block])
        )

    def _decode(self, first_postings: Array, counts: Array, first_blocks: Array) -> tuple[Array, Array]:
        """Documents and tfs of several lists, one after the other; their data must have been checked."""
        blocks = ranges(first_blocks, -(-counts // BLOCK))
        within = blocks - np.repeat(first_blocks, -(-counts // BLOCK))
        lengths = np.minimum(np.repeat(counts, -(-counts // BLOCK)) - within * BLOCK, BLOCK)
        place = self.unchecked("postings.block_place")[blocks].astype(np.int64)
        wide = (place & 1).astype(bool)
        data = self.unchecked("postings.documents")
        starts = np.cumsum(lengths) - lengths
        # a wide distance takes two slots, so its postings step by two
        at = np.repeat(place >> 1, lengths)
        step = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
        wide_posting = np.repeat(wide, lengths)
        at += step << wide_posting
        distances = data[at].astype(np.int64)
        distances[wide_posting] |= data[at[wide_posting] + 1].astype(np.int64) << 16
        documents = distances + np.repeat(
            self.unchecked("postings.block_first")[blocks].astype(np.int64), lengths
        )
        postings = ranges(first_postings, counts)
        tfs = self.unchecked("postings.tfs")[postings].astype(np.int64)
        overflow = self.column("postings.overflow_place")
        capped = np.flatnonzero(tfs == 255)
        if len(capped):
            at = np.searchsorted(overflow, postings[capped].astype(np.uint64))
            tfs[capped] = self.column("postings.overflow_tf")[at]
        return documents, tfs

    def positions(self, term: Term) -> Array:
        """The positions of each posting, tf after tf, within its document."""
        ends = self._columns["postings.term_positions"].slice(term.number, term.number + 2)
        _, tfs = self.decode(term)
        return self._positions(int(ends[0]), int(ends[1]), tfs)

    def _positions(self, start: int, stop: int, tfs: Array) -> Array:
        gaps = from_variable_bytes(self._columns["postings.positions"].slice(start, stop))
        total = np.cumsum(gaps)
        starts = np.cumsum(tfs) - tfs
        before = total[starts] - gaps[starts]  # what earlier documents summed to
        positions: Array = total - np.repeat(before, tfs)
        return positions


class SegmentSource:
    """An older segment as a source for a merge: deleted documents leave, numbers shift."""

    def __init__(self, segment: Segment, vocabulary: dict[str, int], first_document: int) -> None:
        self._segment = segment
        self._old = np.full(len(vocabulary), -1, dtype=np.int64)  # new term number -> number here
        numbers = [vocabulary[term] for term in segment.terms()]
        self._old[numbers] = np.arange(len(numbers))
        held = np.ones(len(segment), dtype=bool) if segment.live is None else segment.live
        self.kept = np.flatnonzero(held)
        self._new_number = np.where(held, np.cumsum(held) - 1 + first_document, -1)
        for name in segment.info.columns:  # a merge reads everything: check everything
            if name.startswith("postings."):
                segment.column(name)

    def counts(self) -> Array:
        here = self._old >= 0
        totals = np.zeros(len(self._old), dtype=np.int64)
        totals[here] = np.diff(self._segment.column("postings.term_postings").astype(np.int64))[
            self._old[here]
        ]
        return totals  # deleted documents included: an upper bound is enough to size batches

    def read(self, first: int, last: int) -> Postings:
        segment = self._segment
        new = np.flatnonzero(self._old[first:last] >= 0)
        old = self._old[first:last][new]
        starts = segment.column("postings.term_postings").astype(np.int64)
        stored = starts[old + 1] - starts[old]
        blocks = segment.column("postings.term_blocks").astype(np.int64)
        documents, tfs = segment._decode(starts[old], stored, blocks[old])
        positions = None
        if segment.has_positions:
            places = segment.column("postings.term_positions").astype(np.int64)
            posting_ends = np.cumsum(stored)
            parts = [
                segment._positions(int(places[term]), int(places[term + 1]), tfs[end - count : end])
                for term, count, end in zip(old.tolist(), stored.tolist(), posting_ends.tolist(), strict=True)
            ]
            positions = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        numbers = self._new_number[documents]
        held = numbers >= 0
        counts = np.zeros(last - first, dtype=np.int64)
        kept_before = np.concatenate([[0], np.cumsum(held)])
        ends = np.cumsum(stored)
        counts[new] = kept_before[ends] - kept_before[ends - stored]
        if positions is not None:
            positions = positions[np.repeat(held, tfs)].astype(np.uint32)
        return Postings(counts, numbers[held].astype(np.uint32), tfs[held].astype(np.uint32), positions)


def merge_segments(folder: Path, segments: Sequence[Segment]) -> SegmentInfo:
    """One segment with the live documents of several, in their order."""
    make_folder(folder.parent)
    folder.mkdir()
    mark(folder)
    vocabulary: dict[str, int] = {}
    for segment in segments:
        for term in segment.terms():
            vocabulary.setdefault(term, len(vocabulary))
    sources: list[SegmentSource] = []
    count = 0
    for segment in segments:
        sources.append(SegmentSource(segment, vocabulary, count))
        count += segment.documents
    store = StoreWriter(folder)
    for segment, source in zip(segments, sources, strict=True):
        store.copy(segment.store, source.kept)
    columns, _ = store.close()
    lengths = [segment.lengths[source.kept] for segment, source in zip(segments, sources, strict=True)]
    positions = all(segment.has_positions for segment in segments)
    columns |= write_lengths(folder, np.concatenate(lengths)) | write_terms(folder, encoded(vocabulary))
    columns |= write_postings(folder, sources, norms(np.concatenate(lengths)), positions=positions)
    return SegmentInfo(folder.name, count, columns)
