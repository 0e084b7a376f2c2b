"""Rerankers that read whole documents: CEDR and PARADE, and the models that go with them.

A model's folder says how it reads a document (`tamis.json`), so that a stage has little to add. What its
scores mean it does not say: they may begin anywhere (a hinge compares them, and no more), be sums of kernels
or grades of gain. So they are for the order only, and whoever combines them normalises them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.runtime import Device, Precision
from tamis.infer.longdoc import LongEncoder
from tamis.infer.score_cache import ScoreCache
from tamis.infer.tokens import texts_of
from tamis.models.longdoc import read
from tamis.rank.reranker import Reranker


class LongReranker(Reranker):
    """Sorts candidates by what a model of long documents makes of them. Documents of several queries share
    batches; a document's score depends on itself and the query alone. On a processor `workers` is how many
    cores share a batch."""

    name: str  # in the pipeline language
    kinds: tuple[str, ...]  # of the models that it takes
    other: str  # the stage that takes the others

    encoder: LongEncoder

    def __init__(
        self,
        model: str,
        precision: Precision,
        device: Device,
        workers: int | None,
        cache: str | Path | ScoreCache | None,
    ) -> None:
        super().__init__(LongEncoder(model, device=device, precision=precision, workers=workers), cache)

    @property
    def expression(self) -> Call:
        encoder = self.encoder
        return self._call(
            self.name, [("model", encoder.model, self.name), ("precision", encoder.precision, "auto")]
        )

    def inferences(self, candidates: int) -> int:
        """How many documents are read for a query with so many candidates."""
        return candidates

    def prepare(self) -> None:
        kind = self.encoder.plan.kind
        if not kind.startswith(self.kinds):
            raise InputError(
                f"{self.encoder.model} holds a {kind} model",
                remedy=f'write {self.other}(model="{self.encoder.model}")',
            )
        super().prepare()

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        self.prepare()
        encoder, tokenizer = self.encoder, self.encoder.tokenizer
        queries = tokenizer.encode([ranking.query.text for ranking in rankings])
        inputs, cuts = [], []
        for number, ranking in enumerate(rankings):
            made = read(
                queries.take([number]),
                np.zeros(len(ranking), np.int64),
                texts_of(ranking, tokenizer, limit=encoder.plan.tokens),
                tokenizer.special,
                encoder.plan,
                encoder.long.model.config,
            )
            inputs.append(made.inputs)
            cuts.append(made.truncation)
        found = self._margins(rankings, inputs, cuts)
        return [
            ranking.rescored(scores.astype(np.float64), ScoreKind.COMBINED)
            for ranking, scores in zip(rankings, found, strict=True)
        ]


class Cedr(LongReranker):
    """CEDR (MacAvaney et al. 2019): `model` is the folder of a cedr-knrm, cedr-pacrr, cedr-drmm or vanilla
    model, or of one of the three on static embeddings.

        >>> Cedr("models/my-cedr")
        cedr(model="models/my-cedr")
    """

    name, other = "cedr", "parade"
    kinds = ("cedr", "vanilla", "knrm", "pacrr", "drmm")

    def __init__(
        self,
        model: str = "cedr",
        precision: Precision = "auto",
        *,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
    ) -> None:
        super().__init__(model, precision, device, workers, cache)


class Parade(LongReranker):
    """PARADE (Li et al. 2020): `model` is the folder of a parade-*, birch or pcgm model.

    >>> Parade("models/my-parade")
    parade(model="models/my-parade")
    """

    name, other = "parade", "cedr"
    kinds = ("parade", "birch", "pcgm", "maxp")

    def __init__(
        self,
        model: str = "parade",
        precision: Precision = "auto",
        *,
        device: Device = "auto",
        workers: int | None = None,
        cache: str | Path | ScoreCache | None = None,
    ) -> None:
        super().__init__(model, precision, device, workers, cache)
