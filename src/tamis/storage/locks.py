"""Locks for a single writer, which the operating system releases when a process ends for any reason.

On POSIX they use `flock`, which locks an open file, not a process: a forked child would hold the lock too,
even after its parent has ended. So when Python forks, the child closes the locked files that it inherits;
this does not unlock them in the parent. A program started with `exec` inherits none. (C code that forks
without Python's knowledge is not covered.)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tamis.base.errors import LockedError, StorageError
from tamis.storage.files import PathLike, make_folder, storage_errors

_OURS: weakref.WeakSet[IO[Any]] = weakref.WeakSet()


def not_inherited(file: IO[Any]) -> None:
    """Close a file in forked children without flushing its buffer: parent and child share one file position,
    so that the data would be written twice."""
    _OURS.add(file)


def lock(file: IO[Any], path: PathLike) -> None:
    """Lock an open file until it is closed; `path` is its name in error messages.

    >>> path = getfixture("tmp_path") / "a.journal"
    >>> with path.open("ab") as first, path.open("ab") as second:
    ...     lock(first, "a.journal")
    ...     lock(second, "a.journal")
    Traceback (most recent call last):
    tamis.base.errors.LockedError: another process is writing to a.journal: wait until it has finished
    """
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        problem = f"another process is writing to {os.fspath(path)}"
        raise LockedError(problem, remedy="wait until it has finished") from None
    except OSError as error:
        problem = f"{os.fspath(path)} cannot be locked ({error.strerror})"
        raise StorageError(problem, remedy="choose a file system that has locks") from error
    not_inherited(file)


def is_there(file: IO[Any], path: PathLike) -> bool:
    """Whether an open file is still the one at `path`: a lock on a removed file has no effect.

    >>> path = getfixture("tmp_path") / "lock"
    >>> with path.open("w") as file:
    ...     before = is_there(file, path)
    ...     path.unlink()
    ...     before, is_there(file, path)
    (True, False)
    """
    if file.closed:
        return False
    try:
        return os.path.samestat(Path(path).stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


class FolderLock:
    """A held lock of a folder."""

    def __init__(self, folder: Path, file: IO[Any]) -> None:
        self.folder = folder
        self._file = file

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that locked the folder, or the lock was released."""
        return self._file.closed

    @property
    def is_held(self) -> bool:
        """Whether the lock is still held: False if the lock's file was removed, or if `is_inherited`."""
        return is_there(self._file, self.folder / "lock")

    def check(self) -> None:
        """Raise an error if the lock was lost. Call this before making written data visible, because another
        process may have locked the folder meanwhile."""
        if not self.is_held:
            raise LockedError(
                f"the lock of {self.folder} was lost (somebody removed {self.folder / 'lock'}, or a forked "
                "process writes)",
                remedy="open another writer: the last commit is complete",
            )


@contextmanager
def folder_lock(folder: Path) -> Iterator[FolderLock]:
    """Hold the lock of a folder, which is created if it does not exist.

    >>> with folder_lock(getfixture("tmp_path") / "idx") as held:
    ...     held.is_held
    True
    """
    path = folder / "lock"
    while True:
        with storage_errors(path):
            make_folder(folder)
            file = path.open("a+b", buffering=0)
        with file:
            lock(file, folder)
            if is_there(file, path):  # otherwise it was removed after it was opened
                yield FolderLock(folder, file)
                return


def _lock(file: IO[Any]) -> None:
    if os.name == "nt":  # pragma: no cover
        import msvcrt

        # Windows locks bytes, also for readers; all processes lock the first byte
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _close_inherited() -> None:
    for file in list(_OURS):
        with suppress(OSError):
            getattr(file, "raw", file).close()  # not its buffer, which would be written
    _OURS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
