"""The document store: append-only, compressed, memory-mapped, read by number or by id.

Documents are packed into zstd frames of about 16 KiB, so reading one document needs one small decompression,
and ten million documents need no Python objects. Ids are in a separate column, not in the compressed frames,
because a ranking needs a thousand ids at once; their sorted order is stored too, for the lookup of an id and
for breaking ties.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zstandard

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import CorruptError, InputError, StorageError, UnknownDocumentError, quoted
from tamis.storage.columns import (
    Column,
    ColumnInfo,
    ColumnWriter,
    find_string,
    smallest_unsigned,
    write_column,
)

FRAME = 1 << 14  # bytes of text before a frame is closed
CACHED_FRAMES = 256
LARGEST_CACHED = 1 << 17  # compressed bytes: a frame of one huge document is not cached
LONGEST_PART = (1 << 32) - 1  # bytes: a frame stores the lengths of titles, texts and metadata in 32 bits
_FEW = 64  # up to this number, ids are read one by one
Keep = Literal["first", "last"]


class DuplicateIdError(InputError):
    """A document id that occurs twice; callers can use `doc_id` to report where.

    >>> DuplicateIdError("d1", "the index already holds it").doc_id
    'd1'
    """

    def __init__(self, doc_id: str, problem: str, *, remedy: str = "") -> None:
        self.doc_id = doc_id
        super().__init__(problem, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Frames:
    """Compressed documents: concatenated frames, and the size and the number of documents of each frame."""

    data: bytes
    sizes: list[int]
    documents: list[int]


def pack_frames(lengths: Array, parts: bytes) -> Frames:
    """Compress documents, passed as the lengths of their titles, texts and metadata, and all these parts end
    to end.

    A frame is the number of documents, the three lengths of each document, then all the parts.

    >>> pack_frames(np.array([0, 5, 0, 0, 3, 0]), b"sievepot").documents
    [2]
    """
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=False)
    frames, counts = [], []
    documents = lengths.reshape(-1, 3)
    ends = np.cumsum(documents.sum(axis=1, dtype=np.int64)).tolist()
    first, start = 0, 0
    for last, end in enumerate(ends, 1):
        if end - start >= FRAME or last == len(ends):
            header = struct.pack("<I", last - first) + documents[first:last].astype("<u4").tobytes()
            frames.append(compressor.compress(header + parts[start:end]))
            counts.append(last - first)
            first, start = last, end
    return Frames(b"".join(frames), [*map(len, frames)], counts)


class StoreWriter:
    """Writes documents and their ids as columns `store.*` of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frames = ColumnWriter(folder / "store.frames", "u1")
        self._id_text = ColumnWriter(folder / "store.id_text", "u1")
        self._id_lengths: list[Array] = []
        self._frame_ends = [0]
        self._frame_firsts = [0]
        self._lengths: list[int] = []  # of title, text and metadata, for the open frame
        self._parts: list[bytes] = []
        self._ids: list[bytes] = []
        self._pending = 0
        self.count = 0

    def add(self, document: Document) -> None:
        """Append a document; an invalid one raises an `InputError` and does not change the store."""
        doc_id, title, text, metadata = encoded(document)
        self._ids.append(doc_id)
        self._parts += (title, text, metadata)
        self._lengths += (len(title), len(text), len(metadata))
        self._pending += len(title) + len(text) + len(metadata)
        self.count += 1
        if self._pending >= FRAME:
            self._close_frame()

    def append(self, frames: Frames, ids: Sequence[bytes]) -> None:
        """Append documents that are already compressed."""
        self._close_frame()
        self._frames.append(frames.data)
        ends = np.cumsum([self._frame_ends[-1], *frames.sizes])
        firsts = np.cumsum([self.count, *frames.documents])
        self._frame_ends += ends[1:].tolist()
        self._frame_firsts += firsts[1:].tolist()
        self.count += len(ids)
        self._append_ids(ids)

    def _close_frame(self) -> None:
        if not self._ids:
            return
        self._frames.append(pack_frames(np.array(self._lengths), b"".join(self._parts)).data)
        self._end_frame()

    def _end_frame(self) -> None:
        self._frame_ends.append(self._frames.count)
        self._frame_firsts.append(self.count)
        self._append_ids(self._ids)
        self._lengths, self._parts, self._ids, self._pending = [], [], [], 0

    def _append_ids(self, ids: Sequence[bytes]) -> None:
        self._id_text.append(b"".join(ids))
        self._id_lengths.append(np.fromiter(map(len, ids), dtype="u4", count=len(ids)))

    def copy(self, store: Store, numbers: Array) -> None:
        """Append documents of another store. Frames of which all documents are wanted are copied unchanged,
        except very small ones: otherwise many merges would leave a store of tiny frames."""
        self._close_frame()
        firsts = store._frame_firsts.astype(np.int64)
        wanted = np.searchsorted(numbers, firsts)
        for frame in np.flatnonzero(np.diff(wanted)).tolist():
            chosen = numbers[wanted[frame] : wanted[frame + 1]]
            start, stop = int(store._frame_ends[frame]), int(store._frame_ends[frame + 1])
            if len(chosen) == firsts[frame + 1] - firsts[frame] and stop - start >= FRAME // 8:
                self._close_frame()
                self._frames.append(store._frames.slice(start, stop))
                self._ids = [doc_id.encode() for doc_id in store.ids(chosen)]
                self.count += len(chosen)
                self._end_frame()
            else:
                for number in chosen.tolist():
                    self.add(store.document(number))

    def discard(self) -> None:
        self._frames.discard()
        self._id_text.discard()

    def close(self, keep: Keep | None = None) -> tuple[dict[str, ColumnInfo], Array]:
        """Sort the ids, write the remaining columns, and return the columns for the manifest, and the dropped
        documents: those that share an id with the one to `keep`. Without `keep`, a shared id is an error."""
        self._close_frame()
        infos = {"store.frames": self._frames.close(), "store.id_text": self._id_text.close()}
        lengths = np.concatenate(self._id_lengths) if self._id_lengths else np.zeros(0, "u4")
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        text = Column(self._folder / "store.id_text", infos["store.id_text"]).all()
        order, dropped = sort_ids(text, ends, keep)
        rank = np.empty(self.count, dtype=np.uint32)
        rank[np.concatenate([order, dropped])] = np.arange(self.count, dtype=np.uint32)
        if np.array_equal(order, np.arange(self.count)):  # ids already in order need no stored order
            order = rank = np.zeros(0, np.uint32)
        for name, values, dtype in (
            ("store.id_ends", ends, smallest_unsigned(int(ends[-1]))),
            ("store.id_order", order, "u4"),
            ("store.id_rank", rank, "u4"),
            ("store.frame_ends", np.array(self._frame_ends), "u8"),
            ("store.frame_firsts", np.array(self._frame_firsts), "u4"),
        ):
            infos[name] = write_column(self._folder / name, values, dtype)
        return infos, dropped


def encoded(document: Document) -> tuple[bytes, bytes, bytes, bytes]:
    """A document's id, title, text and metadata as bytes; raises an `InputError` if they cannot be stored.

    >>> encoded(Document("d1", "sieve", metadata={"year": 1950}))
    (b'd1', b'', b'sieve', b'{"year": 1950}')
    """
    doc_id = _encode(document.id, document, "id")
    if not doc_id or b"\0" in doc_id:
        raise InputError(f"the id of {_named(document)} is empty or holds a NUL", remedy="give it an id")
    title, text = _encode(document.title, document, "title"), _encode(document.text, document, "text")
    metadata = b""
    if document.metadata:
        try:
            as_json = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"the metadata of {_named(document)} is not JSON ({error})", remedy="use plain values in it"
            ) from error
        metadata = _encode(as_json, document, "metadata")
    return doc_id, title, text, metadata


def _encode(text: str, document: Document, what: str) -> bytes:
    if not isinstance(text, str):  # from callers without a type checker
        raise InputError(
            f"the {what} of {_named(document)} is {type(text).__name__}, not str", remedy="give it as text"
        )
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the {what} of {_named(document)} is not valid Unicode at character {error.start + 1:,}",
            remedy="repair its encoding",
        ) from error
    if len(data) > LONGEST_PART:
        raise InputError(f"the {what} of {_named(document)} has {len(data):,} bytes", remedy="split it")
    return data


def _named(document: Document) -> str:
    return f"document {document.id!r:.100}"


def sort_ids(text: Array, ends: Array, keep: Keep | None = None) -> tuple[Array, Array]:
    """The documents in the order of their ids' UTF-8 bytes (which is the order of code points), and the
    documents left out because another one has their id.

    >>> order, dropped = sort_ids(np.frombuffer(b"cabb", "u1"), np.array([0, 1, 2, 3, 4]), "last")
    >>> order.tolist(), dropped.tolist()
    ([1, 3, 0], [2])
    """
    lengths = np.diff(ends)
    width = int(lengths.max(initial=1))
    blob = text.tobytes()
    if width <= 64:
        padded = np.zeros((len(lengths), -(-width // 8) * 8), dtype=np.uint8)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = text
        words = padded.view(">u8").astype(np.uint64)
        order = np.lexsort(words.T[::-1]) if words.shape[1] > 1 else np.argsort(words[:, 0], kind="stable")
        same = (words[order][1:] == words[order][:-1]).all(axis=1)
    else:
        ids = [blob[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
        same = np.array([ids[a] == ids[b] for a, b in zip(order[1:], order[:-1], strict=True)], dtype=bool)
    if not same.any():
        return order, np.zeros(0, np.int64)
    if keep is None:
        number = int(order[int(np.argmax(same))])
        doc_id = blob[int(ends[number]) : int(ends[number + 1])].decode()
        raise DuplicateIdError(
            doc_id,
            f"the document id {quoted(doc_id)} occurs twice",
            remedy="give each its own, or keep one by on_duplicate='replace' or 'skip' (--on-duplicate)",
        )
    # equal ids are adjacent, in the order in which they were added
    left_out = np.append(False, same) if keep == "first" else np.append(same, False)
    return order[~left_out], order[left_out]


class Store:
    """Reads what a StoreWriter wrote.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> writer = StoreWriter(folder)
    >>> writer.add(Document("b", "second letter", metadata={"vowel": False}))
    >>> writer.add(Document("a", "first letter"))
    >>> store = Store(folder, writer.close()[0])
    >>> store.number("a"), store.ids([1, 0]), store.document(0).metadata
    (1, ['a', 'b'], {'vowel': False})
    """

    def __init__(self, folder: Path, columns: Mapping[str, ColumnInfo]) -> None:
        def column(name: str) -> Column:
            return Column(folder / f"store.{name}", columns[f"store.{name}"])

        self._frames = column("frames")
        self._id_text = column("id_text")
        self._id_ends = column("id_ends")
        self._id_order = column("id_order")
        self._id_rank = column("id_rank")
        self._frame_ends = column("frame_ends").all()
        self._frame_firsts = column("frame_firsts").all()
        self._mapped = [each for each in self.columns if each.is_mapped]
        # cache a function, not the method: a cache that refers to the store would keep its files open until
        # the next garbage collection
        self._frame = lru_cache(CACHED_FRAMES)(partial(_read_frame, self._frames, self._frame_ends))

    def __len__(self) -> int:
        return len(self._id_ends) - 1

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._frames, self._id_text, self._id_ends, self._id_order, self._id_rank

    def check_sizes(self) -> None:
        """Raise an error if a file was truncated since it was opened: see `tamis.storage.columns`."""
        for column in self._mapped:
            column.check_size()

    @property
    def id_rank(self) -> Array:
        """For each document number, the position of its id among the sorted ids: the tie-breaker. It is empty
        if the documents were added in the order of their ids, so that number and rank are the same."""
        return self._id_rank.all()

    def rank(self, numbers: Array) -> Array:
        """The positions of these documents' ids among the sorted ids."""
        return self.id_rank[numbers] if len(self._id_rank) else numbers

    def at_rank(self, ranks: Array) -> Array:
        """The documents whose ids have these positions among the sorted ids."""
        return self._id_order.all()[ranks].astype(np.int64) if len(self._id_rank) else ranks

    def ids(self, numbers: Sequence[int] | Array) -> list[str]:
        """The ids of these documents, in this order."""
        chosen = np.asarray(numbers, dtype=np.int64)
        self.check_sizes()
        ends, text = self._id_ends.all(), self._id_text.all()
        compiled = sys.modules.get("tamis.index.kernel")
        if compiled and len(chosen) > _FEW:
            strings = str(compiled.joined_ids(chosen, ends, text), "utf-8").split("\n")
            if len(strings) == len(chosen) + 1:  # no id contains a line end
                return strings[:-1]
        view = text.data
        pairs = zip(ends[chosen].tolist(), ends[chosen + 1].tolist(), strict=True)
        return [str(view[start:stop], "utf-8") for start, stop in pairs]

    def number(self, doc_id: str) -> int:
        """The number of the document with this id, or -1."""
        if not isinstance(doc_id, str):
            raise InputError(
                f"the id {quoted(doc_id)} is {type(doc_id).__name__}, not str", remedy="give a str"
            )
        wanted = doc_id.encode("utf-8", "surrogatepass")
        self.check_sizes()
        order, ends, text = self._id_order.all(), self._id_ends.all(), self._id_text.all()
        return find_string(wanted, text, ends, order if len(self._id_rank) else None)

    def numbers(self, ids: Sequence[str]) -> Array:
        """The numbers of the documents with these ids, -1 for unknown ids."""
        compiled = sys.modules.get("tamis.index.kernel")
        if compiled and len(ids) > _FEW and set(map(type, ids)) == {str}:
            lines = "\n".join([*ids, ""]).encode("utf-8", "surrogatepass")
            wanted = np.frombuffer(lines, np.uint8)
            line_ends = np.flatnonzero(wanted == ord("\n"))
            if len(line_ends) == len(ids):  # no id contains a line end
                self.check_sizes()
                columns = (self._id_text.all(), self._id_ends.all(), self._id_order.all())
                numbers: Array = compiled.find_ids(wanted, line_ends, *columns)
                return numbers
        return np.array([self.number(doc_id) for doc_id in ids], dtype=np.int64)

    def document(self, number: int) -> Document:
        if not 0 <= number < len(self):
            raise UnknownDocumentError(
                f"no document has the number {number}", remedy=f"the store holds {len(self):,}"
            )
        frame = int(np.searchsorted(self._frame_firsts, number, side="right")) - 1
        small = int(self._frame_ends[frame + 1]) - int(self._frame_ends[frame]) <= LARGEST_CACHED
        read = self._frame if small else self._frame.__wrapped__
        title, text, metadata = read(frame)[number - int(self._frame_firsts[frame])]
        return Document(self.ids([number])[0], text, title, json.loads(metadata) if metadata else {})

    @property
    def frames(self) -> int:
        """How many frames there are: what is decompressed at once."""
        return len(self._frame_ends) - 1

    def described(self, frame: int) -> tuple[int, list[str], list[dict[str, Any]]]:
        """The first document of a frame, and the titles and the metadata of all its documents."""
        raw, ends = _unpacked(self._frames, self._frame_ends, frame)
        titles = [raw[a:b].decode() for a, b in zip(ends[0:-1:3], ends[1::3], strict=True)]
        metadata = [raw[a:b] or b"{}" for a, b in zip(ends[2::3], ends[3::3], strict=True)]
        values: list[dict[str, Any]] = json.loads(b"[%s]" % b",".join(metadata))
        return int(self._frame_firsts[frame]), titles, values

    @property
    def id_column(self) -> tuple[Array, Array]:
        """The ids one behind the other, and where each ends, from 0 on."""
        return self._id_text.all(), self._id_ends.all()

    @property
    def ids_in_order(self) -> int:
        """How many of the documents have a place in the order of ids: those that another one with the same id
        has replaced come behind them."""
        return len(self._id_order) or len(self)

    def __iter__(self) -> Iterator[Document]:
        return (self.document(number) for number in range(len(self)))


def intact_documents(
    folder: Path, columns: Mapping[str, ColumnInfo], count: int
) -> Iterator[Document | None]:
    """The `count` documents of a store that may be damaged, in order; None for each document whose text or id
    is damaged.

    >>> writer = StoreWriter(getfixture("tmp_path"))
    >>> writer.add(Document("a", "first letter"))
    >>> columns, _ = writer.close()
    >>> [document.id for document in intact_documents(getfixture("tmp_path"), columns, 1)]
    ['a']
    """
    opened = {}
    try:
        for name in ("frames", "id_text", "id_ends", "frame_ends", "frame_firsts"):
            path, info = folder / f"store.{name}", columns[f"store.{name}"]
            opened[name] = Column(path, info, check=name != "frames")
        ends, firsts = opened["frame_ends"].all(), opened["frame_firsts"].all().tolist()
        id_text, id_ends = opened["id_text"].all(), opened["id_ends"].all()
    except (CorruptError, StorageError, FileNotFoundError):
        yield from [None] * count
        return
    for frame, (first, last) in enumerate(itertools.pairwise(firsts)):
        try:
            parts: list[tuple[str, str, str]] = _read_frame(opened["frames"], ends, frame)
        except CorruptError:
            yield from [None] * (last - first)
            continue
        for number, (title, text, metadata) in enumerate(parts, first):
            doc_id = id_text[int(id_ends[number]) : int(id_ends[number + 1])].tobytes().decode()
            yield Document(doc_id, text, title, json.loads(metadata) if metadata else {})


def _read_frame(frames: Column, frame_ends: Array, frame: int) -> list[tuple[str, str, str]]:
    """The titles, texts and metadata of a frame's documents."""
    raw, ends = _unpacked(frames, frame_ends, frame)
    parts = [raw[a:b].decode() for a, b in itertools.pairwise(ends)]
    return list(zip(parts[0::3], parts[1::3], parts[2::3], strict=True))


def _unpacked(frames: Column, frame_ends: Array, frame: int) -> tuple[bytes, list[int]]:
    """A frame, and where the title, the text and the metadata of each of its documents begin, and the last
    ends."""
    start, stop = int(frame_ends[frame]), int(frame_ends[frame + 1])
    frames.check_size()
    raw = zstandard.ZstdDecompressor().decompress(frames.slice(start, stop).tobytes())
    (count,) = struct.unpack_from("<I", raw)
    lengths = np.frombuffer(raw, dtype="<u4", count=3 * count, offset=4)
    ends = (4 + 12 * count + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])).tolist()
    return raw, ends
