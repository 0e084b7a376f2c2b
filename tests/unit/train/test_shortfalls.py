"""What a recipe's files lack: refused where nothing is left, told where training does without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError
from tamis.evaluate.folds import Fold
from tamis.models.settings import changed
from tamis.models.tokenizer import Tokenizer
from tamis.train.dev import open_dev
from tamis.train.folds import fold_recipe
from tamis.train.ranking import train_by_recipe
from tamis.train.recipe import Data, Dev, Examples, Folds, Limits, Model, Optimiser, Recipe
from tamis.train.sources import open_set
from tamis.train.watch import Watch


class Told(Watch):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def left_out(self, what: str) -> None:
        self.lines.append(what)


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("data")
    tiny_checkpoint(where / "model", layers=1, hidden=16, heads=2, positions=64)
    (where / "q.tsv").write_text("q1\tsoup\nq2\tsteel\nq3\tcake\nq4\tflour\n")
    (where / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\nq3 0 d3 1\nq4 0 d3 0\n")
    (where / "c.tsv").write_text("d1\tan onion in butter\nd2\ta spoon of steel\nd3\tflour\n")
    (where / "run.txt").write_text("".join(f"q1 Q0 d{n} {n} {9 - n} x\n" for n in (1, 2, 3)))
    return where


def recipe(made: Path, only: Any = None, dev_only: Any = None, **changes: Any) -> Recipe:
    files: dict[str, Any] = {"queries": str(made / "q.tsv"), "qrels": str(made / "qrels.txt")}
    files |= {"corpus": (str(made / "c.tsv"),), "run": str(made / "run.txt")}
    least = Recipe(
        Model(str(made / "model")),
        (Data(**files, only=only),),
        Optimiser(steps=1),
        examples=Examples(group=2),
        limits=Limits(8, 32),
        dev=Dev(**files, only=dev_only, every=1),
    )
    return changed(least, **changes)


def told(plan: Recipe, out: Path) -> list[str]:
    watch = Told()
    assert train_by_recipe(plan, out, device="cpu", watch=watch).steps == 1
    return watch.lines


def test_queries_that_a_run_does_not_answer(made: Path, tmp_path: Path) -> None:
    """Their negatives are any documents, their dev measure is zero; q4 has nothing to be measured by."""
    assert told(recipe(made), tmp_path / "out") == [
        f"{made / 'q.tsv'}: left out: 1 queries without positives; "
        "2 queries without candidates: any documents stand in for them",
        f"{made / 'run.txt'}: 2 judged queries without candidates ('q2'): they count zero",
    ]
    assert told(recipe(made, ("q1",), ("q1",)), tmp_path / "other") == []


@pytest.mark.parametrize(
    ("only", "said"),
    [
        (("zzz",), "only names 'zzz', which is no query there: correct the id"),
        ((), "only names no query: name some, or leave it out"),
    ],
)
def test_only_ids_that_are_no_queries(only: tuple[str, ...], said: str, made: Path) -> None:
    plan, tokenizer = recipe(made, only, only), Tokenizer(made / "model")
    assert plan.dev is not None
    with pytest.raises(InputError) as caught:
        open_set(plan.data[0], plan.examples, tokenizer)
    assert str(caught.value) == f"{made / 'q.tsv'}: {said}"
    with pytest.raises(InputError) as caught:
        open_dev(plan.dev)
    assert str(caught.value) == f"{made / 'q.tsv'}: {said}"


def test_some_ids_that_are_no_queries_are_told_because_folds_may_name_them(
    made: Path, tmp_path: Path
) -> None:
    plan = recipe(made, folds=Folds(count=2))
    fold = Fold(("q1", "q8"), ("q3",), ("q9", "q1"))
    assert told(fold_recipe(plan, fold), tmp_path / "out") == [
        f"{made / 'q.tsv'}: left out: 1 wanted queries that are not there",
        f"{made / 'q.tsv'}: left out: 1 wanted queries that are not there ('q9')",
    ]
