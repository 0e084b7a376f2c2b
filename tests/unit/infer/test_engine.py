"""Batches and their bookkeeping, with backends that score by simple arithmetic."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.base.arrays import Array, Layout, batches
from tamis.base.errors import TamisError
from tamis.infer.engine import Engine, OutOfMemory
from tamis.models.templates import Inputs


class Arithmetic:
    """An input's score is the sum of its tokens; remembers its batches, and runs out of memory when told."""

    description = numerics = "arithmetic"

    def __init__(
        self, layout: Layout = "packed", token_budget: int = 100, fits: int = 10**9, workers: int = 1
    ) -> None:
        self.layout, self.token_budget, self.fits, self.workers = layout, token_budget, fits, workers
        self.seen: list[list[int]] = []
        self.threads: set[int] = set()

    def margins(self, inputs: Inputs) -> Array:
        self.threads.add(threading.get_ident())
        if len(inputs.ids) > self.fits:
            raise OutOfMemory
        self.seen.append(inputs.lengths.tolist())
        return np.add.reduceat(inputs.ids, inputs.offsets[:-1]).astype(np.float32)


def inputs_of(lengths: list[int]) -> Inputs:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(1, offsets[-1] + 1, dtype=np.int32)
    return Inputs(ids, np.zeros(len(ids), np.uint8), offsets)


def expected(inputs: Inputs) -> list[float]:
    return [
        float(inputs.ids[a:b].sum()) for a, b in zip(inputs.offsets[:-1], inputs.offsets[1:], strict=True)
    ]


@given(
    st.lists(st.integers(1, 40), max_size=60),
    st.sampled_from(["equal", "padded", "packed"]),
    st.integers(1, 100),
    st.integers(1, 3),
)
def test_scores_come_back_in_order_and_batches_keep_to_the_budget(
    lengths: list[int], layout: Layout, budget: int, workers: int
) -> None:
    backend = Arithmetic(layout, budget, workers=workers)
    inputs = inputs_of(lengths)
    assert Engine(backend).margins(inputs).tolist() == expected(inputs)
    assert sorted(length for batch in backend.seen for length in batch) == sorted(lengths)
    for batch in backend.seen:
        cost = sum(batch) if layout == "packed" else max(batch) * len(batch)
        assert cost <= budget or len(batch) == 1
        assert layout != "equal" or len(set(batch)) == 1


def test_the_longest_go_first_so_that_memory_is_tried_at_once() -> None:
    found = batches(np.array([1, 9, 5, 7]), 10, "padded")
    assert found[0].tolist() == [1]
    assert sorted(i for batch in found for i in batch.tolist()) == [0, 1, 2, 3]


def test_out_of_memory_halves_the_budget_and_nothing_is_scored_twice() -> None:
    backend = Arithmetic(token_budget=64, fits=16)
    engine = Engine(backend)
    inputs = inputs_of([4] * 20 + [2])
    told: list[int] = []
    assert engine.margins(inputs, told.append).tolist() == expected(inputs)
    assert engine.token_budget == 16
    assert sum(told) == 21
    assert sum(map(len, backend.seen)) == 21
    assert Engine(backend).margins(inputs_of([3])).tolist() == [6.0]


def test_an_input_that_alone_is_too_large_is_an_error_with_a_remedy() -> None:
    with pytest.raises(TamisError, match=r"an input of 9 tokens does not fit .*: use a smaller model"):
        Engine(Arithmetic(fits=5)).margins(inputs_of([2, 9]))


def test_no_inputs_no_work() -> None:
    backend = Arithmetic()
    assert Engine(backend).margins(inputs_of([])).tolist() == []
    assert backend.seen == []


def test_workers_share_the_batches() -> None:
    backend = Arithmetic("equal", 4, workers=2)
    inputs = inputs_of([2] * 50)
    assert Engine(backend).margins(inputs).tolist() == expected(inputs)
    assert threading.get_ident() not in backend.threads
