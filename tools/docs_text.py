"""Markdown for the reference pages: tables, definitions, and what an object says of itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """
    >>> print(table(["a", "b"], [["1", "x | y"]]))
    | a | b |
    |---|---|
    | 1 | x \\| y |
    """
    lines = [list(head), ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return (
        "\n".join(f"| {' | '.join(line)} |" for line in lines)
        .replace("| --- |", "|---|")
        .replace(" --- |", "---|")
    )


def definition(code: str, text: str) -> str:
    """Of an argument or a method; a table would be too wide for a phone.

    >>> print(definition("-k N", "how many"))
    `-k N`
    <BLANKLINE>
    :   how many
    """
    indented = "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
    return f"`{code}`\n\n:{indented[1:]}"


def docstring(of: Any) -> str:
    """What an object says of itself, its examples as blocks of code.

    >>> docstring(table).splitlines()[:2]
    ['```pycon', '>>> print(table(["a", "b"], [["1", "x | y"]]))']
    """
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.getdoc(of) or ""):
        if paragraph.lstrip().startswith(">>>"):
            paragraphs.append(f"```pycon\n{inspect.cleandoc(paragraph)}\n```")
        elif before := re.match(r"(.*?)\n\s*(>>> .*)", paragraph, re.DOTALL):
            paragraphs += [before[1], f"```pycon\n{inspect.cleandoc(before[2])}\n```"]
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)
