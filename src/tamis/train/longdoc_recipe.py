"""Recipes for models of long documents: those of `tamis train` with a table [longdoc].

    base = "parade"

    [longdoc]
    kind = "parade-max"

Of a document so many tokens are kept as [longdoc] says, whatever `text_limit` a [[data]] has. A start that is
itself a model of the same kind gives its head too; any other gives its encoder: CEDR's models begin with the
encoder of a vanilla one (recipes cedr-vanilla, then cedr).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from tamis.base.errors import InputError
from tamis.base.fields import Text, build
from tamis.models.long_plan import LongDoc
from tamis.train.recipe import Recipe, in_pairs, read_tables


@dataclass(frozen=True, slots=True)
class LongRecipe(Recipe):
    """All that decides what is trained.

    >>> from tamis.train.recipe import Data, Model, Optimiser
    >>> parts = Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100)
    >>> LongRecipe(*parts, longdoc=LongDoc("parade-max")).longdoc.passages
    16
    """

    longdoc: LongDoc = field(kw_only=True)
    gains: Text | None = field(kw_only=True, default=None)  # of PCGM: a file, see `read_gains`

    def __post_init__(self) -> None:
        Recipe.__post_init__(self)  # super() does not know a class with slots
        if in_pairs(self):
            raise InputError(
                f"{self.examples.kind} examples have two documents an input",
                remedy="use grouped or balanced ones",
            )
        if self.gains is not None and self.longdoc.kind != "pcgm":
            raise InputError(f"a {self.longdoc.kind} model learns no gains", remedy="leave out `gains`")

    def with_long_texts(self) -> LongRecipe:
        """The recipe whose data are read as far as the model reads."""
        limit = self.longdoc.tokens
        data = tuple(each if each.set else replace(each, text_limit=limit) for each in self.data)
        return replace(self, data=data)


def is_long_recipe(path: str | Path) -> bool:
    """Whether a recipe, or its base, has a table [longdoc].

    >>> is_long_recipe("parade"), is_long_recipe("monobert")
    (True, False)
    """
    return "longdoc" in read_tables(path)


def read_long_recipe(path: str | Path) -> LongRecipe:
    """The recipe of a file, on top of its base.

    >>> file = getfixture("tmp_path") / "mine.toml"
    >>> _ = file.write_text('''
    ... base = "parade"
    ... [model]
    ... start = "my-encoder"
    ... [[data]]
    ... set = "training-set"
    ... [dev]
    ... queries = "dev.jsonl"
    ... qrels = "dev.qrels"
    ... corpus = ["corpus.jsonl"]
    ... run = "dev.run"
    ... ''')
    >>> recipe = read_long_recipe(file)
    >>> recipe.longdoc.kind, recipe.loss.name, recipe.dev.measure
    ('parade-transformer', 'hinge', 'nDCG@20')
    """
    return build(LongRecipe, read_tables(path), path)
