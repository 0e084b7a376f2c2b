"""Training models of long documents (recipes with a table [longdoc]): another task for `fit`.

A document is read whole and has one score, which is all that the losses of `tamis.train.losses` know. MaxP is
trained on passages one by one instead: each has its document's label, the first of a document is always kept
and the others with a small probability, and the passages that are kept of a group's documents are compared in
rounds, at random. What comes of it is an ordinary checkpoint for `maxp(mono(model=...))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from tamis.infer.longdoc_backend import LongBackend
from tamis.infer.tokens import texts_of
from tamis.models.checkpoint import save_checkpoint
from tamis.models.config import EncoderConfig
from tamis.models.long_checkpoint import LongCheckpoint, begin, load_long, save_long
from tamis.models.long_plan import LongDoc, is_long
from tamis.models.longdoc import read
from tamis.models.parade import CumulativeGain, gain_loss
from tamis.models.passages import Encoded, LongModel, OfScores, OfVectors
from tamis.models.templates import Inputs
from tamis.train.dev import DevRun, open_dev
from tamis.train.longdoc_data import LongBatch, Reading, gains_fingerprint, part, read_gains
from tamis.train.longdoc_recipe import LongRecipe
from tamis.train.loop import Part, Progress, Result, fit
from tamis.train.processes import own_device
from tamis.train.ranking import Names, at_once, beside, dev_every, identity, own_places, shown, split_groups
from tamis.train.ranking_loss import ranking_loss
from tamis.train.recipe import Dev, Limits, Loss, Model, in_steps
from tamis.train.sets import Group, TrainingSet
from tamis.train.sources import Examples, read_examples
from tamis.train.start import load_start
from tamis.train.state import require_new
from tamis.train.watch import Watch


def train_by_recipe(
    recipe: LongRecipe,
    out: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Read a recipe's data, train its model and leave it in `out`: see `fit`."""
    watch = watch or Watch()
    require_new(Path(out), resume)
    start = open_start(recipe.model, recipe.longdoc, recipe.run.seed)
    # a mistake in it is found before hours of reading
    dev = None if recipe.dev is None else open_long_dev(recipe.dev, start)
    examples = read_examples(recipe.with_long_texts(), start.tokenizer, watch)
    with shown(recipe, examples, watch) as progress:
        return train_long(
            recipe, examples, out, start=start, dev=dev, device=device, resume=resume, progress=progress
        )


def train_long(
    recipe: LongRecipe,
    examples: Examples,
    out: str | Path,
    *,
    start: LongCheckpoint | None = None,
    dev: DevRun | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train a model of long documents on examples and leave it in `out`: see `fit`. `start` and `dev` are
    what the recipe says they are (`open_start`, `open_long_dev`) where they are not given."""
    start = start or open_start(recipe.model, recipe.longdoc, recipe.run.seed)
    if dev is None and recipe.dev is not None:
        dev = open_long_dev(recipe.dev, start)
    plan = in_steps(recipe, examples.stream.epoch)
    task = LongTask(plan, start, examples, dev, own_device(device))
    every = dev_every(recipe, dev)
    return fit(task, plan.optimiser, plan.run, out, evaluate_every=every, resume=resume, progress=progress)


def open_start(model: Model, plan: LongDoc, seed: int) -> LongCheckpoint:
    """The model that training starts from: the recipe's encoder below a head of the recipe's kind, or a model
    of that kind."""
    if plan.static and is_long(model.start):
        return load_long(model.start, plan)
    return begin(load_start(model, seed), plan, seed)


def open_long_dev(dev: Dev, start: LongCheckpoint) -> DevRun:
    """A recipe's dev run, its documents as the model reads them."""
    model, tokenizer = start.model, start.tokenizer
    # a dev run comes with inputs for mono, of which these are as short as can be
    some = model.config or EncoderConfig("bert", tokenizer.vocabulary, 1, 1, 1, 1)
    found = open_dev(dev, tokenizer, some, Limits(query=1, total=8), pairs=False)
    queries = tokenizer.encode([ranking.query.text for ranking in found.rankings])
    inputs = [
        read(
            queries.take([number]),
            np.zeros(len(ranking), np.int64),
            texts_of(ranking, tokenizer, limit=model.plan.tokens),
            tokenizer.special,
            model.plan,
            model.config,
        ).inputs
        for number, ranking in enumerate(found.rankings)
    ]
    return replace(found, inputs=Inputs.join(inputs), offsets=np.cumsum([0, *map(len, inputs)]))


class LongRanker(nn.Module):
    """A model and its loss. What the loss does not reach, or what shall stay as it is, is not trained."""

    def __init__(self, model: LongModel, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        # histograms have no gradient: CEDR's second step leaves BERT as it is
        self.frozen = model.plan.frozen or model.plan.kind == "cedr-drmm"
        if isinstance(model, Encoded):
            model.encoder.requires_grad_(not self.frozen)
            model.encoder.head.requires_grad_(isinstance(model, OfScores))

    def train(self, mode: bool = True) -> LongRanker:
        super().train(mode)
        if self.frozen and isinstance(self.model, Encoded):
            self.model.encoder.eval()  # nothing in it learns to do without what dropout takes away
        return self

    def forward(self, batch: LongBatch) -> Tensor:
        if batch.gains is None:
            return ranking_loss(self.model(batch.inputs), batch, self.loss)
        assert isinstance(self.model, OfVectors)
        head = self.model.head
        assert isinstance(head, CumulativeGain)
        passages, mask = self.model.vectors(batch.inputs)
        with torch.autocast(passages.device.type, enabled=False):
            logits = head.logits(passages)
            learned = gain_loss(logits, torch.from_numpy(batch.gains).to(passages.device))
            return ranking_loss(head.score(logits, mask), batch, self.loss) + batch.known * learned


class LongTask:
    """What `tamis.train.loop` needs to know of ranking long documents."""

    def __init__(
        self,
        recipe: LongRecipe,
        start: LongCheckpoint,
        examples: Examples,
        dev: DevRun | None = None,
        device: str = "auto",
    ) -> None:
        self.recipe, self.start, self.dev = recipe, start, dev
        model = deepcopy(start.model)
        backend = LongBackend(replace(start, model=deepcopy(model)), device, recipe.run.precision)
        self.device, self.precision = backend.device, backend.precision
        self.autocast = torch.bfloat16 if self.precision == "bf16" else None
        model.packed = backend.model.packed
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = recipe.optimiser.dropout
        self.module = LongRanker(model, recipe.loss).to(self.device)
        plan, in_rounds = recipe.longdoc, recipe.loss.name not in ("pointwise", "logit_mse_ce")
        gains = None if recipe.gains is None else read_gains(recipe.gains, plan.gains)
        self.reading = Reading(plan, start.tokenizer.special, model.config, in_rounds, gains)
        if gains is not None and examples.sets is not None:
            self.reading.check_gains(examples.sets)
        others = [] if dev is None else [dev.fingerprint]
        if gains is not None:
            others.append(gains_fingerprint(gains, _asked(examples)))
        self.examples = beside(examples, *others)

    @property
    def identity(self) -> str:
        return identity(self.recipe, self.start.fingerprint, self.examples)

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """This process's share of the step's groups, cut where the device cannot take them at once."""
        per_step = self.recipe.optimiser.accumulate
        numbers = range(step * per_step, (step + 1) * per_step)
        drawn = [self.examples.stream.batch(number) for number in numbers]
        shares = [own_places(len(groups), rank, world) for _, groups in drawn]
        # those of other processes too: how much a part counts depends on which passages they read
        made = [self._read(number, *batch) for number, batch in zip(numbers, drawn, strict=True)]
        every = [batch for batches in made for batch in batches]
        found: list[Part] = []
        for (data, groups), own, batches in zip(drawn, shares, made, strict=True):
            tokens = np.array([len(batches[place].inputs.ids) for place in own])
            for some in split_groups(tokens, at_once(self.recipe.run, self.device)):
                places = [own[number] for number in some]
                batch = part([batches[place] for place in places], every)
                # of the mean over all processes, which is what gradients become
                share = len(places) * world / len(every)
                names = Names(data, [groups[place] for place in places])
                found.append(Part(batch, len(batch.inputs), share, names))
        return found

    def _read(self, number: int, data: TrainingSet, groups: Sequence[Group]) -> list[LongBatch]:
        """The groups of a batch, each by itself."""
        seed = self.recipe.run.seed
        return [
            self.reading.batch(group, data, _seed(seed, number, place)) for place, group in enumerate(groups)
        ]

    def trained(self) -> LongCheckpoint:
        """The weights as they are now, apart from those that go on learning."""
        return replace(self.start, model=deepcopy(self.module.model).eval())

    def save(self, folder: Path) -> None:
        model, start = self.module.model, self.start.start
        if model.plan.kind == "maxp":  # nothing but an encoder and its head
            assert start is not None and isinstance(model, Encoded)
            save_checkpoint(replace(start, tensors=model.encoder.tensors()), folder)
        else:
            save_long(replace(self.start, model=model), folder)

    def evaluate(self) -> float:
        """By the backend that will rank with the model."""
        assert self.dev is not None
        return self.dev.score(LongBackend(self.trained(), str(self.device), self.precision))


def _asked(examples: Examples) -> set[str] | None:
    """The queries that are learned from; None where that is not known."""
    if examples.sets is None:
        return None
    return {query for data in examples.sets for query in data.query_ids}


def _seed(*numbers: int) -> int:
    """One number of several."""
    return int(xxhash.xxh3_64_intdigest(" ".join(map(str, numbers)).encode()))
