"""One writer at a time: locks that the operating system lets go of when a process ends, however it ends."""

from __future__ import annotations

import os
from typing import IO, Any

from tamis.errors import LockedError, StorageError
from tamis.files import PathLike


def lock(file: IO[Any], path: PathLike) -> None:
    """Keep an open file for ourselves until it is closed; `path` is what the user knows it by.

    >>> path = getfixture("tmp_path") / "a.journal"
    >>> with path.open("ab") as first, path.open("ab") as second:
    ...     lock(first, "a.journal")
    ...     lock(second, "a.journal")
    Traceback (most recent call last):
    tamis.errors.LockedError: another process is writing to a.journal: wait until it has finished
    """
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        problem = f"another process is writing to {os.fspath(path)}"
        raise LockedError(problem, remedy="wait until it has finished") from None
    except OSError as error:
        problem = f"{os.fspath(path)} cannot be locked ({error.strerror})"
        raise StorageError(problem, remedy="choose a file system that has locks") from error


def _lock(file: IO[Any]) -> None:
    if os.name == "nt":  # pragma: no cover
        import msvcrt

        # Windows locks bytes, and against reading too: the first one, which every process can agree on
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
