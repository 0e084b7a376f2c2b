"""What the verbs share: results go to the standard output, progress, notes and errors to the other one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 100  # columns, if the output is not a terminal
LOG_EVERY = 30.0  # seconds between lines of progress, if standard error is not a terminal
_REFRESH = 0.1
_ANY_WIDTH = 10_000  # columns
_FOLDED = 16  # least columns of a name that does not fit


def stdout() -> Console:
    """A console on standard output. Output is never parsed as markup, because it may come from a document."""
    return _console(stderr=False)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_table(console: Console, table: Table) -> None:
    """A table, its columns closer together where it would be too wide, and if that is not enough in several
    parts that all begin with the names of the lines: a number that is cut short is another number."""
    if _width(console, table) > console.width:
        table.collapse_padding = True
    if _width(console, table) > console.width:
        table.padding = (0, 0)
    for part in _parts(console, table):
        console.print(part)


def _parts(console: Console, table: Table) -> list[Table]:
    """Tables that are narrow enough. The first columns that may be folded are names, and are in all parts."""
    if _width(console, table, _FOLDED) <= console.width:
        return [table]
    every = range(len(table.columns))
    names = list(takewhile(lambda number: not table.columns[number].no_wrap, every))
    parts: list[list[int]] = [[]]
    for number in every[len(names) :]:
        more = [*names, *parts[-1], number]
        if parts[-1] and _width(console, _some_columns(table, more), _FOLDED) > console.width:
            parts.append([])
        parts[-1].append(number)
    return [_some_columns(table, [*names, *part]) for part in parts]


def _width(console: Console, table: Table, folded: int = _ANY_WIDTH) -> int:
    """How wide a table is, with what may be folded in so many columns."""
    from rich.cells import cell_len

    whole = console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum
    cells = [(column.header, *column.cells, column.footer) for column in table.columns if not column.no_wrap]
    return whole - sum(max(0, max(cell_len(str(cell)) for cell in column) - folded) for column in cells)


def _some_columns(table: Table, numbers: Sequence[int]) -> Table:
    from rich.table import Table

    columns = [table.columns[number] for number in numbers]
    made = Table(
        box=table.box,
        padding=table.padding,
        collapse_padding=table.collapse_padding,
        pad_edge=table.pad_edge,
        show_footer=table.show_footer,
    )
    for column in columns:
        made.add_column(
            column.header,
            column.footer,
            style=column.style,
            justify=column.justify,
            overflow=column.overflow,
            no_wrap=column.no_wrap,
        )
    for row, *cells in zip(table.rows, *(column.cells for column in columns), strict=True):
        made.add_row(*cells, style=row.style, end_section=row.end_section)
    return made


def print_json(value: Any) -> None:
    """The standard output for a machine."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def note(message: str) -> None:
    print(printable(message), file=sys.stderr)  # noqa: T201


def warn(message: str) -> None:
    note(f"warning: {message}")


def printable(text: str) -> str:
    """One line without control characters: a document or a file name must not control the terminal.

    >>> printable("two\\nlines, \\x1b[31mnot red")
    'two lines, [31mnot red'
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c.isspace() or c in _JOINERS else "" for c in text)
    return " ".join(text.split())


_JOINERS = "\u200c\u200d"  # change nothing but the shapes of their neighbours, and some scripts need them


def counted(number: int, noun: str, nouns: str = "") -> str:
    """
    >>> counted(1, "query", "queries"), counted(2000, "document")
    ('1 query', '2,000 documents')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def duration(seconds: float) -> str:
    """
    >>> duration(0.00213), duration(0.25), duration(12.34), duration(754)
    ('2.1 ms', '250 ms', '12.3 s', '12 min 34 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{int(seconds) // 60} min {int(seconds) % 60} s"


def size(number: float) -> str:
    """
    >>> size(999), size(1_480_000), size(23e9)
    ('999 bytes', '1.5 MB', '23.0 GB')
    """
    if number < 1000:
        return counted(int(number), "byte")
    power = min(len(f"{number:.0f}") - 1, 12) // 3
    return f"{number / 1000**power:.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def progress(what: str, noun: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A function that reports progress: a bar on a terminal, an occasional line in a log."""
    if not sys.stderr.isatty():
        yield _Log(what, noun, total).advance
        return
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[Any] = [TextColumn("{task.description}"), TextColumn("{task.fields[done]}")]
    columns += [SpinnerColumn()] if total is None else [BarColumn(), TimeRemainingColumn(compact=True)]
    with Progress(*columns, TimeElapsedColumn(), console=_console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, done="")
        started, shown, done = time.monotonic(), 0.0, 0

        def advance(more: int) -> None:
            nonlocal shown, done
            done += more
            now = time.monotonic()
            if now - shown >= _REFRESH:  # a bar's update costs more than a document
                shown = now
                bar.update(task, completed=done, done=_so_far(done, total, noun, now - started))

        yield advance


class _Log:
    def __init__(self, what: str, noun: str, total: int | None) -> None:
        self.what, self.noun, self.total = what, noun, total
        self.done = 0
        self.started = self.shown = time.monotonic()

    def advance(self, more: int) -> None:
        self.done += more
        now = time.monotonic()
        if now - self.shown >= LOG_EVERY:
            self.shown = now
            note(f"{self.what} {_so_far(self.done, self.total, self.noun, now - self.started)}")


def _so_far(done: int, total: int | None, noun: str, seconds: float) -> str:
    of = "" if total is None else f" of {total:,}"
    rate = f", {done / seconds:,.0f} a second" if seconds > 0.5 else ""
    return f"{done:,}{of} {noun}{rate}"


@contextmanager
def doing(message: str) -> Iterator[None]:
    """A message while something takes a while, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    with _console(stderr=True).status(message):
        yield


def prepare_kernel() -> None:
    """Compile the search kernel, once per machine, or load it: this time is never part of a query's."""
    from tamis.index.compiled import numba_installed

    if numba_installed():
        from tamis.index.warm import warm

        with doing("Preparing the search kernel (compiled once per machine)"):
            warm()
