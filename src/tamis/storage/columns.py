"""Columns on disk: flat arrays in separate files, memory-mapped, with a checksum for every chunk.

A column file contains the raw values, followed by one xxh3 checksum per 256 KiB chunk. The manifest of the
owner has the digest of these checksums, so it covers every byte. Small columns are checked when they are
opened, large ones chunk by chunk when a chunk is first read: opening stays fast, and a flipped byte is never
read as data.

If a mapped file is truncated, reading the missing part ends the process with a signal (SIGBUS). So
`check_size` is called before every search and every read of documents; asking the system for the size of a
file takes less than a microsecond. A truncation during the search itself, or a failing disk, still ends the
process, which Python code cannot prevent.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError
from tamis.storage.files import storage_errors, unreadable
from tamis.storage.locks import not_inherited

CHUNK = 1 << 18
CHECK_AT_OPEN = 1 << 24  # bytes; larger columns are checked when they are read


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """The description of a column in a manifest."""

    dtype: str
    count: int
    digest: str


class ColumnWriter:
    """Appends arrays to a column file; `close` returns the description for the manifest."""

    def __init__(self, path: Path, dtype: str) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.count = 0
        self._path = path
        self._sums: list[int] = []
        self._chunk = xxhash.xxh3_64()
        self._filled = 0
        with storage_errors(path):
            self._file = path.open("xb")
        not_inherited(self._file)

    def append(self, values: Array | bytes) -> None:
        if isinstance(values, bytes):
            data = memoryview(values)
            self.count += len(values) // self.dtype.itemsize
        else:
            array = np.ascontiguousarray(values, dtype=self.dtype)
            self.count += len(array)
            data = array.view(np.uint8).data
        with storage_errors(self._path):
            self._file.write(data)
        while len(data):
            part = data[: CHUNK - self._filled]
            self._chunk.update(part)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == CHUNK:
                self._end_chunk()

    def _end_chunk(self) -> None:
        self._sums.append(self._chunk.intdigest())
        self._chunk.reset()
        self._filled = 0

    def close(self) -> ColumnInfo:
        """Write the checksums, make the file durable, and return its description."""
        if self._filled:
            self._end_chunk()
        sums = np.array(self._sums, dtype="<u8").tobytes()
        with storage_errors(self._path):
            self._file.write(sums)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return ColumnInfo(self.dtype.str, self.count, xxhash.xxh3_128_hexdigest(sums))

    def discard(self) -> None:
        """Close and remove the file, as far as the file system allows it."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._path.unlink()


def write_column(path: Path, values: Array, dtype: str) -> ColumnInfo:
    """Write a whole column at once.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> info = write_column(folder / "df", np.array([3, 1, 2]), "u4")
    >>> Column(folder / "df", info).all().tolist()
    [3, 1, 2]
    """
    writer = ColumnWriter(path, dtype)
    writer.append(values)
    return writer.close()


def is_column(path: Path) -> bool:
    """Whether a file is a column: its first chunk matches the checksum stored after the values.

    >>> folder = getfixture("tmp_path")
    >>> _ = write_column(folder / "df", np.arange(3), "u4"), (folder / "notes").write_text("no column")
    >>> is_column(folder / "df"), is_column(folder / "notes")
    (True, False)
    """
    try:
        total = path.stat().st_size
        chunks = -(-total // (CHUNK + 8))
        with path.open("rb") as file:
            first = file.read(min(CHUNK, total - 8 * chunks)) if chunks else b""
            file.seek(total - 8 * chunks)
            checksum = file.read(8)
    except (OSError, ValueError):
        return False
    return bool(first) and checksum == xxhash.xxh3_64_intdigest(first).to_bytes(8, "little")


def smallest_unsigned(largest: int) -> str:
    """The smaller type for offsets up to `largest`: u4 or u8.

    >>> smallest_unsigned(70_000), smallest_unsigned(5_000_000_000)
    ('u4', 'u8')
    """
    return "u4" if largest < 1 << 32 else "u8"


def find_string(wanted: bytes, text: Array, ends: Array, order: Array | None) -> int:
    """The index of a string among strings laid end to end, or -1; `order` has their indices sorted by string
    (None if the strings are already sorted).

    >>> text, ends = np.frombuffer(b"cabac", "u1"), np.array([0, 1, 3, 5])
    >>> [find_string(wanted, text, ends, np.array([1, 2, 0])) for wanted in (b"ac", b"c", b"b")]
    [2, 0, -1]
    """
    low, high = 0, len(ends) - 1 if order is None else len(order)
    while low < high:
        middle = (low + high) // 2
        number = middle if order is None else int(order[middle])
        found = text[int(ends[number]) : int(ends[number + 1])].tobytes()
        if found == wanted:
            return number
        if found < wanted:
            low = middle + 1
        else:
            high = middle
    return -1


class Column:
    """A read-only column file. It is memory-mapped, or read at once if it is at most one chunk long, because
    every mapping keeps a file open, and an index with many additions has hundreds of small columns."""

    def __init__(self, path: Path, info: ColumnInfo, *, check: bool = True) -> None:
        """Open the file. `check` says whether a small column is checked completely now, or only when it is
        read."""
        self.path = path
        dtype = np.dtype(info.dtype)
        size = info.count * dtype.itemsize
        chunks = -(-size // CHUNK)
        try:
            with path.open("rb") as file:
                actual = os.fstat(file.fileno()).st_size
                if actual != size + 8 * chunks:
                    raise self._corrupt(f"{actual:,} bytes where {size + 8 * chunks:,} were written")
                self._data: mmap.mmap | bytes
                if size > CHUNK:
                    self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                else:
                    self._data = file.read()
        except FileNotFoundError:
            raise  # a writer may have removed it: the owner of the manifest knows
        except (IsADirectoryError, NotADirectoryError) as error:
            raise self._corrupt(f"{error.strerror}") from error
        except OSError as error:
            raise unreadable(path, error) from error
        sums = self._data[size:]
        if xxhash.xxh3_128_hexdigest(sums) != info.digest:
            raise self._corrupt("its checksums are damaged")
        self._sums = np.frombuffer(sums, dtype="<u8")
        self._size = size
        self._itemsize = dtype.itemsize
        self._checked = np.zeros(chunks, dtype=bool)
        self._all_checked = not chunks
        self.unchecked = np.frombuffer(self._data, dtype=dtype, count=info.count)
        if check and size <= CHECK_AT_OPEN:
            self.all()

    def __len__(self) -> int:
        return len(self.unchecked)

    @property
    def is_mapped(self) -> bool:
        return isinstance(self._data, mmap.mmap)

    def check_size(self) -> None:
        """Raise an error if the size of a mapped file has changed since it was opened."""
        if isinstance(self._data, mmap.mmap) and self._data.size() != len(self._data):
            raise self._corrupt(f"{self._data.size():,} bytes where {len(self._data):,} were written")

    def all(self) -> Array:
        """The whole column, checked."""
        return self.slice(0, len(self.unchecked))

    def slice(self, start: int, stop: int) -> Array:
        """A part of the column; its chunks are checked when they are first read."""
        if not self._all_checked and stop > start:
            first = start * self._itemsize // CHUNK
            last = (stop * self._itemsize - 1) // CHUNK
            if not self._checked[first : last + 1].all():
                self._check(first, last)
        return self.unchecked[start:stop]

    def _check(self, first: int, last: int) -> None:
        self.check_size()
        view = memoryview(self._data)
        for chunk in range(first, last + 1):
            if not self._checked[chunk]:
                start = chunk * CHUNK
                part = view[start : min(start + CHUNK, self._size)]
                if xxhash.xxh3_64_intdigest(part) != int(self._sums[chunk]):
                    raise self._corrupt(f"bytes {start:,} to {start + len(part):,} fail their checksum")
                self._checked[chunk] = True
        self._all_checked = bool(self._checked.all())

    def _corrupt(self, reason: str) -> CorruptError:
        return CorruptError(
            f"{self.path} is corrupt ({reason})", remedy="restore it from a copy, or build the index again"
        )
