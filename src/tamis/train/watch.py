"""Who is told how a long job goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Watch:
    """Told of each part of a job as it begins; this one does not look.

    >>> with Watch().reading("the corpus", "documents") as advance:
    ...     advance(10)
    """

    def reading(self, what: str, noun: str) -> AbstractContextManager[Callable[[int], object]]:
        """Something is read: a function to be told how many more."""
        return nullcontext(_ignore)

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        """So many steps are done, with this measure on a dev run: a function to be told each line of the
        log."""
        return nullcontext(_ignore)

    def ranking(self, what: str, count: int) -> AbstractContextManager[Callable[[int], object]]:
        """So many queries are ranked: a function to be told how many more."""
        return nullcontext(_ignore)

    def left_out(self, what: str) -> None:
        """Some of the data was not used, and why."""


def _ignore(value: object) -> None:
    pass
