"""What models do while something is ranked, written down query by query by whoever runs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tamis.base.documents import Query

#: For each query what was read for it: something with the numbers `inferences` and `cached`.
Ledger = list[tuple[Query, Any]]

_LEDGER: ContextVar[Ledger | None] = ContextVar("_LEDGER", default=None)


@contextmanager
def ledger() -> Iterator[Ledger]:
    """What models do in this thread meanwhile, query by query: a stage's own tally is the sum over all
    queries, and a stage may have several models inside. One ledger inside another is part of it.

    >>> from types import SimpleNamespace
    >>> with ledger() as outer, ledger() as inner:
    ...     record([(Query("q", "sieve"), SimpleNamespace(inferences=2, cached=1))])
    >>> outer == inner, sum(each.inferences for _, each in outer)
    (True, 2)
    """
    work: Ledger = []
    around = _LEDGER.get()
    token = _LEDGER.set(work)
    try:
        yield work
    finally:
        _LEDGER.reset(token)
        if around is not None:
            around += work


def record(entries: Iterable[tuple[Query, Any]]) -> None:
    """Tell the ledger, if one is kept."""
    if (work := _LEDGER.get()) is not None:
        work.extend(entries)
