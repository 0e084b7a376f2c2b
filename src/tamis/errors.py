"""The errors a user can meet: each says in one line what is wrong and what to do about it."""

from __future__ import annotations

from pathlib import Path


class TamisError(Exception):
    """Base of every error that tamis raises on purpose.

    >>> raise TamisError("the index is locked", remedy="wait for the other writer")
    Traceback (most recent call last):
    tamis.errors.TamisError: the index is locked: wait for the other writer
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
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
            problem = f"{path}, line {line}: {problem}" if line is not None else f"{path}: {problem}"
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
