"""Comparisons: who is tested against whom, over which queries, with which marks; and their tables."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from tamis import Query, Ranking
from tamis.base.errors import InputError
from tamis.evaluate.compare import Comparison, Marks, compare
from tamis.evaluate.tables import html, latex, markdown, notes, terminal, written

Run = Mapping[str, Ranking]
N = 24
QRELS = {f"q{i}": {"good": 1} for i in range(N)}


def ranking(qid: str, ids: Sequence[str]) -> Ranking:
    return Ranking(Query(qid, ""), tuple(ids), np.arange(len(ids), 0, -1.0))


def run(*ranks: int) -> dict[str, Ranking]:
    """A run in which the relevant document of the i-th query has the i-th rank; 0: the query is missing."""
    made = {}
    for i, rank in enumerate(ranks):
        if rank:
            ids = [f"bad{j}" for j in range(1, rank)]
            made[f"q{i}"] = ranking(f"q{i}", [*ids, "good"])
    return made


def cycle(*ranks: int) -> dict[str, Ranking]:
    return run(*(ranks[i % len(ranks)] for i in range(N)))


RUNS: dict[str, Run] = {"worst": cycle(4, 5), "middle": cycle(2, 3, 2), "best": cycle(1, 1, 1, 2)}


def row(comparison: Comparison, run: str, baseline: str, measure: str = "RR") -> Any:
    return next(t for t in comparison.tests if (t.run, t.baseline, t.measure) == (run, baseline, measure))


# -- what is compared
# ------------------------------------------------------------------------------------------------------------


def test_values_of_one_test() -> None:
    found = compare(QRELS, RUNS, ["RR"], correction="bonferroni")
    test = row(found, "middle", "worst")
    ours = np.array([[1 / 2, 1 / 3, 1 / 2][i % 3] for i in range(N)])
    theirs = np.array([[1 / 4, 1 / 5][i % 2] for i in range(N)])
    assert test.difference == pytest.approx((ours - theirs).mean())
    assert test.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert test.corrected_p == pytest.approx(2 * test.p)
    assert test.interval.low < test.difference < test.interval.high
    assert test.d == pytest.approx((ours - theirs).mean() / (ours - theirs).std(ddof=1))
    assert 0 < test.g < test.d
    assert test.counts == (N, 0, 0)
    assert list(found.differences(test).values()) == pytest.approx((ours - theirs).tolist())


def test_the_first_run_is_the_baseline_unless_told() -> None:
    assert [(t.run, t.baseline) for t in compare(QRELS, RUNS, ["RR"]).tests] == [
        ("middle", "worst"),
        ("best", "worst"),
    ]
    assert [(t.run, t.baseline) for t in compare(QRELS, RUNS, ["RR"], baselines=["best"]).tests] == [
        ("worst", "best"),
        ("middle", "best"),
    ]


def test_two_baselines_meet_once() -> None:
    found = compare(QRELS, RUNS, ["RR", "P@1"], baselines=["middle", "worst"])
    pairs = [(t.run, t.baseline) for t in found.tests if t.measure == "RR"]
    assert sorted(pairs) == [("best", "middle"), ("best", "worst"), ("worst", "middle")]
    assert [t.measure for t in found.tests] == ["RR"] * 3 + ["P@1"] * 3
    assert found.family_size == 6


def test_marks_name_the_baselines() -> None:
    found = compare(QRELS, RUNS, ["RR"], baselines=["worst", "best"])
    assert found.letters == {"worst": "a", "best": "b"}
    assert found.marks("middle", "RR") == Marks(better="a", worse="b")
    assert found.marks("best", "RR") == Marks(better="a", worse="")
    assert found.marks("worst", "RR") == Marks("", "")


def test_families() -> None:
    settings: dict[str, Any] = {"measures": ["RR", "AP", "P@1"], "correction": "bonferroni"}
    every = compare(QRELS, RUNS, **settings)
    each = compare(QRELS, RUNS, **settings, family="measure")
    many = compare(QRELS, RUNS, **settings, family=50)
    assert [found.family_size for found in (every, each, many)] == [6, 2, 50]
    for found in (every, each, many):
        for test in found.tests:
            assert test.corrected_p == pytest.approx(min(1, found.family_size * test.p))
    assert "a family of 6 tests (2 pairs of runs × 3 measures)" in notes(every)[1]
    assert "a family of 2 tests, for each measure by itself" in notes(each)[1]
    assert "a family of 50 tests, as declared, of which 6 are here" in notes(many)[1]
    with pytest.raises(InputError, match="a family of 5 with 6 tests"):
        compare(QRELS, RUNS, **settings, family=5)


def test_a_family_of_one() -> None:
    two = {name: RUNS[name] for name in ("worst", "best")}
    (holm,) = compare(QRELS, two, ["RR"]).tests
    (plain,) = compare(QRELS, two, ["RR"], correction="none").tests
    assert holm == plain
    assert holm.p == holm.corrected_p < 0.05


def test_alpha_decides_what_is_significant() -> None:
    noisy = {"a": cycle(1, 3, 2, 2, 4), "b": cycle(2, 1, 1, 3)}
    p = compare(QRELS, noisy, ["RR"]).tests[0].p
    assert 0.01 < p < 0.9
    assert compare(QRELS, noisy, ["RR"], alpha=p + 1e-6).tests[0].significant
    assert not compare(QRELS, noisy, ["RR"], alpha=p).tests[0].significant  # below, as the papers write it


def test_randomisation() -> None:
    found = compare(QRELS, RUNS, ["RR"], test="randomisation", permutations=999)
    assert row(found, "best", "worst").p == 1 / 1000
    assert "seed 0" in notes(found)[1]


# -- queries that not all have
# ------------------------------------------------------------------------------------------------------------


def test_queries_that_are_missing_count_zero_and_are_named() -> None:
    whole, half = run(1, 1, 2, 2), run(1, 0, 2, 0)
    del whole["q0"]
    found = compare(
        {qid: QRELS[qid] for qid in ("q0", "q1", "q2", "q3")}, {"whole": whole, "half": half}, ["RR"]
    )
    (test,) = found.tests
    assert found.queries == ["q0", "q1", "q2", "q3"]
    assert list(found.differences(test).values()) == [1.0, -1.0, 0.0, -0.5]
    assert test.counts == (1, 1, 2)
    said = "\n".join(notes(found))
    assert "Missing from whole, counted zero: q0." in said
    assert "Missing from half, counted zero: q1, q3." in said


def test_queries_that_do_not_count_are_named() -> None:
    qrels = {"q0": {"good": 1}, "q1": {"good": 1}, "hopeless": {"bad": 0}}
    found = compare(qrels, {"a": run(1, 2, 1, 1), "b": run(2, 1, 1)}, ["RR"])
    assert found.queries == ["q0", "q1"]
    said = "\n".join(notes(found))
    assert "In a, but without judgments and not counted: q2, q3." in said
    assert "In b, but without judgments and not counted: q2." in said
    assert "without a relevant document and not counted: hopeless." in said
    assert "2 queries with a relevant document" in said


def test_runs_without_a_judged_query_are_named() -> None:
    with pytest.raises(InputError, match="stranger: the run answers none of the judged queries"):
        compare(QRELS, {**RUNS, "stranger": {"x": ranking("x", ["good"])}}, ["RR"])


def test_scores_that_are_no_numbers() -> None:
    broken = {"q0": Ranking(Query("q0", ""), ("a", "b"), np.array([1.0, np.nan]))}
    with pytest.raises(InputError, match=r"broken: .*a score is not a finite number"):
        compare(QRELS, {**RUNS, "broken": broken}, ["RR"])


def test_a_document_that_comes_twice() -> None:
    with pytest.raises(InputError, match=r"broken: .*the document 'good' comes twice"):
        compare(QRELS, {**RUNS, "broken": {"q0": ranking("q0", ["good", "good"])}}, ["RR"])


def test_how_much_is_judged() -> None:
    found = compare(QRELS, RUNS, ["RR", "P@1", "nDCG@4"])
    assert found.judged["worst"] == pytest.approx({"Judged@1": 0.0, "Judged@4": 1 / 8})
    assert found.judged["best"]["Judged@1"] == 0.75
    assert any(note.startswith("Judged@1, the share that is judged: worst 0.000") for note in notes(found))
    assert compare(QRELS, RUNS, ["RR"]).judged == {name: {} for name in RUNS}


# -- where there is nothing to test
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["t", "randomisation"])
def test_equal_runs(test: Any) -> None:
    found = compare(QRELS, {"a": cycle(1, 2), "b": cycle(1, 2)}, ["RR"], test=test)
    (only,) = found.tests
    assert (only.p, only.corrected_p, only.significant) == (1, 1, False)
    assert (only.difference, only.interval, only.d) == (0, (0, 0), 0)
    assert only.counts == (0, N, 0)
    assert notes(found)[-1] == "No query differs, and p is 1: RR, b vs a."


def test_equal_differences() -> None:
    runs = {"a": cycle(2), "b": cycle(1)}
    found = compare(QRELS, runs, ["RR"])
    (only,) = found.tests
    assert (only.difference, only.p, only.interval) == (0.5, 1, (0.5, 0.5))
    assert only.undefined == "equal differences"
    assert "leaves the t-test undefined" in notes(found)[-1]
    (other,) = compare(QRELS, runs, ["RR"], test="randomisation", permutations=9).tests
    assert (other.p, other.undefined) == (0.1, "")


def test_one_query() -> None:
    qrels = {"q0": {"good": 1}}
    found = compare(qrels, {"a": run(2), "b": run(1)}, ["RR"])
    (only,) = found.tests
    assert (only.difference, only.p, only.undefined) == (0.5, 1, "one query")
    assert notes(found)[-1].startswith("One query allows no test: p is 1")
    row = json.loads(written(found, "json"))["tests"][0]
    assert row["d"] is None and row["p"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"baselines": ["nobody"]}, "the baseline 'nobody' is not among the runs"),
        ({"test": "anova"}, "'anova' is not a valid test: use t or randomisation"),
        ({"correction": "tukey"}, "'tukey' is not a valid correction"),
        ({"interval": "normal"}, "'normal' is not a valid interval"),
        ({"family": "some"}, "'some' is not a valid family"),
        ({"alpha": 0}, "an alpha of 0"),
        ({"alpha": 5}, "an alpha of 5"),
        ({"measures": ["nDGC@10"]}, "'nDGC@10' is not a measure"),
    ],
)
def test_bad_settings(settings: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare(QRELS, RUNS, **{"measures": ["RR"], **settings})


def test_too_few_runs_and_too_many_baselines() -> None:
    with pytest.raises(InputError, match="fewer than two runs"):
        compare(QRELS, {"a": RUNS["best"]}, ["RR"])
    many = {f"r{i}": RUNS["best"] for i in range(27)}
    with pytest.raises(InputError, match="26 baselines: give at most 25"):
        compare(QRELS, many, ["RR"], baselines=list(many)[:26])


# -- tables
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Comparison:
    named = {"a_b & c|d": RUNS["worst"], "middle<1>": RUNS["middle"], "best": RUNS["best"]}
    return compare(QRELS, named, ["RR", "P@1"], baselines=["a_b & c|d", "best"])


def printed(comparison: Comparison, **options: bool) -> str:
    console = Console(file=io.StringIO(), width=110)
    for part in terminal(comparison, **options):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_terminal_shows_superscripts(found: Comparison) -> None:
    lines = printed(found).splitlines()
    assert any(line.split() == ["middle<1>", "0.4444ᵃ↓ᵇ", "0.0000↓ᵇ"] for line in lines)
    assert any(line.split() == ["b", "best", "0.8750ᵃ", "0.7500ᵃ"] for line in lines)
    assert any("24/0/0" in line and "+0.2194" in line for line in lines)


def test_a_terminal_without_unicode(found: Comparison) -> None:
    lines = printed(found, unicode=False)
    assert "0.4444^a^vb" in lines
    assert "ᵃ" not in lines and "↓" not in lines and "×" not in lines


def test_numbers_stand_under_each_other(found: Comparison) -> None:
    lines = [line for line in printed(found).splitlines() if "0.8750" in line or "0.4444" in line][:2]
    assert lines[0].index("0.4444") == lines[1].index("0.8750")


def test_markdown(found: Comparison) -> None:
    made = markdown(found)
    assert "|  | middle&lt;1> | 0.4444<sup>a↓b</sup> | 0.0000<sup>↓b</sup> |" in made
    assert "| a | a\\_b &amp; c\\|d | 0.2250 | 0.0000 |" in made
    assert "| b | best | **0.8750**<sup>a</sup> | **0.7500**<sup>a</sup> |" in made
    for table in made.split("\n\n")[:2]:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1
    assert f"- {N} queries with a relevant document" in made


def test_the_best_of_a_column_is_bold_by_value() -> None:
    # 12 relevant documents found, and 9: the longer number is the larger one, though "9" sorts after "1"
    few = {f"q{i}": ranking(f"q{i}", ["good" if i < 9 else "bad"]) for i in range(12)}
    qrels = {f"q{i}": {"good": 1} for i in range(12)}
    made = markdown(compare(qrels, {"few": few, "all": run(*[1] * 12)}, ["NumRelRet"]))
    assert "| all | **12.0000** |" in made and "**9.0000**" not in made


def test_latex(found: Comparison) -> None:
    made = latex(found)
    assert "middle$<$1$>$ & 0.4444$^{a\\downarrow b}$ & 0.0000$^{\\downarrow b}$ \\\\" in made
    assert "a\\_b \\& c|d" in made
    assert "\\textbf{0.8750}$^{a}$" in made
    assert "$+0.2194$" in made
    assert made.count("\\begin{tabular}") == made.count("\\end{tabular}") == 2
    assert made.isascii()


def test_html(found: Comparison) -> None:
    made = html(found)
    assert "middle&lt;1&gt;" in made and "middle<1>" not in made
    assert "a↓b</sup>" in made
    page = made.replace("<!doctype html>", "").replace('<meta charset="utf-8">', "")
    page = page.replace('<meta name="viewport" content="width=device-width">', "")
    root = ET.fromstring(page)  # every element is closed
    assert len(root.findall(".//table")) == 2
    assert len(root.findall(".//li")) == len(notes(found))
    assert "http" not in made.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched


@pytest.mark.parametrize("name", ["+rm3_1", "-cls_2", "[mono_3]", "<4_>"])
def test_a_name_is_no_number(name: str) -> None:
    found = compare(QRELS, {"bm25": RUNS["worst"], name: RUNS["best"]}, ["RR"])
    escaped = name.replace("_", "\\_").replace("<", "$<$").replace(">", "$>$")
    lines = [line for line in latex(found).splitlines() if f"& {escaped} &" in line]
    assert len(lines) == 2
    assert html(found).count(f'<td class="text">{escape(name)}</td>') == 2


def test_json_and_csv_hold_the_same(found: Comparison) -> None:
    value = json.loads(written(found, "json"))
    assert value["queries"] == N
    assert value["baselines"] == {"a_b & c|d": "a", "best": "b"}
    assert value["runs"][2]["mean"] == pytest.approx({"RR": 0.875, "P@1": 0.75})
    rows = list(csv.DictReader(io.StringIO(written(found, "csv"))))
    assert [line["p"] for line in rows] == [repr(test["p"]) for test in value["tests"]]
    assert list(rows[0]) == list(value["tests"][0])


def test_without_a_measure_there_is_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="no measure to compare by: give at least one"):
        compare(QRELS, RUNS, [])


def test_control_characters_do_not_reach_the_terminal() -> None:
    found = compare(QRELS, {"a\x1b[31m": RUNS["worst"], "b": RUNS["best"]}, ["RR"])
    assert "\x1b[31m" not in printed(found)
    ET.fromstring(
        html(found).partition("<svg")[1] + html(found).partition("<svg")[2].partition("</svg>")[0] + "</svg>"
    )
