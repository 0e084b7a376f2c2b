"""tamis eval as a person and as a machine use it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.text import Text

from tamis.cli import main
from tamis.cli.eval import table
from tamis.evaluate.measures import Evaluation

QRELS = "q1 0 a 1\nq1 0 b 0\nq2 0 c 2\nq3 0 a 0\nq4 0 d 1\n"
RUN = """\
q1 Q0 x 1 3.0 t
q1 Q0 a 2 2.0 t
q1 Q0 b 3 1.0 t
q2 Q0 y 1 1.0 t
q2 Q0 c 2 1.0 t
q3 Q0 a 1 1.0 t
new Q0 a 1 1.0 t
"""
Tamis = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tamis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    Path("qrels.txt").write_text(QRELS)
    Path("a.run").write_text(RUN)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["eval", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_judged_documents_stand_beside_a_cutoff(tamis: Tamis) -> None:
    status, out, _ = tamis("qrels.txt", "a.run", "-m", "P@2", "-m", "RR", "-m", "RBP(p=0.5)")
    assert status == 0
    header, _, values = (line.split() for line in out.splitlines() if line.strip())
    assert header == ["run", "P@2", "Judged@2", "RR", "RBP(p=0.5)", "RBPResidual(p=0.5)"]
    # q4 is not answered; q2's tie is as in the file
    by_hand = [(1 / 2 + 1 / 2) / 3, (1 / 2 + 1 / 2) / 3, (1 / 2 + 1 / 2) / 3, 1 / 6]
    assert values[1:5] == [f"{value:.4f}" for value in by_hand]


def test_no_number_and_no_name_is_folded_in_80_columns(tamis: Tamis, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bm25.run").write_text(RUN)
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = tamis("qrels.txt", "bm25.run")
    header, rule, values = (line.split() for line in out.splitlines() if line.strip())
    assert header == ["run", "nDCG@10", "Judged@10", "AP", "RR@10", "P@10", "R@1000", "Judged@1000"]
    assert values[0] == "bm25.run"
    assert len(values) == len(header)
    assert len(rule) == 1


@pytest.mark.parametrize("columns", [30, 40, 60, 80])
@pytest.mark.parametrize("per_query", [False, True])
def test_a_table_that_is_too_wide_comes_in_parts(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch, columns: int, per_query: bool
) -> None:
    names = ["nDCG@10", "AP", "RR@10", "RBP(p=0.5)", "Bpref", "Rprec", "Success@5", "P@30", "R@100"]
    options = [option for name in names for option in ("-m", name)]
    options += ["--per-query"] if per_query else []
    rows = list(csv.reader(tamis("qrels.txt", "a.run", *options, "--csv")[1].splitlines()))
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = tamis("qrels.txt", "a.run", *options)
    lines = [line.split() for line in out.splitlines()]
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    heads = [number for number, line in enumerate(lines) if line[:1] == ["query" if per_query else "run"]]
    assert len(heads) > 1
    assert [name for number in heads for name in lines[number][1:]] == rows[0][2:]
    for row in rows[1:]:  # each line of each part begins with its name
        own = [line[1:] for line in lines if line[:1] == [row[1] if per_query else "a.run"]]
        assert [value for part in own for value in part] == [f"{float(value):.4f}" for value in row[2:]]


def test_the_best_of_a_column_is_bold_by_value() -> None:
    # as texts, 9 comes after 12
    found = {name: Evaluation({"NumRet": value}, {}, [], [], []) for name, value in (("a", 9.0), ("b", 12.0))}
    cells = table("run", found, ["NumRet"]).columns[1].cells
    assert [(str(cell), cell.style) for cell in cells if isinstance(cell, Text)] == [
        ("9.0000", ""),
        ("12.0000", "bold"),
    ]


def test_only_what_is_asked_for(tamis: Tamis) -> None:
    _, out, _ = tamis("qrels.txt", "a.run", "-m", "P@2", "--only")
    assert "Judged" not in out


def test_who_counts_is_said(tamis: Tamis) -> None:
    _, _, err = tamis("qrels.txt", "a.run", "-m", "P@1")
    assert err.splitlines() == [
        "warning: qrels.txt: queries without a relevant document (not counted): 1 (q3)",
        "warning: a.run: judged queries missing from the run (counted as zero): 1 (q4); "
        "if they were not run, leave them out: --missing left-out",
        "warning: a.run: queries of the run without judgments (not counted): 1 (new)",
        "warning: a.run: the order of equal scores matters in 1 query (they are ordered by the rank "
        "column, then as in the file): could be P@1 0.0000 (0.0000 to 0.3333)",
    ]


def test_ties_that_do_not_matter_are_not_mentioned(tamis: Tamis) -> None:
    _, _, err = tamis("qrels.txt", "a.run", "-m", "P@2")
    assert "equal scores" not in err


def test_condensed_lists_are_said_to_be_so(tamis: Tamis) -> None:
    _, out, _ = tamis("qrels.txt", "a.run", "-m", "RR", "--unjudged", "condensed")
    assert f"{2 / 3:.4f}" in out
    assert "unjudged documents are removed" in out


def test_precision_of_short_lists(tamis: Tamis) -> None:
    def precision(*options: str) -> float:
        _, out, _ = tamis("qrels.txt", "a.run", "-m", "P@10", "--json", *options)
        return float(json.loads(out)[0]["mean"]["P@10"])

    assert precision() == pytest.approx((1 / 10 + 1 / 10) / 3)
    assert precision("--short-lists", "l") == pytest.approx((1 / 3 + 1 / 2) / 3)


def test_missing_queries_may_be_left_out(tamis: Tamis) -> None:
    def value(*options: str) -> float:
        _, out, _ = tamis("qrels.txt", "a.run", "-m", "RR", "--json", *options)
        return float(json.loads(out)[0]["mean"]["RR"])

    assert value() == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert value("--missing", "left-out") == pytest.approx((1 / 2 + 1 / 2) / 2)
    _, out, err = tamis("qrels.txt", "a.run", "-m", "RR", "--missing", "left-out", "--json")
    assert "warning: a.run: judged queries missing from the run (left out): 1 (q4)\n" in err
    (found,) = json.loads(out)
    assert (found["missing"], found["missing_queries"], found["queries"]) == (["q4"], "left-out", 2)


def test_a_geometric_mean(tamis: Tamis) -> None:
    _, out, _ = tamis("qrels.txt", "a.run", "-m", "AP", "--mean", "geometric")
    assert f"{(0.5 * 0.5 * 1e-5) ** (1 / 3):.4f}" in out
    assert out.endswith("geometric means over queries; values below 0.00001 count as 0.00001\n")
    _, out, _ = tamis("qrels.txt", "a.run", "-m", "AP", "--mean", "geometric", "--json")
    assert json.loads(out)[0]["mean_over_queries"] == "geometric"


def test_trials_of_one_system(tamis: Tamis) -> None:
    for name, rank in (("b", 1), ("c", 4)):
        Path(f"{name}.run").write_text(f"q1 Q0 a {rank} {9 - rank}.0 t\nq2 Q0 c 1 1.0 t\n")
    runs = ("a.run", "b.run", "c.run")
    status, out, _ = tamis("qrels.txt", *runs, "-m", "RR", "--only", "--trials")
    assert status == 0
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert [line[0] for line in lines[2:5]] == list(runs)
    values = [float(line[1]) for line in lines[2:5]]
    assert lines[-3] == ["mean", f"{sum(values) / 3:.4f}"]
    assert lines[-2][:4] == ["95", "%", "interval", "±"]
    assert lines[-1] == ["median", f"{sorted(values)[1]:.4f}"]

    _, out, _ = tamis("qrels.txt", *runs, "-m", "RR", "--only", "--trials", "--json")
    found = json.loads(out)
    over = found["trials"]["RR"]
    assert [each["run"] for each in found["runs"]] == list(runs)
    assert over["mean"] == pytest.approx(sum(each["mean"]["RR"] for each in found["runs"]) / 3)
    assert over["interval"] == pytest.approx([over["mean"] - over["margin"], over["mean"] + over["margin"]])
    assert over["trials"] == 3

    _, out, _ = tamis("qrels.txt", *runs, "-m", "RR", "--only", "--trials", "--csv")
    rows = list(csv.reader(out.splitlines()))
    assert [row[:2] for row in rows[-4:]] == [
        ["trials", "mean"], ["trials", "low"], ["trials", "high"], ["trials", "median"]
    ]  # fmt: skip
    assert float(rows[-4][2]) == pytest.approx(over["mean"])


def test_one_trial_is_none(tamis: Tamis) -> None:
    status, out, err = tamis("qrels.txt", "a.run", "--trials")
    assert (status, out) == (2, "")
    assert "an interval over trials needs two of them: give further runs" in err


def test_json(tamis: Tamis) -> None:
    _, out, _ = tamis("qrels.txt", "a.run", "-m", "RR", "--json", "--per-query")
    (found,) = json.loads(out)
    assert found == {
        "run": "a.run",
        "mean": {"RR": pytest.approx(1 / 3)},
        "queries": 3,
        "missing": ["q4"],
        "unjudged": ["new"],
        "irrelevant": ["q3"],
        "ties": {
            "queries": ["q2"],
            "low": {"RR": pytest.approx(1 / 3)},
            "high": {"RR": pytest.approx(1 / 2)},
        },
        "per_query": {"RR": {"q1": 0.5, "q2": 0.5, "q4": 0.0}},
        "unjudged_documents": "nonrelevant",
        "short_lists": "k",
        "missing_queries": "zero",
        "mean_over_queries": "arithmetic",
        "tie_rule": "by the rank column, then as in the file",
    }


def test_csv(tamis: Tamis) -> None:
    _, out, _ = tamis("qrels.txt", "a.run", "-m", "RR", "-m", "P@1", "--csv", "--per-query")
    rows = list(csv.reader(out.splitlines()))
    assert rows[0] == ["run", "query", "RR", "P@1", "Judged@1"]
    assert rows[1:4] == [
        ["a.run", "q1", "0.5", "0.0", "0.0"],
        ["a.run", "q2", "0.5", "0.0", "0.0"],
        ["a.run", "q4", "0.0", "0.0", "0.0"],
    ]
    assert rows[4][:2] == ["a.run", "all"]
    assert float(rows[4][2]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("q1 Q0 a 4 0.5 t", "a.run, line 8: the document 'a' comes twice for 'q1'"),
        ("q1 Q0 z 4 nan t", "a.run, line 8: the score 'nan' is not a finite number"),
    ],
)
def test_bad_runs(tamis: Tamis, line: str, problem: str) -> None:
    Path("a.run").write_text(f"{RUN}{line}\n")
    status, _, err = tamis("qrels.txt", "a.run")
    assert status == 2
    assert problem in err


def test_judgments_of_other_queries(tamis: Tamis) -> None:
    Path("other.txt").write_text("elsewhere 0 a 1\n")
    status, _, err = tamis("other.txt", "a.run")
    assert status == 2
    assert err.startswith("error: a.run: the run answers none of the judged queries")


def test_judgments_without_a_relevant_document_are_at_fault_themselves(tamis: Tamis) -> None:
    Path("zero.txt").write_text("q1 0 a 0\nq1 0 b -2\n")
    status, _, err = tamis("zero.txt", "a.run")
    assert status == 2
    assert err == "error: zero.txt: contains no relevant document (no grade above 0): check the file\n"


def test_one_standard_input_is_not_two_files(tamis: Tamis) -> None:
    status, _, err = tamis("-", "-")
    assert status == 2
    assert err == "error: only one input can be the standard input: give files for the others\n"
