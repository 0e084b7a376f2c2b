"""Recipes for models with exits: those of `tamis train` with a table [cascade].

    base = "cascade"

    [cascade]
    first = 4
    step = 2
    alpha = 0.3

A start that has exits after the same layers gives their heads too; any other checkpoint gets new ones, or
copies of its own.
"""

from __future__ import annotations

from pydantic import Field

from tamis.base.errors import InputError
from tamis.models.exits import Heads
from tamis.models.settings import BelowOne, Count, Settings
from tamis.train.recipe import Recipe, in_pairs


class Cascade(Settings):
    """Where the exits are, and how many candidates leave at each when the dev run is ranked. The figures are
    those of Soldaini & Moschitti 2020, for 12 layers."""

    first: Count = 4  # the layer after which the first exit is (lambda_0) ...
    step: Count = 2  # ... and how many layers on the next ones are (lambda_1); after the last is one always
    alpha: BelowOne = 0.3  # of the dev run: training reads every text as far as the exit that learns
    heads: Heads = "new"  # drawn from the seed, the last the start's if it has one; trained: copies of that


class CascadeRecipe(Recipe):
    """All that decides what is trained.

    >>> from tamis.train.recipe import Data, Model, Optimiser
    >>> parts = Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100)
    >>> CascadeRecipe(*parts, cascade=Cascade(first=2)).cascade.step
    2
    """

    cascade: Cascade = Field(kw_only=True)

    def model_post_init(self, _: object) -> None:
        super().model_post_init(_)
        if in_pairs(self):
            raise InputError(
                f"{self.examples.kind} examples have two texts an input",
                remedy="use grouped or balanced ones",
            )
        if self.folds is not None:
            raise InputError("models with exits are not trained by folds", remedy="leave out [folds]")
