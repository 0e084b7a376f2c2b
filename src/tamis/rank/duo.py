"""H2: the pairwise reranker, duoBERT. Every two candidates are read together, in both orders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamis.columns import Array
from tamis.errors import InputError
from tamis.expression import Call
from tamis.infer.cross_encoder import CrossEncoder
from tamis.infer.runtime import Device, Precision
from tamis.infer.tokens import texts_of
from tamis.models import templates
from tamis.models.templates import Inputs, Truncation
from tamis.rank.aggregate import (
    Aggregate,
    aggregate,
    check_aggregate,
    inferences,
    opponents,
    order,
    probability,
)
from tamis.rank.cache import ScoreCache
from tamis.rank.reranker import Reranker, check_limits
from tamis.ranking import Ranking

K1 = 50  # the papers' k1: 2,450 inferences


class Duo(Reranker):
    """Settles the first `k` candidates by P(one is better than the other) over their ordered pairs, k(k-1) of
    them (or k m with aggregate=sample). Candidates beyond stay below, in their order, with scores below zero.

        >>> Duo("models/my-duo", aggregate="sample", m=10)
        duo(model="models/my-duo", aggregate=sample, m=10)
    """

    queries_at_once = 1

    def __init__(
        self,
        model: str = "duo",
        aggregate: Aggregate = "sum",
        m: int | None = None,
        seed: int = 0,
        k: int = K1,
        precision: Precision = "auto",
        query_limit: int = 62,
        limit: int = 512,
        *,
        revision: str | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
    ) -> None:
        check_aggregate(aggregate, m, seed)
        if k < 1:
            raise InputError(f"duo over {k} candidates", remedy="use a k of 1 or more")
        check_limits(query_limit, limit)
        super().__init__(
            CrossEncoder(model, revision=revision, device=device, precision=precision, workers=workers), cache
        )
        self.aggregate: Aggregate = aggregate
        self.m, self.seed, self.k = m, seed, k
        self.query_limit, self.limit = query_limit, limit

    @property
    def expression(self) -> Call:
        return self._call(
            "duo",
            [
                ("model", self.encoder.model, "duo"),
                ("aggregate", self.aggregate, "sum"),
                ("m", self.m, None),
                ("seed", self.seed, 0),
                ("k", self.k, K1),
                ("precision", self.encoder.precision, "auto"),
                ("revision", self.encoder.revision, None),
                ("query_limit", self.query_limit, 62),
                ("limit", self.limit, 512),
            ],
        )

    def inferences(self, candidates: int) -> int:
        """How many inputs a query with so many candidates takes: k1(k1 - 1), or k1 m."""
        return inferences(min(self.k, candidates), self.aggregate, self.m)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        inputs, cuts, pairs = self._made(rankings)
        found = self._margins(rankings, inputs, cuts)
        return [self._settled(*each) for each in zip(rankings, pairs, found, strict=True)]

    def _made(self, rankings: Sequence[Ranking]) -> tuple[list[Inputs], list[Truncation], list[Array]]:
        config, tokenizer = self.encoder.checkpoint.config, self.encoder.tokenizer
        queries = tokenizer.encode([ranking.query.text for ranking in rankings])
        inputs, cuts, pairs = [], [], []
        for number, ranking in enumerate(rankings):
            best = ranking.head(self.k)
            pairs.append(opponents(len(best), self.aggregate, self.m, self.seed, ranking.query.id))
            made, cut = templates.duo(
                queries.take([number]).ids,
                texts_of(best, tokenizer),
                pairs[-1],
                tokenizer.special,
                query_limit=self.query_limit,
                total_limit=min(self.limit, self.encoder.positions),
                segment_types=config.segments,
            )
            inputs.append(made)
            cuts.append(cut)
        return inputs, cuts, pairs

    def _settled(self, ranking: Ranking, pairs: Array, margins: Array) -> Ranking:
        settled = min(self.k, len(ranking))
        probabilities = probability(margins)
        best = order(probabilities, pairs, settled, self.aggregate)
        return ranking.settled(best, aggregate(probabilities, pairs, settled, self.aggregate))
