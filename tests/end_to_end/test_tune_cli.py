"""tamis tune from an index to a tuned run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tamis as package
from tamis import Index
from tamis.cli import main
from tamis.core.ranking import Run
from tamis.evaluate.folds import read_folds
from tamis.evaluate.measures import evaluate
from tamis.formats import read_qrels, read_queries

DEMO = Path(package.__file__).parent / "demo_data"
PIPELINE = "bm25(k1={k1}, b={b})"
Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    assert main(["index", str(DEMO / "corpus.jsonl.gz"), "-o", str(folder / "idx")]) == 0
    return folder


@pytest.fixture
def tune(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tune:
    monkeypatch.chdir(place)
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str, str]:
        files = ["idx", str(DEMO / "queries.jsonl"), str(DEMO / "qrels.txt")]
        status = main(["tune", *files, "-o", "tuned.run", "-k", "50", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def given(candidates: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tune:
    """With files of one's own."""
    monkeypatch.chdir(candidates)
    capsys.readouterr()

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["tune", *arguments, "--workers", "1"])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_from_a_grid_to_a_run(tune: Tune) -> None:
    grid = ["-p", PIPELINE, "--grid", "k1=0.4,0.9", "--grid", "b=0.2:0.6:0.4", "--folds", "2"]
    status, out, err = tune(*grid, "-m", "nDCG@10", "--save-folds", "folds.json", "--seed", "3")
    assert status == 0, err
    assert err == ""
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0][:3] == ["fold", "k1", "b"]
    assert [line[0] for line in lines[2:5]] == ["1", "2", "all"]
    assert out.splitlines()[-1] == "tuned.run: 140 queries of 2 test folds, 4 settings tried"

    about = json.loads(Path("tuned.run.json").read_text())
    found = about["cross_validation"]
    assert len(found["tried"]) == 4
    assert [len(fold.test) for fold in read_folds("folds.json")] == [
        fold["queries"] for fold in found["folds"]
    ]
    for number, fold in enumerate(found["folds"]):
        best = max(found["tried"], key=lambda each: each["train"][number])  # the first of equal ones
        assert fold["setting"] == best["setting"]
    joined = evaluate(read_qrels(DEMO / "qrels.txt"), Run.read("tuned.run"), ["nDCG@10"])
    assert joined.mean["nDCG@10"] == pytest.approx(found["mean"], abs=1e-12)

    again, printed, _ = tune(*grid, "-m", "nDCG@10", "--fold-file", "folds.json", "--json")
    assert again == 2  # --folds and --fold-file at once
    again, printed, _ = tune(*grid[:-2], "-m", "nDCG@10", "--fold-file", "folds.json", "--json")
    assert again == 0
    assert json.loads(printed)["cross_validation"] == found


def test_queries_of_the_folds_that_nobody_asked_are_told(tune: Tune) -> None:
    asked = [query.id for query in read_queries(DEMO / "queries.jsonl")]
    arguments = ["-p", "bm25(b={b})", "--grid", "b=0.4", "-m", "RR", "--fold-file", "strange.json"]
    for others, told in (
        (["x1"], "1 query of the folds is not in {}, and left out: x1"),
        (
            [f"x{i}" for i in range(12)],
            "12 queries of the folds are not in {}, and left out: "
            + ", ".join(f"x{i}" for i in range(5))
            + " and 7 more",
        ),
    ):
        Path("strange.json").write_text(json.dumps([[*others, *asked[:70]], asked[70:]]))
        status, _, err = tune(*arguments)
        assert (status, err) == (0, f"warning: {told.format(DEMO / 'queries.jsonl')}\n")


def test_a_narrow_terminal_cuts_no_number(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = tune(
        "-p", PIPELINE, "--grid", "k1=0.4,0.9", "--grid", "b=0.4", "-m", "nDCG@10", "--folds", "2"
    )
    lines = out.splitlines()
    assert max(map(len, lines[:-1])) <= 40  # the last is a sentence
    found = json.loads(Path("tuned.run.json").read_text())["cross_validation"]
    shown = " ".join(lines).split()
    for fold in found["folds"]:
        assert {f"{fold['train']:.4f}", f"{fold['test']:.4f}", str(fold["queries"])} <= set(shown)
    assert shown.count("fold") == 2  # parts, each of which begins with the folds and their settings
    assert shown.count(f"{found['mean']:.4f}") == 1


@pytest.fixture(scope="module")
def candidates(place: Path, tiny_checkpoint: Callable[..., Path]) -> Path:
    """Twelve queries with judgments, BM25's candidates for them in a run, and a tiny model."""
    index = Index.open(place / "idx")
    queries = read_queries(DEMO / "queries.jsonl")[:12]
    (place / "some.tsv").write_text("".join(f"{query.id}\t{query.text}\n" for query in queries))
    (index.bm25() % 8).run(queries).write(place / "bm25.run")
    tiny_checkpoint(place / "m", layers=1, positions=48, seed=1)
    return place


@pytest.mark.parametrize(
    ("stage", "grid"),
    [
        ("interpolate(mono(model=m), alpha={alpha})", ["--grid", "alpha=0:1:0.5"]),
        ("birch(mono(model=m), alpha={alpha}, w2={w2})", ["--grid", "alpha=0.2,0.9", "--grid", "w2=0,1"]),
    ],
)
def test_over_the_candidates_of_a_run(candidates: Path, given: Tune, stage: str, grid: list[str]) -> None:
    """They are what the index would have found, and so is what is chosen."""
    files = ["some.tsv", str(DEMO / "qrels.txt")]
    options = [*grid, "--folds", "3", "-m", "RR", "-k", "5", "--json"]
    status, printed, err = given("idx", *files, "-p", f"bm25 % 8 >> {stage}", "-o", "one.run", *options)
    assert (status, err) == (0, "")
    one = json.loads(printed)
    for start in ("given % 8 >> ", ""):
        status, printed, err = given(
            *files, "--run", "bm25.run", "--corpus", "idx", "-p", start + stage, "-o", "two.run", *options
        )
        assert (status, err) == (0, "")
        two = json.loads(printed)
        for key in ("per_query", "tried", "mean"):
            assert two["cross_validation"][key] == one["cross_validation"][key]
        # not the scores: a run file has those of BM25 in fewer digits
        assert [r.ids for r in Run.read("two.run").values()] == [r.ids for r in Run.read("one.run").values()]
        assert (two["index"], two["reranked"], two["corpus"]) == (None, "bm25.run", ["idx"])


@pytest.mark.parametrize("stage", ["", " >> interpolate(mono(model=m))", " >> ltr(mono(model=m), weights=1)"])
def test_a_query_without_candidates_is_tuned_as_zero(candidates: Path, given: Tune, stage: str) -> None:
    lines = Path("bm25.run").read_text().splitlines(keepends=True)
    qid = lines[0].split()[0]
    Path("short.run").write_text("".join(line for line in lines if line.split()[0] != qid))
    status, printed, err = given(
        "some.tsv", str(DEMO / "qrels.txt"), "--run", "short.run", "--corpus", "idx", "-o", "tuned.run",
        "-p", f"given % {{k}}{stage}", "--grid", "k=4,8", "--folds", "2", "--json",
    )  # fmt: skip
    assert status == 0
    assert err == "warning: the run has no candidates for 1 query, which count as zero\n"
    assert json.loads(printed)["cross_validation"]["per_query"][qid] == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "no candidates: give either an index or a run"),
        (["--run", "bm25.run"], "a run without its corpus"),
        (["--corpus", "idx"], "no candidates"),
        (["--run", "bm25.run", "--corpus", "idx", "-p", "bm25(b={b})"], "bm25 searches, but the candidates"),
        (
            ["--run", "bm25.run", "--corpus", "idx", "-p", "normalise >> given % {b}"],
            "begin with it, as in given",
        ),
        (["--run", "none.run", "--corpus", "idx"], "none.run: no such file"),
        (
            ["--run", "others.run", "--corpus", "idx"],
            "others.run: no query id of the run occurs in the queries",
        ),
        (["--run", "bm25.run", "--corpus", "idx", "-o", "bm25.run"], "bm25.run is an input and would be"),
    ],
)
def test_mistakes_about_a_run_are_one_line(
    candidates: Path, given: Tune, arguments: list[str], problem: str
) -> None:
    files = ["some.tsv", str(DEMO / "qrels.txt")]
    Path("others.run").write_text("z9 Q0 d0001 1 1.0 t\n")
    usual = ["-p", "given % {b}", "--grid", "b=1,2", "-o", "tuned.run"]
    status, out, err = given(*files, *usual, *arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert len(Path("bm25.run").read_text().splitlines()) > 50


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["-p", "bm25(k1={k1})", "--grid", "b=0.4"],
            "the pipeline has {k1}, and the grid has no values for it",
        ),
        (["-p", "bm25", "--grid", "b=0.4"], "the grid has b, which is not in the pipeline"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4:x"], "'0.4:x' is not a valid range"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4,3"], "use 0 <= k1 <= 1000 and 0 <= b <= 1"),
        (["-p", "bm25(b={b}", "--grid", "b=0.4"], "column"),
        (
            ["-p", "given % {b}", "--grid", "b=4"],
            "given stands for the candidates of a run, and there is no run",
        ),
        (["-p", "bm25(b={b})", "--grid", "b=0.4", "-m", "nDGC"], "'nDGC' is not a measure"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4", "--folds", "1"], "1 folds of 140 queries"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4", "--seed", "-1"], "the seed -1: use a whole number"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4", "--fold-file", "none.json"], "none.json: no such file"),
    ],
)
def test_mistakes_are_one_line(tune: Tune, arguments: list[str], problem: str) -> None:
    Path("tuned.run").unlink(missing_ok=True)
    status, out, err = tune(*arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert not Path("tuned.run").exists()
