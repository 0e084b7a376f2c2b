"""Groups of candidates that a model scores together, for models that read n at once and have more to rank.

In each round a permutation of the candidates is cut into as few groups of at most n as possible, with sizes
as even as possible: the softmax that such models are trained with is meaningless for a single candidate. The
score of a candidate depends on the others in its group, so there are several rounds, and its final score is
the sum of its scores over its groups, as in groupwise scoring functions (Ai et al. 2019).
"""

from __future__ import annotations

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.base.interrupt import check
from tamis.core.ranking import Ranking, best_first


def check_rounds(stage: str, rounds: int, seed: int) -> None:
    """Refuse an invalid number of rounds or seed.

    >>> check_rounds("listwise", rounds=0, seed=0)
    Traceback (most recent call last):
    tamis.base.errors.InputError: listwise in 0 rounds: use 1 or more
    """
    if rounds < 1:
        raise InputError(f"{stage} in {rounds} rounds", remedy="use 1 or more")
    if seed < 0:
        raise InputError(f"the seed {seed}", remedy="use a whole number of at least 0")


def groups_a_round(candidates: int, texts: int) -> int:
    """The number of groups of at most `texts` into which this many candidates are divided.

    >>> [groups_a_round(candidates, 8) for candidates in (0, 1, 8, 9, 20)]
    [0, 1, 1, 2, 3]
    """
    return -(-candidates // texts)


def drawn_groups(candidates: int, texts: int, rounds: int, seed: int = 0) -> Array:
    """Which candidates are read together: one row of positions per group, filled up with -1. In each round
    every candidate is in one group.

    A round's permutation depends on the seed, the round's number and the number of candidates: it is the same
    for all queries, and for any number of rounds. If one group holds all candidates, the first round has them
    in their incoming order.

    >>> drawn_groups(5, texts=3, rounds=2).tolist()
    [[2, 4, 3], [0, 1, -1], [1, 4, 3], [0, 2, -1]]
    >>> drawn_groups(3, texts=4, rounds=1).tolist()
    [[0, 1, 2, -1]]
    """
    parts: list[Array] = []
    count = groups_a_round(candidates, texts)
    for number in range(rounds if count else 0):
        check()
        order = np.random.default_rng([seed, number]).permutation(candidates)
        if count == 1 and number == 0:
            order = np.arange(candidates)
        parts += np.array_split(order, count)
    groups = np.full((len(parts), texts), -1, dtype=np.int64)
    for row, part in zip(groups, parts, strict=True):
        row[: len(part)] = part
    return groups


def by_groups(ranking: Ranking, groups: Array, scores: Array) -> Ranking:
    """The candidates of the groups sorted by the sum of their scores, then by id; the others are below them.

    >>> from tamis.base.documents import Query
    >>> given = Ranking(Query("q", ""), ("a", "b", "c", "d"), np.zeros(4))
    >>> groups, scores = np.array([[0, 2], [1, -1]]), np.array([[0.5, 1.0], [0.75, 0.0]])
    >>> found = by_groups(given, groups, scores)
    >>> found.ids, found.scores.tolist()
    (('c', 'b', 'a', 'd'), [1.0, 0.75, 0.5, -1.0])
    """
    there = groups >= 0
    sums = np.zeros(int(groups.max(initial=-1)) + 1)
    np.add.at(sums, groups[there], scores[there].astype(np.float64))
    return ranking.reorder_top(best_first(sums, ranking.ids[: len(sums)]), sums)
