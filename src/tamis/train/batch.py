"""Groups of examples as one batch: the model's inputs, and the labels for its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.architecture import Architecture, Reading
from tamis.models.architectures.mono import Mono
from tamis.models.templates import Inputs
from tamis.rank.aggregate import opponents
from tamis.train.sets import Group, TrainingSet, offsets_of


class Portion(NamedTuple):
    """Weights for the means over a part of a step, besides the part's share of the groups: larger if its
    groups have more than others of what is averaged. All are 1 if groups are alike or the step is not
    split."""

    texts: float = 1.0
    couples: float = 1.0  # of a relevant text and another text
    answered: float = 1.0  # groups that have a relevant text
    several: float = 1.0  # groups of two texts or more


@dataclass(frozen=True, slots=True)
class RankingBatch:
    """Inputs, and the labels and teacher's scores of the items that are scored: those of group g are
    offsets[g] to offsets[g + 1]. Usually one input is one item.

    For duo an input is an ordered pair: its label says whether the first text is better, and its teacher's
    score is that of the first text minus that of the second. If groups are lists and all pairs of their texts
    are inputs, `pairs` has the two texts of each, and offsets, labels and teacher are those of texts. `alone`
    are the same texts, one per input, for a model that learns to read them both ways. For a listwise model
    too, offsets, labels and teacher are those of texts.
    """

    inputs: Inputs
    offsets: Array  # int64[groups + 1]
    labels: Array  # float32[scored]
    teacher: Array | None  # float32[scored]
    weights: Array  # float32[groups]
    pairs: Array | None = field(default=None, kw_only=True)  # int64[inputs, 2]
    alone: Inputs | None = field(default=None, kw_only=True)
    portion: Portion = field(default=Portion(), kw_only=True)
    own_inputs: Array | None = field(default=None, kw_only=True)  # int64[groups + 1]; None: as offsets

    @property
    def singles(self) -> RankingBatch:
        """The texts of `alone` as a separate batch."""
        assert self.alone is not None
        return replace(self, inputs=self.alone, pairs=None, alone=None, own_inputs=None)

    @property
    def input_offsets(self) -> Array:
        """The offsets at which the inputs of each group begin and end."""
        return self.offsets if self.own_inputs is None else self.own_inputs


def ranking_batch(
    groups: Sequence[Group],
    examples: TrainingSet,
    kind: Architecture,
    reading: Reading,
    *,
    pairs: bool = False,
    lists: bool = False,
    alone: bool = False,
) -> RankingBatch:
    """The batch of these groups, as a model of this kind reads them. With `pairs` an input has two documents
    of a group: the first and the second, the third and the fourth, or with `lists` each with each other; with
    `alone` each document is also an input for mono."""
    if not groups:
        raise InputError("a batch without examples", remedy="check the data of the recipe")
    # all groups at once: a call of numpy costs more than the tokens of one group
    sizes = np.array([len(group.documents) for group in groups])
    texts = examples.documents.take(np.concatenate([group.documents for group in groups]))
    queries = examples.queries.take([group.query for group in groups])
    query_of = np.repeat(np.arange(len(groups)), sizes)  # of each text
    members = all_pairs(sizes) if lists else kind.members(sizes)
    if pairs and not lists:
        members = np.arange(len(texts)).reshape(-1, 2)
    asked = query_of[members[:, 0]]
    inputs, _ = kind.inputs(queries, texts, members, asked, reading)
    labels, teacher, weights = targets(groups)
    if pairs and not lists:
        first, second = labels[0::2], labels[1::2]
        labels = np.where(first == second, 0.5, first > second).astype(np.float32)
        teacher = None if teacher is None else teacher[0::2] - teacher[1::2]
        return RankingBatch(inputs, offsets_of(sizes // 2), labels, teacher, weights)
    single = None
    if alone:
        each = np.arange(len(texts))[:, None]
        single, _ = Mono().inputs(queries, texts, each, query_of, reading)
    return RankingBatch(
        inputs,
        offsets_of(sizes),
        labels,
        teacher,
        weights,
        pairs=members if lists else None,
        alone=single,
        own_inputs=offsets_of(np.bincount(asked, minlength=len(groups))),
    )


def targets(groups: Sequence[Group]) -> tuple[Array, Array | None, Array]:
    """The labels of the groups' documents, concatenated; their teacher's scores, if all groups have them; and
    the weight of each group.

    >>> group = Group(0, np.array([4, 7]), np.array([1.0, 0.0]))
    >>> [None if each is None else each.tolist() for each in targets([group, group])]
    [[1.0, 0.0, 1.0, 0.0], None, [1.0, 1.0]]
    """
    labels = np.concatenate([group.labels for group in groups]).astype(np.float32)
    taught = [group.teacher for group in groups if group.teacher is not None]
    teacher = np.concatenate(taught).astype(np.float32) if len(taught) == len(groups) else None
    return labels, teacher, np.array([group.weight for group in groups], np.float32)


def portion(some: Sequence[Group], every: Sequence[Group]) -> Portion:
    """The portion of some groups among all groups of a step, so that a split step learns the same as a whole
    one.

    >>> pair = Group(0, np.array([4, 7]), np.array([1.0, 0.0]))
    >>> four = Group(1, np.array([1, 2, 3, 4]), np.zeros(4))
    >>> portion([pair], [pair, four]), portion([four], [pair, four]).texts
    (Portion(texts=0.6666666666666666, couples=2.0, answered=2.0, several=1.0), 1.3333333333333333)
    """
    own, whole = _counts(some), _counts(every)
    rates = own * len(every) / np.maximum(whole * len(some), 1)
    return Portion(*np.where(whole > 0, rates, 1.0).tolist())


def _counts(groups: Sequence[Group]) -> Array:
    """The counts of the items that each field of a `Portion` weights."""
    sizes = np.array([len(group.labels) for group in groups])
    relevant = np.array([np.count_nonzero(group.labels > 0) for group in groups])
    couples = relevant * (sizes - relevant)
    return np.array([sizes.sum(), couples.sum(), np.count_nonzero(relevant), np.count_nonzero(sizes > 1)])


def all_pairs(sizes: Array) -> Array:
    """All ordered pairs of the texts of each group, for concatenated groups of these sizes.

    >>> all_pairs(np.array([2, 3])).tolist()
    [[0, 1], [1, 0], [2, 3], [2, 4], [3, 2], [3, 4], [4, 2], [4, 3]]
    """
    starts = np.cumsum(sizes) - sizes
    return np.concatenate([opponents(int(n), "sum") + at for n, at in zip(sizes, starts, strict=True)])


def couples(labels: Array, offsets: Array) -> tuple[Array, Array]:
    """Each relevant input of a group paired with each input that is not relevant.

    >>> better, worse = couples(np.array([1.0, 0.0, 0.0, 0.0, 1.0]), np.array([0, 3, 5]))
    >>> better.tolist(), worse.tolist()
    ([0, 0, 4], [1, 2, 3])
    """
    group = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    above, below = np.flatnonzero(labels > 0), np.flatnonzero(labels <= 0)
    better, worse = np.nonzero(group[above][:, None] == group[below])
    return above[better], below[worse]
