"""tamis tune from an index to a tuned run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tamis as package
from tamis.cli import main
from tamis.evaluate.folds import read_folds
from tamis.evaluate.measures import evaluate
from tamis.formats import read_qrels
from tamis.ranking import Run

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


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["-p", "bm25(k1={k1})", "--grid", "b=0.4"],
            "the pipeline has {k1}, of which the grid has no values",
        ),
        (["-p", "bm25", "--grid", "b=0.4"], "the grid has b, which the pipeline has no place for"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4:x"], "'0.4:x' is no range"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4,3"], "use 0 <= k1 <= 1000 and 0 <= b <= 1"),
        (["-p", "bm25(b={b}", "--grid", "b=0.4"], "column"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4", "-m", "nDGC"], "there is no measure 'nDGC'"),
        (["-p", "bm25(b={b})", "--grid", "b=0.4", "--folds", "1"], "1 folds of 140 queries"),
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
