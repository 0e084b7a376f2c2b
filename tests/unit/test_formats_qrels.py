"""Relevance judgments, good and bad."""

from pathlib import Path

import pytest

from tamis.errors import InputError, TamisError
from tamis.formats import SkipReport, read_qrels, write_qrels


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_trec_columns_with_tabs_crlf_and_spaces(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf1 0 d1 2\r\n\n 1\tQ0\td2\t-2 \r\n2  0  d\xc2\xa01  1"
    qrels = read_qrels(write(tmp_path / "qrels.txt", content))
    assert qrels == {"1": {"d1": 2, "d2": -2}, "2": {"d\u00a01": 1}}


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore\n", ""])
def test_beir_columns_may_hold_spaces(tmp_path: Path, header: str) -> None:
    assert read_qrels(write(tmp_path / "test.tsv", f"{header}1\tmy notes.txt\t1\n2\td2\t0\n")) == {
        "1": {"my notes.txt": 1},
        "2": {"d2": 0},
    }


def test_the_same_judgment_twice_is_one(tmp_path: Path) -> None:
    assert read_qrels(write(tmp_path / "q", "1 0 d1 1\n1 0 d1 1\n")) == {"1": {"d1": 1}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 0 d1 2", "'d1' is judged 2 for '1', and 1 above: keep one of them"),
        ("1 0 d2", "3 columns where these qrels have 4"),
        ("1 0 d2 1 extra", "5 columns where these qrels have 4"),
        ("1 0 d2 yes", "the grade 'yes' is not a whole number"),
        ("1 0 d2 1.5", "the grade '1.5' is not a whole number"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, line: str, problem: str) -> None:
    file = write(tmp_path / "qrels.txt", f"1 0 d1 1\n{line}\n1 0 d3 0\n")
    with pytest.raises(InputError, match=f"line 2: {problem}"):
        read_qrels(file)
    report = SkipReport()
    assert read_qrels(file, skipped=report) == {"1": {"d1": 1, "d3": 0}}
    assert report.count == 1


def test_a_bad_line_leaves_no_query_behind(tmp_path: Path) -> None:
    file = write(tmp_path / "qrels.txt", "1 0 d1 1\n2 0 d1 x\n")
    assert list(read_qrels(file, skipped=SkipReport())) == ["1"]


def test_empty_qrels(tmp_path: Path) -> None:
    assert read_qrels(write(tmp_path / "q", "")) == {}


@pytest.mark.parametrize("format", ["trec", "beir"])
def test_what_is_written_is_read(tmp_path: Path, format: str) -> None:
    qrels = {"q1": {"d2": 0, "d1": 3}, "q2": {"d1": -1}}
    write_qrels(tmp_path / "qrels", qrels, format=format)  # type: ignore[arg-type]
    assert read_qrels(tmp_path / "qrels") == qrels
    first = (tmp_path / "qrels").read_text().splitlines()[0]
    assert first == ("q1 0 d2 0" if format == "trec" else "query-id\tcorpus-id\tscore")


@pytest.mark.parametrize("docid", ["my notes.txt", "", "a\tb", "a\u00a0b"])
def test_ids_that_trec_cannot_hold_are_refused(tmp_path: Path, docid: str) -> None:
    with pytest.raises(TamisError, match="document id"):
        write_qrels(tmp_path / "qrels", {"q1": {docid: 1}})
    assert list(tmp_path.iterdir()) == []
