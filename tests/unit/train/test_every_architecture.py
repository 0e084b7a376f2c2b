"""What holds of every architecture: what comes of a training ranks, and as its dev run said; a kill costs
nothing; a model is the same in another folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.core.registry import build  # noqa: E402
from tamis.core.runtime import Runtime  # noqa: E402
from tamis.core.stage import Stage  # noqa: E402
from tamis.models.architecture import BUILT_IN, Architecture, architecture  # noqa: E402
from tamis.models.architectures.mono import Mono  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.train.dev import open_dev  # noqa: E402
from tamis.train.folds import pipeline_of  # noqa: E402
from tamis.train.loop import Result  # noqa: E402
from tamis.train.ranking import train_by_recipe  # noqa: E402
from tamis.train.recipe import Data, Dev, Examples, Limits, Loss, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.start import begin  # noqa: E402
from tamis.train.state import STATE  # noqa: E402
from tamis.train.watch import Watch  # noqa: E402
from tests.unit.train.builders import Killed, collection, curve, killed_at, same, weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

LONG = {"window": 12, "stride": 10, "sequence": 24, "query": 6, "passages": 3}
CHUNKS = {"sequence": 24, "query": 6}

#: Settings of each architecture, for every kind of one.
SETTINGS: dict[str, dict[str, Any]] = {
    "mono": {},
    "duo": {},
    "listwise": {"n": 3, "k": 4, "rounds": 3},
    "cascade": {"first": 1, "step": 1, "alpha": 0.4},
    "maxp": {**LONG, "keep": 0.5},
    "birch": LONG,
    "pcgm": {**LONG, "gains": 3},
    **{f"cedr {kind}": {**CHUNKS, "kind": kind} for kind in ("vanilla", "knrm", "pacrr", "drmm")},
    **{
        f"parade {kind}": {**LONG, "kind": kind}
        for kind in ("avg", "sum", "max", "attn", "cnn", "transformer")
    },
    **{f"interaction {kind}": {**CHUNKS, "kind": kind} for kind in ("knrm", "pacrr", "drmm")},
}


class Trained(NamedTuple):
    """A recipe, and what came of it."""

    recipe: Recipe
    result: Result
    out: Path


def recipe(kind: Architecture, files: dict[str, Any], start: Path) -> Recipe:
    duo = kind.name == "duo"
    return Recipe(
        Model(str(start), third_segment=duo),
        (Data(**files),),
        Optimiser(learning_rate=3e-3, head_learning_rate=1e-2, warm_up=0, steps=6),
        Run(batch=4, checkpoint_every=4, log_every=1),
        Examples("duo" if duo else "grouped", group=3),
        Loss("duo" if duo else "hinge"),
        Limits(6, 48),
        Dev(**files, depth=4, every=2),
        architecture=kind,
    )


@pytest.fixture(scope="module", params=SETTINGS)
def trained(
    request: pytest.FixtureRequest,
    tiny_checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    start = tiny_checkpoint(folder / "start", layers=3, hidden=16, heads=2, positions=64)
    of = architecture(request.param.partition(" ")[0])
    plan = recipe(of(of.Settings(**SETTINGS[request.param])), collection(folder), start)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # this outlives a test: what is trained again must be the same to the last bit
    try:
        return Trained(plan, train_by_recipe(plan, folder / "out", device="cpu"), folder / "out")
    finally:
        torch.set_num_threads(threads)


def shipped(plan: Recipe, model: Path) -> Stage:
    """The stage that ranks with a model in a folder, as the dev run has it, in full precision."""
    assert plan.architecture is not None
    options = "".join(f", {name}={value}" for name, value in plan.architecture.dev_options().items())
    given = f"model={json.dumps(str(model))}, precision=fp32{options}"
    return build(pipeline_of(plan).replace("model={model}", given), runtime=Runtime("cpu"))


def test_every_architecture_is_among_them() -> None:
    assert {kind.partition(" ")[0] for kind in SETTINGS} == set(BUILT_IN)


def test_the_dev_measure_is_that_of_the_stage_with_the_model_in_its_folder(trained: Trained) -> None:
    plan, result, out = trained
    assert plan.dev and result.model == out / "best"
    dev, measured = open_dev(plan.dev), [line["dev"] for line in curve(out) if "dev" in line]
    assert len(measured) == 4 and result.best == max(measured)
    assert dev.score(shipped(plan, out / "best")) == pytest.approx(result.best)
    assert dev.score(shipped(plan, out / "last")) == pytest.approx(measured[-1])


@pytest.mark.parametrize("killed", [3, 5])
def test_a_run_that_was_killed_and_resumed_is_one_that_was_not(
    killed: int, trained: Trained, tmp_path: Path
) -> None:
    """Before its only checkpoint it begins again: the same seed gives the same weights."""
    with pytest.raises(Killed):
        train_by_recipe(trained.recipe, tmp_path, device="cpu", watch=_Lethal(killed))
    assert (tmp_path / STATE).exists() == (killed > 4)
    train_by_recipe(trained.recipe, tmp_path, device="cpu", resume=True)
    assert curve(trained.out) == curve(tmp_path)
    for name in ("best", "last"):
        assert same(weights(trained.out / name), weights(tmp_path / name))


class _Lethal(Watch):
    """Stops a training at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        return nullcontext(killed_at(self.step))


def test_another_seed_gives_other_weights(trained: Trained, tmp_path: Path) -> None:
    plan = changed(trained.recipe, run=changed(trained.recipe.run, seed=1), dev=None)
    train_by_recipe(plan, tmp_path, device="cpu")
    assert not same(weights(trained.out / "last"), weights(tmp_path / "last"))


def test_a_model_is_the_same_in_another_folder(trained: Trained, tmp_path: Path) -> None:
    plan, _, out = trained
    before, kind = load_checkpoint(out / "best"), plan.architecture
    assert kind and before.architecture == (Mono() if kind.name == "maxp" else kind)
    save_checkpoint(before, tmp_path / "copy")
    after = load_checkpoint(tmp_path / "copy")
    assert (after.architecture, after.fingerprint) == (before.architecture, before.fingerprint)
    assert same(weights(out / "best"), weights(tmp_path / "copy"))
    assert plan.dev
    rankings = open_dev(plan.dev).rankings
    one, other = (shipped(plan, folder).apply(rankings) for folder in (out / "best", tmp_path / "copy"))
    assert one == other


def test_training_begins_from_a_model_of_its_own(trained: Trained, tmp_path: Path) -> None:
    """Its head is taken, and its encoder."""
    plan, _, out = trained
    start = begin(changed(plan, model=changed(plan.model, start=str(out / "best"))))
    before = load_checkpoint(out / "best")
    assert start.architecture == plan.architecture
    assert same(start.head, before.head)
    assert all(np.array_equal(start.tensors[name], before.tensors[name]) for name in before.tensors)
