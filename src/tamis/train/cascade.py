"""Training a model with exits (recipes with a table [cascade]): another task for `fit`.

Every step teaches one exit, drawn uniformly, the last one included: its loss goes back through the layers
below it to the embeddings, and what lies above stays as it is (Soldaini & Moschitti 2020, who find this
better than to take the exits in turn, or the early ones more often). Which exit it is depends on the seed and
the step alone, so that a run that goes on after a kill teaches the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import xxhash
from torch import Tensor

from tamis.evaluate.measures import evaluate
from tamis.infer.cascade_backend import CascadeBackend
from tamis.infer.walk import CascadeEngine
from tamis.models.exit_encoder import ExitEncoder
from tamis.models.exits import ExitCheckpoint, begin_exits, exit_layers, save_exits
from tamis.models.tokenizer import open_tokenizer
from tamis.rank.cascade import cascaded, keeping
from tamis.train.batch import RankingBatch
from tamis.train.cascade_recipe import CascadeRecipe
from tamis.train.dev import DevRun, open_dev
from tamis.train.loop import Part, Progress, Result, fit
from tamis.train.processes import own_device
from tamis.train.ranking import Ranker, RankingTask, dev_every, identity, margins_of, shown
from tamis.train.ranking_loss import ranking_loss
from tamis.train.recipe import in_steps
from tamis.train.sources import Examples, read_examples
from tamis.train.start import load_start
from tamis.train.state import require_new
from tamis.train.watch import Watch


def train_by_recipe(
    recipe: CascadeRecipe,
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
    dev = _open_dev(recipe, start)  # a mistake in it is found before the reading
    examples = read_examples(recipe, open_tokenizer(start.start), watch)
    with shown(recipe, examples, watch) as progress:
        return train_cascade(
            recipe, examples, out, start=start, dev=dev, device=device, resume=resume, progress=progress
        )


def train_cascade(
    recipe: CascadeRecipe,
    examples: Examples,
    out: str | Path,
    *,
    start: ExitCheckpoint | None = None,
    dev: DevRun | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train a model with exits on examples and leave it in `out`: see `fit`. `start` and `dev` are what the
    recipe says they are (`open_start`, `open_dev`) where they are not given."""
    start = start or open_start(recipe)
    dev = dev or _open_dev(recipe, start)
    plan = in_steps(recipe, examples.stream.epoch)
    task = CascadeTask(plan, start, examples, dev, own_device(device))
    every = dev_every(recipe, dev)
    return fit(task, plan.optimiser, plan.run, out, evaluate_every=every, resume=resume, progress=progress)


def open_start(recipe: CascadeRecipe) -> ExitCheckpoint:
    """The model that training starts from: the recipe's checkpoint, with exits where the recipe has them."""
    seed, plan = recipe.run.seed, recipe.cascade
    start = load_start(recipe.model, seed)
    return begin_exits(start, exit_layers(start.config.layers, plan.first, plan.step), plan.heads, seed)


def _open_dev(recipe: CascadeRecipe, start: ExitCheckpoint) -> DevRun | None:
    if recipe.dev is None:
        return None
    model = start.start
    return open_dev(recipe.dev, open_tokenizer(model), model.config, recipe.limits, pairs=False)


def drawn_exit(seed: int, step: int, exits: int) -> int:
    """Which of so many exits a step teaches.

    >>> [drawn_exit(seed=0, step=step, exits=5) for step in range(12)]
    [0, 0, 4, 4, 3, 1, 3, 0, 4, 3, 3, 2]
    """
    digest: int = xxhash.xxh3_64_intdigest(f"exit {seed} {step}".encode())
    return int(np.random.default_rng(digest).integers(exits))


@dataclass(frozen=True, slots=True)
class ExitBatch(RankingBatch):
    """A batch, and the exit that learns from it."""

    exit: int = field(kw_only=True)

    @classmethod
    def of(cls, batch: RankingBatch, exit: int) -> ExitBatch:
        return cls(**{each.name: getattr(batch, each.name) for each in fields(batch)}, exit=exit)


class CascadeRanker(Ranker):
    """An encoder with exits and its loss."""

    encoder: ExitEncoder
    partial = True  # a step does not reach what lies above its exit

    def forward(self, batch: RankingBatch) -> Tensor:
        assert isinstance(batch, ExitBatch)
        margins = margins_of(self.encoder.at(batch.exit), batch.inputs, packed=self.packed)
        return ranking_loss(margins, batch, self.loss)


class CascadeTask(RankingTask):
    """What `tamis.train.loop` needs to know of learning to rank at every exit."""

    recipe: CascadeRecipe
    module: CascadeRanker

    def __init__(
        self,
        recipe: CascadeRecipe,
        start: ExitCheckpoint,
        examples: Examples,
        dev: DevRun | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__(recipe, start.start, examples, dev, device)
        self.exits = start
        config = replace(start.start.config, dropout=recipe.optimiser.dropout)
        encoder = ExitEncoder.from_exits(replace(start, start=replace(start.start, config=config)))
        packed = self.module.packed
        self.module = CascadeRanker(encoder.to(self.device), recipe.loss, packed=packed)

    @property
    def identity(self) -> str:
        return identity(self.recipe, self.exits.fingerprint, self.examples)

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """As of any ranking; all parts of a step, in all processes, teach one exit."""
        number = drawn_exit(self.recipe.run.seed, step, len(self.exits.layers))
        return [
            replace(part, batch=ExitBatch.of(part.batch, number)) for part in super().parts(step, rank, world)
        ]

    def trained_exits(self) -> ExitCheckpoint:
        """The weights as they are now."""
        encoder = self.module.encoder
        start = replace(self.start, tensors=encoder.tensors())
        return replace(self.exits, start=start, heads=encoder.exit_tensors())

    def save(self, folder: Path) -> None:
        save_exits(self.trained_exits(), folder)

    def evaluate(self) -> float:
        """By the backend that will rank with the model, with the recipe's alpha."""
        assert self.dev is not None
        backend = CascadeBackend(self.trained_exits(), str(self.device), self.precision)
        return dev_score(self.dev, CascadeEngine(backend), self.recipe.cascade.alpha)


def dev_score(dev: DevRun, engine: CascadeEngine, alpha: float) -> float:
    """The measure of a dev run's candidates in the order of a cascade."""
    run = {}
    for number, ranking in enumerate(dev.rankings):
        inputs = dev.inputs.take(np.arange(dev.offsets[number], dev.offsets[number + 1]))
        margins = engine.walk(inputs, keeping(ranking.ids, alpha))
        run[ranking.query.id] = cascaded(ranking, margins, alpha)
    (value,) = evaluate(dev.qrels, run, [dev.measure]).mean.values()
    return value
