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

from dataclasses import dataclass, field
from pathlib import Path

from tamis.base.errors import InputError
from tamis.base.fields import BelowOne, Count, build, check
from tamis.models.exits import Heads
from tamis.train.recipe import Recipe, in_pairs, read_tables


@dataclass(frozen=True, slots=True)
class Cascade:
    """Where the exits are, and how many candidates leave at each when the dev run is ranked. The figures are
    those of Soldaini & Moschitti 2020, for 12 layers."""

    first: Count = 4  # the layer after which the first exit is (lambda_0) ...
    step: Count = 2  # ... and how many layers on the next ones are (lambda_1); after the last is one always
    alpha: BelowOne = 0.3  # of the dev run: training reads every text as far as the exit that learns
    heads: Heads = (
        "new"  # drawn from the seed (the last is the start's, if that has one); trained: copies of it
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class CascadeRecipe(Recipe):
    """All that decides what is trained.

    >>> from tamis.train.recipe import Data, Model, Optimiser
    >>> parts = Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100)
    >>> CascadeRecipe(*parts, cascade=Cascade(first=2)).cascade.step
    2
    """

    cascade: Cascade = field(kw_only=True)

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # super() does not know a class with slots
        if in_pairs(self):
            raise InputError(
                f"{self.examples.kind} examples have two texts an input",
                remedy="use grouped or balanced ones",
            )
        if self.folds is not None:
            raise InputError("models with exits are not trained by folds", remedy="leave out [folds]")


def is_cascade_recipe(path: str | Path) -> bool:
    """Whether a recipe, or its base, has a table [cascade].

    >>> is_cascade_recipe("cascade"), is_cascade_recipe("monobert")
    (True, False)
    """
    return "cascade" in read_tables(path)


def read_cascade_recipe(path: str | Path) -> CascadeRecipe:
    """The recipe of a file, on top of its base.

    >>> file = getfixture("tmp_path") / "mine.toml"
    >>> _ = file.write_text('''
    ... base = "cascade"
    ... [[data]]
    ... set = "training-set"
    ... ''')
    >>> recipe = read_cascade_recipe(file)
    >>> recipe.cascade.first, recipe.cascade.step, recipe.cascade.alpha
    (4, 2, 0.3)
    """
    return build(CascadeRecipe, read_tables(path), path)
