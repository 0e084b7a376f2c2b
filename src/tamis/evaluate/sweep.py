"""Many pipelines over the same queries, at little more than the cost of the largest, and what each would cost
alone.

Pipelines that begin alike share their first stages, whatever they keep of a model's ranking; and a score is
never computed twice, because all models share a cache: the largest k0's scores serve the smaller ones, the
pairs of the largest k1 serve the smaller ones and every aggregation. Which documents are in mono's first k1
depends on k0, though, so each k0 adds the pairs of those documents that no larger k0 has brought together.
Birch's sentences are read once, and serve every alpha, weight and n.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tamis.base.documents import Query
from tamis.core.language import Call
from tamis.core.plan import rerankers
from tamis.core.ranking import Ranking, Run
from tamis.core.stage import Pipeline, Stage, TopK
from tamis.evaluate.sharing import Readings, as_birch, share_encoders

if TYPE_CHECKING:
    from tamis.infer.score_cache import ScoreCache
    from tamis.rank.reranker import Reranker

WARM_UP = 1  # queries that are ranked before the clock is looked at


class Swept(NamedTuple):
    """The run of a pipeline, by its number, and the inferences that it would have taken alone."""

    number: int
    run: Run
    inferences: int


class Work(NamedTuple):
    """What was done for all pipelines together."""

    inferences: int
    cached: int


class Sweep:
    """Pipelines that share their work.

    They are the sweep's own from now on: a model that comes with a cache keeps it, the others get one in
    memory, and of models with one name only one is loaded.

    >>> import tempfile
    >>> from tamis import Document, Index
    >>> documents = [Document("d1", "a sieve"), Document("d2", "a sieve of Eratosthenes")]
    >>> bm25 = Index.build(documents, tempfile.mkdtemp() + "/idx").bm25()
    >>> sweep = Sweep([bm25 % 1, bm25 % 2])
    >>> [(number, run["q"].ids) for number, run, _ in sweep.score([Query("q", "sieve")])]
    [(0, ('d1',)), (1, ('d1', 'd2'))]
    """

    def __init__(self, pipelines: Sequence[Stage]) -> None:
        self.pipelines = list(pipelines)
        models = [model for pipeline in self.pipelines for model in rerankers(pipeline)]
        self._models = list(dict.fromkeys(models))  # by identity: a stage may be part of several
        _share(self._models)
        self._known: dict[str, Stage] = {}
        self._paths = [[self._one_of_each(stage) for stage in _steps(each)] for each in self.pipelines]

    def _one_of_each(self, stage: Stage) -> Stage:
        return self._known.setdefault(stage.fingerprint, stage)

    @property
    def work(self) -> Work:
        """What the models have done so far."""
        tallies = [model.tally for model in self._models]
        return Work(sum(each.inferences for each in tallies), sum(each.cached for each in tallies))

    def score(
        self,
        queries: Iterable[Query],
        only: Iterable[int] | None = None,
        *,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Swept]:
        """The runs of all pipelines, or of those with the numbers `only`; those that begin alike come
        together. `progress` is told how many more are done."""
        waiting = list(Run(map(Ranking, queries)).values())  # a Run refuses queries with one id
        for number, rankings, inferences in _follow(self._tree(only), waiting, 0):
            yield Swept(number, Run(rankings, {"pipeline": repr(self.pipelines[number])}), inferences)
            if progress:
                progress(1)

    def time(
        self,
        queries: Sequence[Query],
        only: Iterable[int] | None = None,
        *,
        progress: Callable[[int], object] | None = None,
    ) -> dict[int, list[float]]:
        """Seconds that each pipeline takes for each query, one query at a time and without a cache.

        Every stage is timed with the candidates that it gets in its pipeline, and a pipeline's time is the
        sum of its stages'. What pipelines begin with alike is timed once. `progress` is told how many more
        queries are done.
        """
        root = self._tree(only)
        found: dict[int, list[float]] = {}
        for stage in self._known.values():
            stage.prepare()
        with _without_cache(self._models):
            for number, query in enumerate([*queries[:WARM_UP], *queries]):
                for pipeline, seconds in _timed(root, Ranking(query), 0.0):
                    if number >= WARM_UP:
                        found.setdefault(pipeline, []).append(seconds)
                if progress and number >= WARM_UP:
                    progress(1)
        return found

    def _tree(self, only: Iterable[int] | None) -> _Node:
        root = _Node(None)
        for number in range(len(self._paths)) if only is None else only:
            node = root
            for stage in self._paths[number]:
                node = node.next.setdefault(stage.fingerprint, _Node(stage))
            node.ends.append(number)
        return root


@dataclass(slots=True)
class _Node:
    """A stage, and what comes after it in some pipeline."""

    stage: Stage | None  # none in the root
    ends: list[int] = field(default_factory=list)  # the pipelines of which it is the last stage
    next: dict[str, _Node] = field(default_factory=dict)


class _Cut(Stage):
    """The first k candidates: `stage % k` apart from its stage, so that several k share its work."""

    def __init__(self, k: int) -> None:
        self.k = k

    @property
    def expression(self) -> Call:
        return Call("cut", (), (("k", self.k),))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [ranking.head(self.k) for ranking in rankings]


def _steps(stage: Stage) -> Iterator[Stage]:
    if isinstance(stage, Pipeline):
        for part in stage.stages:
            yield from _steps(part)
    # a model reads all its candidates whatever is kept of them; a search does less for a smaller k
    elif isinstance(stage, TopK) and rerankers(stage.stage) == [stage.stage]:
        yield from (stage.stage, _Cut(stage.k))
    else:
        yield stage


def _follow(node: _Node, rankings: list[Ranking], spent: int) -> Iterator[tuple[int, list[Ranking], int]]:
    for number in node.ends:
        yield number, rankings, spent
    readings = Readings()
    for child in node.next.values():
        assert child.stage is not None
        before = _read(child.stage)
        found = _applied(readings.sharing(child.stage), rankings)
        yield from _follow(child, found, spent + _read(child.stage) - before)


def _applied(stage: Stage, rankings: Sequence[Ranking]) -> list[Ranking]:
    stage.prepare()
    at_once = stage.queries_at_once
    batches = (rankings[start : start + at_once] for start in range(0, len(rankings), at_once))
    return [ranking for batch in batches for ranking in stage.apply(batch)]


def _read(stage: Stage) -> int:
    """The inputs that the models of a stage have been asked for: alone it would have inferred all of them."""
    tallies = [model.tally for model in rerankers(stage)]
    return sum(each.inferences + each.cached for each in tallies)


# -- the clock
# ------------------------------------------------------------------------------------------------------------


def _timed(node: _Node, ranking: Ranking, spent: float) -> Iterator[tuple[int, float]]:
    for number in node.ends:
        yield number, spent
    known: dict[Hashable, float] = {}
    readings = Readings()
    for child in node.next.values():
        assert child.stage is not None
        same = _same_work(child.stage)
        if same in known and not child.next:
            yield from ((number, spent + known[same]) for number in child.ends)
            continue
        started = time.perf_counter()
        (found,) = readings.sharing(child.stage).apply([ranking])
        # the first alone has read everything
        taken = known.setdefault(same, time.perf_counter() - started)
        yield from _timed(child, found, spent + taken)


def _same_work(stage: Stage) -> Hashable:
    """Stages that are alike in this read the same inputs with the same model. The aggregations over all pairs
    do, and what they then do with k1² numbers is no time beside k1² inferences; so do Birch's settings."""
    if (birch := as_birch(stage)) is not None:
        return birch.reads
    node = stage.expression
    if isinstance(node, Call) and node.name == "duo" and ("aggregate", "sample") not in node.options:
        options = tuple(option for option in node.options if option[0] != "aggregate")
        return str(Call(node.name, node.arguments, options))
    return stage.fingerprint


@contextmanager
def _without_cache(models: Sequence[Reranker]) -> Iterator[None]:
    caches: list[ScoreCache | None] = [model.cache for model in models]
    try:
        for model in models:
            model.cache = None
        yield
    finally:
        for model, cache in zip(models, caches, strict=True):
            model.cache = cache


def _share(models: Sequence[Reranker]) -> None:
    """One encoder a model, which four aggregations would otherwise load four times, and one cache."""
    if not models:
        return
    from tamis.infer.score_cache import ScoreCache

    share_encoders(models)
    memory = ScoreCache(":memory:")
    for model in models:
        if model.cache is None:
            model.cache = memory
