"""Joint tuning by successive halving over the queries: all settings see a few of the queries, those that are
clearly worse than the best of them are dropped, and the others see twice as many.

Unlike plain successive halving, which drops the worse half whatever the differences, this drops settings that
are significantly worse (a paired t-test against the current leader, without correction): on few queries the
order of good settings is random, and shared work makes it cheap to keep them.
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

FIRST = 8  # queries: fewer do not tell a good setting from a lucky one


class Tried(NamedTuple):
    """What a setting did for some queries: the values of the measure, and the inferences of all of them."""

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
    """So many settings were tried on so many queries, counted from the first, and so many dropped."""

    queries: int
    settings: int
    dropped: int


def round_ends(queries: int, first: int | None = None) -> list[int]:
    """After how many queries each round ends: an eighth of them, but no fewer than eight, then ever twice as
    many.

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
    """Try settings, by their numbers, on ever more of the queries, in an order that `seed` decides.

    `attempt(queries, settings)` says what the settings do for more queries. Those that take more than
    `most_inferences` a query are dropped after the first round, and are no leaders.

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
