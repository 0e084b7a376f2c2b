"""Threads that carry out stages, for as many waiting requests at once as is of use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from weakref import WeakSet

import numpy as np

from tamis.base.arrays import Array
from tamis.base.interrupt import interruptible
from tamis.core.cost import DEPTH
from tamis.core.ledger import ledger
from tamis.core.stage import applied
from tamis.infer.scorer import Tally
from tamis.serve.admission import Promise, fits, wait_until_it_fits
from tamis.serve.costs import Costs
from tamis.serve.job import Done, Job
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step

TOGETHER = 1024  # inputs that requests may add up to in one call
HEADROOM = 1.5  # of an estimate: many a call takes longer, and is lost where the deadline comes first
STARTING = 1.1  # the same for what was admitted, and has waited
TRYING = 0.7  # the same where nobody else wants the lane: an estimate may be too large
LONGEST_WAIT = 30  # seconds until a client is told to come back
SHORT = 0.15  # seconds: while a call is expected to be shorter, others may join it
ASIDE = 0.05  # seconds after which a call no longer keeps the others of its lane waiting


class Abandoned(Exception):
    """Nobody waits any more for what a lane is doing."""


class Call:
    """What a thread of a lane is doing, and until when it is expected to."""

    def __init__(self, batch: list[Job], seconds: float) -> None:
        self.batch = batch
        self.since = time.monotonic()
        self.until = self.since + seconds

    def check(self) -> None:
        """Raise if nobody waits for what is being done."""
        if all(job.abandoned for job in self.batch):
            raise Abandoned

    @property
    def deadline(self) -> float:
        """When nobody waits any more."""
        return max(job.deadline for job in self.batch)

    def waiting(self) -> Array:
        """One flag for each request, false from when it is abandoned: for code that cannot call `check`."""
        flags = np.ones(len(self.batch), dtype=bool)
        for place, job in enumerate(self.batch):
            job.future.add_done_callback(partial(_lower, flags, place))
        return flags


def _lower(flags: Array, place: int, future: Future[None]) -> None:
    if future.cancelled():
        flags[place] = False


class Lane(threading.Thread):
    """Takes the request whose deadline comes first and those that can join it; `then` gets what is done.

    A request that comes to a lane is admitted with as many of its stages as can be done in time, by what they
    have taken lately and by what was promised to others. Where that is none, it ends there.

    With several `threads` there is still one call at a time, until it has taken long: then another thread
    goes on with those that wait. The last thread takes only what is known to be quick, so that slow calls do
    not keep quick ones waiting however many there are."""

    def __init__(
        self,
        name: str,
        then: Callable[[Job], None],
        metrics: Metrics,
        *,
        models: bool = True,
        join: bool = True,
        threads: int = 1,
    ) -> None:
        super().__init__(name=f"tamis-{name}", daemon=True)
        self._more = [
            threading.Thread(target=self.run, name=f"tamis-{name}-{number}", daemon=True)
            for number in range(2, threads + 1)
        ]
        self._then, self._metrics, self._join = then, metrics, join
        self._models = models  # whether it is for the stages that have some, or for the others
        self._costs = Costs()
        self._waiting: list[Job] = []
        self._admitted: WeakSet[Job] = WeakSet()  # what has ended must not keep its index open
        self._changed = threading.Condition()
        self._closed = False
        self._calls: list[Call] = []  # one a thread that is at work
        self._told_until = 0.0  # when those who were told to come back would be done, one after the other

    # -- admission

    def add(self, job: Job) -> None:
        """Take a request, or end it at once where its time is too short."""
        with self._changed:
            if job.granted.get(self.name, 0) <= len(job.done):
                job.granted[self.name] = self._agreed(job)
                self._admitted.add(job)
                lane = self.name.removeprefix("tamis-")
                self._metrics.admission.labels(lane, _outcome(job, self.name)).inc()
            if admitted := job.granted[self.name] > len(job.done):
                self._waiting.append(job)
                self._changed.notify()
        if not admitted:
            job.end()

    def takes(self, job: Job) -> bool:
        """Whether all of a request's stages would be admitted now; nothing is promised by it."""
        with self._changed:
            return self._agreed(job) == len(job.steps)

    def retry_after(self, job: Job, allowed: float) -> int | None:
        """When a request like this one, with `allowed` seconds, would fit; None if not even alone. Those who
        are told come back one after the other, as there is room, and not all at once."""
        with self._changed:
            own = self._cost(job, len(job.steps))
            told = max(self._told_until - time.monotonic(), 0.0)
            backlog = self._promised(self._others(job)) + told
            wait = wait_until_it_fits(backlog, HEADROOM * own, allowed)
            if wait is None:
                return None
            self._told_until = time.monotonic() + min(told + own, LONGEST_WAIT)
            return min(wait, LONGEST_WAIT)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def at_work(self) -> int:
        """How many of its threads are at work."""
        return len(self._calls)

    @property
    def backlog(self) -> float:
        """Seconds of work that is promised."""
        with self._changed:
            return self._promised(self._others(None))

    def _agreed(self, job: Job) -> int:
        """How many of its stages a request can be promised. With nobody else to be kept waiting it is tried
        where there is some hope: an estimate may be too large, and is corrected only by trying. A stage of
        which nothing is known is tried by one request, and the others wait for what comes of it. While others
        are served, nobody who has a ranking already gets some of the stages: under load that would take from
        complete answers what they need."""
        others = self._others(job)
        if not others:  # whoever was told to come back is not there: nobody need come after them
            self._told_until = 0.0
        promised = [Promise(each.deadline, self._left(each)) for each in others]
        free = time.monotonic() + self._busy()
        if self._next(job) is None:
            return len(job.steps)
        being_tried = {step.key for each in others for step in each.steps}

        def seconds(step: Step, work: int) -> float:
            known = self._costs.seconds(step.key, work)
            if known is None and step.key not in being_tried:
                return 0.0
            return self._costs.guess(work) if known is None else known

        least = len(job.steps) - 1 if others and job.done else len(job.done)
        for until in range(len(job.steps), least, -1):
            hoped = self._cost(job, until, seconds=self._hoped)
            if not others and free + TRYING * hoped <= job.deadline:
                return until
            own = self._cost(job, until, seconds=seconds)
            if fits(free, Promise(job.deadline, HEADROOM * own), promised):
                return until
        return len(job.done)

    def _others(self, job: Job | None) -> list[Job]:
        return [each for each in self._admitted if each is not job and not each.future.done()]

    def _busy(self) -> float:
        """Seconds until a thread should be free, or may go on beside those that are not."""
        now = time.monotonic()
        left = min((max(call.until - now, 0.0) for call in self._calls), default=0.0)
        return min(left, ASIDE) if self._idle else left

    @property
    def _idle(self) -> int:
        return 1 + len(self._more) - len(self._calls)

    def _promised(self, jobs: Sequence[Job]) -> float:
        """Seconds until all that is promised should be done."""
        return self._busy() + sum(map(self._left, jobs))

    def _is_mine(self, step: Step) -> bool:
        return bool(step.models) == self._models

    def _next(self, job: Job) -> Step | None:
        return next(filter(self._is_mine, job.steps[len(job.done) :]), None)

    def _left(self, job: Job) -> float:
        """Seconds that are promised to a request beyond what is being done."""
        begun = any(job in call.batch for call in self._calls)
        return self._cost(job, job.granted[self.name], begun=begun)

    def _cost(
        self,
        job: Job,
        until: int,
        *,
        begun: bool = False,
        seconds: Callable[[Step, int], float] | None = None,
    ) -> float:
        """Seconds that the stages up to `until` will take in this lane, by what each is expected to take;
        without the next if it has begun."""
        candidates, total = len(job.ranking), 0.0
        for place, step in enumerate(job.steps[len(job.done) : until]):
            if self._is_mine(step) and not (begun and place == 0):
                total += (seconds or self._seconds)(step, step.work(candidates))
            if step.models:
                candidates = min(step.k or candidates, candidates)
            else:  # it may search
                candidates = step.k or candidates or DEPTH
        return total

    def _seconds(self, step: Step, work: int) -> float:
        known = self._costs.seconds(step.key, work)
        return self._costs.guess(work) if known is None else known

    def _hoped(self, step: Step, work: int) -> float:
        """The least that a stage may take, for all that is known: nothing, if it was not measured lately."""
        return 0.0 if self._costs.is_old(step.key) else self._seconds(step, work)

    # -- the thread

    def start(self) -> None:
        super().start()
        for thread in self._more:
            thread.start()

    def join(self, timeout: float | None = None) -> None:
        for thread in self._more:
            thread.join(timeout)
        super().join(timeout)

    def close(self) -> None:
        """Finish what waits, then end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        while call := self._take():
            self._carry_out(call)
            self._end(call)
            del call

    def _take(self) -> Call | None:
        """The next request and those that join it; none when the lane is closed."""
        with self._changed:
            while True:
                self._drop_late_ones()
                if self._closed and not self._waiting:
                    self._changed.notify_all()
                    return None
                turn = self._turn()
                if turn <= 0 and (first := self._first()):
                    return self._begin(first)
                self._changed.wait(turn if self._waiting and turn > 0 else None)

    def _turn(self) -> float:
        """Seconds until another call may begin beside those that are under way."""
        youngest = max((call.since for call in self._calls), default=0.0)
        return youngest + ASIDE - time.monotonic()

    def _first(self) -> Job | None:
        """The request to do next. The last thread of several is for those that are known to be quick."""
        last = self._more and self._idle == 1
        able = [job for job in self._waiting if not last or self._is_quick(job)]
        return min(able, key=lambda job: job.deadline, default=None)

    def _is_quick(self, job: Job) -> bool:
        seconds = self._costs.seconds(job.step.key, job.work)
        return seconds is not None and seconds < ASIDE

    def _begin(self, first: Job) -> Call:
        self._waiting.remove(first)
        call = self._call_of(self._joined(first))
        if self._waiting:  # another thread must look to them, if this takes long
            self._changed.notify()
        return call

    def _call_of(self, batch: list[Job]) -> Call:
        call = Call(batch, self._seconds(batch[0].step, sum(job.work for job in batch)))
        self._calls.append(call)
        return call

    def _end(self, call: Call) -> None:
        """The thread is free; and does not keep an index open until the next request comes."""
        with self._changed:
            if call in self._calls:
                self._calls.remove(call)
            call.batch = []
            if self._waiting:
                self._changed.notify()

    def _drop_late_ones(self) -> None:
        """Who could no longer be served in time need not wait until the time is up; if that is all of them,
        the one with the most time is tried."""
        waiting = [job for job in self._waiting if not job.abandoned]
        self._metrics.dropped.labels("waiting").inc(len(self._waiting) - len(waiting))
        still = [job for job in waiting if self._can_start(job, STARTING)]
        if waiting and not still:
            most = max(waiting, key=lambda job: job.deadline)
            hope = self._costs.is_old(most.step.key) or self._can_start(most, TRYING)
            still = [most] if hope else []
        for job in waiting:
            if job not in still:
                job.end()
        self._waiting = still

    def _can_start(self, job: Job, headroom: float) -> bool:
        return self._in_time(job.step, job.work, job.deadline, headroom)

    def _in_time(self, step: Step, work: int, deadline: float, headroom: float) -> bool:
        seconds = self._costs.seconds(step.key, work)
        return seconds is None or time.monotonic() + headroom * seconds <= deadline

    def _joined(self, first: Job) -> list[Job]:
        """A request with those that can share its call: none must come too late for that, and the call must
        stay short."""
        batch, work, deadline = [first], first.work, first.deadline
        still = []
        for job in self._waiting:
            total = work + job.work
            earliest = min(deadline, job.deadline, time.monotonic() + SHORT)
            same = self._join and job.step.stage is first.step.stage
            if same and total <= TOGETHER and self._in_time(first.step, total, earliest, HEADROOM):
                batch.append(job)
                work, deadline = total, min(deadline, job.deadline)
            else:
                still.append(job)
        self._waiting = still
        return batch

    def _carry_out(self, call: Call) -> None:
        batch = call.batch
        first = batch[0].step
        models, name = first.models, first.name
        cuts = [job.step.k for job in batch]
        depth = None if None in cuts else max(k for k in cuts if k is not None)
        work = sum(job.work for job in batch)
        started = time.monotonic()
        loaded = None
        try:
            for model in models:
                model.prepare()
            call.check()  # a model may have taken long to load
            loaded = time.monotonic()
            with ledger() as work_done, interruptible(call.check, call.waiting(), call.deadline):
                rankings = applied(first.stage, [job.ranking for job in batch], depth)
        except Abandoned:
            if loaded is not None:
                now = time.monotonic()
                late = any(now >= job.deadline for job in batch)  # or else the clients have left
                self._costs.learn_unfinished(first.key, work, now - loaded, late=late)
            self._metrics.dropped.labels("running").inc(len(batch))
            return
        except Exception as error:
            if len(batch) == 1:
                batch[0].end(error)
                return
            self._end(call)
            for job in batch:  # one request must not fail the others
                with self._changed:
                    alone = self._call_of([job])
                self._carry_out(alone)
                self._end(alone)
            return
        now, tally = time.monotonic(), sum((tally for _, tally in work_done), start=Tally())
        if tally.inferences or not models:  # where all scores were in a cache, nothing was measured
            self._costs.learn(first.key, work, now - loaded, spared=tally.cached > 0)
        self._end(call)  # whoever hears of it may ask again at once, and the lane is free
        self._count(name, len(batch), now - started, tally)
        for job, ranking in zip(batch, rankings, strict=True):
            step, waited = job.step, started - job.since
            # by the object: to the stages all queries have one id, or what they draw would differ by request
            own = (tally for query, tally in work_done if query is job.ranking.query)
            kept = ranking if step.k is None else ranking.head(step.k)
            whole = ranking if models else kept
            job.done.append(Done(step, kept, whole, now - started, waited, sum(own, start=Tally())))
            job.ranking, job.since = kept, now
            self._metrics.waits.labels(name).observe(waited)
            job.hand_on_to(self._then)

    def _count(self, name: str, requests: int, seconds: float, tally: Tally) -> None:
        self._metrics.stages.labels(name).observe(seconds)
        self._metrics.batches.labels(name).observe(requests)
        if tally.inferences or tally.cached:
            self._metrics.inferences.labels(name).inc(tally.inferences)
            self._metrics.cached.labels(name).inc(tally.cached)
            self._metrics.truncated.labels(name).inc(tally.truncation.texts_cut)


def _outcome(job: Job, lane: str) -> str:
    """What admission came to: all stages, some of them, or none."""
    if job.granted[lane] == len(job.steps):
        return "whole"
    return "part" if job.granted[lane] > len(job.done) else "none"
