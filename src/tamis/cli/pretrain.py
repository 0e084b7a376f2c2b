"""tamis pretrain: a model that has read the texts it is to rank."""

from __future__ import annotations

from pathlib import Path

from tamis.cli.arguments import ArgumentParser
from tamis.cli.training import check_out, resumable, say, training_arguments, watch
from tamis.core.runtime import Device


def add_arguments(parser: ArgumentParser) -> None:
    training_arguments(parser, "pretrain")


def main(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """Pretrain a model on a corpus, from a recipe; `tamis train` can start from the result. After a kill, the
    same command with --resume continues the training.

    On several cards: torchrun --standalone --nproc-per-node=N --no-python tamis pretrain RECIPE --out DIR
    """
    from tamis.train.pretrain_recipe import read_pretrain_recipe

    plan = read_pretrain_recipe(recipe)
    check_out(out, recipe)
    from tamis.train.pretrain_task import pretrain

    with resumable(out, resume):
        result = pretrain(plan, out, device=device, resume=resume, watch=watch())
    say(result, out, "", json)
