"""Scoring many inputs: batches by token budget, the callers' order restored, out-of-memory met by halving.

A backend scores one batch; which inputs may share one is its `layout`. Inputs are sorted by length, so that
what shares a batch wastes little, and the longest go first, so that a budget too large shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, Protocol, TypeVar

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import TamisError
from tamis.models.templates import Inputs

#: equal: inputs of one length. padded: filled up to the longest. packed: laid end to end.
Layout = Literal["equal", "padded", "packed"]
Progress = Callable[[int], object]
Check = Callable[[], object]
_T = TypeVar("_T")


def go_on() -> None:
    """The check of who gives up nothing."""


class OutOfMemory(Exception):
    """A batch did not fit the device."""


class Backend(Protocol):
    """A model on a device."""

    @property
    def description(self) -> str:
        """The runtime, the device and the precision, for people."""
        ...

    @property
    def numerics(self) -> str:
        """What the scores depend on beyond the weights: the precision."""
        ...

    @property
    def layout(self) -> Layout: ...

    @property
    def token_budget(self) -> int:
        """How many tokens a batch may have, padding included."""
        ...

    @property
    def workers(self) -> int:
        """How many batches run side by side."""
        ...

    def margins(self, inputs: Inputs) -> Array:
        """One float32 an input: its logit, or with two labels the second less the first."""
        ...


class Engine:
    """Scores inputs on a backend, whatever their number. `check` is called before each batch: who wants to
    give up what is being scored has it raise. `shape` is that of what the backend says of one input: a
    number, unless told."""

    def __init__(self, backend: Backend, shape: tuple[int, ...] = ()) -> None:
        self.backend, self.shape = backend, shape
        self.token_budget = backend.token_budget
        self.check: Check = go_on

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """One float32 an input, in the inputs' order; `progress` is told how many more are done."""
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

    def _score(self, inputs: Inputs, lengths: Array, waiting: Array) -> Iterator[tuple[Array, Array]]:
        together = batches(lengths[waiting], self.token_budget, self.backend.layout)
        places = [waiting[batch] for batch in together]
        # laid out once in the order of the batches: a small model takes no longer for a batch than this does
        in_order = len(places) == 1 and len(waiting) == len(inputs) and self.backend.layout == "packed"
        arranged = inputs if in_order else inputs.take(np.concatenate(places))
        stops = np.cumsum([len(batch) for batch in places]).tolist()

        def score(number: int) -> Array:
            self.check()
            return self.backend.margins(arranged.part(stops[number] - len(places[number]), stops[number]))

        yield from zip(places, side_by_side(score, range(len(places)), self.backend.workers), strict=True)


def side_by_side(score: Callable[[_T], Array], together: Sequence[_T], workers: int) -> Iterator[Array]:
    """What `score` says of each batch, in their order, so many at a time.

    >>> [found.tolist() for found in side_by_side(np.negative, [np.array([1, 2]), np.array([3])], workers=2)]
    [[-1, -2], [-3]]
    """
    workers = min(workers, len(together))
    if workers < 2:
        yield from map(score, together)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(score, together)


def batches(lengths: Array, budget: int, layout: Layout) -> list[Array]:
    """Which inputs go together, the longest first; one input alone may exceed the budget.

    >>> [batch.tolist() for batch in batches(np.array([3, 5, 3, 2]), 6, "equal")]
    [[1], [0, 2], [3]]
    >>> [batch.tolist() for batch in batches(np.array([3, 5, 3, 2]), 8, "packed")]
    [[1, 0], [2, 3]]
    >>> [batch.tolist() for batch in batches(np.array([3, 5, 3, 2]), 8, "padded")]
    [[1], [0, 2], [3]]
    """
    if layout == "packed" and lengths.sum() <= budget:
        return [np.arange(len(lengths))] if len(lengths) else []
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    found, start = [], 0
    while start < len(order):
        ahead = sorted_lengths[start:]
        longest = max(int(ahead[0]), 1)
        if layout == "packed":
            count = int(np.searchsorted(np.cumsum(ahead), budget, side="right"))
        else:
            count = budget // longest
            if layout == "equal":
                count = min(count, int(np.searchsorted(-ahead, -ahead[0], side="right")))
        count = max(count, 1)
        found.append(order[start : start + count])
        start += count
    return found
