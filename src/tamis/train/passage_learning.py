"""How MaxP and PCGM learn: what they add to or use instead of scores of documents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.checkpoint import Checkpoint
from tamis.models.document_network import OfVectors
from tamis.models.documents import Layout, Read
from tamis.models.network import Network
from tamis.models.pooling import gain_loss
from tamis.train.batch import RankingBatch
from tamis.train.document_learning import DocumentBatch, DocumentLearning, bounds, labels_of, teacher_of
from tamis.train.gains import gains_fingerprint, read_gains
from tamis.train.ranking_loss import ranking_loss
from tamis.train.recipe import Recipe
from tamis.train.sets import Group, TrainingSet
from tamis.train.sources import Examples

_FIRST = 0  # the number of the passage that is always kept
_BY_ITSELF = ("pointwise", "logit_mse_ce")  # losses that compare no document with another


class MaxPLearning(DocumentLearning):
    """Passages are scored one by one, each with its document's label. The first passage of a document is
    always kept, the others with a small probability, and the kept passages of a group's documents are
    compared in random rounds."""

    def group_batch(self, group: Group, data: TrainingSet, made: Read, seed: int) -> DocumentBatch:
        """All kept passages, with their documents' labels. Each round has one passage of every document; a
        document with fewer passages than others repeats some."""
        # a loss that compares documents receives one passage of each per round
        in_rounds = self.recipe.loss.name not in _BY_ITSELF
        rng, keep = np.random.default_rng(seed), self.kind.settings.keep
        kept = (made.numbers == _FIRST) | (rng.random(len(made.numbers)) < keep)
        own = [
            rng.permutation(np.flatnonzero(kept[start:stop]) + start) for start, stop in bounds(made.offsets)
        ]
        if in_rounds:
            count = max(map(len, own))
            shown = np.stack([np.resize(each, count) for each in own], axis=1)  # [rounds, documents]
            documents = np.tile(np.arange(len(own)), (count, 1))
        else:
            shown = np.concatenate(own)[:, None]
            documents = np.repeat(np.arange(len(own)), [len(each) for each in own])[:, None]
        passages = Layout.of(made.inputs, self.reading.special).passages.take(shown.ravel())
        rounds, size = shown.shape
        teacher = teacher_of(group)
        return DocumentBatch(
            passages,
            np.arange(rounds + 1) * size,
            labels_of(group)[documents.ravel()],
            None if teacher is None else teacher[documents.ravel()],
            np.full(rounds, group.weight, np.float32),
        )


class PcgmLearning(DocumentLearning):
    """The gains of passages are learned besides the labels of documents, if a recipe has gains."""

    def __init__(self, recipe: Recipe, start: Checkpoint) -> None:
        super().__init__(recipe, start)
        grades = self.kind.settings.gains
        self.gains = None if recipe.gains is None else read_gains(recipe.gains, grades)

    def examples(self, examples: Examples) -> Examples:
        if self.gains is None:
            return examples
        if examples.sets is not None:
            self.check_gains(examples.sets)
        seen = gains_fingerprint(self.gains, _asked(examples))
        return replace(examples, fingerprint=f"{examples.fingerprint} {seen}")

    def loss(self, network: Network, batch: RankingBatch) -> Tensor:
        assert isinstance(batch, DocumentBatch)
        if batch.gains is None:
            return super().loss(network, batch)
        assert isinstance(network, OfVectors)
        scores, logits = network.with_gains(batch.inputs)
        learned = gain_loss(logits, torch.from_numpy(batch.gains).to(logits.device))
        return ranking_loss(scores, batch, self.recipe.loss) + batch.known * learned

    def group_batch(self, group: Group, data: TrainingSet, made: Read, seed: int) -> DocumentBatch:
        batch = super().group_batch(group, data, made, seed)
        return batch if self.gains is None else replace(batch, gains=self._known(group, data, made))

    def check_gains(self, sets: Sequence[TrainingSet]) -> None:
        """Check, before training, that the gains belong to these data and to existing windows."""
        assert self.gains is not None
        found = False
        for data in sets:
            queries = _places(data.query_ids, {query for query, _ in self.gains})
            documents = _places(data.document_ids, {document for _, document in self.gains})
            for query, document in self.gains:
                if query in queries and document in documents:
                    found = True
                    alone = Group(queries[query], np.array([documents[document]]), np.ones(1, np.float32))
                    self.read(alone, data, seed=0)
        if not found:
            raise InputError(
                "none of the gains is of a query and a document of the data",
                remedy="check that their ids match, or leave out `gains`",
            )

    def _known(self, group: Group, data: TrainingSet, made: Read) -> Array:
        assert self.gains is not None
        found = np.full((len(group.documents), int(np.diff(made.offsets).max())), -1, np.int64)
        for row, (start, stop) in enumerate(bounds(made.offsets)):
            key = data.query_ids[group.query], data.document_ids[int(group.documents[row])]
            gains, numbers = self.gains.get(key, np.zeros(0, np.int64)), made.numbers[start:stop]
            if len(gains) > self._windows(data, int(group.documents[row]), numbers):
                raise InputError(
                    f"document {key[1]!r} has {len(gains)} gains for query {key[0]!r}, and fewer windows",
                    remedy="give a gain for each window at most, as the settings of [pcgm] cut them",
                )
            here = numbers < len(gains)
            found[row, : len(numbers)][here] = gains[numbers[here]]
        return found

    def _windows(self, data: TrainingSet, document: int, numbers: Array) -> float:
        """The number of windows of a document, from the numbers of those that are read: the last is always
        read, unless only one is read, or the document continues after the tokens that are kept."""
        offsets, lengths = data.documents.offsets, data.documents.lengths
        held = min(int(offsets[document + 1] - offsets[document]), self.settings.tokens)
        return np.inf if self.settings.passages < 2 or held < lengths[document] else int(numbers[-1]) + 1


def _places(names: Sequence[str], wanted: Collection[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names) if name in wanted}


def _asked(examples: Examples) -> set[str] | None:
    """The training queries; None if they are not known."""
    if examples.sets is None:
        return None
    return {query for data in examples.sets for query in data.query_ids}
