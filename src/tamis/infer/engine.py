"""Scores many inputs: forms batches by token budget, and halves the budget when a device is out of memory.

A backend scores one batch; its `layout` says which inputs can share a batch. Inputs are sorted by length, so
that batches have little padding, and the longest come first, so that a budget that is too large fails at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np

from tamis.base.arrays import Array, Layout, batches
from tamis.base.errors import InputError, TamisError
from tamis.base.interrupt import current_check
from tamis.infer.walk import Keep
from tamis.models.templates import Inputs

Progress = Callable[[int], object]
Check = Callable[[], object]
_T = TypeVar("_T")


def no_check() -> None:
    """A check that never cancels."""


class OutOfMemory(Exception):
    """A batch does not fit into the memory of the device."""


class Backend(Protocol):
    """A model on a device."""

    @property
    def description(self) -> str:
        """The runtime, the device and the precision, for display."""
        ...

    @property
    def numerics(self) -> str:
        """What the scores depend on besides the weights: the runtime and the precision."""
        ...

    @property
    def layout(self) -> Layout: ...

    @property
    def token_budget(self) -> int:
        """The maximum number of tokens of a batch, including padding."""
        ...

    @property
    def workers(self) -> int:
        """How many batches run in parallel."""
        ...

    @property
    def on_torch_threads(self) -> bool:
        """Whether torch decides how many processor cores share a batch."""
        ...

    def margins(self, inputs: Inputs) -> Array:
        """One float32 per input: its logit, or with two labels the second logit minus the first. For a
        listwise model, one row per input."""
        ...

    def walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check = no_check) -> Array:
        """For a model with exits, the margins of one query's candidates at each exit, float32[candidates,
        exits]; NaN at exits that a candidate did not reach. `wanted` is called before each batch."""
        ...


class Engine:
    """Scores any number of inputs on a backend. Before each batch it calls the thread's check, which can
    cancel the scoring (`tamis.base.interrupt`). `shape` is the shape of the backend's output for one input;
    the default is a scalar."""

    def __init__(self, backend: Backend, shape: tuple[int, ...] = ()) -> None:
        self.backend, self.shape = backend, shape
        self.token_budget = backend.token_budget

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """One float32 per input, in the order of the inputs; `progress` is called with the number of newly
        scored inputs."""
        lengths = np.diff(inputs.offsets)
        margins = np.empty((len(lengths), *self.shape), np.float32)
        waiting = np.arange(len(lengths))
        while len(waiting):
            done = []
            try:
                for batch, scores in self._score(inputs, lengths, waiting):
                    margins[batch] = scores
                    done.append(batch)
                    if progress:
                        progress(len(batch))
                break
            except OutOfMemory:
                if done:
                    waiting = np.setdiff1d(waiting, np.concatenate(done))
                self.token_budget //= 2
                longest = lengths[waiting].max()
                if self.token_budget < longest:
                    raise TamisError(
                        f"an input of {longest} tokens does not fit the memory of {self.backend.description}",
                        remedy="use a smaller model, shorter inputs or device='cpu'",
                    ) from None
        return margins

    def walk(self, inputs: Inputs, keep: Keep) -> Array:
        """Run any number of one query's candidates from exit to exit: see `Backend.walk`."""
        while True:
            try:
                return self.backend.walk(inputs, keep, self.token_budget, current_check())
            except OutOfMemory:
                self.token_budget //= 2
            if self.token_budget < inputs.lengths.max():
                raise TamisError(
                    f"{len(inputs):,} candidates do not fit the memory of {self.backend.description}",
                    remedy="rank fewer, use a smaller model, shorter inputs or device='cpu'",
                )

    def _score(self, inputs: Inputs, lengths: Array, waiting: Array) -> Iterator[tuple[Array, Array]]:
        together = batches(lengths[waiting], self.token_budget, self.backend.layout)
        places = [waiting[batch] for batch in together]
        # rearranged only once, for all batches: for a small model, copying a batch takes as long as scoring
        # it
        in_order = len(places) == 1 and len(waiting) == len(inputs) and self.backend.layout == "packed"
        arranged = inputs if in_order else inputs.take(np.concatenate(places))
        stops = np.cumsum([len(batch) for batch in places]).tolist()

        check = current_check()

        def score(number: int) -> Array:
            check()
            some = arranged.part(stops[number] - len(places[number]), stops[number])
            scores = self.backend.margins(some)
            if scores.shape != (expected := (len(some), *self.shape)):
                raise InputError(
                    f"the model gives {list(scores.shape)} numbers for {len(some)} inputs",
                    remedy=f"make its architecture give {list(expected)}",
                )
            return scores

        yield from zip(places, side_by_side(score, range(len(places)), self.backend.workers), strict=True)


def side_by_side(score: Callable[[_T], Array], together: Sequence[_T], workers: int) -> Iterator[Array]:
    """The results of `score` for each batch, in order, computed by `workers` threads.

    >>> [found.tolist() for found in side_by_side(np.negative, [np.array([1, 2]), np.array([3])], workers=2)]
    [[-1, -2], [-3]]
    """
    workers = min(workers, len(together))
    if workers < 2:
        yield from map(score, together)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(score, together)
