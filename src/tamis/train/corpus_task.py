"""Learning from a corpus, as a task for `fit`: any objective, in batches that are split if necessary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from tamis.base.arrays import batches
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.formats import read_corpus
from tamis.index.index import index_of
from tamis.infer.torch_backend import TorchBackend
from tamis.models.checkpoint import Checkpoint
from tamis.train.loop import Part
from tamis.train.objective import Objective, freeze_unreached
from tamis.train.recipe import Optimiser, Run


class CorpusTask:
    """Adapts an objective to `tamis.train.loop`. `start` is the model before training; `identity` covers
    everything that the training depends on; `save` writes the current model."""

    def __init__(
        self,
        objective: Objective[Any],
        start: Checkpoint,
        optimiser: Optimiser,
        run: Run,
        *,
        identity: str,
        save: Callable[[Path], None],
        device: str = "auto",
    ) -> None:
        backend = TorchBackend(start, device, run.precision)
        self.device = backend.device
        self.autocast = torch.bfloat16 if backend.precision == "bf16" else None
        freeze_unreached(objective)
        self.module = objective.to(self.device)
        self.accumulate, self.tokens = optimiser.accumulate, run.tokens
        self.identity, self._save = xxhash.xxh3_128_hexdigest(identity.encode()), save

    def parts(self, step: int, rank: int, world: int) -> Sequence[Part]:
        """This process's share of the step's examples, split if the device cannot process them at once. All
        examples of a batch count equally, however it is split."""
        found: list[Part] = []
        for number in range(step * self.accumulate, (step + 1) * self.accumulate):
            batch = self.module.batch(number)
            lengths = self.module.lengths(batch)
            own = np.arange(len(lengths))[rank::world]
            if not len(own):
                raise InputError(
                    f"{len(lengths)} inputs for {world} processes",
                    remedy="use a larger batch, or fewer devices",
                )
            for some in batches(lengths[own], self.tokens or int(lengths.sum()), "packed"):
                # the share in the mean over all processes, since gradients are averaged
                share = len(some) * world / len(lengths) / self.accumulate
                part = self.module.take(batch, own[some])
                found.append(Part(part, len(some), share, partial("batch {:,} of the corpus".format, number)))
        return found

    def save(self, folder: Path) -> None:
        self._save(folder)

    def evaluate(self) -> float:
        raise InputError("a corpus has no dev measure", remedy="evaluate what is trained from it")


def open_corpus(corpus: Sequence[str], progress: Callable[[int], object]) -> Iterator[Document]:
    """Yield the documents of an index, or of files and folders. `progress` is called for each."""
    index = index_of(corpus)
    for document in read_corpus(*corpus) if index is None else index:
        progress(1)
        yield document
