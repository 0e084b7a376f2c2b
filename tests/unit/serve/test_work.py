"""Lanes and deadlines, with stages that take as long as they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tamis import Document, Query
from tamis.core.candidates import placed
from tamis.core.plan import rerankers
from tamis.core.ranking import Ranking
from tamis.rank.combine import Fuse
from tamis.rank.mono import Mono
from tamis.serve.costs import Costs
from tamis.serve.job import Job
from tamis.serve.lane import Lane
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step
from tamis.serve.work import Outcome, Overloaded, Work
from tests.unit.serve.doubles import Clock, Finds, asked, ranked, step


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
            pytest.raises(Overloaded, match="2 requests are in progress"),
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
