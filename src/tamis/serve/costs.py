"""How long a stage is going to take, by what it has taken lately."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_FORGET = 0.7  # what is left of an estimate after the next measurement
_TRUSTED = 5.0  # seconds that an estimate holds
_REMEMBERED = 256  # stages with an estimate


class Costs:
    """What a unit of a stage's work has taken lately, in seconds.

    >>> costs = Costs()
    >>> costs.learn("mono", 100, 0.5)
    >>> costs.seconds("mono", 20), costs.seconds("duo", 20)
    (0.1, None)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._each: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and when it was learnt

    def seconds(self, stage: str, work: int) -> float | None:
        """None where it is not known, or no longer: too large an estimate keeps its stage from running, and
        so from being corrected."""
        each, when = self._each.get(stage, (0.0, float("-inf")))
        return each * work if self._clock() - when < _TRUSTED else None

    def learn(self, stage: str, work: int, seconds: float, *, given_up: bool = False) -> None:
        """So much work took so long; or it would have taken longer, had it not been given up."""
        new = seconds / work
        old, _ = self._each.pop(stage, (new, 0.0))
        if given_up:
            new = max(new, old)
        self._each[stage] = _FORGET * old + (1 - _FORGET) * new, self._clock()
        if len(self._each) > _REMEMBERED:
            self._each.popitem(last=False)
