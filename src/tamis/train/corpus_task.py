"""Learning from a corpus, as a task for `fit`: any objective, in batches that are split as need be."""

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
    """What `tamis.train.loop` needs to know of an objective. `start` is the model that is trained, as it
    begins; `identity` says all that the training depends on; `save` writes the model as it is now."""

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
        """This process's share of the step's examples, cut where the device cannot take them at once. Each
        example counts as much as any other in its batch, however it is cut."""
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
                # of the mean over all processes, which is what gradients become
                share = len(some) * world / len(lengths) / self.accumulate
                part = self.module.take(batch, own[some])
                found.append(Part(part, len(some), share, partial("batch {:,} of the corpus".format, number)))
        return found

    def save(self, folder: Path) -> None:
        self._save(folder)

    def evaluate(self) -> float:
        raise InputError("a corpus has no dev measure", remedy="evaluate what is trained from it")


def open_corpus(corpus: Sequence[str], progress: Callable[[int], object]) -> Iterator[Document]:
    """The documents of an index, or of files and folders. `progress` is told of each."""
    index = index_of(corpus)
    for document in read_corpus(*corpus) if index is None else index:
        progress(1)
        yield document
