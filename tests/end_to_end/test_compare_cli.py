"""tamis compare from the command line: its tables, formats and files, and what it says of bad input."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tamis.cli import main

QUERIES = 12
MEASURES = ["-m", "RR", "-m", "P@1"]


def write_run(path: Path, ranks: list[int]) -> None:
    """The relevant document of the i-th query at the i-th rank; 0: the query is missing."""
    lines = []
    for query, rank in enumerate(ranks):
        ids = [*(f"bad{i}" for i in range(1, rank)), "good"] if rank else []
        lines += [f"q{query} Q0 {d} {i} {10 - i} tag\n" for i, d in enumerate(ids, start=1)]
    path.write_text("".join(lines))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's workers set
    Path("qrels.txt").write_text("".join(f"q{i} 0 good 1\n" for i in range(QUERIES)))
    write_run(Path("bm25.txt"), [4, 3, 5] * 4)
    write_run(Path("mono.txt"), [2, 1, 2, 2] * 3)
    write_run(Path("duo.txt"), [1, 1, 1, 2] * 3)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["compare", *arguments]) == status
    out, err = capsys.readouterr()
    return out, err


RUNS = ["qrels.txt", "bm25.txt", "mono.txt", "duo.txt", *MEASURES]


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, *RUNS)
    assert err == ""
    words = [line.split() for line in out.splitlines()]
    assert ["a", "bm25", "0.2611", "0.0000"] in words
    assert ["duo", "0.8750ᵃ", "0.7500ᵃ"] in words
    assert "Two-tailed paired t-test. Holm's correction over a family of 4 tests" in out
    assert "12 queries with a relevant document" in out


def test_another_name_of_a_file_is_not_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    plain = said(capsys, *RUNS, "--baseline", "mono.txt", "--json")
    assert said(capsys, *RUNS, "./duo.txt", "--baseline", "./mono.txt", "--json") == plain
    assert len(json.loads(plain[0])["runs"]) == 3


@pytest.mark.parametrize(("columns", "parts"), [(45, 3), (60, 2), (80, 1)])
def test_no_number_is_cut_short(
    columns: int, parts: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = list(csv.DictReader(io.StringIO(said(capsys, *RUNS, "--format", "csv")[0])))
    monkeypatch.setenv("COLUMNS", str(columns))
    out, _ = said(capsys, *RUNS)
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    shown = " ".join(lines).split()
    for test in tests:
        assert f"{float(test['difference']):+.4f}" in shown
        assert f"[{float(test['low']):+.4f}," in shown
        assert f"{float(test['high']):+.4f}]" in shown
        assert f"{test['wins']}/{test['ties']}/{test['losses']}" in shown
    heads = [line.split() for line in lines if line.split()[:3] == ["measure", "run", "vs"]]
    assert len(heads) == parts  # each begins with the names of its lines


def test_several_baselines_one_of_them_not_among_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["qrels.txt", "duo.txt", "mono.txt", "--baseline", "bm25.txt", "--baseline", "mono.txt"]
    out, _ = said(capsys, *arguments, *MEASURES, "--json")
    found = json.loads(out)
    assert found["baselines"] == {"bm25": "a", "mono": "b"}
    pairs = [(test["run"], test["baseline"]) for test in found["tests"] if test["measure"] == "RR"]
    assert pairs == [("duo", "bm25"), ("duo", "mono"), ("mono", "bm25")]


def test_every_format_to_the_output_and_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    for format in ("table", "markdown", "latex", "html", "json", "csv"):
        out, _ = said(capsys, *RUNS, "--format", format)
        assert said(capsys, *RUNS, "--format", format, "-o", "made")[0] == ""
        assert Path("made").read_text() == out


def test_options_reach_the_tests(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--test", "randomisation", "--correction", "bonferroni", "--alpha", "0.01", "--family", "7"]
    out, _ = said(capsys, *RUNS, *options, "--interval", "percentile", "--seed", "3", "--format", "json")
    found = json.loads(out)
    assert found["settings"] | {"permutations": 0, "resamples": 0} == {
        "test": "randomisation",
        "correction": "bonferroni",
        "alpha": 0.01,
        "family": 7,
        "interval": "percentile",
        "permutations": 0,
        "resamples": 0,
        "seed": 3,
    }
    first = found["tests"][0]
    assert first["p"] == 2 / 2**QUERIES  # all signs were tried, and every query is better
    assert first["corrected_p"] == pytest.approx(7 * first["p"])


def test_a_plot(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, *RUNS, "--plot", "differences.svg")
    assert err == "plotted the difference per query in differences.svg\n"
    titles = [e.text for e in ET.parse("differences.svg").iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4 * QUERIES
    assert "q0: 0.2500 → 1.0000 (+0.7500)" in titles


def test_csv_has_a_line_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, *RUNS, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["measure"], row["run"]) for row in rows] == [
        ("RR", "mono"),
        ("RR", "duo"),
        ("P@1", "mono"),
        ("P@1", "duo"),
    ]
    assert rows[1]["wins"] == "12"


def test_runs_of_other_queries(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("part.txt"), [1, 0, 1, 0, *[1] * 10])
    out, _ = said(capsys, "qrels.txt", "bm25.txt", "part.txt", *MEASURES)
    assert "Missing from part, counted zero: q1, q3." in out
    assert "In part, but without judgments and not counted: q12, q13." in out


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("q0 Q0 good 1 nan tag", "broken.txt, line 1: the score 'nan' is not a finite number"),
        ("q0 Q0 good 1 2 tag\nq0 Q0 good 2 1 tag", "broken.txt, line 2: the document 'good' comes twice"),
        ("other Q0 good 1 2 tag", "broken: the run answers none of the judged queries"),
        ("q0 good", "broken.txt, line 1: 2 columns where a run has 6"),
    ],
)
def test_broken_runs(line: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.txt").write_text(line + "\n")
    out, err = said(capsys, "qrels.txt", "bm25.txt", "broken.txt", status=2)
    assert out == ""
    assert err.startswith(f"error: {problem}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["qrels.txt", "bm25.txt"], "fewer than two runs to compare"),
        (["qrels.txt", "bm25.txt", "bm25.txt"], "fewer than two runs to compare"),
        (["qrels.txt", "bm25.txt", "./bm25.txt"], "fewer than two runs to compare"),
        (["qrels.txt", "bm25.txt", "nowhere.txt"], "nowhere.txt"),
        ([*RUNS, "--alpha", "5"], "an alpha of 5.0: give a number between 0 and 1"),
        ([*RUNS, "--family", "few"], "argument --family: 'few' is not all, measure or a number of tests"),
        ([*RUNS, "--family", "3"], "a family of 3 with 4 tests"),
        ([*RUNS, "--test", "anova"], "argument --test: invalid choice: 'anova'"),
        ([*RUNS, "-o", "nowhere/made.txt"], "cannot write nowhere/made.txt"),
        ([*RUNS, "--plot", "made.png"], "plots are SVG files, and made.png has another suffix"),
        (["empty.txt", "bm25.txt", "mono.txt"], "empty.txt: contains no judgments"),
        (["zero.txt", "bm25.txt", "mono.txt"], "zero.txt: contains no relevant document"),
        (["-", "bm25.txt", "-"], "only one input can be the standard input"),
    ],
)
def test_bad_arguments(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.txt").touch()
    Path("zero.txt").write_text("q0 0 good 0\n")
    _, err = said(capsys, *arguments, status=2)
    assert problem in err
    assert err.count("\n") == 1
