"""A query's candidates on their way from exit to exit, ever fewer of them: the same on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import TamisError
from tamis.infer.engine import Backend, Check, Engine, OutOfMemory, go_on
from tamis.models.templates import Inputs

#: Of the live candidates, by their numbers, and their margins at an exit: the numbers of those that go on,
#: who may be none.
Keep = Callable[[Array, Array], Array]


class ExitBackend(Backend, Protocol):
    """A model with exits on a device; `margins` are the last exit's."""

    def walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check = go_on) -> Array:
        """The margins of one query's candidates at each exit, float32[candidates, exits]; NaN at those that
        they did not reach. `wanted` is called before each batch."""
        ...


class CascadeEngine(Engine):
    """Scores a query's candidates from exit to exit, whatever their number."""

    def __init__(self, backend: ExitBackend) -> None:
        super().__init__(backend)
        self.cascade = backend

    def walk(self, inputs: Inputs, keep: Keep) -> Array:
        """See `ExitBackend.walk`."""
        while True:
            try:
                return self.cascade.walk(inputs, keep, self.token_budget, self.check)
            except OutOfMemory:
                self.token_budget //= 2
            if self.token_budget < inputs.lengths.max():
                raise TamisError(
                    f"{len(inputs):,} candidates do not fit the memory of {self.cascade.description}",
                    remedy="rank fewer, use a smaller model, shorter inputs or device='cpu'",
                )


def exit_margins(
    candidates: int, exits: int, ask: Callable[[int, Array], Array], keep: Keep, description: str
) -> Array:
    """The margins at each exit, float32[candidates, exits]. `ask` gives those of the live candidates at the
    next exit, both by their numbers; `description` is what an error calls the backend.

    >>> margins = np.array([[9.0, 1.0], [8.0, 2.0]])
    >>> exit_margins(2, 2, lambda exit, live: margins[live, exit], lambda live, _: live[:1], "it").tolist()
    [[9.0, 1.0], [8.0, nan]]
    """
    found = np.full((candidates, exits), np.nan, np.float32)
    live = np.arange(candidates)
    for exit in range(exits):
        if exit:
            live = np.sort(keep(live, found[live, exit - 1]))
        if not len(live):
            break
        found[live, exit] = ask(exit, live)
        if np.isnan(found[live, exit]).any():  # which would say that they have left
            problem = f"the scores of {description} are not numbers"
            raise TamisError(problem, remedy="use precision=fp32, or another model")
    return found
