"""What stages cost, counted before anything is ranked: `Stage.cost` is made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np

from tamis.base.arrays import Array

if TYPE_CHECKING:
    from tamis.core.model_stage import ModelStage
    from tamis.core.stage import Stage

DEPTH = 1000  # the papers' k0: what a search finds where the pipeline does not say

#: What a number says of what a query will take: just that, or the most or the least, where it is known only
#: afterwards.
Bound = Literal["exact", "most", "least"]


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a plan; the arrays have a number for each query."""

    stage: Stage
    enter: Array  # candidates that it gets
    leave: Array  # candidates that it hands on
    inferences: Array
    model: ModelStage | None = None
    part: bool = False  # of the next step: it chooses what that one's model reads, in that one's time


def search(stage: Stage, enter: Array, depth: int | None, most: int | None = None) -> list[Step]:
    """Of a stage that finds all that it is asked for, of `most` documents."""
    found = DEPTH if depth is None else depth
    leave = np.full_like(enter, found if most is None else min(found, most))
    return [Step(stage, enter, leave, np.zeros_like(enter))]


def around(stage: Stage, enter: Array, parts: Iterable[list[Step]], leave: Array | None = None) -> list[Step]:
    """Of a stage that reads nothing itself, with the steps of each of the stages inside. Of several stages'
    candidates some may be the same: no more than the sum leave it."""
    inside = list(parts)
    none = np.zeros_like(enter)
    if leave is None:
        leave = sum((steps[-1].leave for steps in inside), start=none) if inside else enter
    return [*chain.from_iterable(inside), Step(stage, enter, leave, none)]


def for_each(numbers: Array, count: Callable[[int], int]) -> Array:
    """`count` of each of the numbers, many of which are alike.

    >>> for_each(np.array([3, 2, 3]), lambda k: k * (k - 1)).tolist()
    [6, 2, 6]
    """
    known = {number: count(number) for number in np.unique(numbers).tolist()}
    return np.array([known[number] for number in numbers.tolist()], dtype=np.int64)
