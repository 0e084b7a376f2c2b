"""H2: the pairwise reranker, duoBERT. Every two candidates are read together, in both orders; or, to save
time, only those that are near each other in the incoming order (`tamis.rank.contested`)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError
from tamis.core.options import ModelName, Revision, call_of
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.runtime import Device, Precision
from tamis.core.stage import Role, stage
from tamis.rank.aggregate import (
    Aggregate,
    aggregate,
    check_aggregate,
    inferences,
    opponents,
    order,
    probability,
)
from tamis.rank.best_window import Cut, check_cut
from tamis.rank.contested import Compared, check_contested, completed, contested, within
from tamis.rank.reranker import Reranker, check_limits
from tamis.storage.score_cache import ScoreCache

K1 = 50  # the papers' k1: 2,450 inferences


@stage("duo", role=Role.ORDERS)
class Duo(Reranker):
    """Reranks the first `k` candidates by P(one is better than the other) over their ordered pairs, k(k-1) of
    them (or k m with aggregate=sample). Further candidates stay below, in their order, with scores below
    zero.

    `window` and `margin` save inferences: only pairs of candidates are read that are at most `window` places
    apart in the incoming ranking, with scores less than `margin` apart. The probability of any other pair
    comes from the incoming ranking: from the difference of log-odds if its scores are a model's, else 1 for
    the upper candidate and 0 for the lower. `margin` is in the unit of the incoming scores: probabilities, or
    log-odds after `mono(score=logit)`. With the scores of a search, its meaning differs from query to query.

    If a text is longer than its share of the input, its start is read, or with `cut=best` the window that
    matches the query best. Then a smaller `limit` costs less quality, and inferences are faster.

        >>> Duo("models/my-duo", aggregate="sample", m=10)
        duo(model="models/my-duo", aggregate=sample, m=10)
        >>> Duo(k=10, window=3).inferences(100)  # of 90
        48
    """

    queries_at_once = 1
    architectures = ("duo",)
    top_option = "k"

    def __init__(
        self,
        model: ModelName = "duo",
        aggregate: Aggregate = "sum",
        m: int | None = None,
        seed: int = 0,
        k: int = K1,
        window: int | None = None,
        margin: float | None = None,
        precision: Precision = "auto",
        query_limit: int = 62,
        limit: int = 512,
        cut: Cut = "start",
        *,
        revision: Revision | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        check_aggregate(aggregate, m, seed)
        if k < 1:
            raise InputError(f"duo over {k} candidates", remedy="use a k of 1 or more")
        check_limits(query_limit, limit)
        check_cut(cut)
        check_contested(aggregate, window, margin)
        scorer = self.opened(
            model, pool, revision=revision, device=device, precision=precision, workers=workers
        )
        super().__init__(scorer, cache)
        self.aggregate: Aggregate = aggregate
        self.m, self.seed, self.k = m, seed, k
        self.query_limit, self.limit = query_limit, limit
        self.cut: Cut = cut
        self.window, self.margin = window, None if margin is None else float(margin)
        # with a margin, the number of pairs depends on the scores
        self.counts = "exact" if margin is None else "most"

    @property
    def reads(self) -> Hashable:
        # the aggregations over all pairs differ only in their work on k1² numbers, which takes almost no time
        # compared with k1² inferences
        if self.aggregate == "sample":
            return super().reads
        call = call_of(self)
        options = tuple(option for option in call.options if option[0] != "aggregate")
        return str(replace(call, options=options)), self.resources

    def inferences(self, candidates: int) -> int:
        """The number of inputs for a query with this many candidates: k1(k1 - 1), k1 m, or with a window of w
        w(2 k1 - w - 1). With a margin this is the maximum."""
        reranked = min(self.k, candidates)
        if self.window is not None:
            return within(reranked, self.window)
        return inferences(reranked, self.aggregate, self.m)

    def best(self, ranking: Ranking) -> Ranking:
        return ranking.head(self.k)

    def members(self, ranking: Ranking) -> Array:
        """The pairs of a ranking's candidates that are read."""
        if self.window is None and self.margin is None:
            return opponents(len(ranking), self.aggregate, self.m, self.seed, ranking.query.id)
        if self.margin is not None and ranking.kind is ScoreKind.NONE and len(ranking) > 1:
            raise TamisError(
                f"the candidates of query {ranking.query.id!r} have no scores for a margin",
                remedy="put a stage that scores them before it, as in mono >> duo(margin=0.3), or use window",
            )
        return contested(ranking.scores, self.window, self.margin)

    def ranked(self, ranking: Ranking, members: Array, scores: Array) -> Ranking:
        best = ranking.head(self.k)
        found = Compared(probability(scores), members)
        if self.window is not None or self.margin is not None:
            odds = best.log_odds() if ranking.kind.comparable else None
            found = completed(scores, members, len(best), odds)
        ranked = order(*found, len(best), self.aggregate)
        return ranking.reorder_top(ranked, aggregate(*found, len(best), self.aggregate))
