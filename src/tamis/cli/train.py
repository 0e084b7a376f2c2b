"""tamis train: a ranker from a recipe."""

from __future__ import annotations

from pathlib import Path

from tamis.cli.arguments import ArgumentParser
from tamis.cli.training import check_out, resumable, say, say_folds, training_arguments, watch
from tamis.core.runtime import Device


def add_arguments(parser: ArgumentParser) -> None:
    training_arguments(parser, "train")


def main(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """Train a ranker from a recipe. After a kill, the same command with --resume continues the training.

    On several cards: torchrun --standalone --nproc-per-node=N --no-python tamis train RECIPE --out DIR
    """
    from tamis.train.recipe import read_recipe

    plan = read_recipe(recipe)
    measure = plan.dev.measure if plan.dev else ""
    check_out(out, recipe)
    with resumable(out, resume):
        if plan.folds is not None:
            from tamis.train.folds import train_folds

            say_folds(train_folds(plan, out, device=device, resume=resume, watch=watch()), measure, json)
            return
        from tamis.train.ranking import train_by_recipe

        result = train_by_recipe(plan, out, device=device, resume=resume, watch=watch())
    say(result, out, measure, json)
