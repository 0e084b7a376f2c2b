"""Recipes for listwise models: those of `tamis train` with a table [listwise].

    base = "listwise"

    [listwise]
    n = 4

    [examples]
    group = 4

A start that is a listwise model gives its head too; any other checkpoint gets a new one.
"""

from __future__ import annotations

from pydantic import Field

from tamis.base.errors import InputError
from tamis.models.settings import Count, Settings
from tamis.train.recipe import Recipe


class Listwise(Settings):
    """How many texts an input has, and how the dev run is ranked."""

    n: Count = 8  # texts of an input
    k: Count = 20  # of the dev run: so many candidates are settled ...
    rounds: Count = 2  # ... in so many rounds


class ListRecipe(Recipe):
    """All that decides what is trained.

    >>> from tamis.train.recipe import Data, Model, Optimiser
    >>> parts = Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100)
    >>> ListRecipe(*parts, listwise=Listwise()).examples.group
    8
    """

    listwise: Listwise = Field(kw_only=True)

    def model_post_init(self, _: object) -> None:
        super().model_post_init(_)
        if self.examples.kind != "grouped":
            raise InputError(
                f"a listwise model reads groups, and the examples are {self.examples.kind}",
                remedy='use kind = "grouped"',
            )
        if self.examples.group != self.listwise.n:
            raise InputError(
                f"n of [listwise] is {self.listwise.n}, and group of [examples] {self.examples.group}",
                remedy="make them equal: it learns from groups as large as those that it ranks",
            )
        if self.folds is not None:
            raise InputError("listwise models are not trained by folds", remedy="leave out [folds]")
