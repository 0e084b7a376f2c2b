"""Stages with a model: what a plan, a report and a server ask of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from tamis.base.arrays import Array
from tamis.core.cost import Bound, Step, for_each
from tamis.core.stage import Stage


class ModelStage(Stage):
    """A stage that reads texts with a model."""

    #: What `inferences` says of what a query will take.
    counts: Bound = "exact"
    scorer: Any  # the model, with its name as `model`
    cache: Any  # of scores, or None
    tally: Any  # what the model has done: `inferences`, `cached`, and as `truncation` what was cut off

    @property
    @abstractmethod
    def description(self) -> str:
        """The runtime, the device and the precision."""

    @abstractmethod
    def inferences(self, candidates: int) -> int:
        """How many inputs a query with so many candidates takes."""

    def choosing(self, candidates: int) -> int:
        """How many inputs its parts take first, to choose what its own model reads."""
        return 0

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        """It reads what it gets, whatever is kept of that."""
        chosen_by = [
            Step(part, enter, enter, for_each(enter, self.choosing), part, part=True)
            for part in self.parts
            if isinstance(part, ModelStage)
        ]
        return [*chosen_by, Step(self, enter, enter, for_each(enter, self.inferences), self)]
