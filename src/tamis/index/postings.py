"""Posting lists on disk: blocks of 128, each with its first document and its competitive (tf, length) pairs.

Inside a block a posting is the distance to the block's first document, in 16 bits (32 where the block spans
more), and one byte of term frequency: no sums to undo, so a block can be searched and scored where it lies in
the mapped file. Length enters as Lucene's one-byte norm. A pair (tf, norm) is competitive when no other
posting of its block has a higher tf and a shorter document; any score that grows with tf and shrinks with
length is bounded by its value at these pairs, which is why k1, b and mu can be chosen at query time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.storage.columns import ColumnInfo, ColumnWriter, smallest_unsigned, write_column

BLOCK = 128
TF_CAP = 255  # a tf byte of 255 means "look in the overflow column"
BATCH = 1 << 20  # postings encoded at a time


@dataclass(frozen=True, slots=True)
class Postings:
    """Some terms' postings, plain: term after term, documents ascending.

    `positions` holds the tf positions of each posting, one posting after the other, or is None.
    """

    counts: Array  # postings per term
    documents: Array
    tfs: Array
    positions: Array | None = None


class PostingSource(Protocol):
    """A source of postings for a new segment: a spilled run, or an older segment."""

    def counts(self) -> Array:
        """The number of postings of each term of the new vocabulary in this source."""
        ...

    def read(self, first: int, last: int) -> Postings:
        """The postings of the new vocabulary's terms first..last-1, with the new segment's document
        numbers."""
        ...


def join(parts: Sequence[Postings]) -> Postings:
    """One list per term from several sources whose documents follow each other.

    >>> one = Postings(np.array([1, 0]), np.array([3]), np.array([2]))
    >>> two = Postings(np.array([1, 2]), np.array([7, 5, 9]), np.array([1, 1, 4]))
    >>> both = join([one, two])
    >>> both.counts.tolist(), both.documents.tolist(), both.tfs.tolist()
    ([2, 2], [3, 7, 5, 9], [2, 1, 1, 4])
    """
    if len(parts) == 1:
        return parts[0]
    counts = np.stack([part.counts for part in parts]).sum(axis=0, dtype=np.int64)
    total = int(counts.sum())
    documents, tfs = np.empty(total, np.uint32), np.empty(total, np.uint32)
    place = np.cumsum(counts) - counts
    targets = []
    for part in parts:
        targets.append(ranges(place, part.counts))
        documents[targets[-1]] = part.documents
        tfs[targets[-1]] = part.tfs
        place = place + part.counts
    if parts[0].positions is None:
        return Postings(counts, documents, tfs)
    starts = np.cumsum(tfs, dtype=np.int64) - tfs
    positions = np.empty(int(tfs.sum(dtype=np.int64)), np.uint32)
    for part, target in zip(parts, targets, strict=True):
        assert part.positions is not None
        positions[ranges(starts[target], part.tfs.astype(np.int64))] = part.positions
    return Postings(counts, documents, tfs, positions)


def competitive_pairs(tfs: Array, norms: Array, block_starts: Array) -> tuple[Array, Array]:
    """For each block its (tf, norm) pairs that no other posting dominates, as tf << 8 | norm, and where each
    block's pairs start.

    >>> pairs, starts = competitive_pairs(np.array([1, 3, 2, 1]), np.array([5, 9, 9, 7]), np.array([0, 3]))
    >>> [(int(p) >> 8, int(p) & 255) for p in pairs], starts.tolist()
    ([(1, 5), (3, 9), (1, 7)], [0, 2, 3])
    """
    blocks = np.repeat(np.arange(len(block_starts)), np.diff(np.append(block_starts, len(tfs))))
    levels: list[Array] = []
    tf = 0
    # the shortest document among those with at least this tf; each level looks only at the postings that
    # reach it
    while len(tfs):
        tf += 1
        first = np.flatnonzero(np.diff(blocks, prepend=-1))
        shortest = np.minimum.reduceat(norms, first).astype(np.int64)
        levels.append(blocks[first] << 16 | tf << 8 | shortest)
        keep = tfs > tf
        tfs, norms, blocks = tfs[keep], norms[keep], blocks[keep]
    entries = np.sort(np.concatenate(levels)) if levels else np.zeros(0, np.int64)
    nearer = np.append(entries[1:], -1)
    # along one block the shortest length can only grow with tf; where it does not, the higher tf dominates
    competitive = entries[(entries >> 16 != nearer >> 16) | (entries & 255 < nearer & 255)]
    starts = np.searchsorted(competitive >> 16, np.arange(len(block_starts) + 1))
    return (competitive & 0xFFFF).astype(np.uint16), starts


def variable_bytes(values: Array) -> Array:
    """Little-endian base-128 bytes, the high bit set on all but the last byte of a value.

    >>> variable_bytes(np.array([1, 300])).tolist()
    [1, 172, 2]
    """
    values = values.astype(np.uint64)
    sizes = np.ones(len(values), dtype=np.int64)
    for bits in (7, 14, 21, 28):
        sizes += values >= 1 << bits
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    for byte in range(int(sizes.max(initial=0))):
        long = sizes > byte
        more = (sizes[long] > byte + 1).astype(np.uint64) << np.uint64(7)
        out[starts[long] + byte] = ((values[long] >> np.uint64(7 * byte)) & np.uint64(127)) | more
    return out


def from_variable_bytes(data: Array) -> Array:
    """The values that `variable_bytes` wrote.

    >>> from_variable_bytes(np.array([1, 172, 2], dtype=np.uint8)).tolist()
    [1, 300]
    """
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    values: Array = (data[starts] & 127).astype(np.int64)
    for byte in range(1, int((ends - starts).max(initial=0)) + 1):
        long = ends - starts >= byte
        values[long] |= (data[starts[long] + byte] & 127).astype(np.int64) << (7 * byte)
    return values


@dataclass(frozen=True, slots=True)
class Encoded:
    """Some terms' postings as they are stored, but for places, which count from the first of these."""

    documents: Array
    tfs: Array
    block_first: Array
    block_place: Array
    pairs: Array
    pair_counts: Array  # per block
    overflow_place: Array
    overflow_tf: Array
    counts: Array  # per term: postings,
    occurrences: Array  # occurrences,
    position_ends: Array | None  # and where its positions end
    positions: Array | None


def encode(postings: Postings, norms: Array) -> Encoded:
    """The lists of some terms in blocks; `norms` are those of all documents.

    >>> postings = Postings(np.array([2]), np.array([3, 9]), np.array([1, 300]))
    >>> encoded = encode(postings, np.zeros(10, np.uint8))
    >>> encoded.documents.tolist(), encoded.tfs.tolist(), encoded.overflow_tf.tolist()
    ([0, 6], [1, 255], [300])
    """
    counts, documents, tfs = postings.counts.astype(np.int64), postings.documents, postings.tfs
    blocks = -(-counts // BLOCK)
    within = ranges(np.zeros(len(counts), np.int64), blocks)  # the block's place in its own list
    lengths = np.minimum(np.repeat(counts, blocks) - within * BLOCK, BLOCK)
    starts = np.cumsum(lengths) - lengths
    first = documents[starts].astype(np.int64)
    wide = documents[starts + lengths - 1] - first >= 1 << 16
    sizes = lengths << wide
    distances = documents - np.repeat(first, lengths)
    if wide.any():
        halves = np.stack([distances & 0xFFFF, distances >> 16], axis=1).astype(np.uint16)
        used = np.ones(halves.shape, dtype=bool)
        used[:, 1] = np.repeat(wide, lengths)
        distances = halves[used]
    capped = np.minimum(tfs, TF_CAP).astype(np.uint8)
    pairs, pair_starts = competitive_pairs(capped, norms[documents], starts)
    over = np.flatnonzero(tfs >= TF_CAP)
    totals = np.concatenate([[0], np.cumsum(tfs, dtype=np.int64)])
    ends = np.cumsum(counts)
    position_ends, positions = None, None
    if postings.positions is not None:
        position_ends, positions = _encode_positions(postings.positions, totals[:-1], totals[ends])
    return Encoded(
        distances.astype(np.uint16),
        capped,
        first,
        (np.cumsum(sizes) - sizes) << 1 | wide,
        pairs,
        np.diff(pair_starts).astype(np.uint16),
        over,
        tfs[over],
        counts,
        totals[ends] - totals[ends - counts],
        position_ends,
        positions,
    )


def _encode_positions(positions: Array, starts: Array, term_ends: Array) -> tuple[Array, Array]:
    """Gaps between positions inside a document, after its absolute first position; and the end of each
    term's."""
    gaps = np.diff(positions.astype(np.int64), prepend=0)
    gaps[starts] = positions[starts]
    data = variable_bytes(gaps)
    value_ends = np.concatenate([[0], np.flatnonzero(data < 128) + 1])
    return value_ends[term_ends], data


class PostingsWriter:
    """Appends encoded posting lists to the columns `postings.*` of a folder."""

    COLUMNS = (
        ("documents", "u2"),  # distances to the block's first document; two 16-bit halves where wide
        ("tfs", "u1"),
        ("block_first", "u4"),  # the block's first document
        ("block_place", "u8"),  # where its distances start, << 1, | 1 where wide
        ("pairs", "u2"),
        ("overflow_place", "u8"),  # postings whose tf does not fit a byte, and that tf
        ("overflow_tf", "u4"),
    )

    def __init__(self, folder: Path, positions: bool) -> None:
        self._folder = folder
        self._columns = {
            name: ColumnWriter(folder / f"postings.{name}", dtype) for name, dtype in self.COLUMNS
        }
        self._positions = ColumnWriter(folder / "postings.positions", "u1") if positions else None
        self._counts: list[Array] = []
        self._occurrences: list[Array] = []
        self._position_ends: list[Array] = []
        self._pair_counts: list[Array] = []

    def append(self, encoded: Encoded) -> None:
        """Append the lists of the next terms."""
        columns = self._columns
        columns["block_place"].append(encoded.block_place + (columns["documents"].count << 1))
        columns["overflow_place"].append(encoded.overflow_place + columns["tfs"].count)
        for name in ("documents", "tfs", "block_first", "pairs", "overflow_tf"):
            columns[name].append(getattr(encoded, name))
        self._pair_counts.append(encoded.pair_counts)
        self._counts.append(encoded.counts)
        self._occurrences.append(encoded.occurrences)
        if self._positions is not None:
            assert encoded.positions is not None and encoded.position_ends is not None
            self._position_ends.append(encoded.position_ends + self._positions.count)
            self._positions.append(encoded.positions)

    def close(self) -> dict[str, ColumnInfo]:
        infos = {f"postings.{name}": writer.close() for name, writer in self._columns.items()}
        counts = np.concatenate([[0], *self._counts])
        blocks = np.cumsum(-(-counts // BLOCK))
        pairs = np.cumsum(np.concatenate([[0], *self._pair_counts]), dtype=np.int64)
        occurrences = np.concatenate([[0], *self._occurrences])[1:]
        columns = [
            ("term_postings", np.cumsum(counts, dtype=np.int64), "u8"),
            ("term_blocks", blocks, smallest_unsigned(int(blocks[-1]))),
            ("term_occurrences", occurrences, smallest_unsigned(int(occurrences.max(initial=0)))),
            ("block_pairs", pairs, smallest_unsigned(int(pairs[-1]))),
        ]
        if self._positions is not None:
            infos["postings.positions"] = self._positions.close()
            columns.append(("term_positions", np.concatenate([[0], *self._position_ends]), "u8"))
        for name, values, dtype in columns:
            infos[f"postings.{name}"] = write_column(self._folder / f"postings.{name}", values, dtype)
        return infos


def batches(counts: Array) -> Array:
    """Where to cut terms with so many postings each into batches of about `BATCH` postings: the first term of
    each, and the end.

    >>> batches(np.array([BATCH, 5, BATCH - 5, 1])).tolist()
    [0, 1, 3, 4]
    """
    cumulative = np.cumsum(counts)
    cuts = [0]
    while cuts[-1] < len(counts):
        done = int(cumulative[cuts[-1] - 1]) if cuts[-1] else 0
        after = int(np.searchsorted(cumulative, done + BATCH, side="right"))
        cuts.append(max(cuts[-1] + 1, after))
    return np.array(cuts)


def write_postings(
    folder: Path, sources: Sequence[PostingSource], norms: Array, *, positions: bool
) -> dict[str, ColumnInfo]:
    """Merge the sources, whose documents follow each other, into one set of posting lists."""
    writer = PostingsWriter(folder, positions)
    counts = np.stack([source.counts() for source in sources]).sum(axis=0, dtype=np.int64)
    for first, last in itertools.pairwise(batches(counts).tolist()):
        writer.append(encode(join([source.read(first, last) for source in sources]), norms))
    return writer.close()
