"""tamis train: a ranker from a recipe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tamis.cli.arguments import ArgumentParser
from tamis.cli.console import progress, warn
from tamis.cli.training import Shown, check_out, live, resumable, say, training_arguments
from tamis.infer.runtime import Device


def add_arguments(parser: ArgumentParser) -> None:
    training_arguments(parser)


def main(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """Train a ranker by a recipe. A run that was killed goes on with the same command and --resume.

    On several cards: torchrun --standalone --nproc-per-node=N --no-python tamis train RECIPE --out DIR
    """
    from tamis.train.longdoc_recipe import is_long_recipe
    from tamis.train.recipe import in_steps, read_recipe

    if is_long_recipe(recipe):
        _train_long(recipe, out, resume, device, json)
        return
    plan = read_recipe(recipe)
    check_out(out)
    from tamis.models.tokenizer import Tokenizer
    from tamis.train.loop import train
    from tamis.train.sources import open_examples
    from tamis.train.start import load_start
    from tamis.train.state import require_new

    require_new(out, resume)
    start = load_start(plan.model, plan.run.seed)
    with progress("Reading the data", "queries") as advance:
        examples = open_examples(plan, Tokenizer(start.folder), advance)
    for data, report in zip(plan.data, examples.reports, strict=True):
        if any(asdict(report).values()):
            warn(f"{data.name}: {report}")
    steps = in_steps(plan, examples.stream.epoch).optimiser.steps or 0
    measure = plan.dev.measure if plan.dev else ""
    with resumable(out), live(steps, measure) as tell:
        result = train(plan, examples, out, start=start, device=device, resume=resume, progress=tell)
    say(result, out, measure, json)


def _train_long(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """A model of long documents: its recipe has a table [longdoc]."""
    from tamis.train.longdoc_recipe import read_long_recipe

    plan = read_long_recipe(recipe)
    check_out(out)
    from tamis.train.longdoc import train_by_recipe

    with resumable(out):
        result = train_by_recipe(plan, out, device=device, resume=resume, watch=Shown())
    say(result, out, plan.dev.measure if plan.dev else "", json)
