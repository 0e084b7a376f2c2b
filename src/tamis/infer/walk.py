"""A query's candidates on their way from exit to exit, ever fewer of them: the same on every device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import TamisError

#: Of the live candidates, by their numbers, and their margins at an exit: the numbers of those that go on,
#: who may be none.
Keep = Callable[[Array, Array], Array]


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
