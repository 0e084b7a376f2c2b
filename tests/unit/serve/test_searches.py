"""Searches that a client makes large or slow: bounded before they begin, given up at their deadline, and
beside the others meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query
from tamis.base.errors import ExpressionError, InputError
from tamis.base.interrupt import check, waiting
from tamis.core.language import Call
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Stage
from tamis.rank.groupwise import GroupwiseModel
from tamis.serve.bounds import check_query
from tamis.serve.job import Job
from tamis.serve.lane import ASIDE, Lane
from tamis.serve.limits import QUERY_TERMS, SDM_TERMS, SEARCHES
from tamis.serve.metrics import Metrics
from tamis.serve.pipelines import Pipelines, Step
from tamis.serve.service import Service
from tamis.serve.work import Overloaded, Request, Work


class Search(Stage):
    """Finds one document, as soon as it is let go."""

    def __init__(self, name: str, gate: threading.Event | None = None) -> None:
        self.name, self.gate = name, gate
        self.begun = threading.Event()

    @property
    def expression(self) -> Call:
        return Call(self.name)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.begun.set()
        assert self.gate is None or self.gate.wait(60)
        return [replace(each, ids=("d",), scores=np.ones(1), kind=ScoreKind.RETRIEVAL) for each in rankings]


class UntilGivenUp(Search):
    """Searches until nobody waits for it, by the flags that compiled code looks at."""

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.begun.set()
        flags = waiting()
        while flags.any():
            time.sleep(0.001)
        check()
        raise AssertionError("a check must follow")


def step(stage: Stage) -> Step:
    return Step(repr(stage), repr(stage), stage, repr(stage), None, ())


def job(stage: Stage, seconds: float = 60.0) -> Job:
    return Job([step(stage)], Ranking(Query("0", "x")), time.monotonic() + seconds)


@contextmanager
def lane(threads: int) -> Iterator[Lane]:
    made = Lane("test", lambda job: job.end(), Metrics(), models=False, join=False, threads=threads)
    made.start()
    try:
        yield made
    finally:
        made.close()
        made.join(60)
        assert not made.is_alive()


# -- turns
# ------------------------------------------------------------------------------------------------------------


def test_a_slow_search_goes_on_beside_the_others() -> None:
    gate = threading.Event()
    slow = Search("slow", gate)
    with lane(threads=2) as searches:
        searches._costs.learn("quick", 1, 0.001)
        first, others = job(slow), [job(Search("quick")) for _ in range(20)]
        searches.add(first)
        assert slow.begun.wait(60)
        for each in others:
            searches.add(each)
            each.future.result(60)
        assert not first.future.done()
        gate.set()
        first.future.result(60)


def test_the_last_thread_is_for_what_is_known_to_be_quick() -> None:
    gate = threading.Event()
    slow = [Search(f"slow{number}", gate) for number in range(4)]
    with lane(threads=3) as searches:
        searches._costs.learn("quick", 1, 0.001)
        jobs = [job(each) for each in slow]
        for each in jobs:
            searches.add(each)
        assert slow[0].begun.wait(60)
        assert slow[1].begun.wait(60)
        quick = job(Search("quick"))
        searches.add(quick)
        quick.future.result(60)
        assert not slow[2].begun.is_set()
        assert not slow[3].begun.is_set()
        gate.set()
        for each in jobs:
            each.future.result(60)


def test_quick_searches_come_one_after_the_other() -> None:
    """More than one at a time would only take the processor from the models."""
    at_once, most = [0], [0]
    lock = threading.Lock()

    class Counted(Search):
        def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
            with lock:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            found = super().apply(rankings, depth)
            with lock:
                at_once[0] -= 1
            return found

    with lane(threads=4) as searches:
        # calls that began this moment keep the others out, however long ago that is on a busy machine
        searches._turn = lambda: ASIDE if searches._calls else 0.0  # type: ignore[method-assign]
        jobs = [job(Counted("quick")) for _ in range(50)]
        for each in jobs:
            searches.add(each)
        for each in jobs:
            each.future.result(60)
    assert most == [1]


def test_a_lane_that_is_closed_finishes_what_waits() -> None:
    gate = threading.Event()
    with lane(threads=3) as searches:
        jobs = [job(Search(f"s{number}", gate)) for number in range(6)]
        for each in jobs:
            searches.add(each)
        searches.close()
        gate.set()
    assert all(each.future.done() for each in jobs)


# -- giving up
# ------------------------------------------------------------------------------------------------------------


def test_a_search_is_given_up_at_its_deadline_and_the_lane_is_free() -> None:
    async def run() -> None:
        endless = UntilGivenUp("endless")
        with pytest.raises(Overloaded, match="endless would not finish within 50 ms"):
            await work.rank(Request([step(endless)], Ranking(Query("0", "x")), 0.05))
        while work._search._calls:
            await asyncio.sleep(0.001)
        if endless.begun.is_set():  # on a machine however busy
            assert 'tamis_dropped_total{when="running"} 1' in metrics.text()
        outcome = await work.rank(Request([step(Search("quick"))], Ranking(Query("0", "x")), 60.0))
        assert outcome.complete

    metrics = Metrics()
    work = Work(8, metrics)
    work.start()
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        work.close()


def test_a_search_is_given_up_when_its_client_leaves() -> None:
    async def run() -> None:
        endless = UntilGivenUp("endless")
        task = asyncio.create_task(work.rank(Request([step(endless)], Ranking(Query("0", "x")), 600.0)))
        await asyncio.to_thread(endless.begun.wait, 60)
        task.cancel()
        while work._search._calls:
            await asyncio.sleep(0.001)

    work = Work(8, Metrics())
    work.start()
    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        work.close()


# -- limits
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [Document("d1", "a fine sieve"), Document("d2", "soup")]
    return Index.build(documents, tmp_path_factory.mktemp("searches") / "idx", positions=True)


_THIRTEEN = ", ".join(["bm25 >> rm3(docs=100, terms=99) >> rm3"] * 13)


@pytest.mark.parametrize(
    ("pipeline", "problem"),
    [
        ("bm25 >> rm3(docs=1000)", r"rm3\(docs=1000\) has docs=1000: this server takes 100 at most"),
        ("bm25 >> rm3(terms=101) % 10", r"has terms=101: this server takes 100 at most"),
        ("fuse(bm25, bm25 >> rm3(terms=999999999999))", "this server takes 100 at most"),
        (f"fuse({_THIRTEEN})", "39 stages that search: this server takes 10 at most"),
        (" >> ".join(["bm25"] * 11), "11 stages that search"),
        ("bm25" + " >> ltr(idf=1)" * 10, "11 stages that search"),
        (f'bm25 >> ltr({", ".join(["ql"] * 10)}, weights="{"1 " * 10}")', "12 stages that search"),
        ("bm25 >> rm3" + " >> interpolate(bm25 >> rm3)" * 5, "12 stages that search"),
    ],
)
def test_a_pipeline_that_searches_too_much_is_refused(index: Index, pipeline: str, problem: str) -> None:
    pipelines = Pipelines(index, "bm25")
    with pytest.raises(ExpressionError, match=problem):
        pipelines.search(pipeline)


def test_what_is_within_the_limits_is_not_refused(index: Index) -> None:
    pipelines = Pipelines(index, "bm25")
    for pipeline in (
        "bm25 >> rm3(docs=100, terms=100)",
        " >> ".join(["bm25"] * SEARCHES),
        f"fuse({', '.join(['bm25 >> rm3'] * (SEARCHES // 2))})",
    ):
        assert pipelines.search(pipeline)


def test_whoever_starts_a_server_may_search_more(index: Index) -> None:
    own = "bm25 >> rm3(docs=500) >> " + " >> ".join(["rm3"] * 12)
    pipelines = Pipelines(index, own)
    assert pipelines.search(None).expression == own
    assert pipelines.search(own).expression == own  # named by a client: it is no more work than unnamed
    with pytest.raises(ExpressionError, match="docs=500"):
        pipelines.search(own + " % 10")


def test_queries_have_so_many_terms(index: Index) -> None:
    pipelines = Pipelines(index, "bm25")
    bm25, sdm = pipelines.search(None).stage, pipelines.search("fuse(bm25, sdm)").stage
    check_query(bm25, index.analyzer, "w " * QUERY_TERMS)
    check_query(sdm, index.analyzer, "w " * SDM_TERMS)
    with pytest.raises(InputError, match="the query has 513 terms: shorten it: this server takes 512"):
        check_query(bm25, index.analyzer, "w " * (QUERY_TERMS + 1))
    with pytest.raises(InputError, match="the query has 101 terms: shorten it: sdm takes 100"):
        check_query(sdm, index.analyzer, "w " * (SDM_TERMS + 1))


def test_rounds_of_groupwise_are_limited(index: Index, tmp_path: Path) -> None:
    file = str(tmp_path / "gsf.json")
    GroupwiseModel(("score",), [(np.eye(2), np.zeros(2))], texts=2).save(file)
    pipelines = Pipelines(index, "bm25", models=[file])
    assert pipelines.search(f'bm25 >> groupwise(model="{file}", rounds=100)')
    for get in (pipelines.search, pipelines.rerank):
        before = "bm25 >> " if get == pipelines.search else ""
        with pytest.raises(ExpressionError, match="rounds=1000000000: this server takes 100 at most"):
            get(f'{before}groupwise(model="{file}", rounds=1000000000)')


# -- what a server keeps ready
# ------------------------------------------------------------------------------------------------------------


def test_clients_cannot_have_the_servers_own_models_dropped(
    index: Index, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folders = [str(tiny_checkpoint(tmp_path / f"m{n}", layers=1, positions=48, seed=n)) for n in range(12)]
    own, others = folders[0], folders[1:]
    pipelines = Pipelines(index, f'bm25 % 5 >> mono(model="{own}")', models=others)
    built, reranking = pipelines.search(None), pipelines.rerank(None)
    scorer = built.steps[-1].models[0].scorer
    assert reranking.steps[-1].models[0].scorer is scorer
    for _ in range(2):
        for other in others:
            pipelines.search(f'bm25 % 5 >> mono(model="{other}")')
    for k in range(1, 101):  # more pipelines than are kept
        pipelines.search(f"bm25 % {k}")
    assert pipelines.known(None, searching=True) is built
    assert pipelines.known(None, searching=False) is reranking
    again = pipelines.search(f'bm25 % 4 >> mono(model="{own}")')
    assert again.steps[-1].models[0].scorer is scorer


def test_no_search_that_a_client_asks_for_compiles_anything(index: Index) -> None:
    pytest.importorskip("numba")
    service = Service(Pipelines(index, "bm25"))

    async def ready() -> None:
        await service.start()
        while not service.is_ready:
            assert not service.trouble
            await asyncio.sleep(0.01)
        await service.stop()

    asyncio.run(asyncio.wait_for(ready(), 300))
    from tamis.index import kernel

    compiled = [kernel.top_k, kernel.joined_ids, kernel.find_ids]
    before = [list(each.signatures) for each in compiled]
    variants = ["lucene", "robertson", "atire", "bm25l", '"bm25+"']
    for pipeline in (
        *(f"bm25(variant={variant})" for variant in variants),
        *("ql", "ql(variant=exact)", "ql(smoothing=jelinek-mercer)", "tfidf", "sdm", "bm25 >> rm3"),
        "ql(smoothing=jelinek-mercer, variant=exact)",
        'bm25 >> ltr(ql(variant=exact), bm25(variant=atire), weights="1 1")',
    ):
        service.pipelines.search(pipeline).stage("a fine sieve")
    assert [list(each.signatures) for each in compiled] == before
