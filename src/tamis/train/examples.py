"""Examples: batch after batch of groups drawn from a training set.

A stream knows its batches by number, and the n-th depends on the set, the seed and n alone: a run that goes
on after a kill asks for the next number. An epoch is a random order of all the positives, each of which
stands for one group, so that none is left out while another is drawn twice.

Non-relevant documents are drawn from the query's candidates, from what was judged, or from anywhere
(`Negatives`); a document that is relevant to the query is never among them. Candidates may come from BM25 or
from another stage's run: see `training_set`. In a set with a teacher's scores only candidates are drawn,
because every document of a group has to have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tamis.columns import Array
from tamis.errors import InputError
from tamis.train.build import Weak, training_set, weakly_supervised
from tamis.train.sets import Candidates, Group, Judged, Report, TrainingSet, length_matched
from tamis.train.streams import Batch, Stream, chain, curriculum, curriculum_weights, ease, mixed

__all__ = [
    "Batch",
    "Candidates",
    "Group",
    "Judged",
    "Negatives",
    "Report",
    "Stream",
    "TrainingSet",
    "Weak",
    "balanced",
    "chain",
    "curriculum",
    "curriculum_weights",
    "duo_pairs",
    "ease",
    "grouped",
    "length_matched",
    "mixed",
    "teacher_pairs",
    "training_set",
    "weakly_supervised",
]

_NONE = -1  # the positive of a group without one
_ORDER, _DRAW = range(2)  # what a seed is for: neither repeats the other's numbers


@dataclass(frozen=True, slots=True)
class Negatives:
    """Where documents that are not relevant come from.

    They are candidates of the ranks `first` to `last`, the first being 1; with `judged` rather documents that
    were judged and found not relevant. The share `random` is drawn from all the set's documents instead.
    Where a query has too few, its other candidates, then its judged documents, then any documents fill up.
    """

    first: int = 1
    last: int | None = None
    judged: bool = False
    random: float = 0.0

    def __post_init__(self) -> None:
        if self.first < 1 or (self.last is not None and self.last < self.first):
            raise InputError(f"no candidates have ranks {self.first} to {self.last}", remedy="count from 1")
        if not 0 <= self.random <= 1:
            raise InputError(f"a share of {self.random} random documents", remedy="use 0 to 1")


_CANDIDATES = Negatives()

# -- streams
# ------------------------------------------------------------------------------------------------------------


def balanced(data: TrainingSet, size: int, seed: int, negatives: Negatives = _CANDIDATES) -> Stream:
    """Batches of `size` texts, half of them relevant (Nogueira et al. 2019): groups of a relevant document
    and one that is not, for the same query.

    >>> from tamis.models.templates import Tokenised
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> [group.labels.tolist() for group in balanced(data, 4, seed=0).batch(0).groups]
    [[1.0, 0.0], [1.0, 0.0]]
    """
    _check_even(size, "texts")
    anchors = _Anchors(data, seed, size // 2, negatives)

    def batch(number: int) -> Batch:
        rng = _generator(seed, _DRAW, number)
        groups = []
        for query, positive in anchors.of(number):
            negative = _draw_negatives(data, query, 1, negatives, rng)
            groups.append(_group(data, query, np.append(positive, negative)))
        return Batch(data, groups)

    return Stream(batch, anchors.epoch)


def duo_pairs(data: TrainingSet, size: int, seed: int, negatives: Negatives = _CANDIDATES) -> Stream:
    """Batches of `size` ordered pairs of a relevant document and one that is not, each pair in both orders
    (section 3.3 of Nogueira et al. 2019): the first two groups of a batch are (a, b) and (b, a).

    >>> from tamis.models.templates import Tokenised
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> [group.documents.tolist() for group in duo_pairs(data, 2, seed=0).batch(0).groups]
    [[1, 2], [2, 1]]
    """
    _check_even(size, "ordered pairs")
    pairs = balanced(data, size, seed, negatives)
    return Stream(lambda number: _both_orders(pairs.batch(number)), pairs.epoch)


def grouped(
    data: TrainingSet,
    group: int,
    queries: int,
    seed: int,
    negatives: Negatives = _CANDIDATES,
    positives: int = 1,
) -> Stream:
    """Batches of `queries` groups of `group` documents: up to `positives` relevant ones, and others. The
    others are not relevant, or in a set with a teacher's scores any other candidates: there a query needs no
    relevant document. Groups are smaller where there are not enough documents.

    >>> from tamis.models.templates import Tokenised
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> [group.documents.tolist() for group in grouped(data, 3, 1, seed=0).batch(0).groups]
    [[1, 0, 2]]
    """
    if queries < 1 or group < 2 or not 1 <= positives < group:
        raise InputError(
            f"{queries} groups of {group} documents, {positives} of them relevant",
            remedy="use at least one group, and a relevant and another document in each",
        )
    anchors = _Anchors(data, seed, queries, negatives, lists=True)

    def one(query: int, positive: int, rng: np.random.Generator) -> Group:
        relevant = np.zeros(0, np.int64)
        if positive != _NONE:
            others = data.positives(query)
            others = _pick(others[others != positive], positives - 1, rng)
            relevant = np.append(positive, others)
        left = group - len(relevant)
        if data.scores is None:
            rest = _draw_negatives(data, query, left, negatives, rng)
        else:
            rest = _fill(_ranked(data, query, negatives), left, relevant, rng)
        return _group(data, query, np.append(relevant, rest))

    def batch(number: int) -> Batch:
        rng = _generator(seed, _DRAW, number)
        return Batch(data, [one(query, positive, rng) for query, positive in anchors.of(number)])

    return Stream(batch, anchors.epoch)


def teacher_pairs(data: TrainingSet, size: int, seed: int, first: int = 1, last: int | None = None) -> Stream:
    """Batches of `size` ordered pairs of candidates that the teacher scores differently, each pair in both
    orders, labelled by the teacher: for a duo whose queries have no judgments. Both candidates have ranks
    from `first` to `last`, or are any of the query's where these all have one score. An epoch is a pair a
    query.

    >>> from tamis.models.templates import Tokenised
    >>> judged = Judged(np.array([0, 0]), np.zeros(0, np.int32), np.zeros(0, np.int32))
    >>> candidates = Candidates(np.array([0, 2]), np.array([1, 0]), np.array([3.0, 2.0]))
    >>> queries, documents = Tokenised.of([[7]]), Tokenised.of([[8], [5]])
    >>> data = TrainingSet(queries, documents, ["q"], ["a", "b"], judged, candidates, np.array([0.1, 0.9]))
    >>> [group.documents.tolist() for group in teacher_pairs(data, 2, seed=0).batch(0).groups]
    [[0, 1], [1, 0]]
    """
    _check_even(size, "ordered pairs")
    window = Negatives(first, last)
    able = np.flatnonzero(_differently_scored(data))
    if not len(able):
        raise InputError(
            "no query has candidates that a teacher scores differently", remedy="give training_set a teacher"
        )
    order = _Order(len(able), seed)

    def one(query: int, rng: np.random.Generator) -> Group:
        for pool in _ranked(data, query, window):
            scores = _teacher(data, query, pool)
            if scores is not None and scores.min(initial=np.inf) < scores.max(initial=-np.inf):
                break
        assert scores is not None
        place = rng.integers(len(pool))
        other = _pick(np.flatnonzero(scores != scores[place]), 1, rng)[0]
        better, worse = (place, other) if scores[place] > scores[other] else (other, place)
        places = np.array([better, worse])
        return Group(query, pool[places], np.array([1, 0], np.float32), scores[places])

    def batch(number: int) -> Batch:
        rng = _generator(seed, _DRAW, number)
        queries = able[order.part(number, size // 2)]
        return _both_orders(Batch(data, [one(query, rng) for query in queries.tolist()]))

    return Stream(batch, order.batches(size // 2))


# -- drawing
# ------------------------------------------------------------------------------------------------------------


def _generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"a seed of {seed}", remedy="use 0 or more")
    return np.random.default_rng([seed, purpose, number])


class _Order:
    """The numbers below `size` in a random order, then in another, without end."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        # two, because a batch may lie across the end of an epoch
        self._epoch = lru_cache(2)(lambda epoch: _generator(seed, _ORDER, epoch).permutation(size))

    def part(self, number: int, length: int) -> Array:
        """The `number`-th part of `length`."""
        start, stop, parts = number * length, (number + 1) * length, []
        while start < stop:
            epoch, place = divmod(start, self._size)
            parts.append(self._epoch(epoch)[place : place + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def batches(self, length: int) -> int:
        return -(-self._size // length)


class _Anchors:
    """What groups are made around: a query and a relevant document, each such pair once an epoch; for `lists`
    of a taught set also queries that have none."""

    def __init__(
        self, data: TrainingSet, seed: int, size: int, negatives: Negatives, *, lists: bool = False
    ) -> None:
        if data.scores is not None and negatives.random:
            raise InputError(
                "random documents have no teacher's scores",
                remedy="put them among the candidates that it scores, or draw none",
            )
        queries, documents = data.all_positives()
        counts = np.bincount(queries, minlength=len(data))
        listed = np.zeros(len(data), np.int64) if data.candidates is None else np.diff(data.candidates.ends)
        if data.scores is None:
            able = counts < len(data.documents)
        else:  # all that was judged is among the candidates
            able = listed > 1 if lists else listed > counts
            if lists:
                without = np.flatnonzero(counts == 0)
                queries = np.append(queries, without)
                documents = np.append(documents, np.full(len(without), _NONE))
        able = able[queries]
        self._queries, self._documents, self._size = queries[able], documents[able], size
        if not len(self._queries):
            raise InputError(
                "no query has both a relevant document and another",
                remedy="check the qrels, or give candidates: a run or an index",
            )
        self._order = _Order(len(self._queries), seed)
        self.epoch = self._order.batches(size)

    def of(self, number: int) -> Iterator[tuple[int, int]]:
        """The queries of a batch, each with its document."""
        chosen = self._order.part(number, self._size)
        return zip(self._queries[chosen].tolist(), self._documents[chosen].tolist(), strict=True)


def _draw_negatives(
    data: TrainingSet, query: int, count: int, negatives: Negatives, rng: np.random.Generator
) -> Array:
    """So many documents that are not relevant to a query, none twice."""
    relevant = data.positives(query)
    anywhere = int((rng.random(count) < negatives.random).sum()) if negatives.random else 0
    judged = data.judged_negatives(query)
    pools = [*([judged] if negatives.judged else []), *_ranked(data, query, negatives), judged]
    found = _fill(pools, count - anywhere, relevant, rng)
    if data.scores is not None:
        return found
    more = _anywhere(len(data.documents), count - len(found), np.append(relevant, found), rng)
    return np.append(found, more)


def _ranked(data: TrainingSet, query: int, negatives: Negatives) -> list[Array]:
    """The candidates with the ranks that are wanted, and all of them."""
    candidates = data.candidates_of(query)
    return [candidates[negatives.first - 1 : negatives.last], candidates]


def _fill(pools: Sequence[Array], count: int, without: Array, rng: np.random.Generator) -> Array:
    """So many documents of the first pool, and where they are too few of the next, none twice."""
    found = np.zeros(0, np.int64)
    for pool in pools:
        if len(found) == count:
            break
        free = pool[~_among(pool, np.append(without, found))]
        found = np.append(found, _pick(free, count - len(found), rng))
    return found


def _anywhere(documents: int, count: int, without: Array, rng: np.random.Generator) -> Array:
    """So many of all documents, or all there are."""
    if documents <= 4 * (count + len(without)):
        return _pick(np.setdiff1d(np.arange(documents), without), count, rng)
    found = np.zeros(0, np.int64)
    while len(found) < count:  # most of what is drawn from so many is new
        drawn = rng.integers(documents, size=count - len(found))
        found = np.append(found, np.unique(drawn[~_among(drawn, np.append(without, found))]))
    return found


def _among(documents: Array, others: Array) -> Array:
    """`np.isin`, whose sorting takes ten times as long where there are few."""
    if len(documents) * len(others) > 1 << 14:
        return np.isin(documents, others)
    found: Array = (documents[:, None] == others).any(axis=1)
    return found


def _pick(pool: Array, count: int, rng: np.random.Generator) -> Array:
    """So many of them, none twice, or all there are."""
    if count == 1 and len(pool):
        place = int(rng.integers(len(pool)))
        return pool[place : place + 1]
    return pool[rng.permutation(len(pool))[:count]]


def _group(data: TrainingSet, query: int, documents: Array) -> Group:
    labels = _among(documents, data.positives(query)).astype(np.float32)
    return Group(query, documents, labels, _teacher(data, query, documents))


def _teacher(data: TrainingSet, query: int, documents: Array) -> Array | None:
    scores = data.scores_of(query)
    if scores is None:
        return None
    places = (data.candidates_of(query) == documents[:, None]).argmax(axis=1)
    taught: Array = scores[places]
    return taught


def _both_orders(batch: Batch) -> Batch:
    return Batch(batch.data, [order for group in batch.groups for order in (group, _swapped(group))])


def _swapped(pair: Group) -> Group:
    teacher = None if pair.teacher is None else pair.teacher[::-1]
    return replace(pair, documents=pair.documents[::-1], labels=pair.labels[::-1], teacher=teacher)


def _differently_scored(data: TrainingSet) -> Array:
    """Which queries have candidates of which the teacher thinks differently."""
    if data.scores is None or data.candidates is None:
        return np.zeros(len(data), bool)
    changes = np.append(False, data.scores[1:] != data.scores[:-1])
    starts = data.candidates.ends[:-1]
    changes[starts[starts < len(changes)]] = False  # another query's score is no change
    return np.diff(np.append(0, np.cumsum(changes))[data.candidates.ends]) > 0


def _check_even(size: int, what: str) -> None:
    if size < 2 or size % 2:
        raise InputError(f"a batch of {size} {what} has no two halves", remedy="use an even number")
