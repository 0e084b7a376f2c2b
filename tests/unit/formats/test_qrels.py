"""Relevance judgments, good and bad."""

from pathlib import Path

import pytest

from tamis.base.errors import InputError, TamisError
from tamis.formats import Qrels, SkipReport, read_qrels, write_qrels


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


@pytest.mark.parametrize(
    "line",
    ["1\t0 1410\t1", "1 0\t1410\t1", "1\t0\t1410 1", "1\tQ0 1410\t1", "\t1 0\t1410 1"],
)
def test_trec_columns_between_which_tabs_and_spaces_mix(tmp_path: Path, line: str) -> None:
    """Two tabs are not yet BEIR's: a document '0 1410' is in no run, and every measure would be 0."""
    qrels = {"1": {"1410": 1, "7": 0}, "2": {"7": 2}}
    assert read_qrels(write(tmp_path / "q", f"{line}\n1 0 7 0\n2\t0 7\t2\n")) == qrels
    assert read_qrels(write(tmp_path / "q", f"2 0 7 2\n{line}\n1\t0\t7\t0\n")) == qrels


@pytest.mark.parametrize("header", ["query-id\tcorpus-id\tscore\n", "query-id corpus-id score\n", ""])
def test_beir_columns_between_which_tabs_and_spaces_mix(tmp_path: Path, header: str) -> None:
    content = f"{header}1 \t d1\t 1 \r\n1 d2 0\n2\td1 1\n2\tmy notes.txt\t 2\n"
    qrels = read_qrels(write(tmp_path / "q", content))
    assert qrels == {"1": {"d1": 1, "d2": 0}, "2": {"d1": 1, "my notes.txt": 2}}


@pytest.mark.parametrize(
    ("content", "qrels"),
    [
        ("topic 1\td1\t1\ntopic 2\td1\t1\n", {"topic 1": {"d1": 1}, "topic 2": {"d1": 1}}),
        ("q1\t7 eleven\t1\n", {"q1": {"7 eleven": 1}}),
        ("q1\t2020 report\t1\nq2\tbar foo\t1\n", {"q1": {"2020 report": 1}, "q2": {"bar foo": 1}}),
    ],
)
def test_ids_may_hold_numbers_beside_spaces(tmp_path: Path, content: str, qrels: Qrels) -> None:
    assert read_qrels(write(tmp_path / "q", content)) == qrels


def test_a_header_allows_ids_that_begin_like_an_iteration(tmp_path: Path) -> None:
    content = "query-id\tcorpus-id\tscore\n1\t0 monkeys.txt\t1\n"
    assert read_qrels(write(tmp_path / "q", content)) == {"1": {"0 monkeys.txt": 1}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("1 Q0 d2 1 9.5 bm25\n", "write qid, 0, docid and grade; a run has 6: give the qrels before it"),
        ("1 0 1410\n", "line 1: 3 columns where these qrels have 4: write qid, 0, docid and grade"),
        ("1\td1\t1\n1 0 d2 1\n", "line 2: 4 columns where these qrels have 3: write qid, docid and grade"),
        ("1\td1\t1\n\td2\t1\n", "line 2: 2 columns where these qrels have 3"),
    ],
)
def test_a_line_of_the_other_format_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_qrels(write(tmp_path / "q", content))


def test_a_bad_first_line_does_not_tell_the_format(tmp_path: Path) -> None:
    file = write(tmp_path / "q", "no judgment at all, this\n1\td1\t1\n")
    report = SkipReport()
    assert read_qrels(file, skipped=report) == {"1": {"d1": 1}}
    assert report.count == 1


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
