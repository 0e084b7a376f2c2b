"""Training a ranker: an encoder, examples, a loss and a dev run, as a task for `fit`.

On a CUDA card inputs are packed, products are in bfloat16 and weights in float32; elsewhere inputs are padded
and all is in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.infer.torch_backend import TorchBackend
from tamis.models.checkpoint import Checkpoint, save_checkpoint
from tamis.models.encoder import Encoder
from tamis.models.exit_encoder import Exit
from tamis.models.states import padded_together
from tamis.models.templates import ABLATED, Inputs
from tamis.models.tokenizer import open_tokenizer
from tamis.train.batch import RankingBatch, portion, ranking_batch
from tamis.train.dev import DevRun, open_dev
from tamis.train.loop import Part, Progress, Result, fit, learning_rate, total_steps
from tamis.train.objective import longest, margins, padded
from tamis.train.processes import own_device
from tamis.train.ranking_loss import ranking_loss
from tamis.train.recipe import Loss, Recipe, Run, in_pairs, in_steps
from tamis.train.sets import Group, TrainingSet
from tamis.train.sources import Examples, read_examples
from tamis.train.start import load_start
from tamis.train.state import require_new
from tamis.train.watch import Watch

__all__ = ["Ranker", "RankingTask", "Result", "learning_rate", "train", "train_by_recipe"]

_NAMED = 8  # how many ids an error names
_SEGMENTS = 3  # of an input with two texts
_ON_PROCESSOR = 4096  # tokens at once: some 6 GB for a BERT-base


def train_by_recipe(
    recipe: Recipe,
    out: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Read a recipe's data, train its model and leave it in `out`: see `fit`. Of [folds] nothing is known
    here: see `tamis.train.folds`."""
    watch = watch or Watch()
    require_new(Path(out), resume)
    start = open_start(recipe)
    dev = _open_dev(recipe, start)  # a mistake in it is found before hours of reading
    examples = read_examples(recipe, open_tokenizer(start), watch)
    with shown(recipe, examples, watch) as progress:
        return train(
            recipe, examples, out, start=start, dev=dev, device=device, resume=resume, progress=progress
        )


def train(
    recipe: Recipe,
    examples: Examples,
    out: str | Path,
    *,
    start: Checkpoint | None = None,
    dev: DevRun | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train a ranker on examples and leave it in `out`: see `fit`. `start` and `dev` are what the recipe says
    they are (`open_start`, `open_dev`) where they are not given. A recipe that counts in epochs counts the
    examples' own."""
    start = start or open_start(recipe)
    dev = dev or _open_dev(recipe, start)
    recipe = in_steps(recipe, examples.stream.epoch)
    task = RankingTask(recipe, start, examples, dev, own_device(device))
    every = dev_every(recipe, dev)
    return fit(
        task, recipe.optimiser, recipe.run, out, evaluate_every=every, resume=resume, progress=progress
    )


@contextmanager
def shown(recipe: Recipe, examples: Examples, watch: Watch) -> Iterator[Progress]:
    """What is told of each step, for whoever watches."""
    steps = total_steps(in_steps(recipe, examples.stream.epoch).optimiser)
    with watch.training("Training", steps, recipe.dev.measure if recipe.dev else "") as progress:
        yield progress


def dev_every(recipe: Recipe, dev: DevRun | None) -> int | None:
    """After how many steps a dev run is ranked: one that the recipe does not have, with each checkpoint."""
    if dev is None:
        return None
    return recipe.dev.every if recipe.dev else recipe.run.checkpoint_every


def open_start(recipe: Recipe) -> Checkpoint:
    """The checkpoint that a recipe starts from, which can read what the recipe makes."""
    start = load_start(recipe.model, recipe.run.seed, forms=not in_pairs(recipe))
    check_segments(start, recipe)
    return start


def check_segments(start: Checkpoint, recipe: Recipe) -> None:
    """Before anything is read: that a model of two texts an input can tell them apart."""
    if in_pairs(recipe) and start.config.segments < _SEGMENTS:
        kind, found = recipe.examples.kind, start.config.segments
        raise InputError(
            f"{kind} examples have {_SEGMENTS} segments, and {start.folder} knows {found}",
            remedy="add third_segment = true to [model], or in distillation to [student]",
        )


def _open_dev(recipe: Recipe, start: Checkpoint) -> DevRun | None:
    if recipe.dev is None:
        return None
    tokenizer, pairs = open_tokenizer(start), in_pairs(recipe)
    return open_dev(recipe.dev, tokenizer, start.config, recipe.limits, pairs=pairs)


class Ranker(nn.Module):
    """An encoder and its loss."""

    def __init__(self, encoder: Encoder, loss: Loss, *, packed: bool) -> None:
        super().__init__()
        self.encoder, self.loss, self.packed = encoder, loss, packed

    def forward(self, batch: RankingBatch) -> Tensor:
        found = ranking_loss(self.margins(batch.inputs), batch, self.loss)
        if batch.alone is None:
            return found
        return found + ranking_loss(self.margins(batch.alone), batch.singles, self.loss)

    def margins(self, inputs: Inputs) -> Tensor:
        """One number an input."""
        return margins_of(self.encoder, inputs, packed=self.packed)


def margins_of(encoder: Encoder | Exit, inputs: Inputs, *, packed: bool) -> Tensor:
    """What an encoder, or one as far as an exit, makes of inputs: one number each."""
    device = encoder.embeddings.word.device
    if packed:
        ids, segments, offsets = on_device(inputs, device)
        return margins(encoder.packed(ids, segments, offsets, longest(inputs)))
    together = padded_together(inputs, device)
    found = [margins(encoder.padded(*padded(inputs.take(some), device))) for some in together]
    places = np.argsort(np.concatenate(together))
    return torch.cat(found)[torch.from_numpy(places).to(device)]


def on_device(inputs: Inputs, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """All of a batch's numbers in one copy, from memory that the device reads itself."""
    tokens = len(inputs.ids)
    host = torch.empty(2 * tokens + len(inputs.offsets), dtype=torch.int32, pin_memory=device.type == "cuda")
    numbers = host.numpy()
    numbers[:tokens], numbers[tokens : 2 * tokens] = inputs.ids, inputs.segments
    numbers[2 * tokens :] = inputs.offsets
    there = host.to(device, non_blocking=True)
    return there[:tokens], there[tokens : 2 * tokens], there[2 * tokens :]


class RankingTask:
    """What `tamis.train.ranking.fit` needs to know of learning to rank."""

    def __init__(
        self,
        recipe: Recipe,
        start: Checkpoint,
        examples: Examples,
        dev: DevRun | None = None,
        device: str = "auto",
    ) -> None:
        self.recipe, self.start, self.dev = recipe, start, dev
        self.examples = examples if dev is None else beside(examples, dev.fingerprint)
        self.special = open_tokenizer(start).special
        self.pairs, self.lists = in_pairs(recipe), recipe.examples.kind == "duo_lists"
        backend = TorchBackend(start, device, recipe.run.precision)
        self.device, self.precision = backend.device, backend.precision
        self.autocast = torch.bfloat16 if self.precision == "bf16" else None
        dropout = replace(start, config=replace(start.config, dropout=recipe.optimiser.dropout))
        encoder = Encoder.from_checkpoint(dropout).to(self.device)
        for name, parameter in encoder.named_parameters():
            # what a form does without is zero, and stays so
            parameter.requires_grad_(name != ABLATED.get(start.config.form))
        self.module = Ranker(encoder, recipe.loss, packed=backend.layout == "packed")

    @property
    def identity(self) -> str:
        return identity(self.recipe, self.start.fingerprint, self.examples)

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """This process's share of the step's groups, cut where the device cannot take them at once."""
        found: list[Part] = []
        per_step = self.recipe.optimiser.accumulate
        numbers = range(step * per_step, (step + 1) * per_step)
        drawn = [self.examples.stream.batch(number) for number in numbers]
        every = [group for _, groups in drawn for group in groups]
        for data, groups in drawn:
            own = [groups[place] for place in own_places(len(groups), rank, world)]
            batch = self.batch(data, own)
            tokens = np.diff(batch.inputs.offsets[batch.input_ends])
            for some in split_groups(tokens, at_once(self.recipe.run, self.device)):
                kept = [own[i] for i in some]
                here = batch if len(some) == len(own) else self.batch(data, kept)
                here = replace(here, portion=portion(kept, every))
                # of the mean over all processes, which is what gradients become
                share = len(some) * world / len(every)
                found.append(Part(here, len(here.inputs), share, Names(data, kept)))
        return found

    def batch(self, data: TrainingSet, groups: Sequence[Group]) -> RankingBatch:
        config, limits = self.start.config, self.recipe.limits
        return ranking_batch(
            groups,
            data,
            self.special,
            config,
            limits,
            pairs=self.pairs,
            lists=self.lists,
            alone=self.recipe.examples.alone,
        )

    def trained(self) -> Checkpoint:
        """The weights as they are now."""
        return replace(self.start, tensors=self.module.encoder.tensors())

    def save(self, folder: Path) -> None:
        save_checkpoint(self.trained(), folder)

    def evaluate(self) -> float:
        """By the backend that will rank with the model."""
        assert self.dev is not None
        return self.dev.score(TorchBackend(self.trained(), str(self.device), self.precision))


def identity(recipe: Recipe, start: str, examples: Examples) -> str:
    """What a run must have in common with the one that it resumes: the recipe (as its `repr` has it: see
    `Run`), the start and the data. Of the files beside the examples the recipe knows the names alone: see
    `beside`."""
    return str(xxhash.xxh3_128_hexdigest(f"{recipe} {start} {examples.fingerprint}".encode()))


def beside(examples: Examples, *others: str) -> Examples:
    """The examples with a fingerprint that is also of what else decides what comes of a training: its dev
    run, its gains."""
    return replace(examples, fingerprint=" ".join([examples.fingerprint, *others]))


def own_places(groups: int, rank: int, world: int) -> range:
    """Which groups of a batch process `rank` of `world` has.

    >>> list(own_places(5, rank=1, world=2))
    [1, 3]
    """
    places = range(rank, groups, world)
    if not places:
        remedy = "use a larger batch, or fewer devices"
        raise InputError(f"{groups} groups for {world} processes", remedy=remedy)
    return places


def at_once(run: Run, device: torch.device) -> int | None:
    """How many tokens go through the model together; None: all of a batch. A processor is busy with few, and
    has no way to say that they do not fit: the system ends the program.

    >>> at_once(Run(), torch.device("cpu")), at_once(Run(), torch.device("cuda"))
    (4096, None)
    """
    return run.tokens or (_ON_PROCESSOR if device.type == "cpu" else None)


def split_groups(tokens: Array, most: int | None) -> list[list[int]]:
    """Which groups go through the model together; one alone may have more.

    >>> split_groups(np.array([3, 3, 3, 9]), 6)
    [[0, 1], [2], [3]]
    """
    found: list[list[int]] = [[]]
    so_far = 0
    for number, count in enumerate(tokens.tolist()):
        if most is not None and found[-1] and so_far + count > most:
            found.append([])
            so_far = 0
        found[-1].append(number)
        so_far += count
    return found


@dataclass(frozen=True, slots=True)
class Names:
    """The ids of some groups, which are looked up when an error needs them."""

    data: TrainingSet
    groups: Sequence[Group]

    def __call__(self) -> str:
        queries = [self.data.query_ids[group.query] for group in self.groups]
        numbers = np.concatenate([group.documents for group in self.groups]).tolist()
        return f"queries {_some(queries)}; documents {_some([self.data.document_ids[n] for n in numbers])}"


def _some(ids: Sequence[str]) -> str:
    different = list(dict.fromkeys(ids))
    more = f" and {len(different) - _NAMED:,} more" if len(different) > _NAMED else ""
    return ", ".join(different[:_NAMED]) + more
