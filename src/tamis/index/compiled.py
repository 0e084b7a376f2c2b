"""Whether the compiled parts can be used. They make searching and indexing faster, never different."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec


@cache
def numba_installed() -> bool:
    return find_spec("numba") is not None
