"""Steps of the optimiser by hand, which rate a parameter has, and what a run says that is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError, TamisError  # noqa: E402
from tamis.models.architecture import Architecture  # noqa: E402
from tamis.models.architectures.birch import Birch  # noqa: E402
from tamis.models.architectures.cascade import Cascade, CascadeSettings  # noqa: E402
from tamis.models.architectures.cedr import Cedr, CedrSettings  # noqa: E402
from tamis.models.architectures.listwise import Listwise  # noqa: E402
from tamis.models.architectures.parade import Parade, ParadeSettings  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.config import EncoderConfig  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.names import hugging_face_names  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.weights import stored_tensors, write_tensors  # noqa: E402
from tamis.train import recipe  # noqa: E402
from tamis.train.loop import Part, fit, parameter_groups, total_steps  # noqa: E402
from tamis.train.processes import Processes  # noqa: E402
from tamis.train.recipe import Optimiser, Run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Slopes:
    """A task of some numbers that begin at 0, whose gradients are given for each step."""

    identity, device, autocast = "slopes", torch.device("cpu"), None

    def __init__(self, *slopes: Sequence[float], dev: Sequence[float] = ()) -> None:
        self.module = torch.nn.Module()
        self.module.weight = torch.nn.Parameter(torch.zeros(len(slopes[0])))
        self.module.forward = lambda slope: (slope * self.module.weight).sum()
        self.slopes, self.dev = torch.tensor(slopes), list(dev)

    def parts(self, step: int, rank: int, world: int) -> list[Part]:
        return [Part(self.slopes[step], 1)]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def evaluate(self) -> float:
        return self.dev.pop(0)


def fitted(task: Slopes, out: Path, **plan: Any) -> list[float]:
    """The numbers that come of it, at a rate of 0.1."""
    steps = Optimiser(
        learning_rate=0.1, weight_decay=0.0, warm_up=0, schedule="constant", steps=len(task.slopes), **plan
    )
    fit(task, steps, Run(), out)
    found: list[float] = task.module.weight.tolist()
    return found


# -- steps by hand


def test_two_steps_with_the_betas_and_the_epsilon_of_the_recipe(tmp_path: Path) -> None:
    """Gradients of 3 and -1, betas of 1/2 and 1/4: the first moments are 3/2 and 1/4, the second 27/4 and
    39/16, and without the bias of a beginning at 0 they are 3 and 1/3, 9 and 13/5."""
    found = fitted(Slopes([3.0], [-1.0]), tmp_path, betas=(0.5, 0.25), epsilon=0.1, clip=0.0)
    first = 3 / (3 + 0.1)
    second = 1 / 3 / (math.sqrt(13 / 5) + 0.1)
    assert found == pytest.approx([-0.1 * (first + second)], rel=1e-6)


@pytest.mark.parametrize(
    ("clip", "gradient"), [(0.0, (3.0, 4.0)), (1.0, (0.6, 0.8)), (2.5, (1.5, 2.0)), (6.0, (3.0, 4.0))]
)
def test_a_gradient_is_no_longer_than_the_recipe_says(
    clip: float, gradient: tuple[float, float], tmp_path: Path
) -> None:
    """Its length is 5. At the first step the moments are the gradient and its square, and an epsilon of 1
    leaves a trace of how large it was."""
    found = fitted(Slopes([3.0, 4.0]), tmp_path, clip=clip, epsilon=1.0)
    assert found == pytest.approx([-0.1 * each / (each + 1.0) for each in gradient], rel=1e-5)


# -- which rate is whose

PLAN = Optimiser(learning_rate=1e-5, head_learning_rate=1e-3, steps=1)


def config(family: Any = "bert") -> EncoderConfig:
    return EncoderConfig(family, vocabulary=9, hidden=8, layers=3, heads=2, feed_forward=16)


def fast(module: torch.nn.Module, plan: Optimiser = PLAN) -> set[str]:
    """The modules whose rate is the head's."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = parameter_groups(module, plan)
    assert sum(len(group["params"]) for group in groups) == len(names)
    assert {round(group["scale"], 6) for group in groups} <= {1.0, 100.0}
    found = [p for group in groups if group["scale"] > 1 for p in group["params"]]
    return {names[id(parameter)].rpartition(".")[0] for parameter in found}


@pytest.mark.parametrize("family", ["bert", "albert", "roberta", "electra", "distilbert"])
def test_a_pooler_has_the_rate_of_the_encoder_whose_part_it_was(family: Any) -> None:
    pooled = "pooler" in hugging_face_names(config(family))["head.dense.weight"]
    assert pooled == (family in ("bert", "albert"))
    new = {"head.output"} if pooled else {"head.dense", "head.output"}
    assert fast(Encoder(config(family))) == new
    assert fast(Encoder(config(family)), changed(PLAN, head_learning_rate=None)) == set()


def test_a_pooler_that_was_not_pretrained_is_new(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """As of a checkpoint of a masked language model, which has none."""
    folder = tiny_checkpoint(tmp_path / "model")
    assert fast(Encoder.from_checkpoint(load_checkpoint(folder))) == {"head.output"}
    kept = {name: stored.read() for name, stored in stored_tensors(folder / "model.safetensors").items()}
    for name in [name for name in kept if "pooler" in name or "classifier" in name]:
        del kept[name]
    write_tensors(folder / "model.safetensors", kept)
    bare = load_checkpoint(folder, require_head=False)
    assert bare.new_head and fast(Encoder.from_checkpoint(bare)) == {"head.dense", "head.output"}


def module_of(kind: Architecture, folder: Path) -> torch.nn.Module:
    """Where nothing is frozen."""
    start = kind.begin(load_checkpoint(folder))
    return start.architecture.network(start).requires_grad_(True)


def test_heads_beside_the_pretrained_one_are_all_new(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "model", layers=3, hidden=8, heads=2)
    exits = {f"exits.{layer}.head.{part}" for layer in (1, 2) for part in ("dense", "output")}
    cascade = module_of(Cascade(CascadeSettings(first=1, step=1)), folder)
    assert fast(cascade) == exits | {"encoder.head.output"}
    assert fast(module_of(Listwise(), folder)) == {"head", "encoder.head.output"}


@pytest.mark.parametrize(
    "kind",
    [Birch(), Cedr(CedrSettings(kind="vanilla")), Parade(ParadeSettings(kind="attn")), Cedr()],
    ids=lambda kind: kind.kind,
)
def test_what_makes_one_score_of_passages_is_new(
    kind: Architecture, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = module_of(kind, tiny_checkpoint(tmp_path / "model", layers=3, hidden=8, heads=2))
    aggregator = {f"head.{name}".rpartition(".")[0] for name, _ in model.head.named_parameters()}
    assert fast(model) == aggregator | {"encoder.head.output"}


# -- compiled layers


@pytest.mark.parametrize("compile", [False, True])
def test_layers_alone_are_compiled_and_only_where_a_recipe_asks(
    compile: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which torch does at the first batch: here it is only told to."""
    told: list[tuple[torch.nn.Module, dict[str, Any]]] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **how: told.append((module, how)))
    task = Slopes([1.0])
    config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16)
    task.module.encoder = Encoder(config)
    for parameter in task.module.encoder.parameters():
        parameter.requires_grad_(False)
    fit(task, Optimiser(steps=1, warm_up=0), Run(compile=compile), tmp_path)
    layers = [(layer, {"dynamic": True}) for layer in task.module.encoder.layers]
    assert told == (layers if compile else [])


# -- a run that is over


def test_a_run_that_reached_its_last_step_was_not_stopped(tmp_path: Path) -> None:
    """Its patience of 2 ends with it: the best is at step 2 of 4."""
    plan, run = Optimiser(steps=4), Run(patience=2)
    dev = [0.0, 0.1, 0.5, 0.2, 0.3]
    task = Slopes([1.0], [1.0], [1.0], [1.0], dev=dev)
    result = fit(task, plan, run, tmp_path, evaluate_every=1)
    assert (result.steps, result.best_step, result.stopped) == (4, 2, False)
    again = fit(task, plan, run, tmp_path, evaluate_every=1, resume=True)
    assert (again.steps, again.best_step, again.stopped) == (4, 2, False)


def test_epochs_without_data_name_a_function_that_there_is() -> None:
    with pytest.raises(TamisError, match=r"epochs without data: say how many steps they are \(`in_steps`\)"):
        total_steps(Optimiser(epochs=1.0))
    assert callable(recipe.in_steps)


# -- several processes

_TIMEOUT = """
import sys
from pathlib import Path

import torch
from torch.distributed.distributed_c10d import _get_default_group

from tamis.train.processes import Processes

cpu = torch.device("cpu")
with Processes(cpu) as processes:
    seconds = _get_default_group()._get_backend(cpu).options._timeout.total_seconds()
Path(sys.argv[1], f"seconds-{processes.rank}").write_text(str(seconds))
"""


def test_processes_wait_for_each_other_as_long_as_a_dev_run_may_take(
    tmp_path: Path, two_processes: Callable[..., str]
) -> None:
    """The first ranks it alone, and torch's own limit is half an hour, or of cards ten minutes."""
    two_processes(str(tmp_path), script=_TIMEOUT)
    for rank in (0, 1):
        assert float((tmp_path / f"seconds-{rank}").read_text()) >= 24 * 3600


def test_what_several_processes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    expected = (
        "WORLD_SIZE is 2, and RANK, MASTER_ADDR, MASTER_PORT are missing: start the processes with torchrun"
    )
    with pytest.raises(InputError, match=expected), Processes(torch.device("cpu")):
        pass
    with pytest.raises(InputError, match=r"several processes cannot share an Apple GPU: .+ --device cpu"):
        Processes(torch.device("mps"))
