"""tamis distill: a small model from a large one."""

from __future__ import annotations

from pathlib import Path

from tamis.cli.arguments import ArgumentParser
from tamis.cli.training import check_out, resumable, say, training_arguments, watch
from tamis.core.runtime import Device


def add_arguments(parser: ArgumentParser) -> None:
    training_arguments(parser, "distill")


def main(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """Distil a large model into a small one, from a recipe. After a kill, the same command with --resume
    continues in the phase that was interrupted; with two phases, the first is in DIR/lm.

    On several cards: torchrun --standalone --nproc-per-node=N --no-python tamis distill RECIPE --out DIR
    """
    from tamis.train.distill_recipe import read_distill_recipe

    plan = read_distill_recipe(recipe)
    check_out(out, recipe)
    from tamis.train.distillation import distill

    with resumable(out, resume):
        result = distill(plan, out, device=device, resume=resume, watch=watch())
    dev = plan.ranker and plan.ranker.dev
    say(result, out, dev.measure if dev else "", json)
