"""A listwise model from the command line: trained, and then ranked with by the commands that rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

import tamis
from tamis import Index
from tamis.cli import main
from tamis.core.ranking import Run
from tamis.formats import read_corpus, read_queries
from tamis.models.checkpoint import load_checkpoint

DEMO = Path(tamis.__file__).parent / "demo_data"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo collection, some of its questions, and a model that reads four texts at once."""
    folder = tmp_path_factory.mktemp("listwise")
    queries = read_queries(DEMO / "queries.jsonl")[:10]
    lines = [json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in queries]
    (folder / "queries.jsonl").write_text("".join(lines))
    index = Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), folder / "idx")
    (index.bm25() % 20).run(queries).write(folder / "bm25.txt")
    tiny_checkpoint(folder / "start", layers=2, hidden=16, heads=2, positions=128)
    data = f"""
        queries = "{folder / "queries.jsonl"}"
        qrels = "{DEMO / "qrels.txt"}"
        corpus = ["{folder / "idx"}"]
        run = "{folder / "bm25.txt"}"
    """
    (folder / "mine.toml").write_text(f"""
        base = "listwise"
        [model]
        start = "{folder / "start"}"
        [[data]]
        skip = true
        {data}
        [dev]
        {data}
        depth = 10
        every = 4
        [listwise]
        n = 4
        [examples]
        group = 4
        [optimiser]
        epochs = 1
        warm_up = 0
        [run]
        batch = 4
        [limits]
        total = 128
    """)
    assert main(["train", str(folder / "mine.toml"), "--out", str(folder / "out"), "--device", "cpu"]) == 0
    return folder


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_what_was_trained_ranks(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made / "out" / "best"
    assert load_checkpoint(model).architecture.settings.n == 4
    stage = f'listwise(model="{model}", k=12)'
    found = called(
        capsys, "search", made / "idx", "who directed Nandhi", "-p", f"bm25 % 20 >> {stage}", "--json"
    )
    assert len(found["results"]) == 10
    run = tmp_path / "listwise.run"
    queries = made / "queries.jsonl"
    called(capsys, "run", made / "idx", queries, "-o", run, "-p", f"bm25 % 20 >> {stage}", "--json")
    again = tmp_path / "again.run"
    arguments = ["--corpus", made / "idx", "--queries", queries, "-o", again, "-p", stage, "--json"]
    done = called(capsys, "rerank", made / "bm25.txt", *arguments)
    assert done["models"][0]["inferences"] == 10 * 2 * 3  # 12 of 20 candidates in groups of 4
    assert done["models"][0]["truncation"]["texts"] == 10 * 12
    ranked, reranked, given = Run.read(run), Run.read(again), Run.read(made / "bm25.txt")
    assert {qid: each.ids for qid, each in ranked.items()} == {
        qid: each.ids for qid, each in reranked.items()
    }
    assert all(each.ids[12:] == given[qid].ids[12:] for qid, each in ranked.items())
    assert any(each.ids != given[qid].ids for qid, each in ranked.items())


def test_a_plan_counts_groups(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--corpus", made / "idx", "--queries", made / "queries.jsonl", "-o", "unused.run"]
    stage = f'listwise(model="{made / "out" / "best"}", rounds=3)'
    found = called(
        capsys, "rerank", made / "bm25.txt", *arguments, "--dry-run", "-p", f"{stage} % 5", "--json"
    )
    assert found["inferences"] == {"least": 15, "most": 15, "all": 150} and found["counts"] == "exact"


def test_a_trade_off_over_rounds(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tradeoff", made / "queries.jsonl", DEMO / "qrels.txt", "--run", made / "bm25.txt"]
    arguments += ["--corpus", made / "idx", "--timed", "0", "--json"]
    template = f'given >> listwise(model="{made / "out" / "best"}", rounds={{rounds}})'
    found = called(capsys, *arguments, "-p", template, "--grid", "rounds=1,2,4")
    assert [point["inferences"] for point in found["points"]] == [5, 10, 20]
    assert found["work"]["inferences"] == 200, "the rounds of the first serve the others"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("listwise(model={start})", "holds a mono model: write mono(model="),
        ("mono(model={model})", "holds a listwise model: write listwise(model="),
        ("listwise", "no model is bundled under the name 'listwise': name one: listwise(model=FOLDER)"),
    ],
)
def test_the_wrong_model(expression: str, said: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = {"start": f'"{made / "start"}"', "model": f'"{made / "out" / "best"}"'}
    pipeline = f"bm25 % 5 >> {expression.format(**quoted)}"
    assert main(["search", str(made / "idx"), "castle", "-p", pipeline]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_what_was_trained_goes_on_training(made: Path, tmp_path: Path) -> None:
    recipe = (made / "mine.toml").read_text().replace(str(made / "start"), str(made / "out" / "best"))
    (tmp_path / "more.toml").write_text(recipe)
    out = tmp_path / "out"
    assert main(["train", str(tmp_path / "more.toml"), "--out", str(out), "--device", "cpu"]) == 0
    assert load_checkpoint(out / "best").architecture.settings.n == 4
