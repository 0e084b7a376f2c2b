"""Training a ranker of any architecture: examples, a loss and a dev run, as a task for `tamis.train.loop`.

On a CUDA GPU inputs are packed, products are in bfloat16 and weights in float32; elsewhere inputs are padded
and everything is in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import xxhash
from torch import Tensor, nn

from tamis.base.errors import InputError
from tamis.infer.scorer import Scorer
from tamis.infer.torch_backend import TorchBackend, device_of, packs, precision_of
from tamis.models.checkpoint import Checkpoint, save_checkpoint
from tamis.models.network import Network, open_network
from tamis.models.tokenizer import open_tokenizer
from tamis.train.batch import RankingBatch
from tamis.train.dev import DevRun, dev_stage, open_dev
from tamis.train.learning import Learning, learning_class, learning_of
from tamis.train.loop import Part, Progress, Result, fit, total_steps
from tamis.train.processes import own_device
from tamis.train.recipe import Recipe, in_steps
from tamis.train.shares import at_once
from tamis.train.sources import Examples, read_examples
from tamis.train.start import begin
from tamis.train.state import require_new
from tamis.train.watch import Watch


def train_by_recipe(
    recipe: Recipe,
    out: str | Path,
    *,
    device: str = "auto",
    resume: bool = False,
    watch: Watch | None = None,
) -> Result:
    """Read a recipe's data, train its model and write it to `out`: see `fit`. [folds] are handled elsewhere,
    in `tamis.train.folds`."""
    watch = watch or Watch()
    require_new(Path(out), resume)
    start = begin(recipe)
    dev = open_dev(recipe.dev) if recipe.dev else None  # its errors are raised before hours of reading
    read = learning_class(start.architecture).data(recipe)
    examples = read_examples(read, open_tokenizer(start), watch)
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
    """Train a ranker on examples and write it to `out`: see `fit`. By default `start` and `dev` are the
    recipe's (`begin`, `open_dev`). If the recipe counts epochs, they are those of the examples."""
    start = start or begin(recipe)
    if dev is None and recipe.dev is not None:
        dev = open_dev(recipe.dev)
    recipe = in_steps(recipe, examples.stream.epoch)
    task = RankingTask(recipe, start, examples, dev, own_device(device))
    every = dev_every(recipe, dev)
    return fit(
        task, recipe.optimiser, recipe.run, out, evaluate_every=every, resume=resume, progress=progress
    )


@contextmanager
def shown(recipe: Recipe, examples: Examples, watch: Watch) -> Iterator[Progress]:
    """Show the progress of training to `watch`."""
    steps = total_steps(in_steps(recipe, examples.stream.epoch).optimiser)
    with watch.training("Training", steps, recipe.dev.measure if recipe.dev else "") as progress:
        yield progress


def dev_every(recipe: Recipe, dev: DevRun | None) -> int | None:
    """The number of steps between rankings of the dev run; a dev run that is not the recipe's is ranked with
    each checkpoint."""
    if dev is None:
        return None
    return recipe.dev.every if recipe.dev else recipe.run.checkpoint_every


class Ranker(nn.Module):
    """A network and its loss."""

    def __init__(self, network: Network, learning: Learning) -> None:
        super().__init__()
        self.network, self._learning = network, learning

    @property
    def partial(self) -> bool:
        """Whether a step may leave some parameters without a gradient."""
        return self._learning.partial

    def forward(self, batch: RankingBatch) -> Tensor:
        found = self._learning.loss(self.network, batch)
        if found.ndim:
            raise InputError(
                f"the loss of {type(self._learning).__name__} is {list(found.shape)}",
                remedy="return one number, such as a mean",
            )
        return found


class RankingTask:
    """Adapts learning to rank to `tamis.train.loop.fit`."""

    def __init__(
        self,
        recipe: Recipe,
        start: Checkpoint,
        examples: Examples,
        dev: DevRun | None = None,
        device: str = "auto",
    ) -> None:
        self.recipe, self.start, self.dev = recipe, start, dev
        self.learning = learning_of(recipe, start)
        learned = self.learning.examples(examples)
        self.examples = learned if dev is None else beside(learned, dev.fingerprint)
        self.device = device_of(device)
        self.precision = precision_of(recipe.run.precision, self.device)
        self.autocast = torch.bfloat16 if self.precision == "bf16" else None
        network = open_network(start).to(self.device)
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                module.p = recipe.optimiser.dropout
        network.packed = packs(start.config, self.device, self.precision)
        network.freeze()
        self.module = Ranker(network, self.learning)

    @property
    def identity(self) -> str:
        """What a run must have in common with the one that it resumes: the recipe (by its `repr`: see `Run`),
        the start and the data. The recipe has only the names of other files, whose contents `beside` adds."""
        seen = f"{self.recipe} {self.start.fingerprint} {self.examples.fingerprint}"
        return str(xxhash.xxh3_128_hexdigest(seen.encode()))

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """This process's share of the step's groups, split if the device cannot process them at once."""
        per_step = self.recipe.optimiser.accumulate
        numbers = range(step * per_step, (step + 1) * per_step)
        drawn = [self.examples.stream.batch(number) for number in numbers]
        return self.learning.parts(step, drawn, rank, world, at_once(self.recipe.run, self.device))

    def trained(self) -> Checkpoint:
        """A checkpoint with the current weights."""
        return self.module.network.trained(self.start)

    def save(self, folder: Path) -> None:
        save_checkpoint(self.start.architecture.saved(self.trained()), folder)

    def evaluate(self) -> float:
        """The dev measure, with the stage and the backend that will rank with the model."""
        assert self.dev is not None
        trained = self.trained()
        backend = TorchBackend(trained, str(self.device), self.precision)
        return self.dev.score(dev_stage(Scorer.over(trained, backend), self.recipe.limits))


def beside(examples: Examples, *others: str) -> Examples:
    """The examples with a fingerprint that also covers the other inputs of a training: its dev run, its
    gains.
    """
    return replace(examples, fingerprint=" ".join([examples.fingerprint, *others]))
