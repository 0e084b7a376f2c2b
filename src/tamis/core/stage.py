"""Stages and pipelines: `a >> b` is "then", `a % k` is "keep k". H0..HN of the papers is literally the
expression."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import TypeVar, overload

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core import language as expression
from tamis.core.journal import Job, Journal, Record, digest
from tamis.core.ranking import Ranking, Run

_Q = TypeVar("_Q")

BATCH = 64  # queries that go through a pipeline together, where a stage does not want fewer


class Stage(ABC):
    """Rankings in, rankings out. A subclass says what it does in `apply` and what it is in `expression`."""

    @property
    @abstractmethod
    def expression(self) -> expression.Node:
        """The stage in the pipeline language."""

    @abstractmethod
    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        """One new ranking for each; no more than `depth` candidates of each will be looked at."""

    @property
    def parts(self) -> Sequence[Stage]:
        """The stages that it is made of."""
        return ()

    @property
    def resources(self) -> str:
        """Whatever the result depends on that the expression does not say: an index's commit, a model's
        weights."""
        return "\n".join(part.resources for part in self.parts)

    def prepare(self) -> None:
        """Do what is done once (compile, load), so that it is never part of a query's time."""
        for part in self.parts:
            part.prepare()

    @property
    def queries_at_once(self) -> int:
        """How many queries it wants to see together: what a kill can cost, and what memory must hold."""
        return min((part.queries_at_once for part in self.parts), default=BATCH)

    def attach(self, ranking: Ranking) -> Ranking:
        """`ranking` with the texts and the origin that this stage's rankings have. A stage that finds
        candidates attaches its own; one that orders them leaves those that came."""
        for part in self.parts:
            ranking = part.attach(ranking)
        return ranking

    @property
    def fingerprint(self) -> str:
        """Says exactly what this stage is: two stages with one fingerprint rank alike."""
        return hashlib.sha256(f"{self!r}\n{self.resources}".encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return str(self.expression)

    def __rshift__(self, other: Stage) -> Stage:
        if not isinstance(other, Stage):
            return NotImplemented
        return Pipeline([*_stages(self), *_stages(other)])

    def __mod__(self, k: int) -> Stage:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:  # numpy's are whole numbers too
            raise InputError(f"cannot keep {k!r} candidates", remedy="use a whole number of at least 1")
        k = int(k)
        *before, last = _stages(self)
        kept = TopK(last.stage, min(last.k, k)) if isinstance(last, TopK) else TopK(last, k)
        return Pipeline([*before, kept]) if before else kept

    # a str is a sequence of str, which the first overload is meant to catch
    @overload
    def __call__(self, query: str | Query | Ranking) -> Ranking: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, query: Sequence[str | Query | Ranking]) -> list[Ranking]: ...
    def __call__(
        self, query: str | Query | Ranking | Sequence[str | Query | Ranking]
    ) -> Ranking | list[Ranking]:
        """Rank one query, or several."""
        if isinstance(query, str | Query | Ranking):
            return self.apply([_ranking(query, 0)])[0]
        return self.apply([_ranking(each, number) for number, each in enumerate(_several(query))])

    def run(
        self,
        queries: Iterable[Query],
        *,
        progress: Callable[[int], object] | None = None,
        journal: str | Path | None = None,
    ) -> Run:
        """Rank all of `queries`; `progress` is told how many more are done.

        What is ranked is written to the file `journal` at once. After a kill the same call goes on at the
        first batch of queries that is not in it, and returns what it would have returned; with a journal that
        is complete it returns at once. The file stays: it is yours to delete.
        """
        from tamis import __version__

        # through a Run, which refuses queries with one id: better now than after hours
        waiting = list(Run(map(_asked, _several(queries))).values())
        with self._record(journal, waiting) as record:
            done = [self.attach(ranking) for ranking in record.done]
            resumed = len(done)
            if progress and resumed:
                progress(resumed)
            if resumed < len(waiting):
                self.prepare()
            for start in range(resumed, len(waiting), record.at_once):
                started = time.perf_counter()
                batch = self.apply(waiting[start : start + record.at_once])
                record.append(batch, time.perf_counter() - started)
                done += batch
                if progress:
                    progress(len(batch))
        manifest = {
            "tamis": __version__,
            "pipeline": repr(self),
            "fingerprint": self.fingerprint,
            "queries": len(done),
            "seconds": round(record.seconds, 3),
        }
        return Run(done, manifest | ({"resumed": resumed} if resumed else {}))

    def _record(self, journal: str | Path | None, waiting: Sequence[Ranking]) -> Record:
        if journal is None:
            return Record(self.queries_at_once)
        stages = tuple((repr(stage), stage.fingerprint) for stage in _stages(self))
        queries = digest(ranking.query for ranking in waiting)
        job = Job(repr(self), self.fingerprint, stages, queries, len(waiting))
        return Journal(journal, job, at_once=self.queries_at_once)


def _several(queries: Iterable[_Q]) -> Iterator[_Q]:
    try:
        return iter(queries)
    except TypeError:  # from callers without a type checker, as below
        raise _no_query(queries) from None


def _no_query(given: object) -> InputError:
    problem = f"a {type(given).__name__} is no query"
    return InputError(problem, remedy="give a text, a tamis.Query(id, text) or a list of them")


def _asked(query: Query) -> Ranking:
    if not isinstance(query, Query):
        problem = f"a {type(query).__name__} is no query"
        raise InputError(problem, remedy="give a tamis.Query(id, text): a run goes by their ids")
    return Ranking(query)


def _ranking(query: str | Query | Ranking, number: int) -> Ranking:
    if isinstance(query, Ranking):
        return query
    if not isinstance(query, str | Query):
        raise _no_query(query)
    return Ranking(query if isinstance(query, Query) else Query(str(number), query))


def _stages(stage: Stage) -> Sequence[Stage]:
    return stage.stages if isinstance(stage, Pipeline) else [stage]


class TopK(Stage):
    """The first k candidates of a stage."""

    def __init__(self, stage: Stage, k: int) -> None:
        self.stage, self.k = stage, k

    @property
    def parts(self) -> Sequence[Stage]:
        return [self.stage]

    @property
    def expression(self) -> expression.Node:
        return expression.keep(self.stage.expression, self.k)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        k = self.k if depth is None else min(self.k, depth)
        return [ranking.head(k) for ranking in self.stage.apply(rankings, k)]


class Pipeline(Stage):
    """Stages one after the other."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    @property
    def parts(self) -> Sequence[Stage]:
        return self.stages

    @property
    def expression(self) -> expression.Node:
        return expression.then(*(stage.expression for stage in self.stages))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        current = list(rankings)
        for stage in self.stages[:-1]:
            current = stage.apply(current)
        return self.stages[-1].apply(current, depth)
