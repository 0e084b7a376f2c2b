"""Streams: batches of groups by number; chains and mixtures of streams, and streams with weights."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, count
from math import ceil
from typing import Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.train.sets import Group, TrainingSet

Heuristic = Literal["rank", "score"]
_SHUFFLE = 2  # a use of a seed; `tamis.train.examples` has the numbers below 2


class Batch(NamedTuple):
    """Groups, and the set that their numbers refer to."""

    data: TrainingSet
    groups: list[Group]


@dataclass(frozen=True, slots=True)
class Stream:
    """An endless sequence of batches, numbered from 0."""

    batch: Callable[[int], Batch]
    epoch: int  # the number of batches that cover all positives once

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches in order; a run that has seen n of them continues with `start=n`."""
        return map(self.batch, count(start))


def chain(parts: Sequence[tuple[Stream, int | None]]) -> Stream:
    """One stream after the other, each for a number of batches, the last endlessly: pre-fine-tuning on a
    large set, then fine-tuning on the target's (Garg et al. 2020). Each stream starts with its batch 0.

    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.examples import Judged, balanced, length_matched
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> large = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5]]), ["q"], ["a", "b"], judged)
    >>> target = length_matched(large, 1)
    >>> steps = chain([(balanced(large, 2, seed=0), 3), (balanced(target, 2, seed=0), None)])
    >>> [steps.batch(number).data is target for number in range(5)]
    [False, False, False, True, True]
    """
    if not parts or any(steps is None or steps < 1 for _, steps in parts[:-1]):
        raise InputError("a chain of endless streams", remedy="give each but the last its steps")
    starts = list(accumulate((steps or 0 for _, steps in parts[:-1]), initial=0))

    def batch(number: int) -> Batch:
        place = bisect_right(starts, number) - 1
        return parts[place][0].batch(number - starts[place])

    return Stream(batch, starts[-1] + parts[-1][0].epoch)


def mixed(parts: Sequence[tuple[Stream, float]]) -> Stream:
    """Batches of several streams in turn, as often as their weights say; each stream keeps its order.

    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.examples import Judged, balanced, length_matched
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> one = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5]]), ["q"], ["a", "b"], judged)
    >>> two = length_matched(one, 1)
    >>> both = mixed([(balanced(one, 2, seed=0), 1.0), (balanced(two, 2, seed=0), 3.0)])
    >>> sum(both.batch(number).data is two for number in range(100))
    75
    """
    if not parts or not all(weight > 0 for _, weight in parts):
        raise InputError("a mixture without weights", remedy="give each stream a weight above 0")
    weights = np.array([weight for _, weight in parts])

    @lru_cache(1)
    def turns(length: int) -> tuple[Array, Array]:
        """The stream of each batch, and the number of earlier batches of that stream: the k-th batch of a
        stream is due at (k + 1/2) / weight, whatever the length."""
        due = ((np.arange(length) + 0.5) / weights[:, None]).ravel()
        turn, before = np.divmod(np.argsort(due, kind="stable")[:length], length)
        return turn, before

    def batch(number: int) -> Batch:
        turn, before = turns(max(1 << 10, 1 << number.bit_length()))
        return parts[int(turn[number])][0].batch(int(before[number]))

    return Stream(batch, max(ceil(stream.epoch * weights.sum() / weight) for stream, weight in parts))


def shuffled(stream: Stream, seed: int) -> Stream:
    """The stream with the documents of each group in a random order, which depends on its number and the
    seed: groups have the relevant documents first, and a model that reads a whole group would learn this.

    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.examples import Judged, grouped
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> (group,) = shuffled(grouped(data, 3, 1, seed=0), seed=0).batch(0).groups
    >>> group.documents.tolist(), group.labels.tolist()
    ([2, 0, 1], [0.0, 0.0, 1.0])
    """

    def batch(number: int) -> Batch:
        data, groups = stream.batch(number)
        rng = np.random.default_rng([seed, _SHUFFLE, number])
        return Batch(data, [_permuted(group, rng.permutation(len(group.documents))) for group in groups])

    return Stream(batch, stream.epoch)


def _permuted(group: Group, order: Array) -> Group:
    teacher = None if group.teacher is None else group.teacher[order]
    return replace(group, documents=group.documents[order], labels=group.labels[order], teacher=teacher)


def curriculum(stream: Stream, steps: int, heuristic: Heuristic = "rank") -> Stream:
    """The stream with weights that start with each group's ease and are 1 from batch `steps` on (MacAvaney et
    al. 2020): examples that BM25 ranks well are learned first, and no example is left out.

    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.examples import Candidates, Judged, balanced
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> candidates = Candidates(np.array([0, 2]), np.array([0, 1]), np.array([3.0, 2.0]))
    >>> queries, documents = Tokenised.of([[7]]), Tokenised.of([[8], [5]])
    >>> data = TrainingSet(queries, documents, ["q"], ["a", "b"], judged, candidates)
    >>> eased = curriculum(balanced(data, 2, seed=0), steps=2)
    >>> [eased.batch(number).groups[0].weight for number in range(4)]
    [0.25, 0.625, 1.0, 1.0]
    """
    if steps < 1:
        raise InputError(f"a curriculum of {steps} steps", remedy="use 1 or more")

    def batch(number: int) -> Batch:
        data, groups = stream.batch(number)
        if number >= steps:
            return Batch(data, groups)
        eases = np.array([ease(data, group, heuristic) for group in groups])
        weights = curriculum_weights(eases, number, steps).tolist()
        return Batch(data, [replace(g, weight=g.weight * w) for g, w in zip(groups, weights, strict=True)])

    return Stream(batch, stream.epoch)


def curriculum_weights(eases: Array, step: int, steps: int) -> Array:
    """Weights that rise linearly from the ease of an example to 1 over the first `steps`.

    >>> curriculum_weights(np.array([0.5, 1.0]), step=5, steps=10).tolist()
    [0.75, 1.0]
    """
    return eases + (1 - eases) * min(step / steps, 1.0)


def ease(data: TrainingSet, group: Group, heuristic: Heuristic = "rank") -> float:
    """How easy a group is, from 0 to 1, by the first stage's ranking of its documents: for a relevant and
    another document (v(d+) - v(d-) + 1) / 2, with v the reciprocal rank or the score scaled to 0..1 over the
    query's list (MacAvaney et al. 2020); v is 0 for a document that was not retrieved. For several documents
    v is their mean.

    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.examples import Candidates, Judged
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> candidates = Candidates(np.array([0, 3]), np.array([0, 1, 2]), np.array([3.0, 2.5, 1.0]))
    >>> texts = Tokenised.of([[8], [5], [4]])
    >>> data = TrainingSet(Tokenised.of([[7]]), texts, ["q"], ["a", "b", "c"], judged, candidates)
    >>> group = Group(0, np.array([1, 2]), np.array([1.0, 0.0]))
    >>> round(ease(data, group, "rank"), 4), ease(data, group, "score")
    (0.5833, 0.875)
    """
    values = _values(data, group.query, heuristic)
    found = data.candidates_of(group.query) == group.documents[:, None]
    worth = (found * values).sum(axis=1)
    relevant = group.labels > 0
    high = float(worth[relevant].mean()) if relevant.any() else 1.0
    low = float(worth[~relevant].mean()) if not relevant.all() else 0.0
    return (high - low + 1) / 2


def _values(data: TrainingSet, query: int, heuristic: Heuristic) -> Array:
    scores = data.retrieval_of(query).astype(np.float64)
    if heuristic == "rank":
        return 1 / np.arange(1, len(scores) + 1)
    if heuristic != "score":
        raise InputError(f"no curriculum {heuristic!r}", remedy="use rank or score")
    spread = float(np.ptp(scores)) if len(scores) else 0.0
    return (scores - scores.min()) / spread if spread else np.zeros(len(scores))
