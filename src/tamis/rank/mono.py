"""H1: the pointwise reranker, monoBERT. Each candidate is read beside the query and scored by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.options import ModelName, Revision
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking, ScoreKind, best_first
from tamis.core.runtime import Device, Precision
from tamis.core.stage import Role, stage
from tamis.models.templates import Form, Inputs, Tokenised, Truncation
from tamis.rank.best_window import Cut, check_cut
from tamis.rank.reranker import Reranker, check_limits, to_score
from tamis.storage.score_cache import ScoreCache

Shown = Literal["probability", "logit", "log-probability"]


@stage("mono", role=Role.ORDERS)
class Mono(Reranker):
    """Sorts candidates by P(relevant | query, text), regardless of their incoming scores.

    `model` is a bundled model, a folder or a name on the hub; `form` one of the papers' input templates, by
    default the one that the model was trained with; `score` the form in which scores are shown, which does
    not change the order. If a text does not fit beside the query, its start is read, or with `cut=best` the
    window that matches the query best. `cache` is a file in which scores are kept for later runs.

        >>> Mono("models/my-model", score="logit")
        mono(model="models/my-model", score=logit)
    """

    pointwise = True

    def __init__(
        self,
        model: ModelName = "mono",
        score: Shown = "probability",
        form: Form | None = None,
        precision: Precision = "auto",
        query_limit: int = 64,
        limit: int = 512,
        cut: Cut = "start",
        *,
        revision: Revision | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        if score not in ("probability", "logit", "log-probability"):
            raise InputError(f"no score {score!r}", remedy="use probability, logit or log-probability")
        check_limits(query_limit, limit)
        check_cut(cut)
        scorer = self.opened(
            model,
            pool,
            revision=revision,
            form=form,
            device=device,
            precision=precision,
            workers=workers,
        )
        super().__init__(scorer, cache)
        self.kind, self.query_limit, self.limit = ScoreKind(score), query_limit, limit
        self.cut: Cut = cut

    @property
    def score(self) -> str:
        return str(self.kind)

    def inferences(self, candidates: int) -> int:
        """The number of inputs for a query with this many candidates: k0."""
        return candidates

    def ranked(self, ranking: Ranking, members: Array, scores: Array) -> Ranking:
        order = best_first(scores, ranking.ids)
        return ranking.reordered(order, to_score(scores, self.kind), self.kind)

    def inputs_of(self, query: Tokenised, texts: Tokenised) -> tuple[Inputs, Truncation]:
        """The model's inputs for a query with tokenised texts, and what was cut."""
        members, query_of = np.arange(len(texts))[:, None], np.zeros(len(texts), np.int64)
        reading = self.scorer.reading(self.query_limit, self.limit)
        return self.scorer.architecture.inputs(query, texts, members, query_of, reading)
