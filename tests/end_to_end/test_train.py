"""Training from the command line: it learns, a kill costs nothing, and bad recipes cost no time."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tamis  # noqa: E402
from tamis import Index, Mono  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.evaluate.measures import evaluate  # noqa: E402
from tamis.formats import read_corpus, read_qrels, read_queries  # noqa: E402
from tamis.models.weights import stored_tensors  # noqa: E402
from tamis.train.state import LOG, STATE, read_log  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

DEMO = Path(tamis.__file__).parent / "demo_data"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo collection: an index, BM25's run, every other question to learn from, the others for dev."""
    folder = tmp_path_factory.mktemp("train")
    queries = read_queries(DEMO / "queries.jsonl")
    index = Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), folder / "idx")
    (index.bm25() % 50).run(queries).write(folder / "bm25.txt")
    for name, some in (("train", queries[0::2]), ("dev", queries[1::2])):
        lines = [json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in some]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    tiny_checkpoint(folder / "model", layers=1, hidden=32, heads=2, positions=96)
    return folder


def recipe(made: Path, out: Path, optimiser: str, rest: str = "", dev: str = "dev") -> Path:
    """A recipe on the demo collection."""
    out.mkdir(parents=True, exist_ok=True)
    files = f"""
        qrels = "{DEMO / "qrels.txt"}"
        corpus = ["{made / "idx"}"]
        run = "{made / "bm25.txt"}"
    """
    text = f"""
        base = "small"
        [model]
        start = "{made / "model"}"
        [limits]
        total = 64
        [[data]]
        queries = "{made / "train.jsonl"}"
        skip = true  # the qrels are of all questions
        {files}
        [dev]
        queries = "{made / dev}.jsonl"
        depth = 20
        {files}
        {rest}
        [optimiser]
        {optimiser}
    """
    (out / "recipe.toml").write_text(text.replace("\\", "/"))
    return out / "recipe.toml"


def trained(recipe: Path, out: Path, *options: str) -> list[str]:
    return ["train", str(recipe), "--out", str(out), "--device", "cpu", *options]


def curve(out: Path) -> list[dict[str, Any]]:
    """The log without what a clock has to do with."""
    return [{name: line[name] for name in line if name != "pairs_per_second"} for line in read_log(out)]


# ------------------------------------------------------------------------------------------------------------


def test_it_learns_and_leaves_a_model_that_ranks(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The questions it has learned from; a model this small has no words for others."""
    plan = recipe(
        made,
        tmp_path,
        "learning_rate = 3e-3\nsteps = 120\ndropout = 0.0",
        "every = 60\n[run]\nlog_every = 20",
        dev="train",
    )
    assert main(trained(plan, tmp_path / "out", "--json")) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["log"] == read_log(tmp_path / "out")
    before, *_, after = [line["dev"] for line in found["log"] if "dev" in line]
    assert after > before + 0.2
    assert found["best"] == after and found["best_step"] == 120
    assert "Training, 120 steps\n" in said.err.partition("Training 0 of")[0]  # before anything takes long
    assert "Training 120 of 120 steps, loss " in said.err and f"nDCG@10 {after:.4f}" in said.err
    assert "left out: 70 unknown queries" in said.err

    index = Index.open(made / "idx")
    questions = read_queries(made / "train.jsonl")
    stage = index.bm25() % 20 >> Mono(
        found["model"], precision="fp32", device="cpu", query_limit=32, limit=64
    )
    qrels = read_qrels(DEMO / "qrels.txt")
    judged = {question.id: qrels[question.id] for question in questions}
    value = evaluate(judged, stage.run(questions), ["nDCG@10"]).mean["nDCG@10"]
    assert value == pytest.approx(found["best"], abs=1e-3)

    assert main(trained(plan, tmp_path / "out")) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'out'} contains a training run: add --resume, or give another folder\n"
    )
    assert main(trained(plan, tmp_path / "out", "--resume")) == 0
    said = capsys.readouterr()
    assert f"{tmp_path / 'out' / 'best'}: 120 steps in" in said.out and "begins anew" not in said.err
    assert main(trained(plan, tmp_path / "mistyped", "--resume")) == 0
    assert (
        f"{tmp_path / 'mistyped'} contains no training run: a new one is started\n" in capsys.readouterr().err
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_and_resumed_is_uninterrupted(
    made: Path, tmp_path: Path, killed_at: Callable[[Path, Sequence[str]], None]
) -> None:
    plan = recipe(
        made,
        tmp_path,
        "learning_rate = 1e-3\nsteps = 40",
        "every = 25\n[run]\nbatch = 4\nlog_every = 5\ncheckpoint_every = 7",
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    killed_at(killed / STATE, trained(plan, killed))
    assert read_log(killed)[-1]["step"] == 10  # and the state is of step 7
    assert main(trained(plan, whole)) == main(trained(plan, killed, "--resume")) == 0
    assert curve(killed) == curve(whole)
    for model in ("best", "last"):
        one, other = (folder / model / "model.safetensors" for folder in (whole, killed))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("steps = 1", "steps = 1\nlr = 1"),
            "[optimiser] has no field 'lr': the known ones are learning_rate",
        ),
        (("train.jsonl", "none.jsonl"), "none.jsonl: no such file: check the path"),
        (('/model"', '/no-model"'), "no-model"),
        (("skip = true", ""), "queries that are not given: 'q002'"),
        (('run = "', 'run = "no-'), "no such file"),
    ],
)
def test_what_is_wrong_is_one_line(
    change: tuple[str, str], said: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = recipe(made, tmp_path, "steps = 1")
    assert change[0] in plan.read_text()
    plan.write_text(plan.read_text().replace(*change))
    assert main(trained(plan, tmp_path / "out")) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not (tmp_path / "out" / LOG).exists()


def test_two_processes_learn_as_one(made: Path, tmp_path: Path, two_processes: Callable[..., str]) -> None:
    """By gloo, on the processor: each has half of every batch."""
    plan = recipe(
        made, tmp_path, "learning_rate = 1e-3\nsteps = 4\ndropout = 0.0", "[run]\nbatch = 4\nlog_every = 1"
    )
    said = two_processes(*trained(plan, tmp_path / "two", "--json"))
    assert json.loads(said)["steps"] == 4  # only one of them says so
    assert main(trained(plan, tmp_path / "one")) == 0
    two, one = (curve(tmp_path / name) for name in ("two", "one"))
    assert [line["step"] for line in two] == [line["step"] for line in one]
    for line, other in zip(two, one, strict=True):
        assert line.get("loss", 0.0) == pytest.approx(other.get("loss", 0.0), abs=1e-3)
    weights = [stored_tensors(tmp_path / name / "last" / "model.safetensors") for name in ("two", "one")]
    for name, tensor in weights[0].items():
        if name.endswith("key.bias"):  # has no gradient but rounding errors, of which Adam makes whole steps
            continue
        # Adam divides by the gradient's own size, so that where it is all but 0 the order of a sum shows
        apart = np.abs(tensor.read() - weights[1][name].read())
        assert (apart > 1e-4).mean() < 0.01 and apart.max() < 1e-3, name


def test_two_processes_stop_together(made: Path, tmp_path: Path, two_processes: Callable[..., str]) -> None:
    """Only the first measures: the other must be told, or it waits for a step that does not come."""
    rest = "every = 1\n[run]\nbatch = 4\npatience = 2"
    plan = recipe(made, tmp_path, "learning_rate = 1e-9\nsteps = 50\ndropout = 0.0", rest)
    told = json.loads(two_processes(*trained(plan, tmp_path / "two", "--json")))
    assert told["stopped"] and told["steps"] < 50
    again = json.loads(two_processes(*trained(plan, tmp_path / "two", "--json", "--resume")))
    assert again["stopped"] and again["steps"] == told["steps"]
