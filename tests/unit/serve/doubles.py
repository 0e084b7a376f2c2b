"""What the tests of lanes share: stages that take as long as they are told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tamis import Query
from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Stage
from tamis.rank.mono import Mono
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step
from tamis.serve.work import Outcome, Request, Work


class Finds(Stage):
    """Finds `count` documents, after some seconds or when it is let go; refuses the query "bad"."""

    def __init__(self, count: int = 3, seconds: float = 0.0, gate: threading.Event | None = None) -> None:
        self.count, self.seconds, self.gate = count, seconds, gate
        self.calls: list[int] = []
        self.depths: list[int | None] = []

    @property
    def expression(self) -> Call:
        return Call("finds", (), (("count", self.count),))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.calls.append(len(rankings))
        self.depths.append(depth)
        if self.gate is not None:
            assert self.gate.wait(60)
        time.sleep(self.seconds)
        if any(ranking.query.text == "bad" for ranking in rankings):
            raise InputError("a bad query")
        ids = tuple(f"d{number}" for number in range(self.count))
        scores = -np.arange(self.count, dtype=np.float64)
        return [replace(each, ids=ids, scores=scores, kind=ScoreKind.RETRIEVAL) for each in rankings]


def step(stage: Stage, k: int | None = None) -> Step:
    return Step("finds", repr(stage), stage, repr(stage), k, ())


def asked(steps: Sequence[Step], seconds: float, **options: Any) -> Request:
    return Request(steps, Ranking(Query("0", "x")), seconds, **options)


async def until(condition: Callable[[], object]) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come")


def ranked(run: Callable[[Work], Coroutine[Any, Any, Any]], queue: int = 8) -> tuple[Any, Metrics]:
    """What comes of some requests, and the counts."""
    metrics = Metrics()
    work = Work(queue, metrics)
    work.start()
    try:
        return asyncio.run(run(work)), metrics
    finally:
        work.close()


class Load(NamedTuple):
    """A search, and a stage with a model that is let go by its gate: 100 s of work, so far as its lane knows,
    so that the speed of the machine does not matter."""

    steps: list[Step]
    find: Finds
    read: Finds
    gate: threading.Event

    def known_to(self, work: Work) -> None:
        work._model._costs.learn(self.steps[1].key, self.find.count, 100.0)

    async def begun(self, work: Work, seconds: float) -> asyncio.Task[Outcome]:
        """A request that the model lane is busy with."""
        task = asyncio.create_task(work.rank(asked(self.steps, seconds)))
        await until(lambda: self.read.calls)
        return task


@pytest.fixture
def load(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Iterator[Load]:
    gate = threading.Event()
    find, read = Finds(3), Finds(2, gate=gate)
    model = Mono(str(tiny_checkpoint(tmp_path / "m", layers=1, positions=48)))
    with_model = Step("reads", "reads", read, "reads", None, (model,))
    yield Load([step(find, 3), with_model], find, read, gate)
    gate.set()


class Clock:
    """A clock that goes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()
