"""How long a stage is going to take, by what it has taken lately."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

_FORGET = 0.7  # what is left of an estimate after the next measurement
_TRUSTED = 5.0  # seconds that an estimate holds as it is
_HALF_LIFE = 60.0  # seconds in which it halves then
_GIVEN_UP = 2.0  # times what a call had taken when it was given up: how much was left is not known
_REMEMBERED = 256  # stages with an estimate


class Costs:
    """What a unit of a stage's work has taken lately, in seconds: the exponential mean of the seconds of its
    calls by that of their units, so that small calls, which take longer by the unit, count for little.

    >>> costs = Costs()
    >>> costs.learn("mono", 100, 0.5)
    >>> round(costs.seconds("mono", 20), 3), costs.seconds("duo", 20), costs.guess(20)
    (0.1, None, 0.1)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: OrderedDict[str, _Calls] = OrderedDict()

    def seconds(self, stage: str, work: int) -> float | None:
        """None where nothing is known. An estimate that is not renewed becomes smaller: one that is too large
        keeps its stage from running, and so from being corrected."""
        with self._lock:
            calls = self._calls.get(stage)
        return None if calls is None else calls.each * work * _left(self._clock() - calls.when)

    def guess(self, work: int) -> float:
        """For a stage that has not run yet: as a unit of the slowest stage that is known."""
        with self._lock:
            return work * max((calls.each for calls in self._calls.values()), default=0.0)

    def is_old(self, stage: str) -> bool:
        """Whether it was not measured for a while."""
        with self._lock:
            calls = self._calls.get(stage)
        return calls is None or self._clock() - calls.when >= _TRUSTED

    def learn(self, stage: str, work: int, seconds: float, *, given_up: bool = False) -> None:
        """So much work took so long; or it was given up after so long, and would have taken longer."""
        now = self._clock()
        with self._lock:
            old = self._calls.pop(stage, None)
            if given_up:
                seconds = max(_GIVEN_UP * seconds, old.each * work if old else 0.0)
            keep = _FORGET * _left(now - old.when) if old else 0.0
            before = old or _Calls(0.0, 0.0, now)
            self._calls[stage] = _Calls(
                keep * before.seconds + (1 - keep) * seconds, keep * before.work + (1 - keep) * work, now
            )
            if len(self._calls) > _REMEMBERED:
                self._calls.popitem(last=False)


class _Calls(NamedTuple):
    """The means over the calls of a stage, and when the last ended."""

    seconds: float
    work: float
    when: float

    @property
    def each(self) -> float:
        return self.seconds / self.work


def _left(age: float) -> float:
    """What part of an estimate is left after so many seconds.

    >>> _left(1.0), _left(65.0), _left(125.0)
    (1.0, 0.5, 0.25)
    """
    return float(0.5 ** (max(age - _TRUSTED, 0.0) / _HALF_LIFE))


class Peak:
    """The longest time of late: it halves every few seconds.

    >>> now = 0.0
    >>> peak = Peak(lambda: now)
    >>> peak.learn(0.4); peak.learn(0.1); now = 5.0
    >>> peak.seconds
    0.2
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._longest, self._when = clock, 0.0, 0.0

    @property
    def seconds(self) -> float:
        return float(self._longest * 0.5 ** ((self._clock() - self._when) / _TRUSTED))

    def learn(self, seconds: float) -> None:
        if seconds >= self.seconds:
            self._longest, self._when = seconds, self._clock()


class Pace:
    """Turns for what must leave the processor to other work: so far apart that it takes a `share` of a core.

    >>> pace = Pace(0.125, lambda: 0.0)
    >>> pace.learn(0.01)  # seconds of a processor that each takes
    >>> [round(pace.turn(), 2) for _ in range(3)]
    [0.0, 0.08, 0.16]
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        self._each, self._next = 0.0, 0.0

    def learn(self, seconds: float) -> None:
        self._each = _FORGET * self._each + (1 - _FORGET) * seconds if self._each else seconds

    def turn(self) -> float:
        """Seconds to wait until the next turn, which is taken."""
        now = self._clock()
        at = max(self._next, now)
        self._next = at + self._each / self._share
        return at - now
