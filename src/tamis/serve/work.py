"""Scheduling of requests on lanes.

A request goes through its pipeline stage by stage. There are two lanes: one for stages that search, one for
stages that have a model, so that a search never waits behind a long rerank. A lane takes the request with the
earliest deadline, together with those waiting for the same stage, and runs them in one call, where the engine
sorts all their inputs into batches by token budget. No request is delayed to wait for others: they gather
while the lane is busy. The models have one thread. Searches have several, so that a long one runs beside the
others.

All threads have the same priority. With a lower priority, the threads that search and answer hardly ran on a
core shared with another program, and whole answers came seconds late; the rate limit on incomplete answers
bounds the time they take from the models.

A request is admitted to a lane with as many stages as can be done before its deadline, by what such stages
have taken lately and what is promised to those that came before. So the models' time goes to answers that
become complete, and the others are told at once; but if very many are, they are told one after the other:
answers without the models must leave them the processor. When the deadline passes all the same, the request
is answered with the stages that have finished. What nobody waits for any more is dropped before it begins; a
call of it is given up at its next batch, or where a search looks whether anybody waits
(`tamis.base.interrupt`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from tamis.base.errors import TamisError
from tamis.core.ranking import Ranking
from tamis.serve.costs import Pace
from tamis.serve.job import Done, Job
from tamis.serve.lane import Lane
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step

_PARTIAL = 0.125  # of a core, for answers that are not complete
_SEARCHES = 4  # threads of the lane that searches


class Overloaded(TamisError):
    """The queue is full, or there is not enough time: the client may retry after some seconds."""

    def __init__(self, problem: str, *, remedy: str, retry_after: int = 1) -> None:
        super().__init__(problem, remedy=remedy)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Request:
    """The stages of a request and its time in seconds. A client whose time is too short is `told` of the time
    that it has asked for, which is a little longer. Without `partial` it wants all stages or nothing."""

    steps: Sequence[Step]
    ranking: Ranking
    seconds: float
    told: float | None = None
    partial: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a request has come to: `complete` if every stage has finished, `final` if nothing follows.
    `expected` of its `planned` stages are going to finish. Of a final one that is not complete, `retry_after`
    says when all stages would fit, if they ever would; it has its turn at `not_before`, by the monotonic
    clock. `incoming` is the ranking before the first stage."""

    done: tuple[Done, ...]
    planned: tuple[Step, ...]
    final: bool = True
    expected: int = 0
    retry_after: int | None = None
    not_before: float = 0.0
    incoming: Ranking | None = None

    @property
    def complete(self) -> bool:
        return len(self.done) == len(self.planned)

    @property
    def ranking(self) -> Ranking:
        return self.done[-1].ranking


class Work:
    """Takes requests from the event loop through the lanes, no more than `queue` at a time."""

    def __init__(self, queue: int, metrics: Metrics, *, join: bool = True) -> None:
        self._queue, self._metrics = queue, metrics
        self.in_work = 0
        self.pace = Pace(_PARTIAL)
        self._search = Lane("search", self._pass, metrics, models=False, join=False, threads=_SEARCHES)
        self._model = Lane("model", self._pass, metrics, join=join)
        metrics.gauge("in_work", "Requests in work.", lambda: self.in_work)
        metrics.gauge("waiting", "Requests that wait for a lane.", lambda: self.waiting)
        metrics.gauge("searching", "Searches under way.", lambda: self._search.at_work)
        metrics.gauge("backlog_seconds", "Work promised by the model lane.", lambda: self._model.backlog)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        return self._search, self._model

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self.lanes)

    def start(self) -> None:
        for lane in self.lanes:
            lane.start()

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()

    def _pass(self, job: Job) -> None:
        """To the lane of its next stage, or to its end."""
        if len(job.done) == len(job.steps):
            job.end()
        else:
            (self._model if job.step.models else self._search).add(job)

    def take_place(self) -> Callable[[], None]:
        """A place among the requests in work: the function gives it back, and may be called again."""
        if self.in_work >= self._queue:
            self._metrics.refused.inc()
            raise Overloaded(
                f"{self.in_work} requests are in progress, and no more are accepted", remedy="try again later"
            )
        self.in_work += 1
        held = True

        def give_back() -> None:
            nonlocal held
            self.in_work -= held
            held = False

        return give_back

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place from the first stage to the answer."""
        give_back = self.take_place()
        try:
            yield
        finally:
            give_back()

    async def rank(self, request: Request) -> Outcome:
        """Take a ranking through stages, or as far as it comes in time. An answer that is not complete can be
        written at once, so that it is there when it may be sent."""
        job = self._begin(request)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(job.future), request.seconds)
        outcome = self._outcome(request, job, len(job.done))
        if outcome.complete:
            return outcome
        return replace(outcome, not_before=time.monotonic() + self._turn(job))

    async def stages(self, request: Request, ended: Callable[[], object]) -> AsyncGenerator[Outcome]:
        """The same, with what it has come to after each stage. Where the time is up after one that was given
        as not final, the last is given again. `ended` is called when the work is over, which may be long
        before the last outcome is asked for."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell(then: Callable[[], object] = news.set) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(then)

        def end(_: object) -> None:
            tell(ended)
            tell()

        job = self._begin(request, tell)
        job.future.add_done_callback(end)
        timer = loop.call_later(request.seconds, job.future.cancel)
        given = 0
        try:
            while True:
                await news.wait()
                news.clear()
                settled = job.handed_on
                if over := job.future.done():  # asked for later: the last stage is handed on by its end
                    settled = len(job.done)
                while given < settled:
                    given += 1
                    final = over and given == settled
                    not_before = 0.0
                    if final and given < len(job.steps) and (wait := self._turn(job)):
                        not_before = time.monotonic() + wait
                        yield self._outcome(request, job, given, final=False)
                    # written now, so that it can be sent as soon as it may
                    yield replace(self._outcome(request, job, given, final=final), not_before=not_before)
                    if final:
                        return
                if over:
                    yield self._outcome(request, job, given)
                    return
        finally:
            timer.cancel()
            job.future.cancel()

    def _turn(self, job: Job) -> float:
        """Seconds until an answer that is not complete has its turn, or until its deadline."""
        return min(self.pace.turn(), max(job.deadline - time.monotonic(), 0.0))

    def _begin(self, request: Request, news: Callable[[], object] | None = None) -> Job:
        deadline = time.monotonic() + request.seconds
        job = Job(request.steps, request.ranking, deadline, *([news] if news else []))
        if not request.partial and not self._model.takes(job):
            raise self._too_late(request, job)
        self._pass(job)
        return job

    def _outcome(self, request: Request, job: Job, count: int, *, final: bool = True) -> Outcome:
        """What a request has come to after so many stages; an error where that is nothing."""
        if final and job.future.done() and not job.future.cancelled():
            job.future.result()
        expected = max(job.expected, count)
        outcome = Outcome(tuple(job.done[:count]), job.steps, final, expected, incoming=request.ranking)
        if not final or outcome.complete:
            return outcome
        if not count or not request.partial:
            raise self._too_late(request, job)
        self._metrics.degraded.inc()
        return replace(outcome, expected=count, retry_after=self._retry_after(request, job))

    def _retry_after(self, request: Request, job: Job) -> int | None:
        left = Job(request.steps[len(job.done) :], job.ranking, job.deadline)
        return self._model.retry_after(left, request.seconds)

    def _too_late(self, request: Request, job: Job) -> Overloaded:
        seconds = request.told or request.seconds
        missing = [step.expression for step in request.steps[len(job.done) :]]
        what = missing[0] if request.partial else " >> ".join(missing)
        return Overloaded(
            f"{what} would not finish within {seconds * 1000:,.0f} ms",
            remedy="allow more time (deadline_ms), send less, or try again later",
            retry_after=self._retry_after(request, job) or 1,
        )
