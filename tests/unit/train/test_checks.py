"""Mistakes in what a recipe names are found before the long work, and are not trained over in silence."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError, StorageError
from tamis.cli.training import check_out
from tamis.models.architectures.parade import Parade
from tamis.models.settings import changed
from tamis.train.distill_recipe import LM, DistillRecipe, Ranker, Student
from tamis.train.distillation import distill
from tamis.train.ranking import train_by_recipe
from tamis.train.recipe import Data, Dev, Examples, Limits, Loss, LossName, Model, Optimiser, Recipe
from tamis.train.scratch import from_scratch
from tamis.train.watch import Watch


class Unread(Watch):
    """For a mistake that is to be found before anything is read."""

    def reading(self, what: str, noun: str) -> AbstractContextManager[Callable[[int], object]]:
        raise AssertionError(f"{what} is read")


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("data")
    tiny_checkpoint(where / "model", layers=1, hidden=16, heads=2, positions=64)
    (where / "q.tsv").write_text("q1\tsoup\nq2\tsteel\n")
    (where / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (where / "c.tsv").write_text("d1\tan onion in butter\nd2\ta spoon of steel\nd3\tflour\n")
    (where / "run.txt").write_text(
        "".join(f"q{q} Q0 d{n} {n} {9 - n} x\n" for q in (1, 2) for n in (1, 2, 3))
    )
    (where / "other.txt").write_text(
        "".join(f"x{q} Q0 d{n} {n} {9 - n} x\n" for q in (1, 2) for n in (1, 2, 3))
    )
    return where


def recipe(made: Path, data: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    files = Data(
        queries=str(made / "q.tsv"),
        qrels=str(made / "qrels.txt"),
        corpus=(str(made / "c.tsv"),),
        run=str(made / "run.txt"),
    )
    least = Recipe(
        Model(str(made / "model")),
        (files,),
        Optimiser(steps=1),
        examples=Examples(group=2),
        limits=Limits(8, 32),
    )
    return changed(least, data=(changed(files, **data or {}),), **changes)


def refused(plan: Recipe, out: Path, watch: Watch | None = None) -> str:
    with pytest.raises(InputError) as caught:
        train_by_recipe(plan, out, device="cpu", watch=watch)
    assert not out.exists() and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("changes", [{"run": "other.txt"}, {"run": None, "teacher": "other.txt"}])
def test_a_run_of_other_queries_is_no_run(changes: dict[str, Any], made: Path, tmp_path: Path) -> None:
    """Or else negatives are any documents, and nobody knows."""
    named = {name: value and str(made / value) for name, value in changes.items()}
    said = refused(recipe(made, named), tmp_path / "out")
    assert said.startswith(f"{made / 'q.tsv'}: the ")
    assert said.endswith("run answers none of the queries: check that the query ids match")


def test_a_mistake_in_one_of_several_data_says_in_which(made: Path, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text((made / "qrels.txt").read_text() + "q9 0 d1 1\n")
    first = recipe(made)
    (second,) = recipe(made, {"qrels": str(tmp_path / "more.txt")}).data
    said = refused(changed(first, data=(*first.data, second)), tmp_path / "out")
    assert said.startswith(
        f"{second.queries}: the qrels judge documents for queries that are not given: 'q9'"
    )
    assert "skip" in said and "True" not in said  # which is not TOML


def test_a_curriculum_needs_candidates(made: Path, tmp_path: Path) -> None:
    eased = Examples(group=2, curriculum="rank", curriculum_steps=3)
    said = refused(recipe(made, {"run": None}, examples=eased), tmp_path / "out")
    assert said.startswith("a curriculum needs the ranks of candidates, and the training set has none: give")
    assert train_by_recipe(recipe(made, examples=eased), tmp_path / "out", device="cpu").steps == 1


def test_the_dev_run_is_looked_at_before_the_data(made: Path, tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("q1 0 d1 0\n")
    dev = Dev(str(made / "q.tsv"), str(tmp_path / "none.txt"), (str(made / "c.tsv"),), str(made / "run.txt"))
    wanted = f"{tmp_path / 'none.txt'}: no document is relevant to a query of {made / 'q.tsv'}"
    assert refused(recipe(made, dev=dev), tmp_path / "out", Unread()).startswith(wanted)
    long = recipe(made, dev=dev, architecture=Parade())
    assert refused(long, tmp_path / "out", Unread()).startswith(wanted)


def test_a_duo_has_a_third_segment_before_the_data_are_read(made: Path, tmp_path: Path) -> None:
    kind: dict[str, Any] = {"examples": Examples("duo"), "loss": Loss("duo")}
    said = refused(recipe(made, **kind), tmp_path / "out", Unread())
    assert f"duo examples have 3 segments, and {made / 'model'} knows 2: add third_segment = true" in said
    start = Model(str(made / "model"), third_segment=True)
    assert train_by_recipe(recipe(made, model=start, **kind), tmp_path / "out", device="cpu").steps == 1


def test_a_student_has_it_before_hours_of_its_first_phase(made: Path, tmp_path: Path) -> None:
    teacher, optimiser = str(made / "model"), Optimiser(steps=1)
    plan = DistillRecipe(
        Student(),
        LM(teacher, (str(made / "c.tsv"),), optimiser, length=16),
        Ranker(recipe(made).data, optimiser, examples=Examples("duo"), loss=Loss("duo")),
    )
    with pytest.raises(
        InputError, match=r"duo examples have 3 segments, .* or in distillation to \[student\]"
    ):
        distill(plan, tmp_path / "out", device="cpu", watch=Unread())
    assert not (tmp_path / "out").exists()


def test_only_losses_between_labels_and_a_teacher_can_do_without_labels(made: Path) -> None:
    """A base with alpha = 0 and another loss would learn nothing of queries without judgments."""
    taught = {"qrels": None, "teacher": "t.txt"}
    names: tuple[LossName, ...] = ("softmax", "hinge")
    for name in names:
        with pytest.raises(InputError, match=f"the loss {name} learns from labels, and .* has no qrels"):
            recipe(made, taught, loss=Loss(name, alpha=0.0))
    assert recipe(made, taught, loss=Loss("logit_mse_ce", alpha=0.0)).data[0].qrels is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("corpus", ("c",)), ("qrels", "q"), ("run", "r"), ("teacher", "t"), ("skip", True), ("text_limit", 64)],
)
def test_what_a_saved_set_does_not_look_at_is_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"has a set with {name}, and a set is made already: leave it out"):
        Data(set="s", **{name: value})  # type: ignore[arg-type]


def test_sizes_that_do_not_go_together_are_the_recipes_and_not_a_files(made: Path) -> None:
    with pytest.raises(InputError) as caught:
        from_scratch(made / "model", hidden=30, heads=4)
    said = "a hidden size of 30 does not divide into 4 heads: give hidden and heads that go together"
    assert str(caught.value) == said
    assert from_scratch(made / "model", hidden=30).config.hidden == 30  # in the start's two heads


def test_a_folder_that_cannot_be_made_is_found_before_the_data_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "deep" / "out"):
        with pytest.raises(InputError, match="file is a file: give a folder"):
            check_out(out, Path("monobert"))
    check_out(tmp_path / "new" / "out", Path("monobert"))
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="may write everywhere")
def test_nor_one_in_a_folder_that_may_not_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match=r"cannot write .*out"):
            check_out(tmp_path / "out", Path("monobert"))
    finally:
        tmp_path.chmod(0o700)
