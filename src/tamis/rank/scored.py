"""Stages that only sort candidates by a model's scores: CEDR, PARADE and related models, and every
architecture without a stage of its own.

The scores have no fixed meaning: they may have any offset (a hinge loss only compares them), or be sums of
kernels or grades of gain. So only their order counts, and they must be normalised before they are combined.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.options import ModelName, Revision
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking
from tamis.core.runtime import Device, Precision
from tamis.core.stage import Role, stage
from tamis.models.architecture import architecture
from tamis.rank.reranker import Reranker, check_limits
from tamis.storage.score_cache import ScoreCache


class Scored(Reranker):
    """Sorts candidates by the scores of a model. A candidate's score depends only on itself and the query. On
    a CPU, `workers` is the number of cores that share a batch."""

    def ranked(self, ranking: Ranking, members: Array, scores: Array) -> Ranking:
        if scores.ndim > 1:
            kind = self.scorer.architecture.kind
            raise InputError(
                f"an input of a {kind} model has several texts",
                remedy="bring a stage that chooses which texts share an input",
            )
        return super().ranked(ranking, members, scores)

    def inferences(self, candidates: int) -> int:
        """The largest number of passages that are read for a query with this many candidates."""
        return candidates * self.scorer.architecture.most_inferences() if candidates else 0

    def prepare(self) -> None:
        super().prepare()
        self.counts = "most" if self.scorer.architecture.most_inferences() > 1 else "exact"


@stage("cedr", role=Role.ORDERS)
class Cedr(Scored):
    """CEDR (MacAvaney et al. 2019): `model` is the folder of a CEDR or vanilla model, or of an interaction
    model on static embeddings.

        >>> Cedr("models/my-cedr")
        cedr(model="models/my-cedr")
    """

    architectures = ("cedr", "interaction")
    counts = "most"

    def __init__(
        self,
        model: ModelName = "cedr",
        precision: Precision = "auto",
        *,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        super().__init__(self.opened(model, pool, device=device, precision=precision, workers=workers), cache)


@stage("parade", role=Role.ORDERS)
class Parade(Scored):
    """PARADE (Li et al. 2020): `model` is the folder of a PARADE, Birch-Passage or PCGM model.

    >>> Parade("models/my-parade")
    parade(model="models/my-parade")
    """

    architectures = ("parade", "birch", "pcgm", "maxp")
    counts = "most"

    def __init__(
        self,
        model: ModelName = "parade",
        precision: Precision = "auto",
        *,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
        pool: ModelPool | None = None,
    ) -> None:
        super().__init__(self.opened(model, pool, device=device, precision=precision, workers=workers), cache)


@cache
def stage_of(name: str) -> type[Scored]:
    """The stage of an architecture without its own stage class; it has the architecture's name."""
    kind = architecture(name)

    class OfArchitecture(Scored):
        __doc__ = kind.__doc__
        architectures = (name,)

        def __init__(
            self,
            model: ModelName,
            precision: Precision = "auto",
            query_limit: int = kind.query_limit,
            limit: int = 512,
            *,
            revision: Revision | None = None,
            device: Device = "auto",
            workers: int | None = None,
            cache: str | Path | ScoreCache | None = None,
            pool: ModelPool | None = None,
        ) -> None:
            check_limits(query_limit, limit)
            scorer = self.opened(
                model, pool, revision=revision, device=device, precision=precision, workers=workers
            )
            super().__init__(scorer, cache)
            self.query_limit, self.limit = query_limit, limit

    OfArchitecture.__name__ = OfArchitecture.__qualname__ = kind.__name__
    return stage(name, role=Role.ORDERS)(OfArchitecture)
