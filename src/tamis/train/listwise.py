"""Training a listwise model (recipes with a table [listwise]): another task for `fit`.

A group of the examples is one input, its texts in a random order, and each text has a score: what the losses
over lists compare, all of which may be used. The order depends on the seed and the batch's number alone, so
that a run that goes on after a kill reads the same inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array
from tamis.evaluate.measures import evaluate
from tamis.infer.engine import Backend, Engine
from tamis.infer.listwise_backend import ListwiseBackend
from tamis.infer.tokens import texts_of
from tamis.models import templates
from tamis.models.config import EncoderConfig
from tamis.models.list_encoder import ListEncoder, text_rows
from tamis.models.lists import ListCheckpoint, begin_lists, save_lists
from tamis.models.states import padded_together
from tamis.models.templates import Inputs, Special, Tokenised, text_spans
from tamis.models.tokenizer import Tokenizer, open_tokenizer
from tamis.rank.groups import drawn_groups, settled
from tamis.train.batch import QUERY_LIMIT, RankingBatch, targets
from tamis.train.dev import DevRun, open_dev
from tamis.train.listwise_recipe import ListRecipe, Listwise
from tamis.train.loop import Progress, Result, fit
from tamis.train.objective import longest, padded
from tamis.train.processes import own_device
from tamis.train.ranking import Ranker, RankingTask, dev_every, identity, on_device, shown
from tamis.train.recipe import Limits, Loss, in_steps
from tamis.train.sets import Group, TrainingSet, offsets_of
from tamis.train.sources import Examples, read_examples
from tamis.train.start import load_start
from tamis.train.state import require_new
from tamis.train.streams import shuffled
from tamis.train.watch import Watch


def train_by_recipe(
    recipe: ListRecipe,
    out: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Read a recipe's data, train its model and leave it in `out`: see `fit`."""
    watch = watch or Watch()
    require_new(Path(out), resume)
    start = open_start(recipe)
    dev = open_list_dev(recipe, start) if recipe.dev else None  # a mistake in it is found before the reading
    examples = read_examples(recipe, open_tokenizer(start.start), watch)
    with shown(recipe, examples, watch) as progress:
        return train_lists(
            recipe, examples, out, start=start, dev=dev, device=device, resume=resume, progress=progress
        )


def train_lists(
    recipe: ListRecipe,
    examples: Examples,
    out: str | Path,
    *,
    start: ListCheckpoint | None = None,
    dev: ListDev | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train a listwise model on examples and leave it in `out`: see `fit`. `start` and `dev` are what the
    recipe says they are (`open_start`, `open_list_dev`) where they are not given."""
    start = start or open_start(recipe)
    if dev is None and recipe.dev is not None:
        dev = open_list_dev(recipe, start)
    plan = in_steps(recipe, examples.stream.epoch)
    task = ListTask(plan, start, examples, dev, own_device(device))
    every = dev_every(recipe, dev)
    return fit(task, plan.optimiser, plan.run, out, evaluate_every=every, resume=resume, progress=progress)


def open_start(recipe: ListRecipe) -> ListCheckpoint:
    """The model that training starts from: the recipe's checkpoint, for groups of the recipe's size."""
    seed = recipe.run.seed
    start = begin_lists(load_start(recipe.model, seed), recipe.listwise.n, seed)
    special, config, none = open_tokenizer(start.start).special, start.start.config, np.zeros(0, np.int64)
    # of no group, to hear before the data is read if one has no room
    _inputs(
        Tokenised.of([]), none, Tokenised.of([]), in_rows(none, config.texts), special, config, recipe.limits
    )
    return start


# -- batches
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListBatch(RankingBatch):
    """A batch in which a group is one input; ends, labels and teacher are of texts."""

    @property
    def input_ends(self) -> Array:
        return np.arange(len(self.offsets))


def list_batch(
    groups: Sequence[Group], examples: TrainingSet, special: Special, config: EncoderConfig, limits: Limits
) -> ListBatch:
    """The batch of these groups, each of at most as many documents as the model reads at once."""
    sizes = np.array([len(group.documents) for group in groups])
    queries = examples.queries.take([group.query for group in groups])
    texts = examples.documents.take(np.concatenate([group.documents for group in groups]))
    rows = in_rows(sizes, config.texts)
    inputs = _inputs(queries, np.arange(len(groups)), texts, rows, special, config, limits)
    return ListBatch(inputs, offsets_of(sizes), *targets(groups))


def _inputs(
    queries: Tokenised,
    own: Array,
    texts: Tokenised,
    groups: Array,
    special: Special,
    config: EncoderConfig,
    limits: Limits,
) -> Inputs:
    """The inputs of groups of texts; `own` says which query is each group's."""
    inputs, _ = templates.listwise(
        queries,
        texts,
        groups,
        special,
        own=own,
        query_limit=limits.query or QUERY_LIMIT["listwise"],
        total_limit=min(limits.total, config.max_length),
        segment_types=config.segments,
    )
    return inputs


def in_rows(sizes: Array, width: int) -> Array:
    """Numbers from 0 on in rows of these sizes, each filled up with -1.

    >>> in_rows(np.array([2, 3]), 3).tolist()
    [[0, 1, -1], [2, 3, 4]]
    """
    there = np.arange(width) < sizes[:, None]
    rows = np.full(there.shape, -1, dtype=np.int64)
    rows[there] = np.arange(sizes.sum())
    return rows


class ListRanker(Ranker):
    """A listwise encoder and its loss."""

    encoder: ListEncoder

    def __init__(self, encoder: ListEncoder, loss: Loss, special: Special, *, packed: bool) -> None:
        super().__init__(encoder, loss, packed=packed)
        self.special = special
        encoder.head.requires_grad_(False)  # of the [CLS], which no text is scored by

    def margins(self, inputs: Inputs) -> Tensor:
        """One number a text, input after input."""
        device = self.encoder.embeddings.word.device
        if self.packed:
            ids, segments, offsets = on_device(inputs, device)
            texts = self._texts(inputs, device)
            return self.encoder.packed_texts(ids, segments, offsets, longest(inputs), *texts)
        together = padded_together(inputs, device)
        found = torch.cat([self._padded(inputs.take(some), device) for some in together])
        order = np.concatenate(together)
        owners = text_spans(inputs.take(order), self.special).owners
        places = np.argsort(order[owners], kind="stable")
        return found[torch.from_numpy(places).to(device)]

    def _padded(self, inputs: Inputs, device: torch.device) -> Tensor:
        return self.encoder.padded_texts(*padded(inputs, device), *self._texts(inputs, device))

    def _texts(self, inputs: Inputs, device: torch.device) -> tuple[Tensor, Tensor]:
        rows, counts = text_rows(inputs, self.special, packed=self.packed)
        return rows.to(device), counts.to(device)


# -- a dev run
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListDev(DevRun):
    """Candidates to be reranked in groups."""

    groups: Sequence[Array] = field(kw_only=True)  # of each query: see `drawn_groups`

    def score(self, backend: Backend) -> float:
        """The measure of the candidates in the model's order."""
        scores = Engine(backend, self.groups[0].shape[1:]).margins(self.inputs)
        ranked = map(settled, self.rankings, self.groups, np.split(scores, self.offsets[1:-1]))
        run = {ranking.query.id: ranking for ranking in ranked}
        (value,) = evaluate(self.qrels, run, [self.measure]).mean.values()
        return value


def open_list_dev(recipe: ListRecipe, start: ListCheckpoint) -> ListDev:
    """The recipe's dev run, its candidates in groups."""
    assert recipe.dev is not None
    tokenizer, config = open_tokenizer(start.start), start.start.config
    # a dev run comes with inputs for mono, of which these are as short as can be
    found = open_dev(recipe.dev, tokenizer, config, Limits(query=1, total=8), pairs=False)
    return in_groups(found, tokenizer, config, recipe.limits, recipe.listwise)


def in_groups(
    dev: DevRun, tokenizer: Tokenizer, config: EncoderConfig, limits: Limits, plan: Listwise
) -> ListDev:
    """A dev run with its candidates in groups, whatever inputs it has."""
    queries = tokenizer.encode([ranking.query.text for ranking in dev.rankings])
    inputs, groups = [], []
    for number, ranking in enumerate(dev.rankings):
        best = ranking.head(plan.k)
        groups.append(drawn_groups(len(best), plan.n, plan.rounds))
        own, texts = np.full(len(groups[-1]), number), texts_of(best, tokenizer, limit=limits.total)
        made = _inputs(queries, own, texts, groups[-1], tokenizer.special, config, limits)
        inputs.append(made)
    kept = {each.name: getattr(dev, each.name) for each in fields(dev)}
    changed = {"inputs": Inputs.join(inputs), "offsets": np.cumsum([0, *map(len, inputs)])}
    return ListDev(**(kept | changed), groups=groups)


# -- the task
# ------------------------------------------------------------------------------------------------------------


class ListTask(RankingTask):
    """What `tamis.train.loop` needs to know of learning to rank groups."""

    recipe: ListRecipe
    module: ListRanker

    def __init__(
        self,
        recipe: ListRecipe,
        start: ListCheckpoint,
        examples: Examples,
        dev: ListDev | None = None,
        device: str = "auto",
    ) -> None:
        mixed_up = replace(examples, stream=shuffled(examples.stream, recipe.run.seed))
        super().__init__(recipe, start.start, mixed_up, dev, device)
        self.listwise = start
        config = replace(start.start.config, dropout=recipe.optimiser.dropout)
        encoder = ListEncoder.from_lists(replace(start, start=replace(start.start, config=config)))
        packed = self.module.packed
        self.module = ListRanker(encoder.to(self.device), recipe.loss, self.special, packed=packed)

    @property
    def identity(self) -> str:
        return identity(self.recipe, self.listwise.fingerprint, self.examples)

    def batch(self, data: TrainingSet, groups: Sequence[Group]) -> RankingBatch:
        return list_batch(groups, data, self.special, self.start.config, self.recipe.limits)

    def trained_lists(self) -> ListCheckpoint:
        """The weights as they are now."""
        encoder = self.module.encoder
        start = replace(self.start, tensors=encoder.tensors())
        return replace(self.listwise, start=start, head=encoder.head_tensors())

    def save(self, folder: Path) -> None:
        save_lists(self.trained_lists(), folder)

    def evaluate(self) -> float:
        """By the backend that will rank with the model."""
        assert self.dev is not None
        return self.dev.score(ListwiseBackend(self.trained_lists(), str(self.device), self.precision))
