"""Joint tuning by successive halving over the queries: all settings are tried on a few queries, those that
are clearly worse than the best are dropped, and the others are tried on twice as many.

Plain successive halving drops the worse half, whatever the differences. This drops only settings that are
significantly worse (a paired t-test against the current leader, without correction): on few queries the order
of good settings is random, and shared work makes it cheap to keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, fsum
from typing import NamedTuple

import numpy as np

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.evaluate.budget import ALPHA, clearly_worse
from tamis.evaluate.chance import seeded

FIRST = 8  # queries: with fewer, a good setting cannot be told from a lucky one


class Tried(NamedTuple):
    """The result of a setting on some queries: the values of the measure, and their inferences in total."""

    values: Mapping[str, float]
    inferences: int


Try = Callable[[Sequence[Query], Sequence[int]], Mapping[int, Tried]]


@dataclass(slots=True)
class Seen:
    """The values of a setting; it was dropped after `dropped_after` queries."""

    values: dict[str, float] = field(default_factory=dict)
    inferences: int = 0
    dropped_after: int | None = None

    @property
    def mean(self) -> float:
        return fsum(self.values.values()) / len(self.values)


class Round(NamedTuple):
    """The numbers of queries tried up to this round, of settings tried on them, and of settings dropped."""

    queries: int
    settings: int
    dropped: int


def round_ends(queries: int, first: int | None = None) -> list[int]:
    """The number of queries after which each round ends: an eighth of them, but at least eight, then twice as
    many each time.

    >>> round_ends(43), round_ends(500), round_ends(5)
    ([8, 16, 32, 43], [63, 126, 252, 500], [5])
    """
    if first is not None and first < 2:
        raise InputError(f"a first round of {first} queries", remedy="use at least 2")
    end = first or max(FIRST, ceil(queries / 8))
    ends = []
    while end < queries:
        ends.append(end)
        end *= 2
    return [*ends, queries]


def halve(
    queries: Sequence[Query],
    settings: Sequence[int],
    attempt: Try,
    *,
    most_inferences: float = np.inf,
    first: int | None = None,
    alpha: float = ALPHA,
    seed: int = 0,
) -> tuple[dict[int, Seen], list[Round]]:
    """Try settings, by their numbers, on more and more of the queries, in an order drawn from `seed`.

    `attempt(queries, settings)` returns the results of the settings on further queries. Settings that take
    more than `most_inferences` per query are dropped after the first round, and never lead.

    >>> queries = [Query(f"q{number}", "") for number in range(20)]
    >>> def attempt(some, numbers):  # the values of setting n are about n
    ...     return {n: Tried({q.id: n + int(q.id[1:]) / 100 for q in some}, 5 * len(some)) for n in numbers}
    >>> seen, rounds = halve(queries, [0, 1, 2], attempt)
    >>> [(number, len(each.values)) for number, each in seen.items()]
    [(0, 8), (1, 8), (2, 20)]
    """
    shuffled = [queries[place] for place in seeded(seed).permutation(len(queries)).tolist()]
    seen = {number: Seen() for number in settings}
    alive, rounds, done = list(settings), [], 0
    for end in round_ends(len(shuffled), first):
        for number, tried in attempt(shuffled[done:end], alive).items():
            seen[number].values.update(tried.values)
            seen[number].inferences += tried.inferences
        done = end
        dropped = set()
        if done < len(shuffled):
            dropped = _to_drop({number: seen[number] for number in alive}, done, most_inferences, alpha)
        rounds.append(Round(done, len(alive), len(dropped)))
        for number in dropped:
            seen[number].dropped_after = done
        alive = [number for number in alive if number not in dropped]
        if not alive:
            break
    return seen, rounds


def _to_drop(alive: Mapping[int, Seen], queries: int, most_inferences: float, alpha: float) -> set[int]:
    allowed = {n: each for n, each in alive.items() if each.inferences <= most_inferences * queries}
    if not allowed:
        return set(alive)
    leader = max(allowed.values(), key=lambda each: each.mean)
    worse = {
        number
        for number, each in allowed.items()
        if clearly_worse(np.array([value - leader.values[qid] for qid, value in each.values.items()]), alpha)
    }
    return (set(alive) - set(allowed)) | worse
