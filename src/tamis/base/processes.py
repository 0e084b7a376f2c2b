"""The processor cores of this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """How many processor cores this process may use.

    >>> available_cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
