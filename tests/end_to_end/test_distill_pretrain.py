"""Distilling and pretraining from the command line: what comes of them ranks, or starts a ranker; a kill
costs nothing; several processes learn as one; what is wrong is one line."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tamis  # noqa: E402
from tamis import Index, Mono  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.cli.arguments import ArgumentParser  # noqa: E402
from tamis.formats import read_corpus, read_qrels, read_queries  # noqa: E402
from tamis.train.distill_recipe import read_distill_recipe  # noqa: E402
from tamis.train.pretrain_recipe import read_pretrain_recipe  # noqa: E402
from tamis.train.recipe import bundled, read_recipe  # noqa: E402
from tamis.train.state import LOG, STATE, read_log  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

DEMO = Path(tamis.__file__).parent / "demo_data"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the demo collection with an index and BM25's run, and two teachers."""
    folder = tmp_path_factory.mktemp("distill")
    documents = list(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 300))
    lines = [json.dumps({"_id": each.id, "title": each.title, "text": each.text}) for each in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    index = Index.build(documents, folder / "idx")
    known = {each.id for each in documents}
    judged = {
        query: {document: grade for document, grade in grades.items() if document in known}
        for query, grades in read_qrels(DEMO / "qrels.txt").items()
    }
    queries = [each for each in read_queries(DEMO / "queries.jsonl") if any(judged[each.id].values())]
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": each.id, "text": each.text}) + "\n" for each in queries)
    )
    (folder / "qrels.txt").write_text(
        "".join(f"{q.id} 0 {document} {grade}\n" for q in queries for document, grade in judged[q.id].items())
    )
    (index.bm25() % 20).run(queries).write(folder / "bm25.txt")
    for seed, name in enumerate(("lm", "mono")):
        tiny_checkpoint(folder / name, layers=3, hidden=16, heads=2, positions=64, seed=seed)
    return folder


def distillation(made: Path, folder: Path, steps: int = 20, dropout: float = 0.1, log_every: int = 5) -> Path:
    """A language model's student, then a ranker's."""
    files = f"""
        queries = "{made / "queries.jsonl"}"
        qrels = "{made / "qrels.txt"}"
        corpus = ["{made / "idx"}"]
        run = "{made / "bm25.txt"}"
    """
    tables = f"""
        optimiser = {{learning_rate = 1e-3, steps = {steps}, warm_up = 0.1, dropout = {dropout}}}
        run = {{batch = 4, log_every = {log_every}, checkpoint_every = 7}}
    """
    text = f"""
        base = "tinybert-lm-ranker"
        [student.random]
        layers = 2
        hidden = 8
        heads = 2
        [lm]
        teacher = "{made / "lm"}"
        corpus = ["{made / "corpus.jsonl"}"]
        length = 32
        {tables}
        [ranker]
        teacher = "{made / "mono"}"
        limits = {{query = 16, total = 48}}
        {tables}
        [[ranker.data]]
        {files}
        [ranker.dev]
        depth = 5
        every = 10
        {files}
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "distill.toml").write_text(text.replace("\\", "/"))
    return folder / "distill.toml"


def pretraining(made: Path, folder: Path, steps: int = 20, dropout: float = 0.1, log_every: int = 5) -> Path:
    text = f"""
        base = "rop"
        [model]
        start = "{made / "lm"}"
        [data]
        corpus = ["{made / "idx"}"]
        [objective]
        length = 32
        [optimiser]
        learning_rate = 1e-3
        warm_up = 0.1
        dropout = {dropout}
        steps = {steps}
        [run]
        batch = 4
        log_every = {log_every}
        checkpoint_every = 7
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pretrain.toml").write_text(text.replace("\\", "/"))
    return folder / "pretrain.toml"


def called(recipe: Path, out: Path, *options: str) -> list[str]:
    """The recipe's name is the verb's."""
    return [recipe.stem, str(recipe), "--out", str(out), "--device", "cpu", *options]


def curve(out: Path) -> list[dict[str, Any]]:
    """The log without what a clock has to do with."""
    return [{name: line[name] for name in line if name != "pairs_per_second"} for line in read_log(out)]


# ------------------------------------------------------------------------------------------------------------


def test_a_student_ranks(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = distillation(made, tmp_path)
    assert main(called(plan, tmp_path / "out", "--json")) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["model"] == str(tmp_path / "out" / "best") and found["steps"] == 20
    assert found["log"] == read_log(tmp_path / "out")
    assert "Training the student: 20 of 20 steps, loss " in said.err and "nDCG@10 " in said.err
    assert [line["step"] for line in read_log(tmp_path / "out" / "lm")] == [5, 10, 15, 20]
    index = Index.open(made / "idx")
    stage = index.bm25() % 5 >> Mono(found["model"], precision="fp32", device="cpu")
    assert len(stage("who directed the film")) == 5


def test_a_pretrained_model_starts_a_ranker(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = pretraining(made, tmp_path)
    assert main(called(plan, tmp_path / "out")) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out' / 'last'}: 20 steps in ")
    assert main(called(plan, tmp_path / "out")) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'out'} contains a training run: add --resume, or give another folder\n"
    )
    (tmp_path / "train.toml").write_text(f"""
        base = "small"
        [model]
        start = "{(tmp_path / "out" / "last").as_posix()}"
        [[data]]
        queries = "{(made / "queries.jsonl").as_posix()}"
        qrels = "{(made / "qrels.txt").as_posix()}"
        corpus = ["{(made / "idx").as_posix()}"]
        [optimiser]
        steps = 2
    """)
    assert main(called(tmp_path / "train.toml", tmp_path / "ranker")) == 0
    assert Mono(tmp_path / "ranker" / "last", precision="fp32", device="cpu").rank("a film", ["a film"])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_killed_and_resumed_is_uninterrupted(
    made: Path, tmp_path: Path, killed_at: Callable[[Path, Sequence[str]], None]
) -> None:
    """A distillation is killed in each of its phases."""
    whole, again = tmp_path / "whole", tmp_path / "killed"
    plan = distillation(made, tmp_path, steps=40)
    killed_at(again / "lm" / STATE, called(plan, again))
    assert not (again / STATE).exists()
    killed_at(again / STATE, called(plan, again, "--resume"))
    assert read_log(again)[-1]["step"] == 10
    assert main(called(plan, whole)) == main(called(plan, again, "--resume")) == 0
    for folder in ("", "lm"):
        assert curve(again / folder) == curve(whole / folder)
    for model in ("best", "last", "lm/last"):
        one, other = (folder / model / "model.safetensors" for folder in (whole, again))
        assert one.read_bytes() == other.read_bytes()

    whole, again = tmp_path / "whole-pretrained", tmp_path / "killed-pretrained"
    plan = pretraining(made, tmp_path, steps=40)
    killed_at(again / STATE, called(plan, again))
    assert read_log(again)[-1]["step"] == 10
    assert main(called(plan, whole)) == main(called(plan, again, "--resume")) == 0
    assert curve(again) == curve(whole)
    one, other = (folder / "last" / "model.safetensors" for folder in (whole, again))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("recipe", [distillation, pretraining])
def test_two_processes_learn_as_one(
    recipe: Any, made: Path, tmp_path: Path, two_processes: Callable[..., str]
) -> None:
    """By gloo, on the processor: each has half of every batch. What has no gradient is waited for by none."""
    plan = recipe(made, tmp_path, steps=4, dropout=0.0, log_every=1)
    said = two_processes(*called(plan, tmp_path / "two", "--json"))
    assert json.loads(said)["steps"] == 4  # only one of them says so
    assert main(called(plan, tmp_path / "one")) == 0
    for folder in ("", "lm") if recipe is distillation else ("",):
        two, one = (curve(tmp_path / name / folder) for name in ("two", "one"))
        assert [line["step"] for line in two] == [line["step"] for line in one]
        for line, other in zip(two, one, strict=True):
            # nearly: texts count alike in each process, and not their tokens
            assert line.get("loss", 0.0) == pytest.approx(other.get("loss", 0.0), rel=0.02)


@pytest.mark.parametrize(
    ("recipe", "change", "said"),
    [
        (distillation, ("length = 32", "lenght = 32"), "[lm] has no field 'lenght': the known ones are"),
        (distillation, ("[student.random]\n", "[student]\n"), "[student] has no field 'hidden'"),
        (distillation, ('/mono"', '/no-model"'), "no-model"),
        (distillation, ("corpus.jsonl", "none.jsonl"), "none.jsonl: no such file or folder: check the path"),
        (distillation, ("heads = 2", "heads = 3"), "heads"),
        (distillation, ("heads = 2", "heads = 4"), "4 heads cannot learn attention from 2: use as many"),
        (pretraining, ("[data]", "[data]\nrun = 'x'"), "[data] has no field 'run': the known one is corpus"),
        (pretraining, ("steps = 20", "epochs = 1"), "[optimiser] has epochs"),
        (pretraining, ('/lm"', '/no-model"'), "no-model"),
        (pretraining, ('/idx"', '/lm"'), "lm"),
    ],
)
def test_what_is_wrong_is_one_line(
    recipe: Any,
    change: tuple[str, str],
    said: str,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = recipe(made, tmp_path)
    assert change[0] in plan.read_text()
    plan.write_text(plan.read_text().replace(*change))
    assert main(called(plan, tmp_path / "out")) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not list(tmp_path.rglob(LOG))  # nor after hours of a phase that went well


# -- docs/training.md

GUIDE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_recipes_of_the_guide_are_recipes(tmp_path: Path) -> None:
    """Each begins with its name, which begins with its verb."""
    readers = {"train": read_recipe, "distill": read_distill_recipe, "pretrain": read_pretrain_recipe}
    named = re.findall(r"```toml\n# ((\w+)\S*\.toml)\n(.*?)```", GUIDE, re.DOTALL)
    assert {verb for _, verb, _ in named} == set(readers)
    for name, verb, text in named:
        (tmp_path / name).write_text(text)
        assert readers[verb](tmp_path / name).about
    for _, base in re.findall(r"`((small|monobert|duobert|tinybert-[\w-]+|tcp|rop))`", GUIDE):
        assert base in bundled()


def test_the_commands_of_the_guide_are_commands() -> None:
    commands = [line.split("#")[0].split()[2:] for line in GUIDE.splitlines() if line.startswith("$ tamis ")]
    assert len(commands) == 4
    for verb, *arguments in commands:
        parser = ArgumentParser()
        import_module(f"tamis.cli.{verb}").add_arguments(parser)
        assert parser.parse_args(arguments).recipe
