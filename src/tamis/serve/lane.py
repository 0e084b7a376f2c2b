"""A thread that carries out stages, for as many waiting requests at once as is of use."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

from tamis.infer.cross_encoder import Tally
from tamis.rank.reranker import ledger
from tamis.ranking import Ranking
from tamis.serve.costs import Costs
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step

TOGETHER = 1024  # inputs that requests may add up to in one call
HEADROOM = 1.5  # of an estimate: many a call takes longer, and is lost where the deadline comes first
SHORT = 0.15  # seconds: while a call is expected to be shorter, others may join it
GIVING_WAY = 5  # steps of niceness: a quarter of a core beside a thread that has none


class Abandoned(Exception):
    """Nobody waits any more for what a lane is doing."""


def give_way() -> None:
    """Let other threads go before this one where both want the same core."""
    if sys.platform == "linux":  # elsewhere niceness is the whole process's
        thread = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(nice + GIVING_WAY, 19))


@dataclass(frozen=True, slots=True)
class Done:
    """A stage that has finished for a request."""

    step: Step
    ranking: Ranking
    whole: Ranking  # before the cut, where the stage has ranked more than it keeps
    seconds: float
    waited: float
    tally: Tally


class Job:
    """A request on its way. A lane alone changes it; `future` ends it, and is cancelled at the deadline."""

    def __init__(self, steps: Sequence[Step], ranking: Ranking, deadline: float) -> None:
        self.steps, self.ranking, self.deadline = tuple(steps), ranking, deadline
        self.done: list[Done] = []
        self.since = time.monotonic()
        self.future: Future[None] = Future()

    @property
    def step(self) -> Step:
        return self.steps[len(self.done)]

    @property
    def work(self) -> int:
        return self.step.work(len(self.ranking))

    @property
    def abandoned(self) -> bool:
        return self.future.cancelled()

    def end(self, error: Exception | None = None) -> None:
        with suppress(InvalidStateError):  # the deadline came first
            self.future.set_exception(error) if error else self.future.set_result(None)


class Lane(threading.Thread):
    """Takes the request that has waited longest and those that can join it; `hand_on` gets what is done."""

    def __init__(
        self,
        name: str,
        hand_on: Callable[[Job], None],
        metrics: Metrics,
        *,
        join: bool,
        gives_way: bool = False,
    ) -> None:
        super().__init__(name=f"tamis-{name}", daemon=True)
        self._hand_on, self._metrics, self._join, self._gives_way = hand_on, metrics, join, gives_way
        self._costs = Costs()
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._batch: list[Job] = []

    def add(self, job: Job) -> None:
        """Take a request, or end it at once where its time is too short even if it were the next. A lane with
        nothing else to do tries: an estimate may be too large, and is corrected only by trying."""
        with self._changed:
            if (self._batch or self._waiting) and not self._fits(job, job.work, job.deadline):
                job.end()
                return
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Finish what waits, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def check(self) -> None:
        """Raise if nobody waits for what is being done."""
        if all(job.abandoned for job in self._batch):
            raise Abandoned

    def run(self) -> None:
        if self._gives_way:
            give_way()
        while batch := self._take():
            self._carry_out(batch)
            del batch
            self._batch = []  # nor keep their index open until the next comes

    def _take(self) -> list[Job]:
        """The next request and those that join it; none when the lane is closed."""
        with self._changed:
            while True:
                self._end_late_ones()
                if self._waiting:
                    self._batch = self._joined(self._waiting.popleft())
                    return self._batch
                if self._closed:
                    return []
                self._changed.wait()

    def _end_late_ones(self) -> None:
        """Who could no longer be served in time need not wait until the time is up; if that is all of them,
        the one with the most time is tried."""
        waiting = [job for job in self._waiting if not job.abandoned]
        still = [job for job in waiting if self._fits(job, job.work, job.deadline)]
        if waiting and not still:
            still = [max(waiting, key=lambda job: job.deadline)]
        for job in waiting:
            if job not in still:
                job.end()
        self._waiting = deque(still)

    def _joined(self, first: Job) -> list[Job]:
        """A request with those that can share its call: none must come too late for that, and the call must
        stay short."""
        batch, work, deadline = [first], first.work, first.deadline
        still = deque[Job]()
        for job in self._waiting:
            total = work + job.work
            earliest = min(deadline, job.deadline, time.monotonic() + SHORT)
            same = self._join and job.step.stage is first.step.stage
            if same and total <= TOGETHER and self._fits(first, total, earliest):
                batch.append(job)
                work, deadline = total, min(deadline, job.deadline)
            else:
                still.append(job)
        self._waiting = still
        return batch

    def _fits(self, job: Job, work: int, deadline: float) -> bool:
        seconds = self._costs.seconds(job.step.key, work)
        return seconds is None or time.monotonic() + HEADROOM * seconds <= deadline

    def _carry_out(self, batch: Sequence[Job]) -> None:
        first = batch[0].step
        models, name = first.models, first.name
        cuts = [job.step.k for job in batch]
        depth = None if None in cuts else max(k for k in cuts if k is not None)
        work = sum(job.work for job in batch)
        started = loaded = time.monotonic()
        try:
            for model in models:
                model.prepare()
                model.encoder.engine.check = self.check
            loaded = time.monotonic()
            with ledger() as work_done:
                rankings = first.stage.apply([job.ranking for job in batch], depth)
        except Abandoned:
            self._costs.learn(first.key, work, time.monotonic() - loaded, given_up=True)
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0].end(error)
                return
            for job in batch:  # one request must not fail the others
                self._carry_out([job])
            return
        now = time.monotonic()
        self._costs.learn(first.key, work, now - loaded)
        self._count(name, len(batch), now - started, sum((tally for _, tally in work_done), start=Tally()))
        for job, ranking in zip(batch, rankings, strict=True):
            step, waited = job.step, started - job.since
            # by the object: to the stages all queries have one id, or what they draw would differ by request
            own = (tally for query, tally in work_done if query is job.ranking.query)
            kept = ranking if step.k is None else ranking.head(step.k)
            whole = ranking if models else kept
            job.done.append(Done(step, kept, whole, now - started, waited, sum(own, start=Tally())))
            job.ranking, job.since = kept, now
            self._metrics.waits.add(waited, name)
            self._hand_on(job)

    def _count(self, name: str, requests: int, seconds: float, tally: Tally) -> None:
        self._metrics.stages.add(seconds, name)
        self._metrics.batches.add(requests, name)
        if tally.inferences or tally.cached:
            self._metrics.inferences.add(tally.inferences, name)
            self._metrics.cached.add(tally.cached, name)
            self._metrics.truncated.add(tally.truncation.texts_cut, name)
