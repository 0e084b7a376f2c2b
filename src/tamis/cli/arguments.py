"""Reading command lines, by argparse: prettier parsers take longer to start than a search takes."""

from __future__ import annotations

import argparse
from typing import NoReturn

from tamis.errors import InputError


class ArgumentParser(argparse.ArgumentParser):
    """Says what is wrong in one line, as everything else does."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, remedy=f"see `{self.prog} --help`")


def at_least_one(text: str) -> int:
    """
    >>> at_least_one("10")
    10
    """
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def pipeline_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-p",
        "--pipeline",
        default="bm25",
        metavar="P",
        help="the stages, such as 'bm25(k1=1.2, b=0.75) >> rm3' (bm25)",
    )


def json_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
