"""Recipes for listwise models: those of `tamis train` with a table [listwise].

    base = "listwise"

    [listwise]
    n = 4

    [examples]
    group = 4

A start that is a listwise model gives its head too; any other checkpoint gets a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tamis.base.errors import InputError
from tamis.base.fields import Count, build, check
from tamis.train.recipe import Recipe, read_tables


@dataclass(frozen=True, slots=True)
class Listwise:
    """How many texts an input has, and how the dev run is ranked."""

    n: Count = 8
    k: Count = 20  # of the dev run: so many candidates are settled ...
    rounds: Count = 2  # ... in so many rounds

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ListRecipe(Recipe):
    """All that decides what is trained.

    >>> from tamis.train.recipe import Data, Model, Optimiser
    >>> parts = Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100)
    >>> ListRecipe(*parts, listwise=Listwise()).examples.group
    8
    """

    listwise: Listwise = field(kw_only=True)

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # super() does not know a class with slots
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


def is_list_recipe(path: str | Path) -> bool:
    """Whether a recipe, or its base, has a table [listwise].

    >>> is_list_recipe("listwise"), is_list_recipe("monobert")
    (True, False)
    """
    return "listwise" in read_tables(path)


def read_list_recipe(path: str | Path) -> ListRecipe:
    """The recipe of a file, on top of its base.

    >>> file = getfixture("tmp_path") / "mine.toml"
    >>> _ = file.write_text('''
    ... base = "listwise"
    ... [[data]]
    ... set = "training-set"
    ... ''')
    >>> recipe = read_list_recipe(file)
    >>> recipe.listwise.n, recipe.loss.name, recipe.limits.query
    (8, 'listwise', 62)
    """
    return build(ListRecipe, read_tables(path), path)
