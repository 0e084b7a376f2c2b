"""The processor cores of this process, and the processes of a session."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def available_cores() -> int:
    """How many processor cores this process may use.

    >>> available_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_session(leader: int) -> None:
    """End all processes of a session, the leader last."""
    end_others(leader)
    with suppress(OSError):
        os.kill(leader, signal.SIGKILL)


def end_others(leader: int) -> None:
    """End all processes of a session but for its leader."""
    for pid in session(leader):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def session(leader: int) -> list[int]:
    """The processes of a session but for its leader, where the system says which they are.

    >>> session(-1)
    []
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            if pid != leader and os.getsid(pid) == leader:
                found.append(pid)
    return found
