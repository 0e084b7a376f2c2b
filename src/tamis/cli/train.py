"""tamis train: a ranker from a recipe."""

from __future__ import annotations

from pathlib import Path

from tamis.cli.arguments import ArgumentParser
from tamis.cli.training import Shown, check_out, resumable, say, say_folds, training_arguments
from tamis.core.runtime import Device


def add_arguments(parser: ArgumentParser) -> None:
    training_arguments(parser)


def main(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """Train a ranker by a recipe. A run that was killed goes on with the same command and --resume.

    On several cards: torchrun --standalone --nproc-per-node=N --no-python tamis train RECIPE --out DIR
    """
    from tamis.train.cascade_recipe import CascadeRecipe
    from tamis.train.listwise_recipe import ListRecipe
    from tamis.train.longdoc_recipe import LongRecipe
    from tamis.train.recipe import read_recipe

    plan = read_recipe(recipe)
    measure = plan.dev.measure if plan.dev else ""
    check_out(out, recipe)
    with resumable(out, resume):
        if plan.folds is not None:
            from tamis.train.folds import train_folds

            say_folds(train_folds(plan, out, device=device, resume=resume, watch=Shown()), measure, json)
            return
        if isinstance(plan, LongRecipe):
            from tamis.train import longdoc

            result = longdoc.train_by_recipe(plan, out, device=device, resume=resume, watch=Shown())
        elif isinstance(plan, CascadeRecipe):
            from tamis.train import cascade

            result = cascade.train_by_recipe(plan, out, device=device, resume=resume, watch=Shown())
        elif isinstance(plan, ListRecipe):
            from tamis.train import listwise

            result = listwise.train_by_recipe(plan, out, device=device, resume=resume, watch=Shown())
        else:
            from tamis.train import ranking as loop

            result = loop.train_by_recipe(plan, out, device=device, resume=resume, watch=Shown())
    say(result, out, measure, json)
