"""Which pairs duo reads if it does not read all of them, and the probabilities that replace the others.

Two candidates are contested if they are near each other in the incoming order: at most `window` places apart,
with scores less than `margin` apart. Contested pairs are read, in both orders. The papers read all pairs or
draw them at random; this choice does not come from them.

An aggregation needs every pair, so the probabilities of the others come from the incoming ranking:

    p[i, j] = sigmoid(o_i - o_j + b)    o: incoming scores as log-odds, b: the mean margin of the read pairs
    p[i, j] = 1 or 0                    if incoming scores are not probabilities: 1 for the upper candidate

If the relevance of texts is independent, sigmoid(o_i - o_j) is the probability that i is the relevant one,
given that one of the two is. b is the model's bias towards the text that it reads first: in the sum over both
orders of a pair the rest cancels. Without b, a model that prefers the first text would favour the candidates
that are in more of the pairs that are read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.rank.aggregate import Aggregate, matrix, opponents, probability


class Compared(NamedTuple):
    """Ordered pairs of candidates, each with the probability that the first is better."""

    probabilities: Array  # float64[n]
    pairs: Array  # int64[n, 2]


def check_contested(how: Aggregate, window: int | None, margin: float | None) -> None:
    """Refuse an invalid window or margin.

    >>> check_contested("sum", window=0, margin=None)
    Traceback (most recent call last):
    tamis.base.errors.InputError: a window of 0 places: use a whole number of at least 1
    """
    if window is not None and window < 1:
        raise InputError(f"a window of {window} places", remedy="use a whole number of at least 1")
    if margin is not None and not 0 <= margin < math.inf:
        raise InputError(f"a margin of {margin}", remedy="use a number of at least 0")
    if how == "sample" and (window is not None or margin is not None):
        given = "window" if window is not None else "margin"
        raise InputError(
            f"sample draws its pairs and has no {given}",
            remedy="leave it out, or use sum, binary, min or max",
        )


def contested(scores: Array, window: int | None = None, margin: float | None = None) -> Array:
    """The ordered pairs (i, j) to read, sorted, for candidates with these scores, best first.

    >>> contested(np.array([0.9, 0.8, 0.3]), window=1).tolist()
    [[0, 1], [1, 0], [1, 2], [2, 1]]
    >>> contested(np.array([0.9, 0.8, 0.3]), margin=0.2).tolist()
    [[0, 1], [1, 0]]
    """
    place, exact = np.arange(len(scores)), scores.astype(np.float64)
    wanted = ~np.eye(len(scores), dtype=bool)
    if window is not None:
        wanted &= np.abs(place[:, None] - place) <= window
    if margin is not None:
        wanted &= np.abs(exact[:, None] - exact) < margin
    return np.argwhere(wanted)


def within(k: int, window: int | None = None) -> int:
    """How many ordered pairs of k candidates are at most `window` places apart.

    >>> within(10), within(10, window=3), within(3, window=3)
    (90, 48, 6)
    """
    near = max(k - 1, 0) if window is None else min(window, max(k - 1, 0))
    return near * (2 * k - near - 1)  # k - 1 pairs one place apart, k - 2 two, ...; in both orders


def completed(margins: Array, pairs: Array, k: int, odds: Array | None = None) -> Compared:
    """All ordered pairs of k candidates: those that were read by the model's margins, the others by the
    incoming order, or by the candidates' incoming log-odds if these are known.

    >>> both = np.array([[0, 1], [1, 0]])
    >>> completed(np.array([3.0, -1.0]), both, 3).probabilities.round(3).tolist()
    [0.953, 1.0, 0.269, 1.0, 0.0, 0.0]
    >>> completed(np.array([3.0, -1.0]), both, 3, np.array([2.0, 2.0, 0.0])).probabilities.round(3).tolist()
    [0.953, 0.953, 0.269, 0.953, 0.269, 0.269]
    """
    p = matrix(probability(margins), pairs, k)
    if odds is None:
        otherwise = np.triu(np.ones((k, k)))
    else:
        first = math.fsum(margins.tolist()) / len(margins) if len(margins) else 0.0
        otherwise = probability(odds[:, None] - odds + first)
    everything = opponents(k, "sum")
    i, j = everything.T
    return Compared(np.where(np.isnan(p), otherwise, p)[i, j], everything)
