"""The file descriptors of a server: how many connections it may have, and what happens when none is left."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("tamis.serve")
_MOST = 1_000  # connections
_SHARE = 0.75  # of the descriptors that are free: an index that changes is opened beside the old one
_SILENCE = 60.0  # seconds between two lines in the log


@lru_cache(1)
def most_connections() -> int:
    """How many connections may be open, by the descriptors that the system gives a process."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = sum(1 for _ in Path("/dev/fd").iterdir())
    except (ImportError, OSError):  # not a Unix
        return _MOST
    return _MOST if soft == resource.RLIM_INFINITY else at_most(soft - used)


def at_most(free: int) -> int:
    """Of so many free descriptors.

    >>> at_most(1004), at_most(100), at_most(0), at_most(1_000_000)
    (753, 75, 1, 1000)
    """
    return max(1, min(_MOST, int(_SHARE * free)))


def on_loop_error(
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """The exception handler of the event loop. asyncio stops accepting for a second when no descriptor is
    left, and logs a traceback per connection: here it is one line per minute."""
    silent_until = float("-inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal silent_until
        if "socket.accept()" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif clock() >= silent_until:
            silent_until = clock() + _SILENCE
            _LOG.error(
                "cannot accept connections (%s): allow more open files (ulimit -n)", context.get("exception")
            )

    return handle
