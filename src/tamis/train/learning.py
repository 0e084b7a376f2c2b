"""How models learn to rank: how the groups of a step become a batch for a kind of model, and its loss.

An architecture may name its own class (`Architecture.learning`). `Learning` trains any model that scores each
of its inputs, with the same inputs as in ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module

import numpy as np
import xxhash
from torch import Tensor

from tamis.base.errors import InputError, quoted, some
from tamis.models.architecture import Architecture, Reading
from tamis.models.architectures.cascade import Cascade
from tamis.models.checkpoint import Checkpoint
from tamis.models.exit_network import ExitNetwork
from tamis.models.network import Network
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import open_tokenizer
from tamis.train.batch import RankingBatch, portion, ranking_batch
from tamis.train.loop import Part
from tamis.train.ranking_loss import ranking_loss
from tamis.train.recipe import Recipe
from tamis.train.sets import Group, TrainingSet
from tamis.train.shares import own_places, split_groups
from tamis.train.sources import Examples
from tamis.train.streams import Batch, shuffled

__all__ = ["Learning", "RankingBatch", "ranking_loss"]


class Learning:
    """How a model learns from groups of documents. A custom subclass only needs a `loss` of the network's
    output for `batch.inputs`."""

    #: Whether a step may leave some parameters without a gradient.
    partial = False

    def __init__(self, recipe: Recipe, start: Checkpoint) -> None:
        self.recipe, self.start, self.kind = recipe, start, start.architecture
        limits = recipe.limits
        tokenizer = open_tokenizer(start)
        self.reading = Reading(
            tokenizer.special,
            start.config,
            limits.query or self.kind.query_limit,
            limits.total,
            tokenizer,
        )

    def check(self) -> None:
        """Check, before anything is read, that the limits leave room for an input."""
        none, nothing = np.zeros(0, np.int64), Tokenised.of([])
        members = np.zeros((0, 2), np.int64) if self.recipe.examples.in_pairs else self.kind.members(none)
        self.kind.inputs(nothing, nothing, members, none, self.reading)

    @classmethod
    def data(cls, recipe: Recipe) -> Recipe:
        """The recipe whose data are read."""
        return recipe

    def examples(self, examples: Examples) -> Examples:
        """The examples for this kind of model; the fingerprint covers everything that it adds to them."""
        return examples

    def parts(self, step: int, drawn: Sequence[Batch], rank: int, world: int, most: int | None) -> list[Part]:
        """This process's share of a step's groups, split so that at most `most` tokens go through the model
        together."""
        found: list[Part] = []
        every = [group for _, groups in drawn for group in groups]
        for data, groups in drawn:
            own = [groups[place] for place in own_places(len(groups), rank, world)]
            batch = self.batch(data, own)
            tokens = np.diff(batch.inputs.offsets[batch.input_offsets])
            for numbers in split_groups(tokens, most):
                kept = [own[number] for number in numbers]
                here = batch if len(numbers) == len(own) else self.batch(data, kept)
                here = replace(here, portion=portion(kept, every))
                # the share in the mean over all processes, since gradients are averaged
                share = len(numbers) * world / len(every)
                found.append(Part(here, len(here.inputs), share, Names(data, kept)))
        return found

    def batch(self, data: TrainingSet, groups: Sequence[Group]) -> RankingBatch:
        """The batch of some groups."""
        examples = self.recipe.examples
        return ranking_batch(
            groups,
            data,
            self.kind,
            self.reading,
            pairs=self.recipe.examples.in_pairs,
            lists=examples.kind == "duo_lists",
            alone=examples.alone,
        )

    def loss(self, network: Network, batch: RankingBatch) -> Tensor:
        """The loss of a batch."""
        found = self.ranking_loss(network(batch.inputs), batch)
        if batch.alone is None:
            return found
        return found + self.ranking_loss(network(batch.alone), batch.singles)

    def ranking_loss(self, scores: Tensor, batch: RankingBatch) -> Tensor:
        """The recipe's loss, `[loss]`, for the scores of a batch."""
        return ranking_loss(scores, batch, self.recipe.loss)


def learning_of(recipe: Recipe, start: Checkpoint) -> Learning:
    """The `Learning` of a model of this architecture."""
    return learning_class(start.architecture)(recipe, start)


def learning_class(kind: Architecture) -> type[Learning]:
    """The class that trains a kind of model, imported if the architecture only names it.

    >>> from tamis.models.architecture import architecture
    >>> learning_class(architecture("listwise")()).__name__
    'ListLearning'
    """
    found: object = kind.learning
    if isinstance(found, str):
        module, _, name = found.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InputError(
                f"the learning of a {kind.name} model cannot be imported ({' '.join(str(error).split())})",
                remedy="write where it is as package.module:Class",
            ) from error
    if not isinstance(found, type) or not issubclass(found, Learning):
        raise InputError(
            f"the learning of a {kind.name} model is {quoted(found)}",
            remedy="give a class derived from tamis.train.learning.Learning",
        )
    return found


@dataclass(frozen=True, slots=True)
class Names:
    """The ids of some groups, looked up only when an error needs them."""

    data: TrainingSet
    groups: Sequence[Group]

    def __call__(self) -> str:
        queries = [self.data.query_ids[group.query] for group in self.groups]
        numbers = np.concatenate([group.documents for group in self.groups]).tolist()
        return f"queries {some(queries)}; documents {some([self.data.document_ids[n] for n in numbers])}"


# -- listwise models
# ------------------------------------------------------------------------------------------------------------


class ListLearning(Learning):
    """Each group of the examples is one input, with its texts in a random order; any loss over lists may be
    used. The order depends only on the seed and the batch's number, so that a resumed run reads the same
    inputs."""

    def examples(self, examples: Examples) -> Examples:
        return replace(examples, stream=shuffled(examples.stream, self.recipe.run.seed))


# -- models with exits
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExitBatch(RankingBatch):
    """A batch, and the exit that is trained on it."""

    exit: int = field(kw_only=True)


class ExitLearning(Learning):
    """Every step trains one exit, drawn uniformly from all, including the last: its loss is propagated
    through the layers below it to the embeddings, and the layers above are unchanged (Soldaini & Moschitti
    2020, who find this better than to take the exits in turn, or the early ones more often). The choice of
    the exit depends only on the seed and the step, so that a resumed run trains the same exits."""

    partial = True

    def parts(self, step: int, drawn: Sequence[Batch], rank: int, world: int, most: int | None) -> list[Part]:
        """As for any ranking; all parts of a step, in all processes, train the same exit."""
        assert isinstance(self.kind, Cascade)
        exits = len(self.kind.layers(self.start.config))
        number = drawn_exit(self.recipe.run.seed, step, exits)
        return [
            replace(part, batch=_for_exit(part.batch, number))
            for part in super().parts(step, drawn, rank, world, most)
        ]

    def loss(self, network: Network, batch: RankingBatch) -> Tensor:
        assert isinstance(network, ExitNetwork) and isinstance(batch, ExitBatch)
        return ranking_loss(network.at(batch.exit, batch.inputs), batch, self.recipe.loss)


def _for_exit(batch: RankingBatch, exit: int) -> ExitBatch:
    return ExitBatch(**{each.name: getattr(batch, each.name) for each in fields(batch)}, exit=exit)


def drawn_exit(seed: int, step: int, exits: int) -> int:
    """The number of the exit that a step trains.

    >>> [drawn_exit(seed=0, step=step, exits=5) for step in range(12)]
    [0, 0, 4, 4, 3, 1, 3, 0, 4, 3, 3, 2]
    """
    digest: int = xxhash.xxh3_64_intdigest(f"exit {seed} {step}".encode())
    return int(np.random.default_rng(digest).integers(exits))
