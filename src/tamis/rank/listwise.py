"""The listwise reranker: several candidates are read together, and each is scored beside the others (Zhang et
al. 2020).

    20 candidates, a model of 8 texts, 2 rounds:  7 + 7 + 6, and again 7 + 7 + 6  =  6 inferences

An input has room for n texts, the model's own number, so that more candidates go into several groups, in
several rounds: see `tamis.rank.groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import Ranking
from tamis.core.runtime import Device, Precision
from tamis.infer.listwise import ListwiseEncoder
from tamis.infer.score_cache import ScoreCache, cached_rows
from tamis.infer.tokens import texts_of
from tamis.models import templates
from tamis.models.templates import Inputs, Truncation
from tamis.rank.groups import check_rounds, drawn_groups, groups_a_round, settled
from tamis.rank.reranker import Reranker, check_limits

NAME = "listwise"  # of the stage, and of the model that it would have if one were bundled
K = 20
ROUNDS = 2


class Listwise(Reranker):
    """Settles the first `k` candidates by a model that reads several at once, in `rounds` of groups that are
    drawn from `seed`. Candidates beyond stay below, in their order, with scores below zero and below all the
    others.

    `model` is a folder or a name on the hub; a recipe with a table [listwise] trains one (`base =
    "listwise"`). A score in the cache is of a text in its group: it serves whoever has the same candidates in
    the same order, with any number of rounds.

        >>> Listwise("models/my-listwise", rounds=3)
        listwise(model="models/my-listwise", rounds=3)
    """

    encoder: ListwiseEncoder

    def __init__(
        self,
        model: str = NAME,
        k: int = K,
        rounds: int = ROUNDS,
        seed: int = 0,
        precision: Precision = "auto",
        query_limit: int = 62,
        limit: int = 512,
        *,
        revision: str | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
    ) -> None:
        if k < 1:
            raise InputError(f"listwise over {k} candidates", remedy="use a k of 1 or more")
        check_rounds(NAME, rounds, seed)
        check_limits(query_limit, limit)
        encoder = ListwiseEncoder(
            model, revision=revision, device=device, precision=precision, workers=workers
        )
        super().__init__(encoder, cache)
        self.k, self.rounds, self.seed = k, rounds, seed
        self.query_limit, self.limit = query_limit, limit

    @property
    def expression(self) -> Call:
        return self._call(
            NAME,
            [
                ("model", self.encoder.model, NAME),
                ("k", self.k, K),
                ("rounds", self.rounds, ROUNDS),
                ("seed", self.seed, 0),
                ("precision", self.encoder.precision, "auto"),
                ("query_limit", self.query_limit, 62),
                ("limit", self.limit, 512),
                ("revision", self.encoder.revision, None),
            ],
        )

    def inferences(self, candidates: int) -> int:
        """How many groups are read for a query with so many candidates."""
        return self.rounds * groups_a_round(min(self.k, candidates), self.encoder.lists.texts)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        inputs, cuts, groups = self._made(rankings)
        found = self._margins(rankings, inputs, cuts)
        return [settled(*each) for each in zip(rankings, groups, found, strict=True)]

    def _made(self, rankings: Sequence[Ranking]) -> tuple[list[Inputs], list[Truncation], list[Array]]:
        texts, tokenizer = self.encoder.lists.texts, self.encoder.tokenizer
        total = min(self.limit, self.encoder.positions)
        queries = tokenizer.encode([ranking.query.text for ranking in rankings])
        inputs, cuts, groups = [], [], []
        for number, ranking in enumerate(rankings):
            best = ranking.head(self.k)
            groups.append(drawn_groups(len(best), texts, self.rounds, self.seed))
            made, cut = templates.listwise(
                queries.take([number]).ids,
                texts_of(best, tokenizer, limit=total),
                groups[-1],
                tokenizer.special,
                query_limit=self.query_limit,
                total_limit=total,
                segment_types=self.encoder.checkpoint.config.segments,
            )
            inputs.append(made)
            cuts.append(cut)
        return inputs, cuts, groups

    def _cached(self, cache: ScoreCache, keys: Sequence[bytes], score: Callable[[Array], Array]) -> Array:
        return cached_rows(cache, keys, self.encoder.lists.texts, score)
