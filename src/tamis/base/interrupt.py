"""Cancels a search that is no longer needed.

Long-running code calls `check` between its short parts. The caller in the same thread decides what `check`
does; by default it does nothing. Compiled code cannot call back, and reads `waiting` instead. A request to
another machine takes no longer than `remaining`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from tamis.base.arrays import Array


def _go_on() -> None:
    """The default of `check`."""


class _Current(threading.local):
    """The thread's `check` and `waiting`."""

    def __init__(self) -> None:
        self.check: Callable[[], object] = _go_on
        self.waiting: Array = np.ones(1, dtype=bool)
        self.deadline: float | None = None


_current = _Current()


def check() -> None:
    """Call the check set by `interruptible`, which raises an exception if the work is cancelled."""
    _current.check()


def current_check() -> Callable[[], object]:
    """The thread's `check`, to be called from other threads that work for it."""
    return _current.check


def waiting() -> Array:
    """One flag per client that waits for the result, for compiled code. When all are false, the code may
    return any result, because the `check` that must follow raises."""
    return _current.waiting


def remaining() -> float | None:
    """Seconds until the deadline; None without one.

    >>> remaining() is None
    True
    """
    return None if _current.deadline is None else max(_current.deadline - time.monotonic(), 0.0)


@contextmanager
def interruptible(
    check: Callable[[], object], waiting: Array, deadline: float | None = None
) -> Iterator[None]:
    """Within the block, in this thread, `check` is called between the parts of a long search. It must raise
    when all flags of `waiting` are false. The `deadline` is by the monotonic clock.

    >>> def stop() -> None:
    ...     raise TimeoutError
    >>> with interruptible(stop, np.zeros(1, dtype=bool)):
    ...     check()
    Traceback (most recent call last):
    TimeoutError
    >>> check()
    """
    before = _current.check, _current.waiting, _current.deadline
    _current.check, _current.waiting, _current.deadline = check, waiting, deadline
    try:
        yield
    finally:
        _current.check, _current.waiting, _current.deadline = before
