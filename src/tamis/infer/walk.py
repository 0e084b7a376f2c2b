"""Runs a query's candidates from exit to exit, with fewer at each one, in the same way on every device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import TamisError

#: Takes the indices of the live candidates and their margins at an exit, and returns the indices of those
#: that continue, possibly none.
Keep = Callable[[Array, Array], Array]


def exit_margins(
    candidates: int, exits: int, ask: Callable[[int, Array], Array], keep: Keep, description: str
) -> Array:
    """The margins at each exit, float32[candidates, exits]. `ask` takes the index of an exit and the indices
    of the live candidates, and returns their margins; `description` is the name of the backend in errors.

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
        if np.isnan(found[live, exit]).any():  # NaN would mean that they have left
            problem = f"the scores of {description} are not numbers"
            raise TamisError(problem, remedy="use precision=fp32, or another model")
    return found
