"""What a file may make us hold in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
import zstandard

from tamis.base.errors import InputError
from tamis.formats import (
    SkipReport,
    read_candidates,
    read_corpus,
    read_qrels,
    read_queries,
    read_run,
    read_run_lines,
)
from tamis.formats.lines import LONGEST_COLUMNS, LONGEST_RECORD, numbered_lines
from tamis.storage.files import open_bytes, read_text

MIB = 1 << 20


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Python's own allocations, which do not depend on the machine."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def bomb(path: Path, start: bytes, repeated: bytes, size: int) -> Path:
    """A zstd file of a few kilobytes that is one line of `size` bytes."""
    frame = zstandard.ZstdCompressor(level=1).compressobj()
    with path.open("wb") as file:
        file.write(frame.compress(start))
        for _ in range(size // MIB):
            file.write(frame.compress(repeated * (-(-MIB // len(repeated)))))
        file.write(frame.flush())
    assert path.stat().st_size < size / 1000
    return path


def all_of(read: Callable[..., object]) -> Callable[..., object]:
    return lambda *args, **options: list(read(*args, **options))  # type: ignore[call-overload]


@pytest.mark.parametrize("suffix", ["jsonl", "tsv", "csv", "trec"])
def test_a_small_file_does_not_fill_the_memory(suffix: str, tmp_path: Path) -> None:
    path = bomb(tmp_path / f"corpus.{suffix}.zst", b'{"id": "', b"0", 256 * MIB)
    with at_most(160 * MIB), pytest.raises(InputError, match=r"corpus.*, line 1: a line of over 32 MiB: spl"):
        list(read_corpus(path))


def test_lines_of_a_small_file_are_read_one_by_one(tmp_path: Path) -> None:
    path = bomb(tmp_path / "corpus.tsv.zst", b"", b"1\tA\n", 256 * MIB)
    with at_most(64 * MIB):
        assert [document.id for document in islice(read_corpus(path), 3)] == ["1", "1", "1"]


def test_a_text_file_that_is_too_long(tmp_path: Path) -> None:
    path = bomb(tmp_path / "notes.txt.zst", b"", b"A\n", 256 * MIB)
    with (
        at_most(160 * MIB),
        pytest.raises(InputError, match="holds over 32 MiB: split it, or check the path"),
    ):
        list(read_corpus(path))
    report = SkipReport()
    assert not list(read_corpus(path, skipped=report))
    assert report.files == 1


def test_a_trec_document_that_is_never_closed(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.trec.zst", b"<DOC>\n<DOCNO>1</DOCNO>\n", b"A word." * 36 + b"word\n", 128 * MIB)
    with at_most(192 * MIB), pytest.raises(InputError, match=r"line 1: a <DOC> of over 32 MiB"):
        list(read_corpus(path))


def test_a_csv_row_that_is_never_closed(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.csv.zst", b"id,text\n", b'"A\nwords that go on",' * 16, 128 * MIB)
    with pytest.raises(InputError, match=r"line \d+: a (row|line) of over 32 MiB"):
        list(read_corpus(path))


@pytest.mark.parametrize(
    ("read", "begin"),
    [
        (read_qrels, b"q1 0 d1 "),
        (read_run, b"q1 Q0 d1 "),
        (all_of(read_run_lines), b"q1 Q0 d1 "),
        (read_queries, b"q1\t"),
        (read_candidates, b"q1\td1\t"),
    ],
)
def test_long_lines_of_other_files(read: Callable[..., object], begin: bytes, tmp_path: Path) -> None:
    path = bomb(tmp_path / "file.txt.zst", begin, b"1", 128 * MIB)
    with at_most(192 * MIB), pytest.raises(InputError, match=r"line 1: a line of over (32|1) MiB"):
        read(path)


@pytest.mark.parametrize("read", [read_run, all_of(read_run_lines), read_qrels])
def test_a_long_line_is_skipped_alone(read: Callable[..., object], tmp_path: Path) -> None:
    """And the lines below keep their numbers."""
    good, long = "q1 Q0 d{0} {0} 1.{1} t\n", "q1 " + "x" * LONGEST_COLUMNS + "\n"
    if read is read_qrels:
        good = "q1 0 d{0} 1\n"
    lines = [good.format(n, 9 - n) for n in (1, 2)] + [long] + [good.format(n, 9 - n) for n in (3, 4)]
    path, whole = tmp_path / "file", tmp_path / "whole"
    path.write_text("".join([*lines, "wrong\n"]))
    whole.write_text("".join(line for line in lines if line != long))
    report = SkipReport()
    assert repr(read(path, skipped=report)) == repr(read(whole))
    assert [example.partition(": ")[0] for example in report.examples] == [
        f"{path}, line 3",
        f"{path}, line 6",
    ]


def test_a_line_as_long_as_may_be(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    start, end = '{"id": "d1", "text": "', '"}\n'
    text = "a" * (LONGEST_RECORD - len(start) - len(end))
    path.write_text(f"{start}{text}{end}{start}a{text}{end}" + '{"id": "d2", "text": "b"}')
    report = SkipReport()
    assert [len(document.text) for document in read_corpus(path, skipped=report)] == [len(text), 1]
    assert report.examples == [f"{path}, line 2: a line of over 32 MiB: split it, or check the format"]


def test_numbers_of_lines_after_a_long_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n" + b"2" * 1000 + b"\nthree\n" + b"4" * 1000)
    report = SkipReport()
    with open_bytes(path) as stream:
        assert list(numbered_lines(stream, path, report, limit=10)) == [(1, b"one\n"), (3, b"three\n")]
    assert report.lines == 2


def test_a_zstd_window_that_takes_gigabytes(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(frame.compress(json.dumps({"id": "d1", "text": "A"}).encode()) + frame.flush())
    with pytest.raises(
        InputError, match="a window of over 128 MiB: compress it again, with --long=27 at most"
    ):
        list(read_corpus(path))


def test_a_text_that_is_held_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abc")
    assert read_text(path, limit=3) == "abc"
    with pytest.raises(InputError, match="holds over 2 bytes"):
        read_text(path, limit=2)


def test_topics_that_are_too_long(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.topics.zst", b"", b"<top>" + b" " * 249 + b"\n", 64 * MIB)
    with pytest.raises(InputError, match="topics of over 32 MiB"):
        read_queries(path)
