"""tamis train: a ranker from a recipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from tamis.cli.arguments import ArgumentParser, json_argument
from tamis.cli.console import LOG_EVERY, duration, note, print_json, progress, warn
from tamis.errors import InputError, MissingDependencyError
from tamis.infer.runtime import Device


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "recipe", metavar="RECIPE", type=Path, help="a TOML file; its `base` may be a bundled recipe"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        required=True,
        help="gets best/ and last/, models; log.jsonl; and state/, to go on from",
    )
    parser.add_argument("--resume", action="store_true", help="go on after an interruption")
    parser.add_argument(
        "--device", choices=get_args(Device), default="auto", help="where to train (auto: CUDA, mps or cpu)"
    )
    json_argument(parser)


def main(recipe: Path, out: Path, resume: bool, device: Device, json: bool) -> None:
    """Train a ranker by a recipe. A run that was killed goes on with the same command and --resume.

    On several cards: torchrun --standalone --nproc-per-node=N --no-python tamis train RECIPE --out DIR
    """
    from tamis.train.recipe import in_steps, read_recipe

    plan = read_recipe(recipe)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file", remedy="give a folder")
    if find_spec("torch") is None:
        raise MissingDependencyError(
            "training needs torch, which is not installed", remedy="pip install 'tamis[torch]'"
        )
    from tamis.models.tokenizer import Tokenizer
    from tamis.train.loop import train
    from tamis.train.sources import open_examples
    from tamis.train.start import load_start
    from tamis.train.state import has_state, read_log

    if has_state(out) and not resume:  # before hours of reading
        raise InputError(f"{out} has a training run in it", remedy="add --resume, or give another folder")
    start = load_start(plan.model, plan.run.seed)
    with progress("Reading the data", "queries") as advance:
        examples = open_examples(plan, Tokenizer(start.folder), advance)
    for data, report in zip(plan.data, examples.reports, strict=True):
        if any(asdict(report).values()):
            warn(f"{data.name}: {report}")
    steps = in_steps(plan, examples.stream.epoch).optimiser.steps or 0
    measure = plan.dev.measure if plan.dev else ""
    try:
        with _live(steps, measure) as tell:
            result = train(plan, examples, out, start=start, device=device, resume=resume, progress=tell)
    except KeyboardInterrupt:
        if has_state(out):
            note(f"{out}: the same command with --resume goes on from the last checkpoint")
        raise
    if os.environ.get("RANK", "0") != "0":  # of several processes, the first one says it
        return
    if json:
        print_json({**asdict(result), "model": str(result.model), "log": read_log(out)})
        return
    best = f"; {measure} {result.best:.4f} at step {result.best_step:,}" if result.best is not None else ""
    sys.stdout.write(f"{result.model}: {result.steps:,} steps in {duration(result.seconds)}{best}\n")


@contextmanager
def _live(steps: int, measure: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function to be told each line of the log: one line that changes on a terminal, now and then a line in
    a log, and each time the dev run is measured."""
    if not sys.stderr.isatty():
        yield _Lines(steps, measure)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeRemainingColumn(compact=True),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Training", total=steps)
        dev = ""

        def tell(line: Mapping[str, Any]) -> None:
            nonlocal dev
            if "dev" in line:
                dev = f", {measure} {line['dev']:.4f}"
            bar.update(task, completed=line["step"], description=described(line, steps, measure) + dev)

        yield tell


class _Lines:
    def __init__(self, steps: int, measure: str) -> None:
        self.steps, self.measure = steps, measure
        self.shown = time.monotonic()

    def __call__(self, line: Mapping[str, Any]) -> None:
        if "dev" in line or time.monotonic() - self.shown >= LOG_EVERY:
            self.shown = time.monotonic()
            dev = f", {self.measure} {line['dev']:.4f}" if "dev" in line else ""
            note(described(line, self.steps, self.measure) + dev)


def described(line: Mapping[str, Any], steps: int, measure: str) -> str:
    """A line of the log, for people.

    >>> described({"step": 20, "loss": 0.693, "learning_rate": 3e-6, "pairs_per_second": 1200.0}, 100, "AP")
    'Training 20 of 100 steps, loss 0.6930, rate 3.0e-06, 1,200 pairs a second'
    """
    text = f"Training {line['step']:,} of {steps:,} steps"
    if "loss" in line:
        text += f", loss {line['loss']:.4f}, rate {line['learning_rate']:.1e}"
        text += f", {line['pairs_per_second']:,.0f} pairs a second"
    return text
