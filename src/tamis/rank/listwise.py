"""The listwise reranker: several candidates are read together, and each is scored in comparison with the
others (Zhang et al. 2020).

    20 candidates, a model of 8 texts, 2 rounds:  7 + 7 + 6, and again 7 + 7 + 6  =  6 inferences

An input has room for n texts, a number fixed in the model. More candidates are put into several groups, in
several rounds: see `tamis.rank.groups`.
"""

from __future__ import annotations

from pathlib import Path

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.options import ModelName, Revision
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking
from tamis.core.runtime import Device, Precision
from tamis.core.stage import Role, stage
from tamis.rank.groups import by_groups, check_rounds, drawn_groups, groups_a_round
from tamis.rank.reranker import Reranker, check_limits
from tamis.storage.score_cache import ScoreCache

NAME = "listwise"  # of the stage, and of its default model, which is not bundled
K = 20
ROUNDS = 2


@stage(NAME, role=Role.ORDERS)
class Listwise(Reranker):
    """Reranks the first `k` candidates by a model that reads several at once, in `rounds` of groups that are
    drawn from `seed`. Further candidates stay below, in their order, with scores below zero and below all
    other scores.

    `model` is a folder or a name on the hub; a recipe with a table [listwise] trains one (`base =
    "listwise"`). A cached score is that of a text in its group: it is reused for the same candidates in the
    same order, with any number of rounds.

        >>> Listwise("models/my-listwise", rounds=3)
        listwise(model="models/my-listwise", rounds=3)
    """

    architectures = ("listwise",)
    top_option = "k"

    def __init__(
        self,
        model: ModelName = NAME,
        k: int = K,
        rounds: int = ROUNDS,
        seed: int = 0,
        precision: Precision = "auto",
        query_limit: int = 62,
        limit: int = 512,
        *,
        revision: Revision | None = None,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        if k < 1:
            raise InputError(f"listwise over {k} candidates", remedy="use a k of 1 or more")
        check_rounds(NAME, rounds, seed)
        check_limits(query_limit, limit)
        scorer = self.opened(
            model, pool, revision=revision, device=device, precision=precision, workers=workers
        )
        super().__init__(scorer, cache)
        self.k, self.rounds, self.seed = k, rounds, seed
        self.query_limit, self.limit = query_limit, limit

    def inferences(self, candidates: int) -> int:
        """The number of groups that are read for a query with this many candidates."""
        return self.rounds * groups_a_round(min(self.k, candidates), self._texts)

    def best(self, ranking: Ranking) -> Ranking:
        return ranking.head(self.k)

    def members(self, ranking: Ranking) -> Array:
        return drawn_groups(len(ranking), self._texts, self.rounds, self.seed)

    def ranked(self, ranking: Ranking, members: Array, scores: Array) -> Ranking:
        return by_groups(ranking, members, scores)

    @property
    def _texts(self) -> int:
        """The number of texts that fit into an input."""
        return self.scorer.architecture.shape()[0]
