"""Run many pipelines over the same queries, at little more than the cost of the largest, and tell what each
would cost alone.

Pipelines with the same first stages share them, whatever they keep of a model's ranking
(`tamis.core.executor`). Built with one runtime that has a cache, they also never compute a score twice: the
scores of the largest k0 are used for the smaller ones, the pairs of the largest k1 for the smaller ones and
for every aggregation. But which documents are in mono's first k1 depends on k0, so each k0 adds the pairs of
documents that no larger k0 has compared. Birch's sentences are read once for all alphas, weights and n, and
the stages inside an `interpolate` or a `fuse` run once for all alphas and k.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.executor import Branch, Memo, PrefixTree, Work, ranked
from tamis.core.ledger import ledger
from tamis.core.ranking import Ranking, Run
from tamis.core.stage import Stage

WARM_UP = 1  # queries that are ranked before timing starts


class Swept(NamedTuple):
    """The run of a pipeline, with its number, and the inferences that the pipeline would take alone."""

    number: int
    run: Run
    inferences: int


class Sweep:
    """Pipelines that share their work.

    They share models and scores if they were built with one `Runtime` that has a pool of models and a cache,
    as `pipelines_of` and `candidates` build them. Pipelines that were built separately load their own models.
    `timed` are the same pipelines built without a cache, for timing; without `timed`, the pipelines
    themselves are timed.

    >>> import tempfile
    >>> from tamis import Document, Index
    >>> documents = [Document("d1", "a sieve"), Document("d2", "a sieve of Eratosthenes")]
    >>> bm25 = Index.build(documents, tempfile.mkdtemp() + "/idx").bm25()
    >>> sweep = Sweep([bm25 % 1, bm25 % 2])
    >>> [(number, run["q"].ids) for number, run, _ in sweep.score([Query("q", "sieve")])]
    [(0, ('d1',)), (1, ('d1', 'd2'))]
    """

    def __init__(self, pipelines: Sequence[Stage], timed: Sequence[Stage] | None = None) -> None:
        self.pipelines = list(pipelines)
        self.timed = self.pipelines if timed is None else list(timed)
        self.work = Work()  # the work of models so far

    @cached_property
    def _tree(self) -> PrefixTree:
        return PrefixTree(self.pipelines)

    @cached_property
    def _timed_tree(self) -> PrefixTree:
        return self._tree if self.timed is self.pipelines else PrefixTree(self.timed)

    def score(
        self,
        queries: Iterable[Query],
        only: Iterable[int] | None = None,
        *,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Swept]:
        """Yield the runs of all pipelines, or of those with the numbers `only`. Pipelines with the same first
        stages come together, not in the order of their numbers. `progress` receives how many more are done.

        Only the runs of the stages before the current one are kept: take what is needed from each run at
        once.
        """
        waiting = list(Run(map(Ranking, queries)).values())  # a Run refuses queries with one id
        for number, (rankings, inferences) in self._tree.walk((waiting, 0), self._scored, only):
            yield Swept(number, Run(rankings, {"pipeline": repr(self.pipelines[number])}), inferences)
            if progress:
                progress(1)

    def _scored(self, branch: Branch, state: tuple[list[Ranking], int]) -> tuple[list[Ranking], int]:
        rankings, spent = state
        found, work = ranked(branch.stage.sharing(branch.memo), rankings)
        self.work = self.work.plus(work)
        return found, spent + work.inputs

    def time(
        self,
        queries: Sequence[Query],
        only: Iterable[int] | None = None,
        *,
        progress: Callable[[int], object] | None = None,
    ) -> dict[int, list[float]]:
        """The seconds that each pipeline takes for each query, one query at a time.

        Every stage is timed with the candidates that it receives in its pipeline, and a pipeline's time is
        the sum of its stages' times. Shared first stages are timed once, and so are stages that read the same
        inputs (`Stage.reads`). `progress` receives how many more queries are done.
        """
        wanted = list(range(len(self.timed)) if only is None else only)
        found: dict[int, list[float]] = {}
        self._timed_tree.prepare()
        clock = _Clock()
        for number, query in enumerate([*queries[:WARM_UP], *queries]):
            for pipeline, (_, seconds) in self._timed_tree.walk((Ranking(query), 0.0), clock, wanted):
                if number >= WARM_UP:
                    found.setdefault(pipeline, []).append(seconds)
            if progress and number >= WARM_UP:
                progress(1)
        self.work = self.work.plus(clock.work)
        return found


def run_each(
    pipelines: Sequence[Stage],
    queries: Iterable[Query],
    *,
    progress: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, Run]]:
    """The number of each pipeline and its run: see `Sweep.score`."""
    for number, run, _ in Sweep(pipelines).score(queries, progress=progress):
        yield number, run


# -- timing
# ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Alike:
    """Stages that read the same inputs of the same rankings: the time of the first is used for each."""

    memo: Memo = field(default_factory=Memo)
    seconds: float | None = None


class _Clock:
    """Times each stage of a tree, for one query."""

    def __init__(self) -> None:
        self._reads: dict[str, Hashable] = {}  # by the stages' fingerprints
        self.work = Work()

    def __call__(self, branch: Branch, state: tuple[Ranking, float]) -> tuple[Ranking, float]:
        ranking, spent = state
        if branch.key not in self._reads:
            self._reads[branch.key] = branch.stage.reads
        reads = self._reads[branch.key]
        alike = branch.notes.setdefault(reads, _Alike())
        if alike.seconds is not None and branch.last:  # its ranking is not needed
            return ranking, spent + alike.seconds
        # a stage that reads like no other must not reuse anything, not even its own results
        stage = branch.stage if reads == branch.key else branch.stage.sharing(alike.memo)
        with ledger() as entries:
            started = time.perf_counter()
            (found,) = stage.apply([ranking])
            seconds = time.perf_counter() - started
        work = Work.of(entries)
        self.work = self.work.plus(work)
        if alike.seconds is None:
            if work.cached:
                raise InputError(
                    f"{branch.stage} was to be timed and took scores from a cache",
                    remedy="give the same pipeline without a cache as Candidate.timed",
                )
            alike.seconds = seconds
        return found, spent + alike.seconds
