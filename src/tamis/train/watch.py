"""The interface that receives the progress of a long job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Watch:
    """Called at the start of each part of a job; this base class ignores all calls.

    >>> with Watch().reading("the corpus", "documents") as advance:
    ...     advance(10)
    """

    def reading(self, what: str, noun: str) -> AbstractContextManager[Callable[[int], object]]:
        """Start reading: yields a function to call with the number of further units."""
        return nullcontext(_ignore)

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        """Start training of `steps` steps, with `measure` on a dev run: yields a function to call with each
        line of the log."""
        return nullcontext(_ignore)

    def ranking(self, what: str, count: int) -> AbstractContextManager[Callable[[int], object]]:
        """Start ranking `count` queries: yields a function to call with the number of further queries."""
        return nullcontext(_ignore)

    def left_out(self, what: str) -> None:
        """Report that some data was not used, and why."""


def _ignore(value: object) -> None:
    pass
