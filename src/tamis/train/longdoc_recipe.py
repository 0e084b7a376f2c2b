"""Recipes for models of long documents: those of `tamis train` with a table [longdoc].

    base = "parade"

    [longdoc]
    kind = "parade-max"

Of a document so many tokens are kept as [longdoc] says, whatever `text_limit` a [[data]] has. A start that is
itself a model of the same kind gives its head too; any other gives its encoder: CEDR's models begin with the
encoder of a vanilla one (recipes cedr-vanilla, then cedr).
"""

from __future__ import annotations

from pydantic import Field

from tamis.base.errors import InputError
from tamis.models.long_plan import LongDoc
from tamis.models.settings import Text, changed
from tamis.train.recipe import Recipe, in_pairs


class LongRecipe(Recipe):
    """All that decides what is trained.

    >>> from tamis.train.recipe import Data, Model, Optimiser
    >>> parts = Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100)
    >>> LongRecipe(*parts, longdoc=LongDoc("parade-max")).longdoc.passages
    16
    """

    longdoc: LongDoc = Field(kw_only=True)
    gains: Text | None = Field(kw_only=True, default=None)  # of PCGM: a file, see `read_gains`

    def model_post_init(self, _: object) -> None:
        super().model_post_init(_)
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
        data = tuple(each if each.set else changed(each, text_limit=limit) for each in self.data)
        return changed(self, data=data)
