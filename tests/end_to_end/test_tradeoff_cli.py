"""tamis tradeoff from an index, or a run, to a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tamis as package
from tamis import Index
from tamis.cli import main
from tamis.formats import read_corpus, read_qrels, read_queries

DEMO = Path(package.__file__).parent / "demo_data"
PIPELINE = "bm25 % {k0} >> mono(model=m) >> duo(model=d, k={k1}, aggregate={aggregate})"
GRID = ["--grid", "k0=5,10", "--grid", "k1=0,3", "--grid", "aggregate=sum,binary"]
Tradeoff = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's first documents and the queries that they answer, a run of BM25, and two tiny models."""
    folder = tmp_path_factory.mktemp("tradeoff")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    tiny_checkpoint(folder / "d", layers=1, positions=48, segments=3, seed=2)
    documents = list(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 500))
    known = {document.id for document in documents}
    index = Index.build(documents, folder / "idx")
    grades = {
        qid: {identity: grade for identity, grade in judged.items() if identity in known}
        for qid, judged in read_qrels(DEMO / "qrels.txt").items()
    }
    answered = [qid for qid, judged in grades.items() if any(judged.values())][:12]
    lines = [f"{qid} 0 {identity} {grade}\n" for qid in answered for identity, grade in grades[qid].items()]
    (folder / "qrels.txt").write_text("".join(lines))
    queries = [query for query in read_queries(DEMO / "queries.jsonl") if query.id in answered]
    (folder / "queries.tsv").write_text("".join(f"{query.id}\t{query.text}\n" for query in queries))
    (index.bm25() % 20).run(queries).write(folder / "bm25.run")
    return folder


@pytest.fixture
def tradeoff(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tradeoff:
    monkeypatch.chdir(made)
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["tradeoff", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


FILES = ["queries.tsv", "qrels.txt"]


def test_from_an_index_to_a_report(tradeoff: Tradeoff) -> None:
    options = ["-p", PIPELINE, *GRID, "--timed", "2", "-o", "report.html", "--plots", "figures"]
    status, out, err = tradeoff("idx", *FILES, *options)
    assert (status, err) == (0, "")
    head, _, *rows = [line.split() for line in out.splitlines() if line.strip()]
    assert head[:5] == ["k0", "k1", "aggregate", "nDCG@10", "inferences"]
    assert rows[0][:3] == ["5", "0", "–"]  # nothing is cheaper than that
    assert "The best setting: k0=" in out
    page = Path("report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "All settings" in page and page.count("<svg") == 5
    assert {path.name for path in Path("figures").iterdir()} == {
        f"{name}.svg" for name in ("inferences", "latency", "k0", "k1", "aggregate")
    }
    for path in Path("figures").iterdir():
        ElementTree.parse(path)


def test_a_run_gives_what_its_index_gives(tradeoff: Tradeoff) -> None:
    """And a budget, a seed and --json do what they say."""
    status, out, err = tradeoff("idx", *FILES, "-p", PIPELINE, *GRID, "--timed", "0", "--json")
    assert (status, err) == (0, "")
    one = json.loads(out)
    given = PIPELINE.replace("bm25", "given")
    status, out, err = tradeoff(
        *FILES, "--run", "bm25.run", "--corpus", "idx", "-p", given, *GRID, "--timed", "0", "--json",
        "--budget", "12inf", "--cache", "scores.db",
    )  # fmt: skip
    assert (status, err) == (0, "")
    other = json.loads(out)
    assert len(one["points"]) == 2 * (1 + 2)
    for a, b in zip(one["points"], other["points"], strict=True):
        assert (a["setting"], a["per_query"], a["inferences"]) == (
            b["setting"],
            b["per_query"],
            b["inferences"],
        )
        assert a["p50_ms"] is None
    assert [point["inferences"] for point in one["points"]] == [5, 11, 11, 10, 16, 16]
    assert one["work"] == other["work"]
    assert one["work"]["largest"] == 12 * 16
    allowed = [point for point in other["points"] if point["inferences"] <= 12]
    chosen = other["points"][other["choice"]["point"]]
    assert chosen["value"] == max(point["value"] for point in allowed)
    assert sum(other["choice"]["share"].values()) == pytest.approx(1)


def test_halving_under_a_budget_of_time(tradeoff: Tradeoff) -> None:
    options = ["-p", PIPELINE, *GRID, "--search", "halving", "--first", "4", "--timed", "2"]
    status, out, err = tradeoff("idx", *FILES, *options, "--budget", "60s", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert [each["queries"] for each in found["rounds"]] == [4, 8, 12]
    assert found["budget"] == "60000 ms (p95)"
    assert found["choice"] is not None and found["untried"] == []
    status, out, _ = tradeoff("idx", *FILES, *options, "--budget", "0.0001ms", "-o", "none.json")
    assert status == 0
    assert "No setting keeps within 0.0001 ms (p95): the cheapest" in out
    assert json.loads(Path("none.json").read_text())["choice"] is None


def test_without_models(tradeoff: Tradeoff) -> None:
    status, out, err = tradeoff(
        "idx", *FILES, "-p", "bm25(b={b}) % 20", "--grid", "b=0.1:0.9:0.4", "-m", "AP"
    )
    assert (status, err) == (0, "")
    assert "The best setting: b=" in out
    assert " ms (p95) per query" in " ".join(out.split())
    assert "inferences" not in out.splitlines()[-1]


def test_a_query_without_candidates_counts_zero(tradeoff: Tradeoff) -> None:
    lines = Path("bm25.run").read_text().splitlines(keepends=True)
    qid = lines[0].split()[0]
    Path("short.run").write_text("".join(line for line in lines if line.split()[0] != qid))
    status, out, err = tradeoff(
        *FILES, "--run", "short.run", "--corpus", "idx", "-p", "mono(model=m) % {k}", "--grid", "k=5",
        "--timed", "0", "--json",
    )  # fmt: skip
    assert status == 0
    assert err == "warning: the run has no candidates for 1 query, which count as zero\n"
    (point,) = json.loads(out)["points"]
    assert (len(point["per_query"]), point["per_query"][qid]) == (12, 0)
    assert point["inferences"] == pytest.approx(20 * 11 / 12)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=5", "--budget", "5 pc"], "is not a valid budget"),
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k0=5"], "the pipeline has {k}"),
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=5", "-o", "report.pdf"], "ends in .html or .json"),
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=5", "--lines", "a"], "the grid has no parameter a"),
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=5", "-m", "nDGC"], "'nDGC' is not a measure"),
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=5", "--timed", "-1"], "cannot time -1 queries"),
        (["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=-5"], "expected a whole number"),
        ([*FILES, "-p", "bm25 % {k}", "--grid", "k=5"], "no candidates: give either an index or a run"),
        (
            ["idx", *FILES, "--run", "bm25.run", "--corpus", "idx", "-p", "mono % {k}", "--grid", "k=5"],
            "both an index and a run",
        ),
        ([*FILES, "--run", "bm25.run", "-p", "mono % {k}", "--grid", "k=5"], "a run without its corpus"),
        (
            [*FILES, "--run", "bm25.run", "--corpus", "idx", "-p", "bm25 % {k}", "--grid", "k=5"],
            "bm25 searches, but the candidates come from the run",
        ),
        (
            ["idx", *FILES, "-p", "bm25 % {k}", "--grid", "k=5", "--timed", "0", "--budget", "9ms"],
            "a time budget, and no query is timed",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tradeoff: Tradeoff, arguments: list[str], problem: str) -> None:
    status, out, err = tradeoff(*arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
