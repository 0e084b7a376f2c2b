"""A run goes on only with the files that it was begun with, and what they said then: dev run and gains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError  # noqa: E402
from tamis.models.architecture import Architecture  # noqa: E402
from tamis.models.architectures.cascade import Cascade, CascadeSettings  # noqa: E402
from tamis.models.architectures.parade import Parade, ParadeSettings  # noqa: E402
from tamis.models.architectures.pcgm import Pcgm, PcgmSettings  # noqa: E402
from tamis.train.ranking import train_by_recipe  # noqa: E402
from tamis.train.recipe import Data, Dev, Examples, Limits, Model, Optimiser, Recipe, Run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("sieve", "flour", "cake", "onion", "soup", "butter")
REFUSED = "is of another recipe, other data or another start"


@pytest.fixture
def files(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """Data, and a dev run with files of its own."""
    tiny_checkpoint(tmp_path / "model", layers=2, hidden=16, heads=2, positions=32)
    for name in ("train", "dev"):
        queries = [{"_id": f"q{n}", "text": WORDS[n]} for n in range(4)]
        documents = [{"_id": f"d{n}", "text": f"{WORDS[n]} and {WORDS[n - 1]}"} for n in range(6)]
        for file, lines in (("q.jsonl", queries), ("c.jsonl", documents)):
            (tmp_path / f"{name}.{file}").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / f"{name}.qrels.txt").write_text("".join(f"q{n} 0 d{n} 1\n" for n in range(4)))
        run = [f"q{q} Q0 d{n} {n + 1} {9 - n} x\n" for q in range(4) for n in range(6)]
        (tmp_path / f"{name}.run.txt").write_text("".join(run))
    gains = [{"query": f"q{n}", "document": f"d{n}", "gains": [n % 2]} for n in range(4)]
    gains.append({"query": "of other data", "document": "d1", "gains": [1]})
    (tmp_path / "gains.jsonl").write_text("".join(json.dumps(line) + "\n" for line in gains))
    return tmp_path


def parts(files: Path) -> tuple[Model, tuple[Data, ...], Optimiser, Run, Examples]:
    given = {name: str(files / f"train.{name}.txt") for name in ("qrels", "run")}
    data = Data(queries=str(files / "train.q.jsonl"), corpus=(str(files / "train.c.jsonl"),), **given)
    return Model(str(files / "model")), (data,), Optimiser(steps=2), Run(batch=2), Examples(group=2)


def dev(files: Path) -> Dev:
    given = {name: str(files / f"dev.{name}.txt") for name in ("qrels", "run")}
    return Dev(
        queries=str(files / "dev.q.jsonl"), corpus=(str(files / "dev.c.jsonl"),), depth=4, every=2, **given
    )


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


#: What another content of each file is.
CHANGES = {
    "dev.q.jsonl": ("sieve", "onion"),
    "dev.c.jsonl": ("flour and sieve", "flour or sieve"),
    "dev.qrels.txt": ("q1 0 d1 1", "q1 0 d1 2"),
    "dev.run.txt": ("q2 Q0 d3 4 6 x", "q2 Q0 d3 4 9 x"),
}


@pytest.mark.parametrize("file", CHANGES)
@pytest.mark.parametrize(
    "kind",
    [
        None,
        Cascade(CascadeSettings(first=1, step=1)),
        Parade(ParadeSettings(kind="max", sequence=24, query=4)),
    ],
    ids=["ranker", "cascade", "parade"],
)
def test_a_dev_run_that_has_changed_is_noticed(kind: Architecture | None, file: str, files: Path) -> None:
    some, measured = parts(files), dev(files)

    def train(*, resume: bool) -> None:
        plan = Recipe(*some, limits=Limits(8, 24), dev=measured, architecture=kind)
        train_by_recipe(plan, files / "out", device="cpu", resume=resume)

    train(resume=False)
    train(resume=True)  # the same
    changed(files / file, *CHANGES[file])
    with pytest.raises(InputError, match=REFUSED) as caught:
        train(resume=True)
    assert "\n" not in str(caught.value)


def test_candidates_that_are_not_reranked_may_change(files: Path) -> None:
    plan = Recipe(*parts(files), dev=dev(files))
    train_by_recipe(plan, files / "out", device="cpu")
    changed(files / "dev.run.txt", "q2 Q0 d5 6 4 x\n", "")
    train_by_recipe(plan, files / "out", device="cpu", resume=True)


def test_gains_that_have_changed_are_noticed(files: Path) -> None:
    plan = Recipe(
        *parts(files),
        architecture=Pcgm(PcgmSettings(sequence=24, query=4)),
        gains=str(files / "gains.jsonl"),
    )
    train_by_recipe(plan, files / "out", device="cpu")
    changed(files / "gains.jsonl", '"of other data", "document": "d1"', '"of other data", "document": "d2"')
    train_by_recipe(plan, files / "out", device="cpu", resume=True)  # which nothing was learned from
    changed(files / "gains.jsonl", '"gains": [1]', '"gains": [2]')
    with pytest.raises(InputError, match=REFUSED):
        train_by_recipe(plan, files / "out", device="cpu", resume=True)
