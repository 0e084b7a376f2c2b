"""Reading command lines, by argparse: prettier parsers take longer to start than a search takes."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn, get_args

from tamis.base.errors import InputError
from tamis.core.defaults import NAMED
from tamis.core.query_syntax import QuerySyntax
from tamis.core.runtime import Device, Precision
from tamis.index.place import Place, is_address
from tamis.storage.files import STDIN


class Paragraphs(argparse.HelpFormatter):
    """Help whose paragraphs stay apart; a line that begins with spaces is a name, and what it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            self._entry(part, width)
            if re.match(r"  \S", part)
            else super(Paragraphs, self)._fill_text(part, width, indent) + "\n"
            for part in re.split(r"\n(?=  \S)|\n\s*\n", text.strip("\n"))
        )

    def _entry(self, line: str, width: int) -> str:
        from textwrap import wrap

        name, _, what = line.strip().partition("  ")
        first, then = f"  {name:<22}", " " * 24
        return "\n".join(wrap(what.strip(), width, initial_indent=first, subsequent_indent=then))


class ArgumentParser(argparse.ArgumentParser):
    """A parser that reports errors in one line, like all of tamis."""

    def error(self, message: str) -> NoReturn:
        # argparse names unknown arguments only in its message
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        near = get_close_matches(unknown, self._option_string_actions, 1) if unknown[:1] == "-" else []
        meant = f"use {near[0]}, or " if near else ""
        raise InputError(message, remedy=f"{meant}see `{self.prog} --help`")


def place_of_index(text: str) -> Place:
    """A folder or an address, in which a path would lose a slash.

    >>> place_of_index("opensearch://localhost:9200/books")
    'opensearch://localhost:9200/books'
    """
    return text if is_address(text) else Path(text)


def folder_of_index(text: str) -> Path:
    """For what only an index on disk can do.

    >>> folder_of_index("opensearch://localhost:9200/books")
    Traceback (most recent call last):
    tamis.base.errors.InputError: opensearch://localhost:9200/books is not an index on disk: give the folder
    of one, or use the cluster's own tools
    """
    if is_address(text):
        remedy = "give the folder of one, or use the cluster's own tools"
        raise InputError(f"{text} is not an index on disk", remedy=remedy)
    return Path(text)


def index_argument(parser: ArgumentParser, use: str = "", *, optional: bool = False) -> None:
    about = f"an index, made by `tamis index`: a folder or opensearch://HOST:PORT/NAME{use}"
    parser.add_argument(
        "index", metavar="IDX", type=place_of_index, nargs="?" if optional else None, help=about
    )


def at_least_one(text: str) -> int:
    """
    >>> at_least_one("10")
    10
    """
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def pipeline_argument(parser: ArgumentParser, default: str = "bm25", use: str = "") -> None:
    meaning = f"{default}, which is {NAMED[default]}" if default in NAMED else default
    about = f"the stages{use}, such as 'bm25(k1=1.2, b=0.75) % 100 >> mono' ({meaning})"
    parser.add_argument("-p", "--pipeline", default=default, metavar="P", help=about.replace("%", "%%"))


def condition_arguments(parser: ArgumentParser) -> None:
    """Which documents may be found."""
    parser.add_argument(
        "--where",
        metavar="C",
        help="find only documents whose metadata satisfies a condition, such as "
        "'year >= 2020 and lang in (en, fr)'",
    )
    parser.add_argument(
        "--query-syntax",
        choices=get_args(QuerySyntax),
        default="plain",
        help='plain: words; simple: also "a phrase", +required, -excluded (plain)',
    )


def runtime_arguments(parser: ArgumentParser) -> None:
    """How the models of a pipeline are run: the parameters of a `Runtime`."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "--device",
        choices=get_args(Device),
        default="auto",
        help="device that they run on (auto: CUDA, or cpu)",
    )
    group.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="auto",
        help="precision that they compute in (auto: bf16 on CUDA, int8 on cpu)",
    )
    group.add_argument("--workers", type=at_least_one, metavar="N", help="CPU cores that they use (all)")
    group.add_argument(
        "--cache",
        type=Path,
        metavar="FILE",
        help="file that caches scores: those found in it are not computed again",
    )


def json_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def check_standard_input(*files: str | None) -> None:
    """Refuse to read two of the files from it.

    >>> check_standard_input("a.run", "-", None)
    """
    if files.count(STDIN) > 1:
        raise InputError("only one input can be the standard input", remedy="give files for the others")
