"""Training models with exits: which exit a step teaches, what it reaches, a kill, and recipes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tamis.base.errors import InputError  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models.architectures.cascade import Cascade, CascadeSettings  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import Tokenised  # noqa: E402
from tamis.train.learning import drawn_exit  # noqa: E402
from tamis.train.loop import parameter_groups  # noqa: E402
from tamis.train.ranking import RankingTask, train  # noqa: E402
from tamis.train.recipe import Data, Limits, Model, Optimiser, Recipe, Run, bundled, read_recipe  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples  # noqa: E402
from tamis.train.start import begin  # noqa: E402
from tamis.train.state import read_log  # noqa: E402
from tests.unit.train import builders  # noqa: E402
from tests.unit.train.builders import UNUSED, dev_run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES, EACH, RELEVANT, STEPS = 6, 10, 7, 12


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "model", layers=3, hidden=16, heads=2, positions=64
    )


def data() -> TrainingSet:
    """Ten candidates a query, of which the eighth is relevant and begins with a token that no other has."""
    rng = np.random.default_rng(5)
    documents = rng.integers(20, 90, (QUERIES * EACH, 7))
    documents[RELEVANT::EACH, 0] = 99
    offsets = np.arange(QUERIES + 1)
    numbers = np.arange(QUERIES * EACH, dtype=np.int32)
    return TrainingSet(
        Tokenised.of([[10 + q, 5] for q in range(QUERIES)]),
        Tokenised.of(documents.tolist()),
        [f"q{q}" for q in range(QUERIES)],
        [f"d{n}" for n in numbers],
        Judged(offsets, numbers[RELEVANT::EACH], np.ones(QUERIES, np.int32)),
        Candidates(offsets * EACH, numbers, -numbers.astype(np.float32)),
        None,
    )


def recipe(folder: Path, **changes: Any) -> Recipe:
    least = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(learning_rate=3e-3, steps=STEPS),
        Run(batch=4, checkpoint_every=5, log_every=3),
        Drawn(group=4),
        limits=Limits(8, 32),
        architecture=Cascade(CascadeSettings(first=1, step=1)),
    )
    return changed(least, **changes)


def task_of(plan: Recipe) -> RankingTask:
    return builders.task_of(plan, data())


def trained(plan: Recipe, out: Path, **options: Any) -> dict[str, np.ndarray]:
    return builders.trained(plan, data(), out, **options)


# -- one exit a step


def test_every_exit_is_drawn_as_often_and_again_the_same() -> None:
    drawn = [drawn_exit(3, step, 5) for step in range(5000)]
    assert min(Counter(drawn).values()) > 900 and set(drawn) == set(range(5))
    assert drawn[:100] == [drawn_exit(3, step, 5) for step in range(100)]
    assert drawn[:100] != [drawn_exit(4, step, 5) for step in range(100)]


def test_all_parts_of_a_step_teach_its_exit_in_every_process(folder: Path) -> None:
    plan = recipe(folder, run=Run(batch=4, tokens=20, seed=2))
    task = task_of(changed(plan, optimiser=changed(plan.optimiser, accumulate=3)))
    for step in range(6):
        taught = [part.batch.exit for rank in (0, 1) for part in task.parts(step, rank, 2)]
        assert set(taught) == {drawn_exit(2, step, 3)} and len(taught) >= 6


@pytest.mark.parametrize("exit_", [0, 1, 2])
def test_a_loss_goes_back_to_the_embeddings_and_no_higher_than_its_exit(exit_: int, folder: Path) -> None:
    task = task_of(recipe(folder))
    step = next(step for step in range(100) if drawn_exit(0, step, 3) == exit_)
    (part,) = task.parts(step, 0, 1)
    task.module.eval()(part.batch).backward()
    reached = {name for name, each in task.module.named_parameters() if each.grad is not None}
    encoder = {name.removeprefix("network.").removeprefix("encoder.") for name in reached}
    assert "embeddings.word" in encoder
    assert {int(name.split(".")[1]) for name in encoder if name.startswith("layers.")} == set(
        range(exit_ + 1)
    )
    heads = {name.rpartition(".")[0].rpartition(".")[0] for name in encoder if "head" in name}
    assert heads == {"head" if exit_ == 2 else f"exits.{exit_ + 1}.head"}


def test_a_step_changes_only_what_its_exit_reaches(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, optimiser=Optimiser(learning_rate=3e-3, steps=1, warm_up=0))
    number = drawn_exit(0, 0, 3)
    start, end = begin(plan), trained(plan, tmp_path)
    for layer in (1, 2):
        changed = not np.array_equal(
            end[f"exits.{layer}.output.weight"], start.head[f"exits.{layer}.output.weight"]
        )
        assert changed == (layer == number + 1)


def test_heads_have_the_rate_of_heads(folder: Path) -> None:
    task = task_of(recipe(folder))
    plan = Optimiser(learning_rate=1e-5, head_learning_rate=1e-3, steps=1)
    fast = [group for group in parameter_groups(task.module, plan) if group["scale"] > 1]
    assert sum(len(group["params"]) for group in fast) == 3 * 4 - 2, (
        "two matrices and two biases an exit, but for the pooler of the last"
    )


#: One of two processes. A step reaches one of the two parameters.
_STEPS = """
import json, sys
from pathlib import Path

import torch

from tamis.train.processes import Processes


class Half(torch.nn.Module):
    partial = True

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (self.a * x if x > 0 else self.b * x).sum()


with Processes(torch.device("cpu")) as processes:
    half, found = Half(), []
    model = processes.wrapped(half)
    for x in (1.0, -1.0, 2.0):
        model.zero_grad(set_to_none=True)
        model(x * (1 + processes.rank)).backward()
        found.append([each.grad and each.grad.item() for each in (half.a, half.b)])
    Path(sys.argv[1], f"{processes.rank}.json").write_text(json.dumps(found))
"""


def test_several_processes_wait_for_no_gradient_that_does_not_come(
    tmp_path: Path, two_processes: Callable[..., str]
) -> None:
    two_processes(str(tmp_path), script=_STEPS)
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [[1.5, None], [None, -1.5], [3.0, None]], "the means of what both have"


# -- a run


def test_every_exit_learns_and_the_best_scores_what_the_log_says(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, optimiser=Optimiser(learning_rate=3e-3, steps=90), dev=changed(UNUSED, every=30))
    dev = dev_run(data(), folder)
    result = train(plan, Examples.of(data(), plan), tmp_path, dev=dev, device="cpu")
    checkpoint = load_checkpoint(result.model)
    assert isinstance(checkpoint.architecture, Cascade)
    assert checkpoint.architecture.layers(checkpoint.config) == (1, 2, 3)
    assert (
        builders.task_of(changed(plan, model=Model(str(result.model))), data(), dev).evaluate() == result.best
    )
    first = read_log(tmp_path)[0]["dev"]
    assert result.best is not None and result.best > first + 0.2
    (part,) = task_of(recipe(folder, examples=Drawn(group=EACH), run=Run(batch=QUERIES))).parts(0, 0, 1)
    wanted = part.batch.labels.reshape(QUERIES, EACH).argmax(axis=1)
    everyone = TorchBackend(checkpoint, "cpu").walk(part.batch.inputs, lambda live, margins: live, 4096)
    for column in everyone.T.reshape(3, QUERIES, EACH):  # each exit alone puts the relevant ones first
        assert np.mean(column.argmax(axis=1) == wanted) > 0.8


def test_a_state_goes_with_its_exits(folder: Path, tmp_path: Path) -> None:
    trained(recipe(folder), tmp_path)
    with pytest.raises(InputError, match="of another recipe, other data or another start"):
        other = Cascade(CascadeSettings(first=1, step=2))
        trained(recipe(folder, architecture=other), tmp_path, resume=True)


# -- recipes


def test_the_bundled_recipe_has_the_papers_figures(tmp_path: Path) -> None:
    assert "cascade" in bundled()
    path = tmp_path / "mine.toml"
    path.write_text('base = "cascade"\n[[data]]\nset = "data"\n')
    found = read_recipe(path)
    assert found.architecture == Cascade(CascadeSettings(first=4, step=2, alpha=0.3, heads="new"))
    assert found.model.start == "FacebookAI/roberta-base"
    assert (found.examples.kind, found.loss.name, found.model.labels) == ("balanced", "pointwise", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alpha = 1", r"alpha of \[cascade\] is 1: it must be a number from 0 up to 1"),
        ("first = 0", r"first of \[cascade\] is 0: it must be a whole number of at least 1"),
        ("step = 1.5", r"step of \[cascade\] is 1.5: it must be a whole number"),
        ('heads = "old"', r"heads of \[cascade\] is 'old': it must be one of new, trained"),
        ("last = 3", r"\[cascade\] has no field 'last': the known ones are first, step, exits, alpha, heads"),
        ('[examples]\nkind = "duo"\n[loss]\nname = "duo"', "duo examples have two texts an input"),
    ],
)
def test_what_a_recipe_may_not_say(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "cascade"\n[[data]]\nset = "data"\n[cascade]\n{text}\n')
    with pytest.raises(InputError, match=said):
        read_recipe(path)


@pytest.mark.parametrize(
    ("exits", "said"),
    [
        ("", "exits after layer 4 and every 2 from there on, in a model of 3 layers: "
         "begin before its last layer, and use a step of at least 1"),
        ("[cascade]\nexits = [1, 3]", "exits after layers 1, 3 of a model that has 3: "
         "name layers before its last, in their order"),
    ],
)  # fmt: skip
def test_exits_beyond_the_layers_cost_no_time(
    exits: str, said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "cascade"\n[model]\nstart = "{folder}"\n[[data]]\nset = "nowhere"\n{exits}\n')
    assert main(["train", str(path), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
