"""From duoBERT's pairwise probabilities to one score per candidate: SUM, BINARY, MIN, MAX and SAMPLE
(Nogueira et al. 2019, section 3.3).

p[i, j] is the probability that candidate i beats candidate j. p[i, j] and p[j, i] come from two inferences
and need not sum to one. The score of candidate i depends on row i only. Pairs that were not inferred are NaN;
the diagonal is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError

Aggregate = Literal["sum", "binary", "min", "max", "sample"]


# -- from margins to probabilities
# ------------------------------------------------------------------------------------------------------------


def probability(margin: Array) -> Array:
    """The sigmoid in double precision; it does not overflow for any margin.

    >>> probability(np.array([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    exact = np.asarray(margin, dtype=np.float64)
    small = np.exp(-np.abs(exact))  # in 0..1 for either sign
    return np.asarray(np.where(exact >= 0, 1.0, small) / (1 + small))


# -- the five aggregations
# ------------------------------------------------------------------------------------------------------------


def sum_(p: Array) -> Array:
    """SUM: the sum of the probabilities against all opponents.

    >>> sum_(np.array([[np.nan, 0.9], [0.3, np.nan]])).tolist()
    [0.9, 0.3]
    """
    # starts with the smallest, so that the sum does not depend on the order of the opponents
    return np.asarray(np.sort(_compared(p, otherwise=0.0), axis=1).sum(axis=1))


def binary(p: Array) -> Array:
    """BINARY: how many opponents are beaten; a probability of one half is not a win.

    >>> binary(np.array([[np.nan, 0.9], [0.5, np.nan]])).tolist()
    [1.0, 0.0]
    """
    return np.asarray((_compared(p, otherwise=0.0) > 0.5).sum(axis=1, dtype=np.float64))


def min_(p: Array) -> Array:
    """MIN: the probability against the strongest opponent.

    >>> min_(np.array([[np.nan, 0.9, 0.6], [0.1, np.nan, 0.2], [0.7, 0.8, np.nan]])).tolist()
    [0.6, 0.1, 0.7]
    """
    return _finite(_compared(p, otherwise=np.inf).min(axis=1, initial=np.inf))


def max_(p: Array) -> Array:
    """MAX: the probability against the weakest opponent.

    >>> max_(np.array([[np.nan, 0.9, 0.6], [0.1, np.nan, 0.2], [0.7, 0.8, np.nan]])).tolist()
    [0.9, 0.2, 0.8]
    """
    return _finite(_compared(p, otherwise=-np.inf).max(axis=1, initial=-np.inf))


def _compared(p: Array, otherwise: float) -> Array:
    return np.where(np.isnan(p) | np.eye(len(p), dtype=bool), otherwise, p)


def _finite(scores: Array) -> Array:
    """A candidate that was not compared with any other scores 0, as its sum does."""
    return np.where(np.isinf(scores), 0.0, scores)


def sample(p: Array, m: int, seed: int = 0, query: str = "") -> Array:
    """SAMPLE: SUM over m opponents per candidate, from a complete matrix, for trials without new inferences.

    >>> sample(np.array([[np.nan, 0.9], [0.3, np.nan]]), m=1).tolist()
    [0.9, 0.3]
    """
    i, j = opponents(len(p), "sample", m, seed, query).T
    drawn = np.full_like(p, np.nan)
    drawn[i, j] = p[i, j]
    return sum_(drawn)


_AGGREGATES: Mapping[Aggregate, Callable[[Array], Array]] = {
    "sum": sum_,
    "binary": binary,
    "min": min_,
    "max": max_,
    "sample": sum_,  # over the opponents that were drawn: the others are NaN
}


# -- over the pairs that are inferred
# ------------------------------------------------------------------------------------------------------------


def check_aggregate(how: Aggregate, m: int | None = None, seed: int = 0) -> None:
    """Refuse an aggregation with options that it does not have.

    >>> check_aggregate("sum", m=10)
    Traceback (most recent call last):
    tamis.base.errors.InputError: sum compares all pairs and has no m: leave m out, or use aggregate=sample
    """
    if how not in _AGGREGATES:
        raise InputError(f"there is no aggregate {how!r}", remedy=f"use {', '.join(_AGGREGATES)}")
    if how != "sample" and m is not None:
        raise InputError(
            f"{how} compares all pairs and has no m", remedy="leave m out, or use aggregate=sample"
        )
    if how == "sample" and (m is None or m < 1):
        raise InputError(f"sample with m={m}", remedy="give m, the opponents of each candidate: 1 or more")
    if seed < 0:
        raise InputError(f"the seed {seed}", remedy="use a whole number of at least 0")


def inferences(k: int, how: Aggregate, m: int | None = None) -> int:
    """How many pairs are inferred for k candidates: k(k-1), or km for SAMPLE (Eq. 7; the caption of Fig. 3
    has k(m-1)).

    >>> inferences(50, "sum"), inferences(50, "sample", m=10), inferences(5, "sample", m=10)
    (2450, 500, 20)
    """
    check_aggregate(how, m)
    return k * max(k - 1 if m is None else min(m, k - 1), 0)


def opponents(k: int, how: Aggregate, m: int | None = None, seed: int = 0, query: str = "") -> Array:
    """The ordered pairs (i, j) to infer for k candidates, sorted: all, or for SAMPLE m opponents of each i,
    drawn without replacement.

    A draw depends on the seed, the query's id, k and the candidates' positions, and not on other queries of
    the run. The opponents drawn for m are among those drawn for m + 1.

    >>> opponents(3, "sum").tolist()
    [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    >>> opponents(3, "sample", m=1, seed=7, query="q1")[:, 0].tolist()
    [0, 1, 2]
    """
    check_aggregate(how, m, seed)
    wanted = ~np.eye(k, dtype=bool)
    if m is not None and m < k - 1:
        digest = hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest()
        generator = np.random.default_rng([seed, int.from_bytes(digest[:16], "little")])
        # the m smallest of random keys are a uniform draw; a candidate is never its own opponent
        keys = np.where(wanted, generator.random((k, k)), np.inf)
        wanted = np.zeros((k, k), dtype=bool)
        np.put_along_axis(wanted, np.argsort(keys, axis=1, kind="stable")[:, :m], True, axis=1)
    return np.argwhere(wanted)


def matrix(probabilities: Array, pairs: Array, k: int) -> Array:
    """p[i, j] of the pairs that were inferred, NaN elsewhere.

    >>> matrix(np.array([0.9, 0.3]), np.array([[0, 1], [1, 0]]), 2).tolist()
    [[nan, 0.9], [0.3, nan]]
    """
    if pairs.shape != (len(probabilities), 2):
        raise TamisError(f"{len(probabilities)} probabilities for pairs of shape {pairs.shape}")
    if not ((probabilities >= 0) & (probabilities <= 1)).all():  # also refuses NaN
        raise TamisError(
            "a probability of a pair is not between 0 and 1", remedy="check the model that gave it"
        )
    i, j = pairs.T
    if pairs.size and (pairs.min() < 0 or pairs.max() >= k or (i == j).any()):
        raise TamisError(f"a pair that is not of two different candidates of {k}")
    p = np.full((k, k), np.nan)
    p[i, j] = probabilities
    if np.count_nonzero(~np.isnan(p)) != len(pairs):
        raise TamisError("a pair comes twice", remedy="infer each ordered pair once")
    return p


def aggregate(probabilities: Array, pairs: Array, k: int, how: Aggregate) -> Array:
    """The scores of k candidates from the pairs that `opponents` returned, in any order. A single candidate
    scores 0.

    >>> aggregate(np.array([0.9, 0.3]), np.array([[0, 1], [1, 0]]), 2, "sum").tolist()
    [0.9, 0.3]
    """
    return _AGGREGATES[how](_inferred(probabilities, pairs, k, how))


def order(probabilities: Array, pairs: Array, k: int, how: Aggregate) -> Array:
    """The positions of k candidates, best first: by score; ties of BINARY, which are many, by SUM; remaining
    ties in the incoming order.

    >>> pairs = opponents(3, "binary")
    >>> order(np.array([0.9, 0.1, 0.2, 0.8, 0.7, 0.3]), pairs, 3, "binary").tolist()  # SUM: 1.0, 1.0, 1.0
    [0, 1, 2]
    >>> order(np.array([0.9, 0.1, 0.2, 0.8, 0.9, 0.3]), pairs, 3, "binary").tolist()  # SUM: 1.0, 1.0, 1.2
    [2, 0, 1]
    """
    p = _inferred(probabilities, pairs, k, how)
    scores = _AGGREGATES[how](p)
    ties = sum_(p) if how == "binary" else scores
    return np.lexsort((-ties, -scores))  # stable


def _inferred(probabilities: Array, pairs: Array, k: int, how: Aggregate) -> Array:
    p = matrix(probabilities, pairs, k)
    if how != "sample" and len(pairs) != k * max(k - 1, 0):
        raise TamisError(
            f"{len(pairs)} pairs of {k} candidates", remedy=f"{how} needs every ordered pair of two"
        )
    return p
