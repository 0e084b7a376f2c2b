"""Stages and pipelines: `a >> b` is "then", `a % k` is "keep k". H0..HN of the papers is literally the
expression."""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import overload

from tamis import expression
from tamis.documents import Query
from tamis.errors import InputError
from tamis.ranking import Ranking, Run

BATCH = 64  # queries that go through a pipeline together


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
    def resources(self) -> str:
        """Whatever the result depends on that the expression does not say: an index's commit, a model's
        weights."""
        return ""

    def prepare(self) -> None:  # noqa: B027 (most stages have nothing to prepare)
        """Do what is done once (compile, load), so that it is never part of a query's time."""

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
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"cannot keep {k!r} candidates", remedy="use a whole number of at least 1")
        *before, last = _stages(self)
        kept = Kept(last.stage, min(last.k, k)) if isinstance(last, Kept) else Kept(last, k)
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
        return self.apply([_ranking(each, number) for number, each in enumerate(query)])

    def run(self, queries: Iterable[Query], *, progress: Callable[[int], object] | None = None) -> Run:
        """Rank all of `queries`; `progress` is told how many more are done."""
        from tamis import __version__

        self.prepare()
        waiting = [Ranking(query) for query in queries]
        done: list[Ranking] = []
        started = time.perf_counter()
        for start in range(0, len(waiting), BATCH):
            batch = self.apply(waiting[start : start + BATCH])
            done += batch
            if progress:
                progress(len(batch))
        seconds = time.perf_counter() - started
        manifest = {
            "tamis": __version__,
            "pipeline": repr(self),
            "fingerprint": self.fingerprint,
            "queries": len(done),
            "seconds": round(seconds, 3),
        }
        return Run(done, manifest)


def _ranking(query: str | Query | Ranking, number: int) -> Ranking:
    if isinstance(query, Ranking):
        return query
    return Ranking(query if isinstance(query, Query) else Query(str(number), query))


def _stages(stage: Stage) -> Sequence[Stage]:
    return stage.stages if isinstance(stage, Pipeline) else [stage]


class Kept(Stage):
    """The first k candidates of a stage."""

    def __init__(self, stage: Stage, k: int) -> None:
        self.stage, self.k = stage, k

    @property
    def expression(self) -> expression.Node:
        return expression.keep(self.stage.expression, self.k)

    @property
    def resources(self) -> str:
        return self.stage.resources

    def prepare(self) -> None:
        self.stage.prepare()

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        k = self.k if depth is None else min(self.k, depth)
        return [ranking.head(k) for ranking in self.stage.apply(rankings, k)]


class Pipeline(Stage):
    """Stages one after the other."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    @property
    def expression(self) -> expression.Node:
        return expression.then(*(stage.expression for stage in self.stages))

    @property
    def resources(self) -> str:
        return "\n".join(stage.resources for stage in self.stages)

    def prepare(self) -> None:
        for stage in self.stages:
            stage.prepare()

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        current = list(rankings)
        for stage in self.stages[:-1]:
            current = stage.apply(current)
        return self.stages[-1].apply(current, depth)
