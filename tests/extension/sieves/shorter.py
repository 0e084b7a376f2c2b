"""A stage: shorter documents before longer ones that are about as good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tamis import Ranking, Role, ScoreKind, Stage, stage


@stage("shorter", role=Role.MIXES)
class Shorter(Stage):
    """The score that a candidate comes with, less `weight` times the logarithm of its length; with a stage
    between the parentheses, the score that this stage gives it."""

    def __init__(
        self, *stages: Stage, weight: float = 0.1, unit: Literal["words", "characters"] = "words"
    ) -> None:
        if len(stages) > 1:
            raise ValueError("shorter takes one stage at most")
        self.stages, self.weight, self.unit = stages, weight, unit

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        for inner in self.stages:
            rankings = inner.apply(rankings)
        return [self._prefer(ranking) for ranking in rankings]

    def _prefer(self, ranking: Ranking) -> Ranking:
        lengths = np.array([self._length(document.text) for document in ranking.documents()])
        return ranking.rescored(ranking.scores - self.weight * np.log1p(lengths), ScoreKind.COMBINED)

    def _length(self, text: str) -> int:
        return len(text.split()) if self.unit == "words" else len(text)
