"""What `tamis train`, `distill` and `pretrain` share: their options, their progress and their last line."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tamis.base.errors import InputError, MissingDependencyError
from tamis.base.extras import install
from tamis.cli.arguments import ArgumentParser, Paragraphs, json_argument
from tamis.cli.console import LOG_EVERY, counted, duration, note, print_json, progress, warn
from tamis.cli.outputs import check_output, strings_in
from tamis.core.runtime import Device
from tamis.storage.files import storage_errors
from tamis.train.watch import Watch

if TYPE_CHECKING:
    from tamis.train.folds import FoldsResult
    from tamis.train.loop import Result


def training_arguments(parser: ArgumentParser, command: str) -> None:
    from tamis.train.bases import bundled_for

    recipes = (f"  {name}  {what}" for name, what in bundled_for(command).items())
    parser.formatter_class = Paragraphs
    parser.epilog = "\n".join(["bundled recipes, which a recipe may also have as its base:\n", *recipes])
    parser.add_argument(
        "recipe", metavar="RECIPE", type=Path, help="a TOML file, or the name of a bundled recipe (below)"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        required=True,
        help="output folder: the models best/ and last/, log.jsonl, and state/ for --resume",
    )
    parser.add_argument("--resume", action="store_true", help="resume after an interruption")
    parser.add_argument(
        "--device", choices=get_args(Device), default="auto", help="where to train (auto: CUDA, mps or cpu)"
    )
    json_argument(parser)


def check_out(out: Path, recipe: Path) -> None:
    """Before torch is loaded: a folder can be made in which nothing is that the recipe reads, and torch is
    there."""
    from tamis.train.bases import read_tables

    paths = list(strings_in(read_tables(recipe)))
    reads = [str(recipe), *paths, *(str(recipe.parent / path) for path in paths)]
    for folder in (out, out / "best", out / "last"):
        check_output(folder, *reads)
    there = next(each for each in (out, *out.absolute().parents) if each.exists())
    if not there.is_dir():
        raise InputError(f"{there} is a file", remedy="give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        with storage_errors(out):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if find_spec("torch") is None:
        raise MissingDependencyError("training needs torch, which is not installed", remedy=install("torch"))


@contextmanager
def resumable(out: Path, resume: bool) -> Iterator[None]:
    """Report how to resume after an interruption, and warn if --resume finds nothing to resume."""
    from tamis.train.state import BEFORE, BEST, LAST, LOG, STATE

    def begun(name: Path | str) -> bool:
        return (out / name).exists() or any(out.glob(f"*/{Path(name).as_posix()}"))

    if resume and _first() and not begun(STATE) and not begun(LAST):
        if begun(BEST) or begun(LOG):
            note(f"{out} contains {BEFORE}: it is started again")
        else:  # perhaps the folder's name is mistyped
            note(f"{out} contains no training run: a new one is started")
    try:
        yield
    except KeyboardInterrupt:
        if _first() and begun(STATE):
            note(f"{out}: the same command with --resume continues from the last checkpoint")
        raise


def say(result: Result, out: Path, measure: str, json: bool) -> None:
    """Print the result of the training."""
    from tamis.train.state import read_log

    if not _first():
        return
    if json:
        print_json({**asdict(result), "model": str(result.model), "log": read_log(out)})
    else:
        sys.stdout.write(_line(result, measure))


def say_folds(result: FoldsResult, measure: str, json: bool) -> None:
    """What came of each fold, and of all."""
    if not _first():
        return
    if json:
        folds = [{**asdict(fold), "model": str(fold.model)} for fold in result.folds]
        print_json({**asdict(result), "run": str(result.run), "folds": folds})
        return
    for fold in result.folds:
        sys.stdout.write(_line(fold, measure))
    what = f"{counted(result.queries, 'query', 'queries')} of {counted(len(result.folds), 'test fold')}"
    sys.stdout.write(f"{result.run}: {what}\n")


def _line(result: Result, measure: str) -> str:
    best = f"; {measure} {result.best:.4f} at step {result.best_step:,}" if result.best is not None else ""
    early = ", stopped early," if result.stopped else ""
    return f"{result.model}: {result.steps:,} steps{early} in {duration(result.seconds)}{best}\n"


def _first() -> bool:
    """Of several processes, the first one speaks."""
    return os.environ.get("RANK", "0") == "0"


def watch() -> Watch:
    """What the terminal, or a log, shows of a job."""
    return Shown() if _first() else Watch()


class Shown(Watch):
    """A job that is watched on the terminal, or in a log."""

    def reading(self, what: str, noun: str) -> AbstractContextManager[Callable[[int], object]]:
        return progress(f"Reading {what}", noun)

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        return live(steps, measure, what)

    def ranking(self, what: str, count: int) -> AbstractContextManager[Callable[[int], object]]:
        return progress(f"Ranking {what}", "queries", count)

    def left_out(self, what: str) -> None:
        warn(what)


@contextmanager
def live(steps: int, measure: str, what: str = "Training") -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that receives each line of the log: one changing line on a terminal, an occasional line in a
    log, and a line for each dev run. The first tells how many steps there are: they may take long."""
    first = f"{what}, {counted(steps, 'step')}"
    if not sys.stderr.isatty():
        if _first():
            note(first)
        yield _Lines(steps, measure, what)
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
        task = bar.add_task(first, total=steps)
        dev = ""

        def tell(line: Mapping[str, Any]) -> None:
            nonlocal dev
            if "dev" in line:
                dev = f", {measure} {line['dev']:.4f}"
            bar.update(task, completed=line["step"], description=described(line, steps, what) + dev)

        yield tell


class _Lines:
    def __init__(self, steps: int, measure: str, what: str) -> None:
        self.steps, self.measure, self.what = steps, measure, what
        self.shown = time.monotonic()

    def __call__(self, line: Mapping[str, Any]) -> None:
        if "dev" in line or time.monotonic() - self.shown >= LOG_EVERY:
            self.shown = time.monotonic()
            dev = f", {self.measure} {line['dev']:.4f}" if "dev" in line else ""
            note(described(line, self.steps, self.what) + dev)


def described(line: Mapping[str, Any], steps: int, what: str = "Training") -> str:
    """A line of the log, for people.

    >>> described({"step": 20, "loss": 0.693, "learning_rate": 3e-6, "pairs_per_second": 1200.0}, 100)
    'Training 20 of 100 steps, loss 0.6930, rate 3.0e-06, 1,200 pairs a second'
    """
    text = f"{what}{':' if ' ' in what else ''} {line['step']:,} of {steps:,} steps"
    if "loss" in line:
        text += f", loss {line['loss']:.4f}, rate {line['learning_rate']:.1e}"
        text += f", {line['pairs_per_second']:,.0f} pairs a second"
    return text
