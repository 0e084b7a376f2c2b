"""Errors for users: each states the problem and the remedy in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

NAMED = 5  # maximum number of ids or names in a message
QUOTED = 100  # characters of a value that an error quotes
_LONGEST = 2000  # maximum characters of a message, so that it fits into a log or a response


def quoted(value: object, limit: int = QUOTED) -> str:
    """A value for an error message: its `repr`, truncated after `limit` characters. A value from a file or a
    request may have any size, be nested too deeply for `repr`, or be a number with too many digits.

    >>> quoted("d1"), quoted("d" * 1_000_000, limit=5), quoted(16**5000)
    ("'d1'", "'dddd...", 'an int of too many digits')
    """
    if isinstance(value, str | bytes):
        value = value[: limit + 1]  # do not copy a text of a gigabyte
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"
    except ValueError:  # Python converts at most 4,300 digits
        return f"an {type(value).__name__} of too many digits"
    return text if len(text) <= limit + 2 else f"{text[:limit]}..."  # 2: the quotes


def some(names: Iterable[str], between: str = ", ") -> str:
    """The first few names for a message, and how many more there are.

    >>> some(["d1", "d2"]), some(f"d{n}" for n in range(1, 1008))
    ('d1, d2', 'd1, d2, d3, d4, d5 and 1,002 more')
    """
    every = list(names)
    more = f" and {len(every) - NAMED:,} more" if len(every) > NAMED else ""
    return between.join(every[:NAMED]) + more


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The remedy for an unknown name.

    >>> did_you_mean("bm26", ["bm25", "ql"]), did_you_mean("titel", ["bm25", "ql"])
    ('did you mean bm25? Use bm25, ql', 'use bm25, ql')
    """
    from difflib import get_close_matches  # slow to import, and rarely needed

    every = ", ".join(known)
    near = get_close_matches(name[:QUOTED], known, 1)
    return f"did you mean {near[0]}? Use {every}" if near else f"use {every}"


def _clipped(text: str, limit: int = _LONGEST) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


class TamisError(Exception):
    """Base of every error that tamis raises on purpose.

    >>> raise TamisError("the index is locked", remedy="wait for the other writer")
    Traceback (most recent call last):
    tamis.base.errors.TamisError: the index is locked: wait for the other writer
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem = problem = _clipped(problem)
        self.remedy = remedy = _clipped(remedy)
        super().__init__(f"{problem}: {remedy}" if remedy else problem)


class InputError(TamisError):
    """A value, a file or a line that cannot be used.

    >>> str(InputError("3 columns where a run has 6", path="bm25.txt", line=7))
    'bm25.txt, line 7: 3 columns where a run has 6'
    """

    def __init__(
        self, problem: str, *, remedy: str = "", path: str | Path | None = None, line: int | None = None
    ) -> None:
        self.path = None if path is None else str(path)
        self.line = line
        if path is not None:
            place = _clipped(str(path), _LONGEST // 2)
            problem = f"{place}, line {line}: {problem}" if line is not None else f"{place}: {problem}"
        super().__init__(problem, remedy=remedy)


class ExpressionError(InputError):
    """A pipeline expression that is invalid, or uses an unknown name."""


class CorruptError(TamisError):
    """Data on disk that differs from the data that was written."""


class LockedError(TamisError):
    """Another process is writing to the same place."""


class StorageError(TamisError):
    """The disk is full, the folder is read-only, or the file system reported an error."""


class UnknownDocumentError(TamisError, KeyError):
    """An id that is not in the index or corpus."""

    __str__ = Exception.__str__  # KeyError would print the repr


class MissingDependencyError(TamisError, ImportError):
    """An optional package that this call needs is not installed."""
