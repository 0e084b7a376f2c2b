"""Queries to try instead, looked for while the search itself is under way."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tamis.base.interrupt import interruptible
from tamis.index.index import Index
from tamis.index.suggest import suggest

_SHARE = 0.25  # of a request's time; an answer goes without a suggestion that takes longer


class Suggestions:
    """One thread for them all: however many queries are misspelt, the processor is there for the answers."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "tamis-suggestions")

    def begin(self, index: Index, query: str, seconds: float) -> Suggesting:
        """Begin to look for a suggestion for a request that has so many seconds."""
        until = time.monotonic() + _SHARE * seconds
        return Suggesting(self.thread.submit(_suggested, index, query, until), until)

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)


class Suggesting:
    """A suggestion that is being looked for."""

    def __init__(self, looking: Future[str | None], until: float) -> None:
        self._looking, self._until = looking, until

    async def result(self) -> str | None:
        """The suggestion; None where there is none, or none in time."""
        looked = asyncio.wrap_future(self._looking)
        await asyncio.wait({looked}, timeout=max(self._until - time.monotonic(), 0.0))
        if not looked.done():
            looked.cancel()  # if it has not begun
        return None if looked.cancelled() or not looked.done() else looked.result()


def _suggested(index: Index, query: str, until: float) -> str | None:
    def check() -> None:
        if time.monotonic() >= until:
            raise TimeoutError

    try:
        with interruptible(check, np.ones(1, dtype=bool)):
            check()  # it may have waited for others
            found = suggest(index, query)
    except TimeoutError:
        return None
    return found.query if found else None
