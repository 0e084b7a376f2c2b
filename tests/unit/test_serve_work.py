"""Lanes and deadlines, with stages that take as long as they are told."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import Document, Query
from tamis.errors import InputError
from tamis.expression import Call
from tamis.plan import rerankers
from tamis.rank.combine import Fuse
from tamis.rank.given import placed
from tamis.rank.mono import Mono
from tamis.ranking import Ranking, ScoreKind
from tamis.serve.costs import Costs
from tamis.serve.lane import GIVING_WAY, Job, Lane
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Step
from tamis.serve.work import Outcome, Overloaded, Work
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
    outcome, _ = ranked(lambda work: work.rank(steps, Ranking(Query("0", "x")), 10.0))
    assert outcome.complete
    assert [len(done.ranking) for done in outcome.done] == [4, 5]
    assert first.depths == [4]


def test_a_deadline_keeps_what_is_finished() -> None:
    gate = threading.Event()
    steps = [step(Finds(2)), step(Finds(3, gate=gate))]

    async def run(work: Work) -> Outcome:
        try:
            return await work.rank(steps, Ranking(Query("0", "x")), 1.0)
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
            return await work.rank([step(Finds(gate=gate))], Ranking(Query("0", "x")), 0.05)
        finally:
            gate.set()

    with pytest.raises(Overloaded, match="would not finish within 50 ms"):
        ranked(run)


def test_a_stage_that_cannot_be_done_in_time_is_not_begun() -> None:
    slow = Finds(seconds=0.8)
    steps = [step(Finds(2)), step(slow)]

    async def run(work: Work) -> tuple[Outcome, float]:
        await work.rank(steps, Ranking(Query("0", "x")), 10.0)
        started = time.monotonic()
        outcome = await work.rank(steps, Ranking(Query("0", "x")), 1.0)
        return outcome, time.monotonic() - started

    (outcome, seconds), _ = ranked(run)
    assert not outcome.complete
    assert slow.calls == [1]
    assert seconds < 1.0


def test_a_lane_with_nothing_else_to_do_tries_though_the_estimate_is_too_large() -> None:
    """Otherwise one slow call would keep a stage from being done for all that come after."""
    once_slow = Finds(seconds=0.5)

    async def run(work: Work) -> Outcome:
        await work.rank([step(once_slow)], Ranking(Query("0", "x")), 10.0)
        while work._search._batch:  # the lane has still to put the last request away
            await asyncio.sleep(0.001)
        once_slow.seconds = 0.0
        return await work.rank([step(once_slow)], Ranking(Query("0", "x")), 0.7)

    outcome, _ = ranked(run)
    assert outcome.complete
    assert once_slow.calls == [1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="niceness is a thread's own on Linux alone")
def test_a_search_gives_way_and_the_caller_does_not() -> None:
    seen = []

    class Looks(Finds):
        def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().apply(rankings, depth)

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    ranked(lambda work: work.rank([step(Looks())], Ranking(Query("0", "x")), 10.0))
    assert seen == [min(before + GIVING_WAY, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


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
    lane = Lane("test", lambda job: job.end(), Metrics(), join=join)
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


def test_an_estimate_is_not_trusted_for_ever() -> None:
    now = 0.0
    costs = Costs(lambda: now)
    costs.learn("mono", 10, 1.0)
    assert costs.seconds("mono", 20) == pytest.approx(2.0)
    costs.learn("mono", 10, 2.0)
    assert costs.seconds("mono", 10) == pytest.approx(1.3)
    costs.learn("mono", 10, 0.1, given_up=True)  # says only that it takes at least that
    assert costs.seconds("mono", 10) == pytest.approx(1.3)
    now = 6.0
    assert costs.seconds("mono", 10) is None
