"""Runs, good and bad, and scores without ties."""

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.formats import RunLine, SkipReport, read_run, read_run_lines, strictly_decreasing, write_run


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Reading


def test_lines_come_in_file_order(tmp_path: Path) -> None:
    file = write(tmp_path / "run", "q2 Q0 d1 2 1.5 bm25\nq1 Q0 d9 1 -2e-3 ql\nq2 Q0 d2 1 7 bm25\n")
    assert list(read_run_lines(file)) == [
        RunLine("q2", "d1", 2, 1.5, "bm25"),
        RunLine("q1", "d9", 1, -0.002, "ql"),
        RunLine("q2", "d2", 1, 7.0, "bm25"),
    ]


def test_byte_order_mark_crlf_tabs_spaces_blank_lines_and_no_last_line_end(tmp_path: Path) -> None:
    content = (
        b"\xef\xbb\xbf\r\nq1\tQ0\td1\t1\t2.0\tt\r\n\n  q1  Q0 d\xc2\xa02 2 1.0 t  \n \nq1 Q0 d\0 3 0.5 t"
    )
    assert list(read_run_lines(write(tmp_path / "run", content))) == [
        RunLine("q1", "d1", 1, 2.0, "t"),
        RunLine("q1", "d\u00a02", 2, 1.0, "t"),
        RunLine("q1", "d\0", 3, 0.5, "t"),
    ]


def test_ms_marco_runs_score_by_rank(tmp_path: Path) -> None:
    file = write(tmp_path / "run.tsv", "1048585\t7187158\t1\n1048585\t7617404\t2\n2\t5\t1\n")
    assert next(read_run_lines(file)) == RunLine("1048585", "7187158", 1, 1.0, "msmarco")
    run = read_run(file)
    assert run["1048585"][0] == ["7187158", "7617404"]
    assert run["1048585"][1].tolist() == [1.0, 0.5]
    assert list(run) == ["1048585", "2"]


@pytest.mark.parametrize("read", [lambda *a, **k: list(read_run_lines(*a, **k)), read_run])
def test_an_empty_run(tmp_path: Path, read: object) -> None:
    for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
        assert not read(write(tmp_path / "run", content))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"q1 Q0 d2 2 1.0", "5 columns where a run has 6: write qid Q0 docid rank score tag"),
        (b"q1 Q0 d2 2 1.0 my tag", "7 columns where a run has 6"),
        (b"q1 d2 2", "3 columns where a run has 6"),
        (b"q1 Q0 d2 2 high t", "the score 'high' is not a finite number"),
        (b"q1 Q0 d2 2 nan t", "the score 'nan' is not a finite number"),
        (b"q1 Q0 d2 2 -inf t", "the score '-inf' is not a finite number"),
        (b"q1 Q0 d2 2 1e999 t", "the score '1e999' is not a finite number"),
        (b"q1 Q0 d2 first 1.0 t", "the rank 'first' is not a whole number"),
        (b"q1 Q0 d2 1.5 1.0 t", "the rank '1.5' is not a whole number"),
        (b"q1 Q0 d2 99999999999999999999 1.0 t", "the rank '99999999999999999999' is not a whole number"),
        (b"q1 Q0 caf\xe9 2 1.0 t", "not UTF-8 .byte 0xe9."),
        (b"caf\xe9 Q0 d2 2 1.0 t", "not UTF-8"),
        (b"q1 Q0 d2 2 1.0 caf\xe9", "not UTF-8"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, line: bytes, problem: str) -> None:
    file = write(tmp_path / "run", b"q1 Q0 d1 1 9.0 t\n\n" + line + b"\nq1 Q0 d3 3 0.5 t\n")
    with pytest.raises(InputError, match=f"line 3: {problem}"):
        list(read_run_lines(file))
    with pytest.raises(InputError, match="line 3: "):
        read_run(file)
    report = SkipReport()
    assert [row.docid for row in read_run_lines(file, skipped=report)] == ["d1", "d3"]
    assert report.count == 1
    assert read_run(file, skipped=SkipReport())["q1"][0] == ["d1", "d3"]


@pytest.mark.parametrize("rank", ["0", "-1", "x"])
def test_a_bad_ms_marco_rank_is_named(tmp_path: Path, rank: str) -> None:
    with pytest.raises(InputError, match=f"line 2: the rank '{rank}' is not a whole number from 1"):
        read_run(write(tmp_path / "run.tsv", f"1\t2\t1\n1\t3\t{rank}\n"))


def test_order_is_by_score_then_rank_then_file(tmp_path: Path) -> None:
    content = (
        "q Q0 a 3 1.0 t\nq Q0 b 9 2.0 t\nq Q0 c 2 1.0 t\nother Q0 z 1 1 t\nq Q0 d 2 1.0 t\nq Q0 e 1 3.0 t\n"
    )
    run = read_run(write(tmp_path / "run", content))
    assert run["q"][0] == ["e", "b", "c", "d", "a"]
    assert run["q"][1].tolist() == [3.0, 2.0, 1.0, 1.0, 1.0]
    assert list(run) == ["q", "other"]


def test_a_document_twice_is_an_error_that_names_the_second_line(tmp_path: Path) -> None:
    content = "q Q0 a 1 3 t\n\nq Q0 b 2 2 t\nr Q0 a 1 1 t\nq Q0 a 3 9 t\n"
    file = write(tmp_path / "run", content)
    with pytest.raises(InputError, match="line 5: the document 'a' comes twice for 'q'"):
        read_run(file)
    report = SkipReport()
    docids, scores = read_run(file, skipped=report)["q"]
    assert (docids, scores.tolist(), report.count) == (["a", "b"], [3.0, 2.0], 1)


def test_long_runs_are_read_as_their_lines_say(tmp_path: Path) -> None:
    # Long enough for several blocks, with the queries' lines interleaved, and blank lines in one of them.
    lines = [f"q{i % 3} Q0 document-{i} {i // 3 + 1} {10_000.5 - i} tag" for i in range(9_000)]
    file = write(tmp_path / "run", "\n".join([*lines[:8000], "", " ", *lines[8000:]]))
    run = read_run(file)
    for qid in ("q0", "q1", "q2"):
        rows = [row for row in read_run_lines(file) if row.qid == qid]
        assert run[qid][0] == [row.docid for row in rows]
        assert run[qid][1].tolist() == [row.score for row in rows]
    assert sum(len(docids) for docids, _ in run.values()) == 9_000


@pytest.mark.parametrize("bad", ["q Q0 d 1 nan t", "q Q0 d 1 1.0", "q Q0 d 9999999999999999999 1.0 t"])
def test_a_bad_line_far_into_a_long_run_is_named(tmp_path: Path, bad: str) -> None:
    lines = [f"q Q0 document-{i} {i} {10_000.5 - i} tag" for i in range(1, 9_001)]
    file = write(tmp_path / "run", "\n".join([*lines[:7999], bad, *lines[8000:]]))
    with pytest.raises(InputError, match="line 8000: "):
        read_run(file)
    report = SkipReport()
    assert len(read_run(file, skipped=report)["q"][0]) == 8_999
    assert report.count == 1


def test_a_short_line_and_a_long_line_do_not_make_up_for_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2: 5 columns"):
        read_run(write(tmp_path / "run", "q Q0 a 1 3 t\nq Q0 b 2 2\nt q Q0 c 3 1 t\n"))


def test_a_run_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"q Q0 a 1 3 t\nq Q0 a 2 2 t\n")))
    with pytest.raises(InputError, match="-: the document 'a' comes twice"):
        read_run("-")


def test_a_truncated_gz_is_an_error(tmp_path: Path) -> None:
    lines = "".join(f"q Q0 d{rank} {rank} {1 / rank} t\n" for rank in range(1, 5000))
    file = write(tmp_path / "run.gz", gzip.compress(lines.encode())[:-30])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_run(file)


# Writing


def test_a_run_is_written_in_six_columns(tmp_path: Path) -> None:
    rows = [("q1", ["d3", "d7"], [12.5, 0.1]), ("q0", [], []), ("q2", ("d1",), np.array([1e-7]))]
    write_run(tmp_path / "run", rows, tag="bm25")
    assert (tmp_path / "run").read_bytes() == (
        b"q1 Q0 d3 1 12.5 bm25\nq1 Q0 d7 2 0.1 bm25\nq2 Q0 d1 1 1e-07 bm25\n"
    )


def test_float32_scores_are_written_as_short_as_they_are(tmp_path: Path) -> None:
    scores = np.array([12.3456, 12.3456, 0.1], dtype=np.float32)
    write_run(tmp_path / "run", [("q", ["a", "b", "c"], scores)], tag="t")
    assert [line.split()[4] for line in (tmp_path / "run").read_text().splitlines()] == [
        "12.3456",
        "12.345599",
        "0.1",
    ]


@pytest.mark.parametrize("bad", ["", "a b", "a\tb", "a\n", "a\u00a0b", "a\u2028b", " a"])
def test_white_space_is_refused(tmp_path: Path, bad: str) -> None:
    for rows, tag, name in (
        ([("q", ["d1", bad], [2.0, 1.0])], "t", "document id"),
        ([(bad, ["d1"], [1.0])], "t", "query id"),
        ([("q", ["d1"], [1.0])], bad, "tag"),
    ):
        with pytest.raises(InputError, match=f"the {name} "):
            write_run(tmp_path / "run", rows, tag=tag)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([("q", ["a", "b", "a"], [3, 2, 1])], "the document 'a' comes twice for 'q'"),
        ([("q", ["a"], [1]), ("q", ["b"], [1])], "the query id 'q' comes twice"),
        ([("q", ["a", "b"], [1])], "2 documents and 1 scores for 'q'"),
        ([("q", ["a", "b"], [1, 2])], "query 'q': the scores increase"),
        ([("q", ["a"], [float("nan")])], "query 'q': a score is not a finite number"),
    ],
)
def test_bad_rows_leave_the_old_run(tmp_path: Path, rows: list, problem: str) -> None:  # type: ignore[type-arg]
    file = write(tmp_path / "run", "old")
    with pytest.raises(InputError, match=problem):
        write_run(file, [("p", ["a"], [1.0]), *rows], tag="t")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


# Ties


def below(value: float, steps: int = 1) -> np.float32:
    single = np.float32(value)
    for _ in range(steps):
        single = np.nextafter(single, np.float32(-np.inf))
    return single


def test_ties_step_down_through_float32() -> None:
    scores = strictly_decreasing([2.0, 1.0, 1.0, 1.0, 0.5])
    assert scores[[0, 1, 4]].tolist() == [2.0, 1.0, 0.5]
    assert scores.astype(np.float32)[2:4].tolist() == [below(1.0), below(1.0, 2)]


def test_scores_that_differ_are_not_touched() -> None:
    scores = np.array([1e10, 0.1, 0.0, -0.1, -1e10])
    result = strictly_decreasing(scores)
    assert result.tolist() == scores.tolist()
    assert result is not scores


def test_scores_that_differ_only_as_float64_are_ties() -> None:
    result = strictly_decreasing([1.0 + 1e-12, 1.0])
    assert result[0] == 1.0 + 1e-12
    assert np.float32(result[1]) == below(1.0)


def test_a_chain_of_ties_pushes_into_the_next_score() -> None:
    result = strictly_decreasing([1.0, 1.0, 1.0, float(below(1.0)), 0.5]).astype(np.float32)
    assert result.tolist() == [1.0, below(1.0), below(1.0, 2), below(1.0, 3), 0.5]


def test_ties_at_zero_and_below() -> None:
    result = strictly_decreasing([0.0, -0.0, 0.0, -1.0, -1.0]).astype(np.float32)
    assert result.tolist() == [0.0, below(0.0), below(0.0, 2), -1.0, below(-1.0)]


def test_no_score_and_one_score() -> None:
    assert strictly_decreasing([]).tolist() == []
    assert strictly_decreasing([0.1]).tolist() == [0.1]


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        ([float("nan")], "not a finite number"),
        ([float("inf"), 1.0], "not a finite number"),
        ([1.0, 2.0], "increase"),
        ([1e39, 1.0], "beyond the range of float32"),
        ([-3.4028235e38, -3.4028235e38], "beyond the range of float32"),
        ([[1.0]], "2 dimensions"),
    ],
)
def test_scores_that_cannot_be_ordered(scores: list[float], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        strictly_decreasing(scores)
