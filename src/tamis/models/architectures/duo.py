"""duoBERT: reads two texts together and scores whether the first is better (Nogueira et al. 2019)."""

from __future__ import annotations

from typing import Any

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models import templates
from tamis.models.architecture import Architecture, Reading
from tamis.models.templates import Inputs, Tokenised, Truncation


class Duo(Architecture):
    """A pairwise model. It has a third segment, for the second text."""

    name, query_limit, reads = "duo", 62, ("mono",)

    def check_recipe(self, recipe: Any) -> None:
        if not recipe.examples.in_pairs:
            raise InputError(
                f"a duo learns from pairs, and the examples are {recipe.examples.kind}",
                remedy='use kind = "duo", "teacher_pairs" or "duo_lists"',
            )

    def dev_options(self) -> dict[str, Any]:
        return {"k": 20}  # 380 inferences per query

    def inputs(
        self, queries: Tokenised, texts: Tokenised, members: Array, query_of: Array, reading: Reading
    ) -> tuple[Inputs, Truncation]:
        return templates.duo(
            queries,
            texts,
            members,
            reading.special,
            query_of=query_of,
            query_limit=reading.query_limit,
            total_limit=reading.total,
            segment_types=reading.config.segments,
        )

    def room(self, query_tokens: int, reading: Reading) -> int:
        return templates.duo_room(reading.special, query_limit=reading.query_limit, total_limit=reading.total)
