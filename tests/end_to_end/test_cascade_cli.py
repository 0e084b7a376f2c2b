"""A model with exits from the command line: trained, and then ranked with by every command that ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import tamis
from tamis import Index
from tamis.cli import main
from tamis.core.ranking import Run
from tamis.formats import read_corpus, read_queries
from tamis.models.architectures.cascade import Cascade
from tamis.models.checkpoint import load_checkpoint

DEMO = Path(tamis.__file__).parent / "demo_data"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo collection, some of its questions, and a model with exits after layers 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("cascade")
    queries = read_queries(DEMO / "queries.jsonl")[:10]
    lines = [json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in queries]
    (folder / "queries.jsonl").write_text("".join(lines))
    index = Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), folder / "idx")
    (index.bm25() % 20).run(queries).write(folder / "bm25.txt")
    tiny_checkpoint(folder / "start", layers=3, hidden=16, heads=2, positions=96)
    data = f"""
        queries = "{folder / "queries.jsonl"}"
        qrels = "{DEMO / "qrels.txt"}"
        corpus = ["{folder / "idx"}"]
        run = "{folder / "bm25.txt"}"
    """
    (folder / "mine.toml").write_text(f"""
        base = "cascade"
        [model]
        start = "{folder / "start"}"
        [[data]]
        skip = true
        {data}
        [dev]
        {data}
        depth = 10
        every = 4
        [cascade]
        first = 1
        step = 1
        heads = "trained"
        [optimiser]
        steps = 4
        warm_up = 0
        [run]
        batch = 8
        [limits]
        total = 64
    """)
    assert main(["train", str(folder / "mine.toml"), "--out", str(folder / "out"), "--device", "cpu"]) == 0
    return folder


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_what_was_trained_ranks(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made / "out" / "best"
    checkpoint = load_checkpoint(model)
    assert isinstance(checkpoint.architecture, Cascade)
    assert checkpoint.architecture.layers(checkpoint.config) == (1, 2, 3)
    stage = f'cascade(model="{model}", alpha=0.5)'
    found = called(
        capsys, "search", made / "idx", "who directed Nandhi", "-p", f"bm25 % 20 >> {stage}", "--json"
    )
    assert len(found["results"]) == 10
    run = tmp_path / "cascade.run"
    queries = made / "queries.jsonl"
    called(capsys, "run", made / "idx", queries, "-o", run, "-p", f"bm25 % 20 >> {stage}", "--json")
    again = tmp_path / "again.run"
    arguments = ["--corpus", made / "idx", "--queries", queries, "-o", again, "-p", stage, "--json"]
    done = called(capsys, "rerank", made / "bm25.txt", *arguments)
    # of 20 candidates, 20 go through the first layer, 10 through the second and 5 through the last
    assert done["models"][0]["inferences"] == 10 * 12
    ranked, reranked = Run.read(run), Run.read(again)
    assert {qid: each.ids for qid, each in ranked.items()} == {
        qid: each.ids for qid, each in reranked.items()
    }


def test_a_plan_counts_layers_and_says_what_is_at_most(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = f'cascade(model="{made / "out" / "best"}", alpha=0.5)'
    arguments = [
        "--corpus",
        made / "idx",
        "--queries",
        made / "queries.jsonl",
        "-o",
        "unused.run",
        "--dry-run",
    ]
    found = called(capsys, "rerank", made / "bm25.txt", *arguments, "-p", stage, "--json")
    assert found["inferences"] == {"least": 12, "most": 12, "all": 120} and found["counts"] == "exact"
    unsure = f'mono(model="{made / "start"}") >> if_unsure({stage})'
    found = called(capsys, "rerank", made / "bm25.txt", *arguments, "-p", unsure, "--json")
    assert found["inferences"] == {"least": 32, "most": 32, "all": 320} and found["counts"] == "most"
    assert main([str(each) for each in ["rerank", made / "bm25.txt", *arguments, "-p", unsure]]) == 0
    assert "10 queries: at most 32 inferences per query, 320 in all" in capsys.readouterr().out


def test_leaving_when_an_exit_is_sure(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan has the most that it may take; a trade-off and a run what it took."""
    model, queries = made / "out" / "best", made / "queries.jsonl"
    reranking = ["rerank", made / "bm25.txt", "--corpus", made / "idx", "--queries", queries]
    reranking += ["-o", tmp_path / "some.run", "-p", f'cascade(model="{model}", entropy=0.7)', "--json"]
    found = called(capsys, *reranking, "--dry-run")
    assert found["inferences"] == {"least": 20, "most": 20, "all": 200} and found["counts"] == "most"
    # all leave after the first of three layers: 20 / 3 a query, rounded up
    assert called(capsys, *reranking)["models"][0]["inferences"] == 10 * 7
    arguments = ["tradeoff", queries, DEMO / "qrels.txt", "--run", made / "bm25.txt"]
    arguments += ["--corpus", made / "idx", "--timed", "0", "--json"]
    template = f'given >> cascade(model="{model}", entropy={{entropy}})'
    found = called(capsys, *arguments, "-p", template, "--grid", "entropy=0,0.69,0.7")
    costs = [point["inferences"] for point in found["points"]]
    assert costs[0] == 20 and costs[2] == 7 and costs == sorted(costs, reverse=True)
    assert found["work"]["inferences"] == 200, "all of the first serves the others"


def test_alpha_and_entropy_are_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = "bm25 % 20 >> cascade(alpha=0.3, entropy=0.1)"
    assert main(["search", str(made / "idx"), "who directed Nandhi", "-p", pipeline]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "alpha=0.3 and entropy=0.1: give one of them: alpha drops" in said


def test_a_trade_off_over_alpha_and_margin(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made / "out" / "best"
    arguments = ["tradeoff", made / "queries.jsonl", DEMO / "qrels.txt", "--run", made / "bm25.txt"]
    arguments += ["--corpus", made / "idx", "--timed", "0", "--json"]
    template = f'given >> cascade(model="{model}", alpha={{alpha}})'
    found = called(capsys, *arguments, "-p", template, "--grid", "alpha=0,0.3,0.5")
    assert [point["inferences"] for point in found["points"]] == [20, 15, 12]
    assert found["work"]["inferences"] == 200, "all of the first serves the others"
    template = f'given >> mono(model="{model}") >> if_unsure(cascade(model="{model}"), margin={{margin}})'
    found = called(capsys, *arguments, "-p", template, "--grid", "margin=0,0.001,2")
    costs = [point["inferences"] for point in found["points"]]
    assert costs[0] == 20 and costs[2] == 35 and costs == sorted(costs)
