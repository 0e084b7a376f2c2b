"""Examples: batches of groups drawn from a training set.

The batches of a stream are numbered, and the n-th depends only on the set, the seed and n: a run that resumes
after a kill continues with the next number. An epoch is a random order of all positives, each of which
belongs to one group, so that none is left out while another is drawn twice.

Non-relevant documents are drawn from the query's candidates, from the judged documents, or from all documents
(`Negatives`), and never include a document that is relevant to the query. Candidates may come from BM25 or
from another stage's run: see `training_set`. In a set with a teacher's scores only candidates are drawn,
because every document of a group needs a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.errors import InputError
from tamis.train.build import Weak, training_set, weakly_supervised
from tamis.train.sets import Candidates, Group, Judged, Report, TrainingSet, length_matched, offsets_of
from tamis.train.streams import Batch, Stream, chain, curriculum, curriculum_weights, ease, mixed

__all__ = [
    "Batch",
    "Candidates",
    "Group",
    "Judged",
    "Negatives",
    "Order",
    "Report",
    "Stream",
    "TrainingSet",
    "Weak",
    "balanced",
    "both_orders",
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
_ORDER, _DRAW = range(2)  # separate uses of a seed, with different random numbers
#: The order in which documents are drawn: judged ones if they are preferred, candidates of the requested
#: ranks, other candidates, judged ones if they are not preferred. And the number of these tiers.
_WANTED, _NEAR, _OTHER, _LAST, _TIERS = range(5)


@dataclass(frozen=True, slots=True)
class Negatives:
    """The source of documents that are not relevant.

    They are candidates of the ranks `first` to `last`, counted from 1; with `judged`, documents that were
    judged not relevant are preferred. The share `random` is drawn from all documents of the set instead. If a
    query has too few, they are completed from its other candidates, then its judged documents, then any
    documents.
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
    and a non-relevant one for the same query.

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
        return Batch(data, _groups(data, *anchors.of(number), 2, 1, negatives, rng))

    return Stream(batch, anchors.epoch)


def duo_pairs(data: TrainingSet, size: int, seed: int, negatives: Negatives = _CANDIDATES) -> Stream:
    """Batches of `size` ordered pairs of a relevant document and a non-relevant one, each pair in both orders
    (section 3.3 of Nogueira et al. 2019): the first two groups of a batch are (a, b) and (b, a).

    >>> from tamis.models.templates import Tokenised
    >>> judged = Judged(np.array([0, 1]), np.array([1]), np.array([1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> [group.documents.tolist() for group in duo_pairs(data, 2, seed=0).batch(0).groups]
    [[1, 0], [0, 1]]
    """
    _check_even(size, "ordered pairs")
    pairs = balanced(data, size, seed, negatives)
    return Stream(lambda number: both_orders(pairs.batch(number)), pairs.epoch)


def grouped(
    data: TrainingSet,
    group: int,
    queries: int,
    seed: int,
    negatives: Negatives = _CANDIDATES,
    positives: int = 1,
) -> Stream:
    """Batches of `queries` groups of `group` documents: up to `positives` relevant ones, and others. The
    others are not relevant, or in a set with a teacher's scores any other candidates; in such a set a query
    does not need a relevant document. Groups are smaller if there are not enough documents.

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

    def batch(number: int) -> Batch:
        rng = _generator(seed, _DRAW, number)
        drawn = _groups(data, *anchors.of(number), group, positives, negatives, rng, lists=True)
        return Batch(data, drawn)

    return Stream(batch, anchors.epoch)


def teacher_pairs(data: TrainingSet, size: int, seed: int, first: int = 1, last: int | None = None) -> Stream:
    """Batches of `size` ordered pairs of candidates that the teacher scores differently, each pair in both
    orders, labelled by the teacher: for a duo whose queries have no judgments. Both candidates have ranks
    from `first` to `last`, or any rank if all scores in that range are equal. An epoch is one pair per query.

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
            "no query has candidates that a teacher scores differently",
            remedy="give a teacher whose scores differ within a query",
        )
    order = Order(len(able), seed)

    def batch(number: int) -> Batch:
        rng = _generator(seed, _DRAW, number)
        queries = able[order.part(number, size // 2)]
        return both_orders(Batch(data, _taught_pairs(data, queries, window, rng)))

    return Stream(batch, order.batches(size // 2))


# -- drawing
# ------------------------------------------------------------------------------------------------------------


def _generator(seed: int, purpose: int, number: int) -> np.random.Generator:
    if seed < 0:
        raise InputError(f"a seed of {seed}", remedy="use 0 or more")
    return np.random.default_rng([seed, purpose, number])


class Order:
    """The numbers below `size` in a random order, then in another, endlessly."""

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        # two, because a batch may span the end of an epoch
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
    """The anchors of groups: a query and a relevant document, each such pair once per epoch; for `lists` of a
    set with a teacher also queries without a relevant document."""

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
        listed = (
            np.zeros(len(data), np.int64) if data.candidates is None else np.diff(data.candidates.offsets)
        )
        if data.scores is None:
            able = counts < len(data.documents)
        else:  # all judged documents are among the candidates
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
        self._order = Order(len(self._queries), seed)
        self.epoch = self._order.batches(size)

    def of(self, number: int) -> tuple[Array, Array]:
        """The queries of a batch, each with its relevant document."""
        chosen = self._order.part(number, self._size)
        return self._queries[chosen], self._documents[chosen]


class _Lists(NamedTuple):
    """Documents of a batch's groups, concatenated: `owners` has the group of each."""

    owners: Array  # int64: numbers of groups
    documents: Array  # int64

    def where(self, chosen: Array) -> _Lists:
        return _Lists(self.owners[chosen], self.documents[chosen])

    def among(self, others: _Lists) -> Array:
        """Which documents are in the same group's list of `others`."""
        return self.places(others)[1]

    def places(self, others: _Lists) -> tuple[Array, Array]:
        """The position of each document in `others`, and whether it is in there."""
        if not len(others.owners):
            return np.zeros(len(self.owners), np.int64), np.zeros(len(self.owners), bool)
        keys, theirs = self.keys, others.keys
        order = np.argsort(theirs)
        places = order[np.minimum(np.searchsorted(theirs, keys, sorter=order), len(order) - 1)]
        return places, theirs[places] == keys

    @property
    def keys(self) -> Array:
        return (self.owners << 32) | self.documents  # the document numbers of a set have 31 bits


def _join(*lists: _Lists) -> _Lists:
    return _Lists(
        np.concatenate([each.owners for each in lists]), np.concatenate([each.documents for each in lists])
    )


def _groups(
    data: TrainingSet,
    queries: Array,
    anchors: Array,
    size: int,
    positives: int,
    negatives: Negatives,
    rng: np.random.Generator,
    *,
    lists: bool = False,
) -> list[Group]:
    """A group for each query's anchor: up to `positives` relevant documents, and others up to `size`. All
    groups of a batch are drawn together, which takes a tenth of the time of drawing them one by one."""
    judged, grades = _listed(data.judged.offsets, queries, data.judged.documents, data.judged.grades)
    relevant, dismissed = judged.where(grades >= data.relevant), judged.where(grades < data.relevant)
    owners = np.flatnonzero(anchors != _NONE)
    found = _Lists(owners, anchors[owners])
    if positives > 1:
        more = relevant.where(~relevant.among(found))
        found = _join(found, more.where(_drawn(more, 0, np.full(len(queries), positives - 1), rng)))
    left = size - np.bincount(found.owners, minlength=len(queries))
    # enough for a whole group without the documents that were judged or found above
    enough = size + np.bincount(judged.owners, minlength=len(queries))
    candidates, tiers = _candidates(data, queries, negatives, enough, rng)
    if data.scores is not None and lists:
        free = ~candidates.among(found)
    else:
        candidates, tiers = _not_relevant(candidates, tiers, dismissed, negatives)
        free = ~candidates.among(relevant)
    anywhere = rng.binomial(left, negatives.random) if negatives.random else np.zeros_like(left)
    candidates, tiers = candidates.where(free), tiers[free]
    found = _join(found, candidates.where(_drawn(candidates, tiers, left - anywhere, rng)))
    if data.scores is None:
        missing = size - np.bincount(found.owners, minlength=len(queries))
        found = _join(found, _anywhere(len(data.documents), missing, _join(relevant, found), rng))
    found = found.where(np.argsort(found.owners, kind="stable"))
    return _split(data, queries, found, found.among(relevant).astype(np.float32))


def _taught_pairs(
    data: TrainingSet, queries: Array, window: Negatives, rng: np.random.Generator
) -> list[Group]:
    """Two candidates of each query that the teacher scores differently, the better one first."""
    assert data.candidates is not None and data.scores is not None
    starts = data.candidates.offsets[queries]
    owners, ranks = _spans(data.candidates.offsets[queries + 1] - starts)
    at = starts[owners] + ranks
    candidates, scores = _Lists(owners, data.candidates.documents[at].astype(np.int64)), data.scores[at]
    near = _wanted(ranks, window)
    begins = np.flatnonzero(ranks == 0)  # of lists that all have two scores at least
    low = np.minimum.reduceat(np.where(near, scores, np.inf), begins)
    high = np.maximum.reduceat(np.where(near, scores, -np.inf), begins)
    free = np.flatnonzero(near | ~(low < high)[owners])
    ones = np.ones(len(queries), np.int64)
    one = free[_drawn(candidates.where(free), 0, ones, rng)]
    free = free[scores[free] != scores[one][owners[free]]]
    other = free[_drawn(candidates.where(free), 0, ones, rng)]
    swapped = scores[one] < scores[other]
    pairs = np.stack([np.where(swapped, other, one), np.where(swapped, one, other)], axis=1).ravel()
    labels = np.tile(np.array([1, 0], np.float32), len(queries))
    return _split(data, queries, candidates.where(pairs), labels)


def _listed(offsets: Array, queries: Array, documents: Array, values: Array) -> tuple[_Lists, Array]:
    """The lists of some queries, from concatenated lists, and the values that belong to them."""
    owners, places = _spans(offsets[queries + 1] - offsets[queries])
    at = offsets[queries][owners] + places
    return _Lists(owners, documents[at].astype(np.int64)), values[at]


def _spans(counts: Array) -> tuple[Array, Array]:
    """The numbers below each count, and the position of the count that each belongs to."""
    return np.repeat(np.arange(len(counts)), counts), ranges(np.zeros_like(counts), counts)


def _wanted(ranks: Array, negatives: Negatives) -> Array:
    """Which ranks, counted from 0 here, are in the window."""
    inside: Array = (ranks >= negatives.first - 1) & (ranks < (negatives.last or np.inf))
    return inside


def _candidates(
    data: TrainingSet, queries: Array, negatives: Negatives, enough: Array, rng: np.random.Generator
) -> tuple[_Lists, Array]:
    """The queries' candidates, those with the requested ranks before the others. If a query has `enough` of
    the requested ones, the others are left out; if it has many more, only `enough` are drawn from them."""
    if data.candidates is None:
        return _Lists(np.zeros(0, np.int64), np.zeros(0, np.int64)), np.zeros(0, np.int64)
    starts = data.candidates.offsets[queries]
    listed = data.candidates.offsets[queries + 1] - starts
    skipped = negatives.first - 1
    wanted = np.minimum(listed, negatives.last or listed) - skipped
    many, will_do = wanted > 4 * enough, wanted >= enough
    some = _distinct(wanted, np.where(many, enough, 0), rng)
    owners, ranks = _spans(np.select([many, will_do], [0, wanted], listed))
    ranks += np.where(will_do, skipped, 0)[owners]
    owners, ranks = np.append(owners, some.owners), np.append(ranks, some.documents + skipped)
    documents = data.candidates.documents[starts[owners] + ranks].astype(np.int64)
    return _Lists(owners, documents), np.where(_wanted(ranks, negatives), _NEAR, _OTHER)


def _not_relevant(
    candidates: _Lists, tiers: Array, dismissed: _Lists, negatives: Negatives
) -> tuple[_Lists, Array]:
    """Candidates and documents judged not relevant (`dismissed`), each once, in the order of preference."""
    if negatives.judged:
        new = ~candidates.among(dismissed)
        candidates, tiers = candidates.where(new), tiers[new]
    else:
        dismissed = dismissed.where(~dismissed.among(candidates))
    tier = _WANTED if negatives.judged else _LAST
    return _join(candidates, dismissed), np.append(tiers, np.full(len(dismissed.owners), tier))


def _drawn(pool: _Lists, tiers: Array | int, counts: Array, rng: np.random.Generator) -> Array:
    """The positions of `counts` documents per group, drawn from its lowest tier, and if these are too few
    from the next."""
    # sorted by group, then by tier, then at random (at most a half, so that no sum is rounded to the next)
    order = np.argsort(pool.owners * _TIERS + tiers + rng.random(len(pool.owners)) / 2)
    sizes = np.bincount(pool.owners, minlength=len(counts))
    turn = ranges(np.zeros_like(sizes), sizes)
    chosen: Array = order[turn < np.repeat(counts, sizes)]
    return chosen


def _anywhere(documents: int, counts: Array, without: _Lists, rng: np.random.Generator) -> _Lists:
    """Draw `counts` of all documents for each group, or all if there are fewer."""
    taken = np.bincount(without.owners, minlength=len(counts))
    drawn = _distinct(np.full_like(counts, documents), np.where(counts > 0, counts + taken, 0), rng)
    drawn = drawn.where(~drawn.among(without))
    return drawn.where(_drawn(drawn, 0, counts, rng))


def _distinct(limits: Array, counts: Array, rng: np.random.Generator) -> _Lists:
    """Draw `counts` different numbers below its limit for each group, or all if there are fewer."""
    few = limits <= 4 * counts  # these would often draw the same number again
    every = _Lists(*_spans(np.where(few & (counts > 0), limits, 0)))
    found = every.where(_drawn(every, 0, counts, rng))
    owners = np.repeat(np.arange(len(counts)), np.where(few, 0, counts))
    while len(owners):
        drawn = _Lists(owners, rng.integers(limits[owners]))
        new = np.zeros(len(owners), bool)
        new[np.unique(drawn.keys, return_index=True)[1]] = True
        new &= ~drawn.among(found)
        found, owners = _join(found, drawn.where(new)), owners[~new]
    return found


def _split(data: TrainingSet, queries: Array, found: _Lists, labels: Array) -> list[Group]:
    """Split lists of documents into groups."""
    offsets = offsets_of(np.bincount(found.owners, minlength=len(queries))).tolist()
    spans = list(map(slice, offsets[:-1], offsets[1:]))
    teachers: Sequence[Array | None] = [None] * len(queries)
    if data.scores is not None:
        assert data.candidates is not None
        candidates, scores = _listed(data.candidates.offsets, queries, data.candidates.documents, data.scores)
        taught = scores[found.places(candidates)[0]]
        teachers = [taught[span] for span in spans]
    return [
        Group(query, found.documents[span], labels[span], teacher)
        for query, span, teacher in zip(queries.tolist(), spans, teachers, strict=True)
    ]


def both_orders(batch: Batch) -> Batch:
    """Each pair, followed by the same pair in the other order."""
    return Batch(batch.data, [order for group in batch.groups for order in (group, _swapped(group))])


def _swapped(pair: Group) -> Group:
    teacher = None if pair.teacher is None else pair.teacher[::-1]
    return Group(pair.query, pair.documents[::-1], pair.labels[::-1], teacher, pair.weight)


def _differently_scored(data: TrainingSet) -> Array:
    """Which queries have candidates with different scores of the teacher."""
    if data.scores is None or data.candidates is None:
        return np.zeros(len(data), bool)
    changes = np.append(False, data.scores[1:] != data.scores[:-1])
    starts = data.candidates.offsets[:-1]
    changes[starts[starts < len(changes)]] = False  # a new query is not a change of score
    return np.diff(np.append(0, np.cumsum(changes))[data.candidates.offsets]) > 0


def _check_even(size: int, what: str) -> None:
    if size < 2 or size % 2:
        raise InputError(f"a batch of {size} {what} has no two halves", remedy="use an even number")
