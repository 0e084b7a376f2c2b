"""Which requests a lane admits, and what comes of them stage by stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tamis import Document, Query
from tamis.base import interrupt
from tamis.core.candidates import placed
from tamis.core.ranking import Ranking
from tamis.serve.admission import Promise, fits
from tamis.serve.costs import Costs, Pace
from tamis.serve.job import Job
from tamis.serve.lane import LONGEST_WAIT
from tamis.serve.work import Outcome, Overloaded, Request, Work
from tests.unit.serve.doubles import Clock, Finds, Load, asked, ranked, until


def test_the_first_request_is_not_refused(load: Load) -> None:
    """Nothing is known, and the server's own trial is under way."""

    async def run(work: Work) -> list[Outcome]:
        trial = await load.begun(work, 600.0)
        first = asyncio.create_task(work.rank(asked(load.steps, 100.0, partial=False)))
        await until(lambda: work._model.waiting)
        load.gate.set()
        return [await trial, await first]

    assert [outcome.complete for outcome in ranked(run)[0]] == [True, True]


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_leaves_says_nothing_of_the_cost_and_one_whose_time_is_up_does(
    load: Load, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_until_given_up(rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        found = Finds.apply(load.read, rankings, depth)
        interrupt.check()  # as engines do before each batch
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


def test_no_more_is_promised_than_can_be_kept(load: Load) -> None:
    """With 325 s each: one is being done, one more fits behind it, and the third is told at once."""

    async def run(work: Work) -> tuple[list[Outcome], Outcome, int]:
        load.known_to(work)
        kept = [await load.begun(work, 325.0)]
        kept.append(asyncio.create_task(work.rank(asked(load.steps, 325.0))))
        await until(lambda: work._model.waiting)
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
            await until(lambda: work._model.waiting == len(tasks))
        load.gate.set()
        await asyncio.gather(busy, *tasks)

    ranked(run)
    assert order == [(400.0, True), (500.0, True), (600.0, True)]


def test_what_nobody_waits_for_is_dropped_before_it_begins(load: Load) -> None:
    async def run(work: Work) -> None:
        busy = await load.begun(work, 1000.0)
        other = asyncio.create_task(work.rank(asked(load.steps, 1000.0)))
        await until(lambda: work._model.waiting)
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


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_not_complete_can_be_written_before_its_turn(load: Load, streamed: bool) -> None:
    """Otherwise many would be written at once, at their deadline, and some would be late."""

    async def last(work: Work, request: Request) -> Outcome:
        if not streamed:
            return await work.rank(request)
        return [each async for each in work.stages(request, lambda: None)][-1]

    async def run(work: Work) -> list[Outcome]:
        load.known_to(work)
        await load.begun(work, 1000.0)
        work.pace = Pace(0.5)
        work.pace.learn(50.0)  # so that a turn comes every 100 s, by which a slow test has returned
        outcomes = [await last(work, asked(load.steps, 200.0)) for _ in range(4)]
        load.gate.set()
        return outcomes

    started = time.monotonic()
    outcomes, _ = ranked(run)
    ended = time.monotonic()
    assert [outcome.complete for outcome in outcomes] == [False] * 4
    waits = [outcome.not_before - started for outcome in outcomes]
    assert waits[0] <= ended - started
    assert 100.0 <= waits[1] <= 100.0 + ended - started
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
