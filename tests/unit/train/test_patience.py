"""Patience: training stops when the dev measure rises no more, and a run that goes on stops there too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError  # noqa: E402
from tamis.train.distill_recipe import LM  # noqa: E402
from tamis.train.loop import Part, Result, fit  # noqa: E402
from tamis.train.pretrain_recipe import Data as Texts  # noqa: E402
from tamis.train.pretrain_recipe import Model as Start  # noqa: E402
from tamis.train.pretrain_recipe import PretrainRecipe  # noqa: E402
from tamis.train.recipe import Data, Dev, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.state import load_state, read_log  # noqa: E402

STEPS, EVERY = 40, 3
DEV = (0.1, 0.2, 0.5, 0.4, 0.5, 0.3, 0.6, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.9)  # at step 0, 3, 6, ...


class Task:
    """A line of numbers whose dev measure is given for each step."""

    identity, device, autocast = "task", torch.device("cpu"), None

    def __init__(self, dev: Sequence[float] = DEV) -> None:
        self.module = Steps()
        self.dev = dev

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        return [Part(torch.full((2,), float(step)), 2)]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_text(repr(self.module.line.weight.tolist()))

    def evaluate(self) -> float:
        return self.dev[self.module.seen // EVERY]


class Steps(torch.nn.Module):  # type: ignore[misc]
    """Knows how many steps it has seen, after a kill too."""

    count: Any

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.line.weight)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @property
    def seen(self) -> int:
        return int(self.count)

    def forward(self, batch: Any) -> Any:
        self.count += 1
        return (self.line(batch) - 1).square().mean()


def fitted(out: Path, patience: int | None, **options: Any) -> Result:
    plan = Optimiser(learning_rate=0.01, steps=STEPS)
    run = Run(checkpoint_every=4, log_every=5, patience=patience)
    return fit(Task(), plan, run, out, evaluate_every=EVERY, **options)


@pytest.mark.parametrize(
    ("patience", "stops", "best"),
    [(None, STEPS, 39), (1, 9, 6), (2, 12, 6), (3, 15, 6), (4, 30, 18), (6, 36, 18), (7, STEPS, 39)],
)
def test_it_stops_after_so_many_dev_runs_without_a_better_one(
    patience: int | None, stops: int, best: int, tmp_path: Path
) -> None:
    """One that is as good is not better: 0.5 at step 12 is not."""
    result = fitted(tmp_path, patience)
    assert (result.steps, result.best_step, result.stopped) == (stops, best, stops < STEPS)
    log = read_log(tmp_path)
    assert log[-1]["step"] == stops and log[-1].get("stopped", False) == (stops < STEPS)
    assert not any("stopped" in line for line in log[:-1])
    assert (tmp_path / "best").exists() and (tmp_path / "last").exists()
    state = load_state(tmp_path, "task")
    assert state is not None and state.step == stops


class Killed(Exception):
    pass


def killed_at(step: int) -> Callable[[Mapping[str, Any]], None]:
    def tell(line: Mapping[str, Any]) -> None:
        if line["step"] == step:
            raise Killed

    return tell


@pytest.mark.parametrize("step", [5, 6, 9, 15, 25, 30])
def test_after_a_kill_it_stops_where_it_would_have(step: int, tmp_path: Path) -> None:
    fitted(tmp_path / "whole", 4)
    with pytest.raises(Killed):
        fitted(tmp_path / "killed", 4, progress=killed_at(step))
    result = fitted(tmp_path / "killed", 4, resume=True)
    assert (result.steps, result.best_step, result.stopped) == (30, 18, True)
    for model in ("best", "last"):
        one, other = ((tmp_path / run / model / "weights").read_text() for run in ("whole", "killed"))
        assert one == other
    whole, killed = (
        [
            {name: line[name] for name in line if name != "pairs_per_second"}
            for line in read_log(tmp_path / run)
        ]
        for run in ("whole", "killed")
    )
    assert whole == killed


def test_a_run_that_has_stopped_has_nothing_left_to_do(tmp_path: Path) -> None:
    before = fitted(tmp_path, 2)
    again = fitted(tmp_path, 2, resume=True)
    assert (again.steps, again.best, again.stopped) == (before.steps, before.best, True)
    assert again.loss is None and read_log(tmp_path)[-1]["stopped"] is True


def test_patience_needs_a_dev_run() -> None:
    data, plan, run = (Data(set="s"),), Optimiser(steps=1), Run(patience=2)
    said = "patience of .run. is 2, and there is no dev run: leave it out, or"
    with pytest.raises(InputError, match=said):
        Recipe(Model("m"), data, plan, run)
    with pytest.raises(InputError, match=said):
        PretrainRecipe(Start("m"), Texts(("c",)), plan, run=run)
    with pytest.raises(InputError, match=said):
        LM("m", ("c",), plan, run=run)
    Recipe(Model("m"), data, plan, run, dev=Dev("q", "r", ("c",), "x"))
