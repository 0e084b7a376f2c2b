"""How requests share the machine.

A request goes through its pipeline stage by stage. There are two lanes, each with one thread: one for stages
that search, one for stages that have a model, so that a search never waits behind a long rerank. A lane takes
the request that has waited longest, together with those waiting for the same stage, and carries them out in
one call, where the engine sorts all their inputs into batches by token budget. Nobody waits for company:
requests gather while the lane is busy.

Where cores are few, all other threads give way to the one that scores: otherwise, under more load than the
models can take, the answers that come without them would leave them no time to finish any.

A deadline is kept three times: a request does not wait for a stage that can no longer be done in time, by
what such stages have taken lately; when the deadline passes, the request is answered with the stages that
have finished; and a call that nobody waits for any more is given up at its next batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tamis.errors import TamisError
from tamis.ranking import Ranking
from tamis.serve.lane import Done, Job, Lane
from tamis.serve.metrics import Gauge, Metrics
from tamis.serve.pipelines import Step


class Overloaded(TamisError):
    """The queue is full, or the time was too short for any stage: the client may come back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request has come to: `complete` if every stage has finished."""

    done: tuple[Done, ...]
    complete: bool

    @property
    def ranking(self) -> Ranking:
        return self.done[-1].ranking


class Work:
    """Takes requests from the event loop through the lanes, no more than `queue` at a time."""

    def __init__(self, queue: int, metrics: Metrics, *, join: bool = True) -> None:
        self._queue, self._metrics = queue, metrics
        self.in_work = 0
        self._search = Lane("search", self._pass, metrics, join=False, gives_way=True)
        self._model = Lane("model", self._pass, metrics, join=join)
        metrics.gauges.append(Gauge("tamis_in_work", "Requests in work.", lambda: self.in_work))

    def start(self) -> None:
        self._search.start()
        self._model.start()

    def close(self) -> None:
        for lane in (self._search, self._model):
            lane.close()

    def _pass(self, job: Job) -> None:
        """To the lane of its next stage, or to its end."""
        if len(job.done) == len(job.steps):
            job.end()
        else:
            (self._model if job.step.models else self._search).add(job)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place among the requests in work, from the first stage to the answer."""
        if self.in_work >= self._queue:
            self._metrics.refused.add(1)
            raise Overloaded(
                f"{self.in_work} requests are in work, and no more fit", remedy="try again later"
            )
        self.in_work += 1
        try:
            yield
        finally:
            self.in_work -= 1

    async def rank(
        self, steps: Sequence[Step], ranking: Ranking, seconds: float, *, told: float | None = None
    ) -> Outcome:
        """Take a ranking through stages, or as far as it comes in so many seconds. A client whose time is too
        short is `told` of the time that it has asked for, which is a little longer."""
        job = Job(steps, ranking, time.monotonic() + seconds)
        self._pass(job)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(job.future), seconds)
        done = tuple(job.done)
        if not done:
            raise Overloaded(
                f"{steps[0].expression} would not finish within {(told or seconds) * 1000:,.0f} ms",
                remedy="allow more time (deadline_ms), send less, or try again later",
            )
        complete = len(done) == len(steps)
        if not complete:
            self._metrics.degraded.add(1)
        return Outcome(done, complete)
