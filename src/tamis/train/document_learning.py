"""How models of long documents learn: groups of documents as batches. For MaxP and PCGM, which differ, see
`tamis.train.passage_learning`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.models.checkpoint import Checkpoint
from tamis.models.documents import DocumentSettings, Read, read
from tamis.models.network import open_network
from tamis.models.settings import changed
from tamis.models.templates import Inputs
from tamis.train.batch import RankingBatch, portion
from tamis.train.learning import Learning, Names
from tamis.train.loop import Part
from tamis.train.recipe import Recipe
from tamis.train.sets import Group, TrainingSet, offsets_of
from tamis.train.shares import own_places, split_groups
from tamis.train.streams import Batch


@dataclass(frozen=True, slots=True)
class DocumentBatch(RankingBatch):
    """A batch whose inputs are documents, or for MaxP passages. `gains` are the gains of each document's
    passages, -1 if unknown; `known` is the portion of known gains (see `Portion`)."""

    gains: Array | None = None  # int64[documents, passages]
    known: float = 1.0


class DocumentLearning(Learning):
    """A document is read whole and has one score, which is all that a loss needs."""

    def __init__(self, recipe: Recipe, start: Checkpoint) -> None:
        super().__init__(recipe, start)
        self.settings = cast(DocumentSettings, start.architecture.settings)

    def check(self) -> None:
        super().check()
        open_network(self.start)  # the start's head, if any, must have these settings

    @classmethod
    def data(cls, recipe: Recipe) -> Recipe:
        """The recipe, with its texts limited to what the model reads."""
        assert recipe.architecture is not None
        limit = recipe.architecture.settings.tokens
        data = tuple(each if each.set else changed(each, text_limit=limit) for each in recipe.data)
        return changed(recipe, data=data)

    def parts(self, step: int, drawn: Sequence[Batch], rank: int, world: int, most: int | None) -> list[Part]:
        per_step = self.recipe.optimiser.accumulate
        shares = [own_places(len(groups), rank, world) for _, groups in drawn]
        # the groups of other processes too: a part's weight depends on which passages they read
        made = [self._read(step * per_step + n, *batch) for n, batch in enumerate(drawn)]
        every = [batch for batches in made for batch in batches]
        found: list[Part] = []
        for (data, groups), own, batches in zip(drawn, shares, made, strict=True):
            tokens = np.array([len(batches[place].inputs.ids) for place in own])
            for numbers in split_groups(tokens, most):
                places = [own[number] for number in numbers]
                batch = part([batches[place] for place in places], every)
                # the share in the mean over all processes, since gradients are averaged
                share = len(places) * world / len(every)
                names = Names(data, [groups[place] for place in places])
                found.append(Part(batch, len(batch.inputs), share, names))
        return found

    def _read(self, number: int, data: TrainingSet, groups: Sequence[Group]) -> list[DocumentBatch]:
        """The groups of a batch, each as a separate batch."""
        seed = self.recipe.run.seed
        return [self.read(group, data, _seed(seed, number, n)) for n, group in enumerate(groups)]

    def read(self, group: Group, data: TrainingSet, seed: int) -> DocumentBatch:
        """The batch of one group; `seed` decides which passages are read."""
        made = read(
            data.queries.take([group.query]),
            np.zeros(len(group.documents), np.int64),
            data.documents.take(group.documents),
            self.reading.special,
            self.settings,
            self.reading.config,
            seed=seed,
        )
        return self.group_batch(group, data, made, seed)

    def group_batch(self, group: Group, data: TrainingSet, made: Read, seed: int) -> DocumentBatch:
        """The batch of a group whose documents have been read."""
        offsets, weights = np.array([0, len(group.documents)]), np.array([group.weight], np.float32)
        return DocumentBatch(made.inputs, offsets, labels_of(group), teacher_of(group), weights)


def join(batches: Sequence[DocumentBatch]) -> DocumentBatch:
    """Join the batches of several groups, with equal weight for each group, however many rounds it has.

    >>> one = Inputs(np.zeros(2, np.int32), np.zeros(2, np.uint8), np.arange(3))
    >>> two = DocumentBatch(one, np.array([0, 1, 2]), np.array([1, 0]), None, np.ones(2, np.float32))
    >>> single = DocumentBatch(one, np.array([0, 2]), np.array([1, 0]), None, np.ones(1, np.float32))
    >>> join([two, single]).weights
    array([0.75, 0.75, 1.5 ], dtype=float32)
    """
    rounds = np.array([len(each.weights) for each in batches])
    # a loss is a mean over all rounds; these weights make it a mean over groups
    even = np.repeat(rounds.sum() / (len(batches) * rounds), rounds).astype(np.float32)
    taught = [each.teacher for each in batches if each.teacher is not None]
    return DocumentBatch(
        Inputs.join([each.inputs for each in batches]),
        offsets_of(np.concatenate([np.diff(each.offsets) for each in batches])),
        np.concatenate([each.labels for each in batches]),
        np.concatenate(taught) if len(taught) == len(batches) else None,
        np.concatenate([each.weights for each in batches]) * even,
        _gains([each.gains for each in batches if each.gains is not None]),
    )


def part(some: Sequence[DocumentBatch], every: Sequence[DocumentBatch]) -> DocumentBatch:
    """Some groups of a step as one batch, with their weight among all groups of the step, so that a split
    step learns the same as a whole one (see `portion`).

    >>> one = Inputs(np.zeros(2, np.int32), np.zeros(2, np.uint8), np.arange(3))
    >>> pair = DocumentBatch(one, np.array([0, 2]), np.array([1, 0]), None, np.ones(1, np.float32))
    >>> known = replace(pair, gains=np.array([[0, 1], [-1, -1]]))
    >>> unknown = replace(pair, gains=np.array([[-1], [-1]]))
    >>> [part([each], [known, unknown]).known for each in (known, unknown)]
    [2.0, 0.0]
    """
    mine, all_of_them = _count_known(some), _count_known(every)
    known = mine * len(every) / (all_of_them * len(some)) if all_of_them else 1.0
    return replace(join(some), portion=portion(_rounds(some), _rounds(every)), known=known)


def _count_known(batches: Sequence[DocumentBatch]) -> int:
    return sum(int(np.count_nonzero(each.gains >= 0)) for each in batches if each.gains is not None)


def _rounds(batches: Sequence[DocumentBatch]) -> list[Group]:
    """The groups that the loss uses for these batches: for MaxP their rounds, otherwise the groups
    themselves. (`join` gives the rounds of a group the weight of one group in total.)"""
    return [
        Group(0, np.arange(stop - start), each.labels[start:stop])
        for each in batches
        for start, stop in bounds(each.offsets)
    ]


def _gains(parts: Sequence[Array]) -> Array | None:
    if not parts:
        return None
    width = max(part.shape[1] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-1) for part in parts]
    )


def labels_of(group: Group) -> Array:
    return group.labels.astype(np.float32)


def teacher_of(group: Group) -> Array | None:
    return None if group.teacher is None else group.teacher.astype(np.float32)


def bounds(offsets: Array) -> list[tuple[int, int]]:
    return list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))


def _seed(*numbers: int) -> int:
    """Combine several numbers into one seed."""
    return int(xxhash.xxh3_64_intdigest(" ".join(map(str, numbers)).encode()))
