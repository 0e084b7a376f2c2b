"""H1: the pointwise reranker, monoBERT. Each candidate is read beside the query and scored by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import Ranking, ScoreKind, best_first
from tamis.core.runtime import Device, Precision
from tamis.infer.score_cache import ScoreCache
from tamis.infer.scorer import CrossEncoder
from tamis.models import templates
from tamis.models.templates import Form, Inputs, Tokenised, Truncation
from tamis.rank.best_window import Cut, check_cut, cut_texts
from tamis.rank.reranker import Reranker, check_limits, shown

Shown = Literal["probability", "logit", "log-probability"]


class Mono(Reranker):
    """Sorts candidates by P(relevant | query, text), whatever scores they come with.

    `model` is a bundled model, a folder or a name on the hub; `form` one of the papers' input templates,
    unless it is to be the one that the model was trained in; `score` what the scores are shown as, which does
    not change the order. Of a text that does not fit beside the query, its start is read, or with `cut=best`
    the window that matches the query best. `cache` is a file in which scores are kept for the next time.

        >>> Mono("models/my-model", score="logit")
        mono(model="models/my-model", score=logit)
    """

    def __init__(
        self,
        model: str = "mono",
        score: Shown = "probability",
        form: Form | None = None,
        precision: Precision = "auto",
        query_limit: int = 64,
        limit: int = 512,
        cut: Cut = "start",
        *,
        revision: str | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
    ) -> None:
        if score not in ("probability", "logit", "log-probability"):
            raise InputError(f"no score {score!r}", remedy="use probability, logit or log-probability")
        check_limits(query_limit, limit)
        check_cut(cut)
        encoder = CrossEncoder(
            model, revision=revision, form=form, device=device, precision=precision, workers=workers
        )
        super().__init__(encoder, cache)
        self.kind, self.query_limit, self.limit = ScoreKind(score), query_limit, limit
        self.cut: Cut = cut

    @property
    def expression(self) -> Call:
        encoder = self.encoder
        return self._call(
            "mono",
            [
                ("model", encoder.model, "mono"),
                ("score", str(self.kind), "probability"),
                ("form", encoder.form, None),
                ("precision", encoder.precision, "auto"),
                ("revision", encoder.revision, None),
                ("query_limit", self.query_limit, 64),
                ("limit", self.limit, 512),
                ("cut", self.cut, "start"),
            ],
        )

    def inferences(self, candidates: int) -> int:
        """How many inputs a query with so many candidates takes: k0."""
        return candidates

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        inputs, cuts = self._made(rankings)
        found = self._margins(rankings, inputs, cuts)
        return [
            ranking.reordered(best_first(margins, ranking.ids), shown(margins, self.kind), self.kind)
            for ranking, margins in zip(rankings, found, strict=True)
        ]

    def inputs_of(self, query: Tokenised, texts: Tokenised) -> tuple[Inputs, Truncation]:
        """What the model reads for a query with texts that are tokenised already, and what was cut."""
        encoder = self.encoder
        return templates.mono(
            query,
            texts,
            encoder.tokenizer.special,
            own=np.zeros(len(texts), np.int64),
            query_limit=self.query_limit,
            total_limit=min(self.limit, encoder.positions),
            form=encoder.input_form,
            segment_types=encoder.checkpoint.config.segments,
        )

    def _made(self, rankings: Sequence[Ranking]) -> tuple[list[Inputs], list[Truncation]]:
        return pointwise_inputs(self.encoder, rankings, self.query_limit, self.limit, self.cut)


def pointwise_inputs(
    encoder: CrossEncoder, rankings: Sequence[Ranking], query_limit: int, limit: int, cut: Cut = "start"
) -> tuple[list[Inputs], list[Truncation]]:
    """What a pointwise model reads for each ranking, an input a candidate, and what was cut."""
    config, tokenizer = encoder.checkpoint.config, encoder.tokenizer
    queries = tokenizer.encode([ranking.query.text for ranking in rankings])
    inputs, cuts = [], []
    total = min(limit, encoder.positions)
    for number, ranking in enumerate(rankings):
        query = queries.take([number]).ids
        room = templates.mono_room(
            len(query),
            tokenizer.special,
            query_limit=query_limit,
            total_limit=total,
            form=encoder.input_form,
        )
        made, lost = templates.mono(
            query,
            cut_texts(ranking, tokenizer, query[:query_limit], room, cut),
            tokenizer.special,
            query_limit=query_limit,
            total_limit=total,
            form=encoder.input_form,
            segment_types=config.segments,
        )
        inputs.append(made)
        cuts.append(lost)
    return inputs, cuts
