"""Operating points: the value and cost of each setting of a pipeline, the frontier, the best setting within a
budget, and the confidence in that choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.evaluate.chance import seeded
from tamis.evaluate.grid import Setting
from tamis.evaluate.significance import NOISE, RESAMPLES, Interval, bootstrap_interval, t_test, without_spread

Cost = Literal["inferences", "latency"]

ALPHA = 0.05
_BUDGET = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|inf)\s*")
_AT_ONCE = 500  # resamples


class Latency(NamedTuple):
    """The time per query in milliseconds: at most p50 for half of the queries, at most p95 for 95 in 100."""

    p50: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """
        >>> Latency.of([0.1, 0.2, 0.3])
        Latency(p50=200.0, p95=290.0)
        """
        p50, p95 = np.percentile(seconds, [50, 95]).tolist()
        return cls(round(1000 * p50, 3), round(1000 * p95, 3))


class Ceiling(NamedTuple):
    """The measure if the documents that a setting ranks were in the best order, and the largest number of
    them for a query, which is smaller than the measure's cutoff."""

    documents: int
    value: float


@dataclass(frozen=True, slots=True)
class Point:
    """A setting of a pipeline: its value, and its cost when run alone."""

    setting: Setting
    pipeline: str
    value: float  # the mean of the measure over the queries on which the setting was tried
    per_query: dict[str, float]
    inferences: float  # mean per query
    latency: Latency | None = None
    dropped_after: int | None = None  # queries, if the search does not try all settings on all queries
    ceiling: Ceiling | None = None

    def cost(self, kind: Cost) -> float:
        """Inferences, or the p95 in milliseconds; infinite if it was not timed."""
        if kind == "inferences":
            return self.inferences
        return np.inf if self.latency is None else self.latency.p95


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget per query: a mean number of inferences, or milliseconds for 95 queries in 100."""

    limit: float
    kind: Cost

    @classmethod
    def parse(cls, text: str) -> Budget:
        """
        >>> Budget.parse("50ms"), Budget.parse("500inf")
        (Budget(limit=50.0, kind='latency'), Budget(limit=500.0, kind='inferences'))
        """
        found = _BUDGET.fullmatch(text)
        if found is None or not float(found[1]):
            raise InputError(f"{text!r} is not a valid budget", remedy="write 50ms, 1.5s or 500inf")
        limit = float(found[1]) * (1000 if found[2] == "s" else 1)
        return cls(limit, "inferences" if found[2] == "inf" else "latency")

    def __str__(self) -> str:
        return f"{self.limit:.10g} {'inferences per query' if self.kind == 'inferences' else 'ms (p95)'}"

    def allows(self, point: Point) -> bool:
        return point.cost(self.kind) <= self.limit


@dataclass(frozen=True, slots=True)
class Choice:
    """The best of some points, and the confidence in that choice.

    `share` is how often each point is the best when the queries are resampled; `within_noise` are the numbers
    of the points that are not significantly worse, and `thrift` is the cheapest of these.
    """

    number: int
    interval: Interval  # of the value
    share: dict[int, float]
    within_noise: list[int]
    thrift: int


def frontier(points: Sequence[Point], kind: Cost = "inferences") -> list[int]:
    """The numbers of the Pareto-optimal points, cheapest first: no other point is at least as good at the
    same cost or less. Of equal points the first is taken; points that a search has dropped are left out.

    >>> some = ((0.5, 9), (0.6, 9), (0.6, 20), (0.7, 30))
    >>> frontier([Point({}, "", value, {}, inferences) for value, inferences in some])
    [1, 3]
    """
    order = sorted(
        (number for number, each in enumerate(points) if each.dropped_after is None),
        key=lambda number: (points[number].cost(kind), -points[number].value, number),
    )
    best, found = -np.inf, []
    for number in order:
        if points[number].value > best + NOISE and np.isfinite(points[number].cost(kind)):
            best = points[number].value
            found.append(number)
    return found


def choose(
    points: Sequence[Point],
    budget: Budget | None = None,
    *,
    kind: Cost | None = None,
    alpha: float = ALPHA,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Choice | None:
    """The best point within the budget; of equal points the cheapest, in the unit of the budget or of `kind`.
    None if no point is within the budget.

    >>> points = [Point({}, "", 0.5, {"a": 0.4, "b": 0.6}, 90), Point({}, "", 0.6, {"a": 0.5, "b": 0.7}, 900)]
    >>> choose(points).number, choose(points, Budget(100, "inferences")).number
    (1, 0)
    """
    kind = budget.kind if budget else kind or "inferences"
    allowed = [
        number
        for number, each in enumerate(points)
        if each.dropped_after is None and (budget is None or budget.allows(each))
    ]
    if not allowed:
        return None
    most = max(points[number].value for number in allowed)
    best = min(
        (number for number in allowed if points[number].value >= most - NOISE),
        key=lambda number: (points[number].cost(kind), number),
    )
    qids = list(points[best].per_query)
    values = np.array([[points[number].per_query[qid] for qid in qids] for number in allowed])
    shares = shares_of_best(values, resamples=resamples, seed=seed)
    chosen = values[allowed.index(best)]
    near = [
        number
        for number, row in zip(allowed, values, strict=True)
        if number != best and not clearly_worse(row - chosen, alpha)
    ]
    return Choice(
        best,
        bootstrap_interval(chosen, resamples=resamples, seed=seed),
        dict(zip(allowed, shares.tolist(), strict=True)),
        near,
        min([best, *near], key=lambda number: (points[number].cost(kind), -points[number].value, number)),
    )


def shares_of_best(values: Array, *, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """How often each row has the largest mean when the columns (the queries) are resampled with replacement.
    Tied rows share a sample equally.

    >>> shares_of_best(np.array([[0.3, 0.4], [0.1, 0.2], [0.3, 0.4]])).tolist()
    [0.5, 0.0, 0.5]
    """
    rows, queries = values.shape
    generator = seeded(seed)
    found = np.zeros(rows)
    for start in range(0, resamples, _AT_ONCE):
        size = min(_AT_ONCE, resamples - start)
        drawn = generator.multinomial(queries, np.full(queries, 1 / queries), size)
        means = values @ drawn.T / queries
        first = means >= means.max(axis=0) - NOISE
        found += (first / first.sum(axis=0)).sum(axis=1)
    return found / resamples


def clearly_worse(differences: Array, alpha: float = ALPHA) -> bool:
    """Whether a setting is worse than another by more than noise: significantly by the paired t-test, or by
    the same difference on every query. A single query is never enough.

    >>> clearly_worse(np.array([-0.1, -0.2, -0.15])), clearly_worse(np.array([-0.1, 0.2, -0.15]))
    (True, False)
    """
    if len(differences) < 2 or differences.mean() >= -NOISE:
        return False
    return without_spread(differences) or t_test(differences) < alpha
