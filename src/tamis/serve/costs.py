"""Estimates of the time of stages, from recent measurements."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

_FORGET = 0.7  # weight of an estimate after the next measurement
_TRUSTED = 5.0  # seconds that an estimate holds as it is
_HALF_LIFE = 60.0  # seconds in which it halves then
_LATE = 2.0  # times what a call had taken when its time was up: how much was left is not known
#: Times that an estimate and a new measurement may be apart before the larger counts for less: a machine that
#: stands still once must not end all work, and what is short is not so by accident.
_APART = 4.0
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
        now = self._clock()
        with self._lock:
            each = (calls.each * _left(now - calls.when) for calls in self._calls.values())
            return work * max(each, default=0.0)

    def is_old(self, stage: str) -> bool:
        """Whether it was never measured, or not for a while: it may be tried, whatever the estimate says."""
        with self._lock:
            calls = self._calls.get(stage)
        return calls is None or self._clock() - calls.when >= _TRUSTED

    def learn(self, stage: str, work: int, seconds: float, *, spared: bool = False) -> None:
        """So much work took so long; `spared` if some of it had not to be done this time."""
        now = self._clock()
        with self._lock:
            old = self._calls.pop(stage, None)
            new = _Calls(seconds, work, now)
            self._calls[stage] = new if old is None else old.then(new, spared)
            if len(self._calls) > _REMEMBERED:
                self._calls.popitem(last=False)

    def learn_unfinished(self, stage: str, work: int, seconds: float, *, late: bool) -> None:
        """So much work was given up after so long: it takes longer than that. How much is a guess, which is
        only made where the time was up (`late`); a client that leaves says nothing about it."""
        with self._lock:
            old = self._calls.get(stage)
        least = _LATE * seconds if late else seconds
        before = old.each * work if old else 0.0
        if late or (old and seconds > before):
            self.learn(stage, work, max(least, before))


class _Calls(NamedTuple):
    """The means over the calls of a stage, and when the last ended."""

    seconds: float
    work: float
    when: float

    @property
    def each(self) -> float:
        return self.seconds / self.work

    def then(self, new: _Calls, spared: bool) -> _Calls:
        """The means with one call more, which moves them so far and no further."""
        keep = _FORGET * _left(new.when - self.when)
        before = self.seconds if spared else min(self.seconds, _APART * new.each * self.work)
        seconds = min(new.seconds, _APART * self.each * new.work)
        return _Calls(
            keep * before + (1 - keep) * seconds,
            keep * self.work + (1 - keep) * new.work,
            new.when,
        )


def _left(age: float) -> float:
    """The weight of an estimate after some seconds.

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
