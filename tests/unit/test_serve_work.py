"""Lanes and deadlines, with stages that take as long as they are told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tamis import Document, Query
from tamis.errors import InputError
from tamis.expression import Call
from tamis.plan import rerankers
from tamis.rank.combine import Fuse
from tamis.rank.given import placed
from tamis.rank.mono import Mono
from tamis.ranking import Ranking, ScoreKind
from tamis.serve.admission import Promise, fits
from tamis.serve.costs import Costs, Pace
from tamis.serve.job import Job
from tamis.serve.lane import LONGEST_WAIT, Lane
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step
from tamis.serve.work import Outcome, Overloaded, Request, Work
from tamis.stage import Stage


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


def test_a_request_goes_through_all_stages() -> None:
    first, second = Finds(9), Finds(5)
    steps = [step(first, 4), step(second)]
    outcome, _ = ranked(lambda work: work.rank(asked(steps, 10.0)))
    assert outcome.complete
    assert [len(done.ranking) for done in outcome.done] == [4, 5]
    assert first.depths == [4]


def test_a_deadline_keeps_what_is_finished() -> None:
    gate = threading.Event()
    steps = [step(Finds(2)), step(Finds(3, gate=gate))]

    async def run(work: Work) -> Outcome:
        try:
            return await work.rank(asked(steps, 1.0))
        finally:
            gate.set()

    outcome, metrics = ranked(run)
    assert not outcome.complete
    assert outcome.ranking.ids == ("d0", "d1")
    assert "tamis_degraded_total 1" in metrics.text()


def test_nothing_finished_is_no_answer() -> None:
    gate = threading.Event()

    async def run(work: Work) -> Outcome:
        try:
            return await work.rank(asked([step(Finds(gate=gate))], 0.05))
        finally:
            gate.set()

    with pytest.raises(Overloaded, match="would not finish within 50 ms"):
        ranked(run)


def test_a_stage_that_cannot_be_done_in_time_is_not_begun() -> None:
    slow = Finds(seconds=0.8)
    steps = [step(Finds(2)), step(slow)]

    async def run(work: Work) -> Outcome:
        work._search._costs = Costs(lambda: 0.0)  # on a machine however busy, an estimate is new
        await work.rank(asked(steps, 10.0))
        return await work.rank(asked(steps, 0.5))

    outcome, _ = ranked(run)
    assert not outcome.complete
    assert slow.calls == [1]


def test_a_lane_with_nothing_else_to_do_tries_though_the_estimate_is_too_large() -> None:
    """Otherwise one slow call would keep a stage from being done for all that come after."""
    once_slow = Finds(seconds=0.5)

    async def run(work: Work) -> Outcome:
        await work.rank(asked([step(once_slow)], 10.0))
        once_slow.seconds = 0.0
        return await work.rank(asked([step(once_slow)], 0.7))

    outcome, _ = ranked(run)
    assert outcome.complete
    assert once_slow.calls == [1, 1]


def test_a_full_house() -> None:
    async def run(work: Work) -> None:
        with (
            work.place(),
            work.place(),
            pytest.raises(Overloaded, match="2 requests are in work"),
            work.place(),
        ):
            pass
        with work.place():
            assert work.in_work == 1

    _, metrics = ranked(run, queue=2)
    assert "tamis_refused_total 1" in metrics.text()


def joined(texts: Sequence[str], cuts: Sequence[int | None], *, join: bool = True) -> tuple[Finds, list[Job]]:
    """Requests that wait for one stage while its lane is busy with another: how long that one takes says
    nothing about theirs, which would keep them apart."""
    gate = threading.Event()
    stage, other = Finds(5), Finds(1, gate=gate)
    busy, *jobs = [
        Job([step(wanted, k)], Ranking(Query("0", text)), time.monotonic() + 60)
        for wanted, text, k in [
            (other, "x", None),
            *((stage, *each) for each in zip(texts, cuts, strict=True)),
        ]
    ]
    lane = Lane("test", lambda job: job.end(), Metrics(), models=False, join=join)
    lane.add(busy)
    lane.start()
    while not other.calls:
        time.sleep(0.001)
    for job in jobs:
        lane.add(job)
    gate.set()
    for job in jobs:
        job.future.exception(60)
    lane.close()
    lane.join(60)
    assert not lane.is_alive()
    return stage, jobs


def test_who_waits_for_one_stage_shares_a_call() -> None:
    stage, jobs = joined(["a", "b", "c", "d"], [None, 2, 4, 3])
    assert stage.calls == [4]
    assert stage.depths == [None]
    assert [len(job.done[0].ranking) for job in jobs] == [5, 2, 4, 3]
    assert [job.done[0].ranking.query.text for job in jobs] == ["a", "b", "c", "d"]
    stage, _ = joined(["b", "c", "d"], [2, 4, 3])
    assert (stage.calls, stage.depths) == ([3], [4])


def test_or_has_one_of_its_own() -> None:
    stage, _ = joined(["a", "b", "c"], [None] * 3, join=False)
    assert stage.calls == [1, 1, 1]


def test_one_request_does_not_fail_the_others() -> None:
    stage, jobs = joined(["a", "b", "bad", "d"], [None] * 4)
    assert stage.calls == [4, 1, 1, 1, 1]
    assert [job.future.exception() is None for job in jobs] == [True, True, False, True]


def test_who_shares_a_call_is_told_of_the_own_share(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = str(tiny_checkpoint(tmp_path / "m", layers=1, positions=48))
    texts = [["a sieve"] * 3, ["a sieve", "soup " * 90], ["soup " * 90] * 2]
    for stage in (Mono(model), Fuse(Mono(model), Mono(model, score="logit"))):
        models = tuple(rerankers(stage))
        shared = Step("own", repr(stage), stage, repr(stage), None, models)
        sent = [placed(Query("0", "sieve"), [Document("x", text) for text in each]) for each in texts]
        jobs = [Job([shared], each, time.monotonic() + 60) for each in sent]
        metrics = Metrics()
        lane = Lane("test", lambda job: job.end(), metrics, join=True)
        for job in jobs:
            lane.add(job)
        lane.start()
        for job in jobs:
            job.future.result(60)
        lane.close()
        assert 'tamis_batch_requests_sum{stage="own"} 3' in metrics.text()
        assert 'tamis_batch_requests_count{stage="own"} 1' in metrics.text()
        tallies = [job.done[0].tally for job in jobs]
        counts = [(tally.inferences, tally.truncation.texts_cut) for tally in tallies]
        assert counts == [(3 * len(models), 0), (2 * len(models), len(models)), (2 * len(models),) * 2]


class Clock:
    """A clock that goes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_estimate_that_is_not_renewed_becomes_smaller(clock: Clock) -> None:
    costs = Costs(clock)
    costs.learn("mono", 10, 1.0)
    assert costs.seconds("mono", 20) == pytest.approx(2.0)
    costs.learn("mono", 10, 2.0)
    assert costs.seconds("mono", 10) == pytest.approx(1.3)
    assert not costs.is_old("mono")
    clock.now = 65.0
    assert costs.is_old("mono")
    assert costs.seconds("mono", 10) == costs.guess(10) == pytest.approx(1.3 / 2)
    costs.learn("mono", 10, 0.5)  # and the new counts for more: 0.7 of a half is kept
    assert costs.seconds("mono", 10) == pytest.approx(0.35 * 1.3 + 0.65 * 0.5)


def test_an_estimate_grows_by_what_has_passed_its_deadline_alone(clock: Clock) -> None:
    costs = Costs(clock)
    costs.learn_unfinished("mono", 10, 3.0, late=False)
    assert costs.seconds("mono", 10) is None  # its client left: nothing is known
    costs.learn("mono", 10, 1.0)
    clock.now = 4.0
    costs.learn_unfinished("mono", 10, 0.9, late=False)
    assert costs.seconds("mono", 10) == pytest.approx(1.0)
    clock.now = 6.0
    assert costs.is_old("mono")  # nor is it as if it had been measured
    costs.learn_unfinished("mono", 10, 0.2, late=True)  # says only that it takes longer than that
    assert costs.seconds("mono", 10) == pytest.approx(1.0)
    assert not costs.is_old("mono")
    costs.learn_unfinished("mono", 10, 1.0, late=True)  # as long again, for all that is known
    assert costs.seconds("mono", 10) == pytest.approx(0.7 + 0.3 * 2.0)
    costs.learn_unfinished("mono", 10, 2.0, late=False)  # that it took so long is no guess
    assert costs.seconds("mono", 10) == pytest.approx(0.7 * 1.3 + 0.3 * 2.0)


def test_one_slow_call_is_not_believed_and_a_fast_one_is(clock: Clock) -> None:
    costs = Costs(clock)
    costs.learn("mono", 10, 0.4)
    costs.learn("mono", 10, 60.0)  # the machine stood still
    assert costs.seconds("mono", 10) == pytest.approx(0.7 * 0.4 + 0.3 * 4 * 0.4)
    for _ in range(12):  # but if it stays so
        costs.learn("mono", 10, 60.0)
    assert costs.seconds("mono", 10) == pytest.approx(60.0, rel=0.1)
    costs.learn("mono", 10, 0.5, spared=True)  # many scores were in the cache
    assert costs.seconds("mono", 10) == pytest.approx(42.0, rel=0.1)
    costs.learn("mono", 10, 0.5)
    assert costs.seconds("mono", 10) == pytest.approx(0.7 * 4 * 0.5 + 0.3 * 0.5)


def test_a_stage_is_tried_again_however_slow_it_once_was(clock: Clock) -> None:
    stage = Finds(2)

    async def run(work: Work) -> list[bool]:
        work._search._costs = costs = Costs(clock)
        costs.learn(step(stage).key, 1, 1e6)
        complete = []
        for clock.now in (0.0, 4.0, 6.0, 6.0, 6.0):
            outcome = await work.rank(asked([step(Finds(1)), step(stage)], 100.0))
            complete.append(outcome.complete)
        return complete

    complete, _ = ranked(run)
    # not at once; after a while one is let through, and by what it took the others are
    assert complete == [False, False, True, True, True]
    assert stage.calls == [1, 1, 1]


def test_a_stage_that_was_never_measured_is_reached_behind_one_that_was(clock: Clock) -> None:
    """By the slowest stage that is known, it would take far too long."""
    first, second = Finds(1), Finds(2)

    async def run(work: Work) -> list[bool]:
        work._search._costs = costs = Costs(clock)
        costs.learn("another", 1, 1e6)
        costs.learn(step(first).key, 1, 1.0)
        return [(await work.rank(asked([step(first), step(second)], 100.0))).complete for _ in range(2)]

    assert ranked(run)[0] == [True, True]


def test_the_first_request_is_not_refused(load: Load) -> None:
    """Nothing is known, and the server's own trial is under way."""

    async def run(work: Work) -> list[Outcome]:
        trial = await load.begun(work, 600.0)
        first = asyncio.create_task(work.rank(asked(load.steps, 100.0, partial=False)))
        await until(lambda: work.waiting)
        load.gate.set()
        return [await trial, await first]

    assert [outcome.complete for outcome in ranked(run)[0]] == [True, True]


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_leaves_says_nothing_of_the_cost_and_one_whose_time_is_up_does(
    load: Load, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_until_given_up(rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        found = Finds.apply(load.read, rankings, depth)
        load.steps[1].models[0].encoder.engine.check()  # as engines do before each batch
        return found

    monkeypatch.setattr(load.read, "apply", run_until_given_up)

    async def run(work: Work) -> float | None:
        task = await load.begun(work, 1000.0)
        if late:
            work._model._calls[0].batch[0].deadline = time.monotonic()
        else:
            task.cancel()
            await asyncio.sleep(0)
        load.gate.set()
        await until(lambda: not work._model._calls)
        return work._model._costs.seconds("reads", 1)

    known, metrics = ranked(run)
    assert 'tamis_dropped_total{when="running"} 1' in metrics.text()
    assert (known is not None) == late


# -- admission
# ------------------------------------------------------------------------------------------------------------


def kept(free: float, order: Iterable[Promise]) -> bool:
    """Whether promises are kept if they are carried out in this order."""
    for each in order:
        free += each.seconds
        if free > each.deadline:
            return False
    return True


promises = st.builds(Promise, st.integers(0, 12), st.integers(0, 4))


@given(new=promises, promised=st.lists(promises, max_size=5), free=st.integers(0, 3))
def test_what_is_admitted_breaks_no_promise_and_what_is_not_would_in_any_order(
    new: Promise, promised: list[Promise], free: int
) -> None:
    assume(kept(free, sorted(promised)))
    possible = any(kept(free, order) for order in permutations([new, *promised]))
    assert fits(free, new, promised) == possible


def test_a_promise_that_cannot_be_kept_anyhow_is_no_reason_to_refuse() -> None:
    assert fits(0.0, Promise(2.0, 1.0), [Promise(3.0, 9.0)])


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


def test_no_more_is_promised_than_can_be_kept(load: Load) -> None:
    """With 325 s each: one is being done, one more fits behind it, and the third is told at once."""

    async def run(work: Work) -> tuple[list[Outcome], Outcome, int]:
        load.known_to(work)
        kept = [await load.begun(work, 325.0)]
        kept.append(asyncio.create_task(work.rank(asked(load.steps, 325.0))))
        await until(lambda: work.waiting)
        short = await work.rank(asked(load.steps, 325.0))
        searches = len(load.find.calls)
        with pytest.raises(Overloaded, match=r"finds.* >> reads would not finish within 325,000 ms") as told:
            await work.rank(asked(load.steps, 325.0, partial=False))
        assert len(load.find.calls) == searches  # it was told before anything was done for it
        load.gate.set()
        return [await each for each in kept], short, told.value.retry_after

    (complete, short, retry_after), metrics = ranked(run)
    assert [outcome.complete for outcome in complete] == [True, True]
    assert (short.complete, len(short.done), short.expected) == (False, 1, 1)
    # 200 s are promised, and it takes 150 with its headroom: 25 s more than it is allowed, less what the test
    # has taken. The next is told to come 100 s after it, which is longer than anyone is told
    assert short.retry_after is not None
    assert 1 <= short.retry_after <= 25
    assert retry_after == LONGEST_WAIT
    assert load.read.calls == [1, 1]
    assert 'tamis_admission_total{lane="model",outcome="whole"} 2' in metrics.text()
    assert 'tamis_admission_total{lane="model",outcome="none"} 1' in metrics.text()


def test_some_of_the_stages_are_done_where_that_takes_nothing_from_complete_answers(
    load: Load, clock: Clock
) -> None:
    find, read = load.steps
    cheap = replace(read, stage=Finds(3), key="cheap")
    steps = [find, cheap, read]

    async def run(work: Work) -> list[Outcome]:
        work._model._costs = Costs(clock)
        load.known_to(work)
        work._model._costs.learn("cheap", load.find.count, 1.0)
        alone = await work.rank(asked(steps, 60.0))  # 101 s do not fit, and one does
        busy = await load.begun(work, 1000.0)
        beside = await work.rank(asked(steps, 140.0))  # the same, behind 100 s of another
        load.gate.set()
        await busy
        return [alone, beside]

    outcomes, _ = ranked(run)
    assert [len(outcome.done) for outcome in outcomes] == [2, 1]


def test_who_has_less_time_goes_first_where_that_makes_nobody_late(load: Load) -> None:
    order = []

    async def one(work: Work, seconds: float) -> None:
        outcome = await work.rank(asked(load.steps, seconds))
        order.append((seconds, outcome.complete))

    async def run(work: Work) -> None:
        load.known_to(work)
        busy = await load.begun(work, 1000.0)
        tasks = []
        for seconds in (600.0, 500.0, 400.0):
            tasks.append(asyncio.create_task(one(work, seconds)))
            await until(lambda: work.waiting == len(tasks))
        load.gate.set()
        await asyncio.gather(busy, *tasks)

    ranked(run)
    assert order == [(400.0, True), (500.0, True), (600.0, True)]


def test_what_nobody_waits_for_is_dropped_before_it_begins(load: Load) -> None:
    async def run(work: Work) -> None:
        busy = await load.begun(work, 1000.0)
        other = asyncio.create_task(work.rank(asked(load.steps, 1000.0)))
        await until(lambda: work.waiting)
        other.cancel()
        load.gate.set()
        await busy
        await until(lambda: not work.waiting)

    _, metrics = ranked(run)
    assert load.read.calls == [1]
    assert 'tamis_dropped_total{when="waiting"} 1' in metrics.text()


# -- stage by stage
# ------------------------------------------------------------------------------------------------------------


def test_stages_come_as_they_are_done(load: Load) -> None:
    ended = []

    async def run(work: Work) -> list[Outcome]:
        outcomes = work.stages(asked(load.steps, 1000.0), lambda: ended.append(True))
        first = await anext(outcomes)
        assert ended == []
        load.gate.set()
        return [first, *[each async for each in outcomes]]

    outcomes, _ = ranked(run)
    assert [len(each.done) for each in outcomes] == [1, 2]
    assert [(each.final, each.complete, each.expected) for each in outcomes] == [
        (False, False, 2),
        (True, True, 2),
    ]
    assert ended == [True]


def test_the_last_stage_is_given_again_when_the_time_is_up(load: Load) -> None:
    async def run(work: Work) -> list[Outcome]:
        return [each async for each in work.stages(asked(load.steps, 0.5), lambda: None)]

    outcomes, metrics = ranked(run)
    # on a machine however busy: the stage may have been seen only when the time was up
    assert [len(each.done) for each in outcomes] in ([1, 1], [1])
    assert [each.final for each in outcomes] in ([False, True], [True])
    assert not outcomes[-1].complete
    assert "tamis_degraded_total 1" in metrics.text()


def test_what_is_not_admitted_ends_with_its_first_stage(load: Load) -> None:
    async def run(work: Work) -> list[Outcome]:
        load.known_to(work)
        await load.begun(work, 1000.0)
        outcomes = [each async for each in work.stages(asked(load.steps, 200.0), lambda: None)]
        load.gate.set()
        return outcomes

    ((only,), _) = ranked(run)
    assert (only.final, only.complete, only.expected, len(only.done)) == (True, False, 1, 1)


def test_very_many_who_are_not_admitted_are_told_one_after_the_other(load: Load) -> None:
    async def run(work: Work) -> tuple[list[Outcome], list[Outcome]]:
        load.known_to(work)
        await load.begun(work, 1000.0)
        work.pace = Pace(0.5)
        work.pace.learn(0.1)
        streams = [work.stages(asked(load.steps, 200.0), lambda: None) for _ in range(2)]
        found = [[each async for each in stream] for stream in streams]
        load.gate.set()
        return found[0], found[1]

    (first, second), _ = ranked(run)
    # the second has its ranking at once and its end later, unless the machine took as long for the first
    assert [each.final for each in first] == [True]
    assert [each.final for each in second] in ([False, True], [True])
    assert {(each.expected, len(each.done)) for each in first + second} == {(1, 1)}


def test_an_answer_that_is_not_complete_can_be_written_before_its_turn(load: Load) -> None:
    """Otherwise many would be written at once, at their deadline, and some would be late."""

    async def run(work: Work) -> list[Outcome]:
        load.known_to(work)
        await load.begun(work, 1000.0)
        work.pace = Pace(0.5)
        work.pace.learn(50.0)  # so that a turn comes every 100 s, by which a slow test has returned
        outcomes = [await work.rank(asked(load.steps, 200.0)) for _ in range(4)]
        load.gate.set()
        return outcomes

    started = time.monotonic()
    outcomes, _ = ranked(run)
    ended = time.monotonic()
    assert [outcome.complete for outcome in outcomes] == [False] * 4
    waits = [outcome.not_before - started for outcome in outcomes]
    assert waits[0] <= ended - started
    assert waits[1] == pytest.approx(100.0 + waits[0], abs=1.0)
    assert 200.0 <= waits[2] <= waits[3] <= 200.0 + ended - started  # not after the deadline


def test_nobody_is_told_to_come_after_those_who_did_not_come_back(load: Load) -> None:
    async def run(work: Work) -> list[int | None]:
        load.known_to(work)
        lane, job = work._model, Job(load.steps[1:], Ranking(Query("0", "x")), time.monotonic() + 1000.0)
        job.ranking = placed(Query("0", "x"), [Document(str(n), "x") for n in range(load.find.count)])
        told = [lane.retry_after(job, 160.0) for _ in range(2)]
        assert lane.takes(job)  # nobody is there: the lane is free
        return [*told, lane.retry_after(job, 160.0)]

    first, second, later = ranked(run)[0]
    assert (first, later) == (1, 1)
    assert second > 1


def test_who_stops_listening_frees_what_was_done_for_it(load: Load) -> None:
    ended = []

    async def run(work: Work) -> None:
        await load.begun(work, 1000.0)
        outcomes = work.stages(asked(load.steps, 1000.0), lambda: ended.append(True))
        await anext(outcomes)
        assert work.waiting == 1
        await outcomes.aclose()
        await until(lambda: ended)
        load.gate.set()
        await until(lambda: not work.waiting)

    ranked(run)
    assert load.read.calls == [1]
