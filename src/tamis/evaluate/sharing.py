"""What several pipelines have in common and one can do for all: a model is loaded once, and Birch's sentences
are read once, whatever its alpha, its weights and n.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from tamis.core import language as expression
from tamis.core.plan import rerankers
from tamis.core.ranking import Ranking
from tamis.core.stage import Stage, TopK

if TYPE_CHECKING:
    from tamis.core.runtime import Runtime
    from tamis.infer.scorer import CrossEncoder
    from tamis.rank.birch import Birch, Sentences
    from tamis.rank.reranker import Reranker


def share_encoders(models: Iterable[Reranker]) -> None:
    """Give models that are the same one encoder. A stage's fingerprint needs its weights, so that without
    this a grid of a thousand settings loads a thousand models."""
    encoders: dict[Hashable, CrossEncoder] = {}
    for model in models:
        # a stage of passages has its model from the pointwise stage inside, which makes the keys of the cache
        inside: Reranker | None = getattr(model, "stage", None)
        for each in (model,) if inside is None else (model, inside):
            own = each.encoder
            what = (type(own), own.model, own.revision, own.form, own.device, own.precision, own.workers)
            each.encoder = encoders.setdefault(what, own)


def with_one_cache(runtime: Runtime) -> Runtime:
    """With its file of scores opened: one connection, not one a stage.

    >>> from tamis.core.runtime import Runtime
    >>> with_one_cache(Runtime(workers=1))
    Runtime(device='auto', precision='auto', workers=1, cache=None)
    """
    if not isinstance(runtime.cache, str | Path):
        return runtime
    from tamis.infer.score_cache import ScoreCache

    return replace(runtime, cache=ScoreCache(runtime.cache))


def as_birch(stage: Stage) -> Birch | None:
    """The stage, if it is a Birch; without a model in it nothing is imported to find out.

    >>> from tamis.core.registry import build
    >>> as_birch(build("birch(mono)")), as_birch(build("normalise"))
    (birch(mono), None)
    """
    if not rerankers(stage):
        return None
    from tamis.rank.birch import Birch

    return stage if isinstance(stage, Birch) else None


Made = TypeVar("Made")

#: What was made of rankings, by their identity, which stays their own because they are held beside it.
Known = dict[int, tuple[Ranking, Made]]


class Readings:
    """What was read of some rankings, for all stages that read the same of them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Known[Sentences]] = {}

    def sharing(self, stage: Stage) -> Stage:
        """The stage, or one that ranks as it does and takes the sentences' scores from here."""
        if isinstance(stage, TopK):
            return TopK(self.sharing(stage.stage), stage.k)
        if (birch := as_birch(stage)) is None:
            return stage

        def read(rankings: Sequence[Ranking]) -> list[Sentences]:
            return [
                sentences.of(ranking.ids)
                for ranking, sentences in zip(rankings, birch.read(rankings), strict=True)
            ]

        # as with any cache: alone it would have read those that are known
        known = self._known.setdefault(birch.reads, {})
        return _Once(birch, read, birch.combined, known, birch.count_as_cached)


def remembered(stage: Stage) -> Stage:
    """The stage, ranking each ranking once, to any depth.

    >>> from tamis.core.registry import build
    >>> remembered(build("normalise"))
    normalise
    """
    return _Once(stage, stage.apply, lambda ranking, made, depth: made, {})


class _Once(Stage, Generic[Made]):
    """A stage that does its work once for each ranking, and makes of it what is asked for each time."""

    def __init__(
        self,
        stage: Stage,
        work: Callable[[Sequence[Ranking]], Sequence[Made]],
        ranked: Callable[[Ranking, Made, int | None], Ranking],
        known: Known[Made],
        recalled: Callable[[Sequence[Ranking], Sequence[Made]], object] | None = None,
    ) -> None:
        self.stage = stage
        self._work, self._ranked, self._known, self._recalled = work, ranked, known, recalled

    @property
    def expression(self) -> expression.Node:
        return self.stage.expression

    @property
    def parts(self) -> Sequence[Stage]:
        return [self.stage]

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        old = [self._known[id(ranking)] for ranking in rankings if id(ranking) in self._known]
        new = [ranking for ranking in rankings if id(ranking) not in self._known]
        for ranking, made in zip(new, self._work(new) if new else [], strict=True):
            self._known[id(ranking)] = ranking, made
        if old and self._recalled is not None:
            self._recalled(*zip(*old, strict=True))
        return [self._ranked(ranking, self._known[id(ranking)][1], depth) for ranking in rankings]
