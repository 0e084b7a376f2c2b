"""Columns: what is written is what is read, and what was not written is never read."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.base.errors import CorruptError, StorageError
from tamis.storage import columns
from tamis.storage.columns import CHUNK, Column, ColumnInfo, ColumnWriter, smallest_unsigned, write_column

LARGE = 3 * CHUNK + 1000  # bytes: four chunks, the last one not full


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of any size are checked as they are read."""
    monkeypatch.setattr(columns, "CHECK_AT_OPEN", 0)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "f4"])
@pytest.mark.parametrize("count", [0, 1, 1000, CHUNK // 8, CHUNK // 8 + 1, CHUNK + 3])
def test_round_trip_at_chunk_boundaries(tmp_path: Path, dtype: str, count: int) -> None:
    values = (np.arange(count) % 251).astype(dtype)
    info = write_column(tmp_path / "c", values, dtype)
    column = Column(tmp_path / "c", info)
    assert info.count == len(column) == count
    assert column.unchecked.dtype == np.dtype(dtype).newbyteorder("<")
    np.testing.assert_array_equal(column.all(), values)


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.one_of(st.binary(max_size=50), st.lists(st.integers(0, 255))), max_size=20))
def test_appending_in_parts_writes_the_same_file_as_at_once(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes | list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    writer = ColumnWriter(folder / "parts", "u1")
    for part in parts:
        writer.append(part if isinstance(part, bytes) else np.array(part, dtype="u1"))
    whole = np.frombuffer(b"".join(bytes(part) for part in parts), "u1")
    assert writer.close() == write_column(folder / "whole", whole, "u1")
    assert (folder / "parts").read_bytes() == (folder / "whole").read_bytes()


def test_parts_may_end_anywhere_in_a_chunk(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 256, LARGE, dtype="u1")
    writer = ColumnWriter(tmp_path / "c", "u1")
    for part in np.split(values, [1, CHUNK - 1, CHUNK, CHUNK + 7, 3 * CHUNK]):
        writer.append(part)
    np.testing.assert_array_equal(Column(tmp_path / "c", writer.close()).all(), values)


def test_a_column_never_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("precious")
    with pytest.raises(StorageError, match="File exists"):
        ColumnWriter(tmp_path / "c", "u1")
    assert (tmp_path / "c").read_text() == "precious"


def test_a_discarded_column_leaves_no_file(tmp_path: Path) -> None:
    writer = ColumnWriter(tmp_path / "c", "u1")
    writer.append(b"abc")
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_values_cannot_be_changed(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.arange(10), "u4")
    with pytest.raises(ValueError, match="read-only"):
        Column(tmp_path / "c", info).all()[0] = 1


def test_a_small_column_is_checked_when_opened(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.arange(1000), "u4")
    flip(tmp_path / "c", 2000)
    with pytest.raises(CorruptError, match=r"c is corrupt \(bytes 0 to 4,000 fail"):
        Column(tmp_path / "c", info)


@pytest.mark.usefixtures("lazy")
@pytest.mark.parametrize("chunk", range(4))
def test_a_large_column_is_checked_chunk_by_chunk(tmp_path: Path, chunk: int) -> None:
    values = np.random.default_rng(2).integers(0, 1 << 16, LARGE // 2, dtype="u2")
    info = write_column(tmp_path / "c", values, "u2")
    at = min(chunk * CHUNK + 12_345, LARGE - 1)
    flip(tmp_path / "c", at)
    column = Column(tmp_path / "c", info)
    damaged = at // CHUNK
    for whole in set(range(4)) - {damaged}:
        part = slice(whole * CHUNK // 2, min((whole + 1) * CHUNK, LARGE) // 2)
        np.testing.assert_array_equal(column.slice(part.start, part.stop), values[part])
    first, last = damaged * CHUNK // 2, min((damaged + 1) * CHUNK, LARGE) // 2
    for start, stop in ((first, first + 1), (last - 1, last), (0, len(values))):
        for _ in range(2):  # a chunk that failed must fail again
            with pytest.raises(CorruptError, match="fail their checksum"):
                column.slice(start, stop)


@pytest.mark.usefixtures("lazy")
def test_a_slice_over_a_chunk_boundary_checks_both_chunks(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.zeros(LARGE, "u1"), "u1")
    flip(tmp_path / "c", CHUNK)
    column = Column(tmp_path / "c", info)
    column.slice(CHUNK - 10, CHUNK)
    with pytest.raises(CorruptError):
        column.slice(CHUNK - 10, CHUNK + 1)


@pytest.mark.usefixtures("lazy")
def test_an_empty_slice_reads_nothing(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.zeros(LARGE, "u1"), "u1")
    flip(tmp_path / "c", 0)
    assert len(Column(tmp_path / "c", info).slice(5, 5)) == 0


@pytest.mark.usefixtures("lazy")
def test_damaged_checksums_are_found_before_any_value_is_read(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.zeros(LARGE, "u1"), "u1")
    flip(tmp_path / "c", LARGE + 9)
    with pytest.raises(CorruptError, match="checksums are damaged"):
        Column(tmp_path / "c", info)


@pytest.mark.parametrize("change", [-1, -8, 1, 8, -LARGE])
def test_another_size_is_corrupt(tmp_path: Path, change: int) -> None:
    info = write_column(tmp_path / "c", np.zeros(LARGE, "u1"), "u1")
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data + bytes(change) if change > 0 else data[:change])
    with pytest.raises(CorruptError, match="bytes where"):
        Column(tmp_path / "c", info)


def test_an_empty_column_that_has_grown_is_corrupt(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.zeros(0, "u1"), "u1")
    (tmp_path / "c").write_bytes(b"x")
    with pytest.raises(CorruptError):
        Column(tmp_path / "c", info)


def test_two_columns_exchanged_are_corrupt(tmp_path: Path) -> None:
    one = write_column(tmp_path / "one", np.arange(100), "u4")
    write_column(tmp_path / "two", np.arange(100)[::-1], "u4")
    with pytest.raises(CorruptError):
        Column(tmp_path / "two", one)


def test_a_folder_in_its_place_is_corrupt(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.arange(3), "u4")
    (tmp_path / "c").unlink()
    (tmp_path / "c").mkdir()
    with pytest.raises(CorruptError, match="Is a directory"):
        Column(tmp_path / "c", info)


def test_no_more_files_may_be_opened_is_not_called_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = write_column(tmp_path / "c", np.arange(3), "u4")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match=r"cannot read .*Too many open files.*ulimit"):
        Column(tmp_path / "c", info)


def test_a_wrong_description_is_corrupt(tmp_path: Path) -> None:
    info = write_column(tmp_path / "c", np.arange(8), "u1")
    with pytest.raises(CorruptError):
        Column(tmp_path / "c", ColumnInfo(info.dtype, info.count, "0" * 32))


def test_smallest_unsigned_at_its_border() -> None:
    assert [smallest_unsigned(n) for n in (0, (1 << 32) - 1, 1 << 32)] == ["u4", "u4", "u8"]
