"""What the routes do, without the web: from a request's values to an answer as plain data."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_args

import numpy as np

from tamis import __version__
from tamis.base.documents import Document, Query
from tamis.base.errors import InputError, TamisError
from tamis.base.interrupt import interruptible
from tamis.core.candidates import placed
from tamis.core.defaults import NAMED
from tamis.core.language import Call
from tamis.core.ranking import Ranking
from tamis.core.registry import role_of
from tamis.core.stage import Role
from tamis.index.compiled import numba_installed
from tamis.index.index import Index
from tamis.index.score import Lengths
from tamis.index.warm import warm
from tamis.rank.aggregate import Aggregate
from tamis.serve.answers import answer, as_json, streamed
from tamis.serve.bounds import asked, check_query
from tamis.serve.costs import Peak
from tamis.serve.explain import explanation
from tamis.serve.limits import SLOW_CLIENT
from tamis.serve.metrics import Metrics
from tamis.serve.models import stages_known
from tamis.serve.pipelines import Built, Pipelines, reload_or_keep
from tamis.serve.reading import Part, stored
from tamis.serve.record import remember
from tamis.serve.rerank_api import ForeignRequest, foreign_answer
from tamis.serve.schemas import ExplainRequest, RerankRequest, SearchRequest
from tamis.serve.suggestions import Suggestions
from tamis.serve.work import Outcome, Overloaded, Request, Work

Made = TypeVar("Made")

_LOG = logging.getLogger("tamis.serve")
_WARM_UP = 600.0  # seconds in which models must have loaded
#: Candidates of about the length that people send, to load a reranker with and to see how long it takes.
_PASSAGES = [Document(str(number), "A sieve is for flour, soup and sauce. " * 12) for number in range(10)]
_MOST_FIELDS = 100
_LATE = 0.5  # seconds after its deadline at which an answer may still begin to be written


@dataclass(frozen=True, slots=True)
class Answer:
    """The JSON of an answer, and its source."""

    body: bytes
    outcome: Outcome


class Service:
    """An index, or none, its pipelines, and the work on them."""

    def __init__(
        self,
        pipelines: Pipelines,
        *,
        examples: Sequence[str] = (),
        metrics: Metrics | None = None,
        join: bool = True,
    ) -> None:
        self.pipelines, self.limits = pipelines, pipelines.limits
        self.examples = list(examples)
        self.metrics = metrics or Metrics()
        self.work = Work(self.limits.queue, self.metrics, join=join)
        self.ready = self.stopping = False
        self.trouble = ""
        self._reloading = False
        self._writer = ThreadPoolExecutor(1, "tamis-answers")
        self._writing = Peak()
        self._suggestions = Suggestions()
        if pipelines.searches:
            self.metrics.gauge("documents", "Documents in the index.", lambda: len(pipelines.index))
        self.metrics.gauge("ready", "1 when ready.", lambda: self.is_ready)
        self.metrics.gauge("tasks", "Tasks of the event loop.", _tasks)

    # -- starting and stopping

    @property
    def is_ready(self) -> bool:
        return self.ready and not self.stopping

    async def start(self) -> None:
        """Begin to work, and warm up beside it: searches are answered meanwhile."""
        self.work.start()
        self._warming = asyncio.create_task(self._warm())

    async def _warm(self) -> None:
        try:
            searching = self.pipelines.searches
            build = self.pipelines.search if searching else self.pipelines.rerank
            built = await asyncio.to_thread(build, None)
            for step in built.steps:
                if not step.models:
                    await asyncio.to_thread(step.stage.prepare)
            if searching:
                await asyncio.to_thread(_compile_searches)
                ranking = Ranking(Query("0", await asyncio.to_thread(_some_words, built)))
            else:
                ranking = placed(Query("0", "soup"), _PASSAGES)
            for _ in range(2):  # the first loads what the second is timed with
                await self.work.rank(Request(built.steps, ranking, _WARM_UP))
            self.ready = True
        except TamisError as error:
            self.trouble = str(error)
            _LOG.error("cannot warm up: %s", error)
        except Exception:
            self.trouble = "cannot warm up: the server's log says why"
            _LOG.exception("cannot warm up")

    async def stop(self) -> None:
        """When every request is answered."""
        self._warming.cancel()
        self.work.close()
        self._writer.shutdown()
        self._suggestions.close()

    # -- the routes

    async def info(self) -> dict[str, Any]:
        searching = self.pipelines.searches
        built = await self._built(None, searching=searching)
        stages = await asyncio.to_thread(stages_known)
        return {
            "version": __version__,
            "pipeline": built.expression,
            "named": dict(NAMED) if searching else {},  # all of them search
            "documents": len(built.index) if searching else None,
            "fields": await asyncio.to_thread(_fields, built.index) if searching else [],
            "aggregations": list(get_args(Aggregate)),
            "stages": [each for each in stages if searching or each["role"] != str(Role.FINDS)],
            "models": self.pipelines.models,
            "examples": self.examples,
            "limits": self.limits.shown(),
        }

    async def search(self, request: SearchRequest) -> Answer:
        with self.work.place():
            started = time.monotonic()
            built, wanted = await self._asked(request, started)
            suggesting = self._suggestions.begin(built.index, request.query, wanted.seconds)
            outcome = await self.work.rank(wanted)
            make = partial(
                answer,
                built,
                outcome,
                request.k,
                started=started,
                trace=request.trace,
                texts=request.texts,
                suggestion=await suggesting.result(),
            )
            return await self._write(make, outcome, started, request.deadline_ms)

    async def search_stages(self, request: SearchRequest) -> AsyncGenerator[Answer]:
        """The same after each stage. The slot is released when the work is done, so a client that reads
        slowly blocks nobody."""
        give_back = self.work.take_place()
        try:
            started, first = time.monotonic(), True
            shape: dict[str, Any] = {"trace": request.trace, "texts": request.texts}
            built, wanted = await self._asked(request, started)
            suggesting = self._suggestions.begin(built.index, request.query, wanted.seconds)
            async with aclosing(self.work.stages(wanted, ended=give_back)) as outcomes:
                async for outcome in outcomes:
                    shape["suggestion"] = await suggesting.result()
                    make = partial(streamed, built, outcome, request.k, started=started, **shape)
                    made = await self._write(make, outcome, started, request.deadline_ms)
                    if first:
                        self.metrics.first_stage.observe(time.monotonic() - started)
                        first = False
                    yield made
        finally:
            give_back()

    def longest_stream(self, request: SearchRequest) -> float:
        """Seconds after which a stream ends, whatever the client has read."""
        return self._seconds(request.deadline_ms) + SLOW_CLIENT

    async def explain(self, request: ExplainRequest) -> Answer:
        with self.work.place():
            started = time.monotonic()
            built = await self._built(request.pipeline, searching=True)
            remember(query=request.query)
            query = asked(request.query, request.where, request.syntax)
            check_query(built.stage, built.analyzer, query.text)
            # better now than after all the work
            await self._in_time(partial(built.index.document, request.id), request.deadline_ms)
            ranking = Ranking(query)
            outcome = await self._rank(built, ranking, started, request.deadline_ms)
            make = partial(explanation, built, outcome, request.id)
            return await self._write(make, outcome, started, request.deadline_ms)

    async def rerank(self, request: RerankRequest) -> Answer:
        with self.work.place():
            started = time.monotonic()
            built = await self._built(request.pipeline, searching=False)
            documents = [
                Document(str(place) if each.id is None else each.id, each.text, each.title or "")
                for place, each in enumerate(request.documents)
            ]
            ranking = self._given(built, request.query, documents)
            if request.trace:
                self._check_trace(built, documents)
            outcome = await self._rank(built, ranking, started, request.deadline_ms, request.partial)
            make = partial(
                answer,
                built,
                outcome,
                request.k,
                started=started,
                trace=request.trace,
                texts=request.texts,
                sent=[document.id for document in documents],
            )
            return await self._write(make, outcome, started, request.deadline_ms)

    async def foreign_rerank(self, request: ForeignRequest) -> Answer:
        with self.work.place():
            started = time.monotonic()
            stage = self.pipelines.models.get(request.model or "")
            if stage and role_of(stage) is Role.MIXES:  # documents that are sent have none
                stage = None
            expression = str(Call(stage, (), (("model", request.model),))) if stage else None
            built = await self._built(expression, searching=False)
            documents = [Document(str(place), each.text) for place, each in enumerate(request.documents)]
            ranking = self._given(built, request.query, documents)
            outcome = await self._rank(built, ranking, started, None)
            make = partial(foreign_answer, request, outcome, built.expression)
            return await self._write(make, outcome, started, None)

    async def document(self, doc_id: str, part: Part) -> bytes:
        """The JSON of a document, made in a thread: it may be long."""
        await self._follow()
        return await self._in_time(partial(stored, self.pipelines.index, doc_id, part))

    # -- what they share

    async def _built(self, expression: str | None, *, searching: bool) -> Built:
        await self._follow()
        if (built := self.pipelines.known(expression, searching=searching)) is None:
            # in a thread: the first use of a stage imports what it needs
            build = self.pipelines.search if searching else self.pipelines.rerank
            built = await asyncio.to_thread(build, expression)
        remember(pipeline=built.expression)
        return built

    async def _follow(self) -> None:
        """Take up a new commit of the index; requests that come meanwhile do with the last one."""
        if self._reloading or not self.pipelines.outdated():
            return
        self._reloading = True
        reloading = asyncio.create_task(self._reload())
        if not self.pipelines.index.is_live:  # a live one has the changes already, and may take long to ask
            await asyncio.shield(reloading)

    async def _reload(self) -> None:
        try:
            outcome = await asyncio.to_thread(reload_or_keep, self.pipelines)
        finally:
            self._reloading = False
        if outcome != "same":
            self.metrics.reloads.labels(outcome).inc()

    def _given(self, built: Built, query: str, documents: Sequence[Document]) -> Ranking:
        remember(query=query)
        if len(documents) > (most := self.limits.candidates):
            raise InputError(f"{len(documents):,} documents", remedy=f"send at most {most:,} with a query")
        self.pipelines.check_inferences(built.stage, len(documents))
        return placed(Query("0", query), documents)

    def _check_trace(self, built: Built, documents: Sequence[Document]) -> None:
        """Raise if the ids, which may be of any length, would be very long in all the rankings together."""
        characters = len(built.steps) * sum(len(document.id) for document in documents)
        if characters > self.limits.body:
            raise InputError(
                f"the trace would repeat {characters:,} characters of ids",
                remedy="send shorter ids, or leave out trace",
            )

    async def _asked(self, request: SearchRequest, started: float) -> tuple[Built, Request]:
        remember(query=request.query)
        built = await self._built(request.pipeline, searching=True)
        query = asked(request.query, request.where, request.syntax)
        check_query(built.stage, built.analyzer, query.text)
        return built, self._wanted(built, Ranking(query), started, request.deadline_ms, request.partial)

    async def _rank(
        self,
        built: Built,
        ranking: Ranking,
        started: float,
        deadline_ms: int | None,
        in_part: bool = True,
    ) -> Outcome:
        return await self.work.rank(self._wanted(built, ranking, started, deadline_ms, in_part))

    def _wanted(
        self, built: Built, ranking: Ranking, started: float, deadline_ms: int | None, in_part: bool
    ) -> Request:
        seconds = self._seconds(deadline_ms)
        # what is ranked has still to be written, and many may have to be written at once
        writing = max(0.1 * seconds, min(2 * self._writing.seconds, 0.5 * seconds))
        left = seconds - writing - (time.monotonic() - started)
        steps = built.steps if ranking.query.where is None else built.filtered
        return Request(steps, ranking, max(left, 0.0), told=seconds, partial=in_part)

    async def _in_time(self, work: Callable[[], Made], deadline_ms: int | None = None) -> Made:
        """What a thread makes, with the time of a request to ask others for it."""
        until = time.monotonic() + self._seconds(deadline_ms)
        return await asyncio.to_thread(_until, until, work)

    def _seconds(self, deadline_ms: int | None) -> float:
        return self.limits.deadline if deadline_ms is None else deadline_ms / 1000

    async def _write(
        self, make: Callable[[], dict[str, Any]], outcome: Outcome, started: float, deadline_ms: int | None
    ) -> Answer:
        """An answer when it has its turn, by the one thread that writes them: the loop must not wait for long
        texts. One whose turn does not come in time is not written."""
        seconds, begun = self._seconds(deadline_ms), time.monotonic()
        writing = self._writer.submit(_until, started + seconds + _LATE, partial(_timed, make))
        written = asyncio.wrap_future(writing)
        try:
            await asyncio.wait({written}, timeout=max(started + seconds - begun, 0.0) + _LATE)
            if writing.cancel():
                raise Overloaded(
                    f"others' answers took longer to write than {seconds * 1000:,.0f} ms",
                    remedy="allow more time (deadline_ms), or try again later",
                )
            body, used = await written
        finally:
            writing.cancel()  # for a client that has left, nothing is written
        self._writing.learn(time.monotonic() - begun)
        self.work.pace.learn(2 * used)  # to search, and to receive and send, takes about as much again
        if (wait := outcome.not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        return Answer(body, outcome)


def _until(deadline: float, work: Callable[[], Made]) -> Made:
    """In this thread, with a time after which nobody waits for what others are asked for."""
    with interruptible(lambda: None, np.ones(1, dtype=bool), deadline):
        return work()


def _timed(make: Callable[[], dict[str, Any]]) -> tuple[bytes, float]:
    """The JSON of an answer, and the seconds of a processor that it took."""
    started = time.thread_time()
    return as_json(make()), time.thread_time() - started


def _fields(index: Index) -> list[str]:
    """Some fields of the metadata, for people to choose from."""
    return index.fields[:_MOST_FIELDS]


def _tasks() -> int:
    """All tasks of the event loop: one per request, and those they started. Call it in the thread of the
    loop."""
    return len(asyncio.all_tasks())


def _compile_searches() -> None:
    """Compile every form of the search kernel that a client can use: compiling during a search would exceed
    its deadline."""
    if numba_installed():
        for lengths in get_args(Lengths):
            warm(lengths)


def _some_words(built: Built) -> str:
    """A query that finds something: a few words of the first document that has any."""
    for document in built.index:
        if built.index.weights(document.contents[:200]):
            return document.contents[:200]
    return "nothing"
