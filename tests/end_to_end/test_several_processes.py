"""Several processes learn what one learns, of every architecture and by folds; only the first one writes;
they end together; and what they began can be resumed by another number of them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.cli import main  # noqa: E402
from tamis.core.ranking import Run  # noqa: E402
from tamis.models.architecture import architecture  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.train.folds import train_folds  # noqa: E402
from tamis.train.ranking import train_by_recipe  # noqa: E402
from tamis.train.recipe import Folds, Recipe  # noqa: E402
from tests.unit.train.builders import collection, curve, weights  # noqa: E402
from tests.unit.train.test_every_architecture import SETTINGS, recipe  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

#: Two groups for one process and one for the other, which read them in parts of their own.
SPLIT = {"batch": 3, "tokens": 100, "checkpoint_every": 2}
#: Without dropout, which differs between processes; and Adam divides by so much that a gradient which is
#: nothing but rounding errors is no step.
EXACT = {"dropout": 0.0, "epsilon": 1e-2, "steps": 3}

#: One of two processes: it trains by each of the recipes into a folder of its own, and leaves the errors.
_ONE = """
import json, os, pickle, sys
from pathlib import Path

import torch

from tamis.base.errors import InputError
from tamis.models.settings import changed
from tamis.train.folds import train_folds
from tamis.train.processes import Processes
from tamis.train.ranking import train_by_recipe

folder = Path(sys.argv[1])
plans, by_folds = pickle.loads((folder / "plans.pickle").read_bytes())
rank = os.environ["RANK"]
out, refused = folder / rank, {}
with Processes(torch.device("cpu")):
    for name, plan in plans.items():
        train_by_recipe(plan, out / name, device="cpu")
    train_folds(by_folds, out / "folds", device="cpu")
with Processes(torch.device("cpu")):
    mono = plans["mono"]
    other = changed(mono, run=changed(mono.run, seed=int(rank)))
    small = changed(mono, run=changed(mono.run, batch=1))
    for what, act in {
        "recipe": lambda: train_by_recipe(other, out / "other", device="cpu"),
        "batch": lambda: train_by_recipe(small, out / "small", device="cpu"),
        "state": lambda: train_by_recipe(mono, out / "mono", device="cpu", resume=True),
        "folds": lambda: train_folds(by_folds, out / "folds", device="cpu", resume=True),
    }.items():
        try:
            act()
        except InputError as error:
            refused[what] = str(error)
(folder / f"refused-{rank}.json").write_text(json.dumps(refused))
"""


class Plans(NamedTuple):
    """Recipes of each kind, and one by folds."""

    kinds: dict[str, Recipe]
    folds: Recipe


@pytest.fixture(scope="module")
def plans(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Plans:
    folder = tmp_path_factory.mktemp("plans")
    start = tiny_checkpoint(folder / "start", layers=3, hidden=16, heads=2, positions=64)
    files = collection(folder)
    known = {"query": "q0", "document": "soup3", "gains": [0, 2]}  # of one query: some processes have none
    (folder / "gains.jsonl").write_text(json.dumps(known) + "\n")

    def made(kind: str, **more: Any) -> Recipe:
        of = architecture(kind.partition(" ")[0])
        plan = recipe(of(of.Settings(**SETTINGS[kind])), files, start)
        split = SPLIT | ({"batch": 6} if kind == "duo" else {})  # which takes an even number
        tables = {"optimiser": changed(plan.optimiser, **EXACT), "run": changed(plan.run, **split)}
        return changed(plan, **tables, **more)

    kinds = {kind: made(kind, dev=None) for kind in SETTINGS}
    kinds["pcgm, gains"] = made("pcgm", dev=None, gains=str(folder / "gains.jsonl"))
    return Plans(kinds, made("mono", folds=Folds(count=2)))


@pytest.fixture(scope="module")
def two(plans: Plans, two_processes: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders `0` and `1` of what two processes have written."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "plans.pickle").write_bytes(pickle.dumps((plans.kinds, plans.folds)))
    two_processes(str(folder), script=_ONE)
    return folder


def alike(one: Path, other: Path) -> None:
    """Whether two trainings have learned the same, but for the order of sums."""
    for line, same in zip(curve(one), curve(other), strict=True):
        assert line == pytest.approx(same, abs=1e-5)
    before, after = weights(one / "last"), weights(other / "last")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert np.allclose(tensor, after[name], rtol=0, atol=1e-5), name


@pytest.mark.parametrize("kind", [*SETTINGS, "pcgm, gains"])
def test_two_processes_learn_as_one(kind: str, plans: Plans, two: Path, tmp_path: Path) -> None:
    train_by_recipe(plans.kinds[kind], tmp_path, device="cpu")
    alike(tmp_path, two / "0" / kind)


def test_two_processes_train_by_folds_as_one(plans: Plans, two: Path, tmp_path: Path) -> None:
    train_folds(plans.folds, tmp_path, device="cpu")
    for fold in ("fold-1", "fold-2"):
        alike(tmp_path / fold, two / "0" / "folds" / fold)
    one, other = (Run.read(folder / "test.run") for folder in (tmp_path, two / "0" / "folds"))
    assert {qid: ranking.ids for qid, ranking in one.items()} == {
        qid: ranking.ids for qid, ranking in other.items()
    }


def test_only_the_first_process_writes(plans: Plans, two: Path) -> None:
    assert {each.name for each in (two / "0" / "mono").iterdir()} == {"last", "log.jsonl", "state"}
    assert not [path for path in (two / "1").rglob("*") if path.is_file()]


def test_a_batch_that_cannot_be_shared_is_refused_before_anything_is_written(two: Path) -> None:
    for rank in ("0", "1"):
        said = json.loads((two / f"refused-{rank}.json").read_text())
        assert said["batch"] == "1 group for 2 processes: use a larger batch, or fewer devices"
        assert not list((two / rank / "small").iterdir())


def test_processes_that_see_different_files_are_refused(two: Path) -> None:
    """On machines that share nothing: they would learn what no recipe says, or wait for each other."""
    for rank in ("0", "1"):
        said = json.loads((two / f"refused-{rank}.json").read_text())
        assert said["recipe"] == (
            "process 1 of 2: another recipe, other data or another model to start from than the first "
            "process has: give all machines the same files, at the same paths"
        )
        for what, folder in (("state", two / rank / "mono"), ("folds", two / rank / "folds" / "fold-1")):
            assert said[what] == (
                f"process 1 of 2: another state in {folder} than the first process sees: "
                "use a folder that all machines share, or copy it to each of them"
            )


#: The command, whose second process is killed after its tenth step.
_KILLED = """
import os, signal, sys
from itertools import count

from torch.optim.optimizer import register_optimizer_step_post_hook

from tamis.cli import main

steps = count(1)

def lethal(*_):
    if next(steps) == 10 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_post_hook(lethal)
sys.exit(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_on_one_machine_ends_the_other_and_one_process_resumes(plans: Plans, tmp_path: Path) -> None:
    """Two launches of a process each, as on two machines, which find each other by a file."""
    data, start = plans.folds.data[0], plans.folds.model.start
    files = f'queries = "{data.queries}"\nqrels = "{data.qrels}"\ncorpus = ["{data.corpus[0]}"]'
    (tmp_path / "recipe.toml").write_text(f"""
        model = {{start = "{start}"}}
        limits = {{query = 6, total = 48}}
        optimiser = {{steps = 14, learning_rate = 3e-3, dropout = 0.0, epsilon = 1e-2}}
        run = {{batch = 2, checkpoint_every = 4, log_every = 1}}
        [[data]]
        {files}
        run = "{data.run}"
    """)
    (tmp_path / "killed.py").write_text(_KILLED)
    out = tmp_path / "out"

    def command(out: Path) -> list[str]:
        return ["train", str(tmp_path / "recipe.toml"), "--out", str(out), "--device", "cpu"]

    machine = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'store'}", "--rdzv-conf=store_type=file"),
        *(str(tmp_path / "killed.py"), *command(out)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [subprocess.Popen(machine, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    try:
        said = [each.communicate(timeout=120)[1] for each in both]
    finally:
        for each in both:
            each.kill()
    assert all(each.returncode for each in both)
    (line,) = [line for text in said for line in text.splitlines() if "error: " in line]
    assert line == (
        "error: process 0 of 2 lost its connection to the others: "
        "look at what the one that ended first has said, and add --resume"
    )
    assert main(command(tmp_path / "whole")) == main([*command(out), "--resume"]) == 0
    alike(tmp_path / "whole", out)
