"""The errors a user can meet: each says in one line what is wrong and what to do about it."""

from __future__ import annotations

from pathlib import Path

QUOTED = 100  # characters of a value that an error quotes
_LONGEST = 2000  # characters of a whole message, whatever it quotes: a log or an answer has to hold it


def quoted(value: object, limit: int = QUOTED) -> str:
    """A value as an error quotes it: its `repr`, cut after `limit` characters. What comes from a file or a
    request may be of any size, nested too deeply for `repr`, or a number of too many digits.

    >>> quoted("d1"), quoted("d" * 1_000_000, limit=5), quoted(16**5000)
    ("'d1'", "'dddd...", 'an int of too many digits')
    """
    if isinstance(value, str | bytes):
        value = value[: limit + 1]  # a text of a gigabyte is not copied
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply"
    except ValueError:  # Python writes out no more than 4,300 digits
        return f"an {type(value).__name__} of too many digits"
    return text if len(text) <= limit + 2 else f"{text[:limit]}..."  # 2: the quotes


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
    """A pipeline expression that does not parse, or names what does not exist."""


class CorruptError(TamisError):
    """Bytes on disk that are not the bytes that were written."""


class LockedError(TamisError):
    """Another process is writing to the same place."""


class StorageError(TamisError):
    """The disk is full, the folder is read-only, or the file system refused."""


class UnknownDocumentError(TamisError, KeyError):
    """An id that the index or corpus does not hold."""

    __str__ = Exception.__str__  # KeyError would print the repr


class MissingDependencyError(TamisError):
    """An optional package that this call needs is not installed."""
