"""MS MARCO's files of candidates, with the texts of queries and passages."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tamis.base.documents import Document, Query
from tamis.base.errors import InputError
from tamis.formats import Candidates, SkipReport, read_candidates, read_run

# The queries are not grouped, a passage comes for two of them, and the passages have no order.
TOP = """\
188714\t1000052\tfoods that help you sleep\tCherries help. "So do nuts".
995526\t7\twhere is perpignan\tPerpignan is in France.
188714\t7\tfoods that help you sleep\tPerpignan is in France.
995526\t12\twhere is perpignan\t
"""


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("top1000.dev.tsv", bytes),
        ("top1000.dev.tsv.gz", gzip.compress),
        ("top.zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_what_is_read(tmp_path: Path, name: str, compress: Callable[[bytes], bytes]) -> None:
    assert read_candidates(write(tmp_path / name, compress(TOP.encode()))) == Candidates(
        queries={
            "188714": Query("188714", "foods that help you sleep"),
            "995526": Query("995526", "where is perpignan"),
        },
        ids={"188714": ("1000052", "7"), "995526": ("12", "7")},
        documents={
            "1000052": Document("1000052", 'Cherries help. "So do nuts".'),
            "7": Document("7", "Perpignan is in France."),
            "12": Document("12", ""),
        },
    )


def test_the_order_of_the_lines_does_not_matter(tmp_path: Path) -> None:
    lines = TOP.splitlines(keepends=True)
    one = read_candidates(write(tmp_path / "a.tsv", TOP))
    other = read_candidates(write(tmp_path / "b.tsv", "".join(reversed(lines))))
    assert (one.queries, one.ids, one.documents) == (other.queries, other.ids, other.documents)


def test_line_ends_marks_and_blank_lines(tmp_path: Path) -> None:
    file = write(tmp_path / "a.tsv", b"\xef\xbb\xbfq1\td1\ta query\ta text\r\n\nq1\td2\ta query\tmore\r\n")
    found = read_candidates(file)
    assert found.ids == {"q1": ("d1", "d2")}
    assert found.documents["d1"].text == "a text"


def test_nothing(tmp_path: Path) -> None:
    assert read_candidates(write(tmp_path / "a.tsv", "\n")) == Candidates({}, {}, {})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"q1\td1\ta query", "3 tab-separated columns where candidates have 4: write qid, docid, query and"),
        (b"q1\td9\ta query\ta\ttext", "5 tab-separated columns where candidates have 4"),
        (b"q1 Q0 d9 1 2.5 bm25", "1 tab-separated columns where candidates have 4"),
        (b"q1\td1\ta query\ttext 1", "the document 'd1' comes twice for 'q1': keep one of them"),
        (b"q2\td1\tother\tchanged", "the document 'd1' has another text above: give every text its own id"),
        (b"q1\td9\tother\ttext", "the query 'q1' has another text above: give every query its own id"),
        (b"\td9\ta query\ttext", "the query id '' is empty or holds white space"),
        (b"q1\td 9\ta query\ttext", "the document id 'd 9' is empty or holds white space"),
        (b"q1\td9\ta query\tcaf\xe9", "not UTF-8 (byte 0xe9): convert the file to UTF-8"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, line: bytes, problem: str) -> None:
    file = write(tmp_path / "a.tsv", b"q1\td1\ta query\ttext 1\n\n" + line + b"\nq1\td2\ta query\ttext 2\n")
    with pytest.raises(InputError, match=re.escape(f"{file}, line 3: {problem}")):
        read_candidates(file)
    report = SkipReport()
    found = read_candidates(file, skipped=report)
    assert report.count == 1
    assert found.queries == {"q1": Query("q1", "a query")}
    assert found.ids == {"q1": ("d1", "d2")}
    assert sorted(found.documents) == ["d1", "d2"]


@pytest.mark.parametrize("first", ["q1 Q0 d1 1 2.5 bm25\n", "q1\tQ0\td1\t1\t2.5\tbm25\n", "q1\td1\t1\n"])
def test_a_run_has_no_texts(tmp_path: Path, first: str) -> None:
    file = write(tmp_path / "a.run", first)
    for skipped in (None, SkipReport()):
        with pytest.raises(
            InputError, match=r"line 1: a run, which has no texts: give .*--corpus.*--queries"
        ):
            read_candidates(file, skipped=skipped)


def test_candidates_are_no_run(tmp_path: Path) -> None:
    file = write(tmp_path / "top.tsv", TOP)
    with pytest.raises(InputError, match=r"line 1: .* without --corpus and --queries"):
        read_run(file)


def test_a_damaged_gz(tmp_path: Path) -> None:
    lines = "".join(f"q1\td{number}\ta query\ttext\n" for number in range(5000))
    file = write(tmp_path / "top.tsv.gz", gzip.compress(lines.encode())[:-20])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_candidates(file)
