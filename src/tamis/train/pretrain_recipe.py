"""Recipes of pretraining: a TOML file as settings, one settings class per table.

    base = "tcp"

    [model]
    start = "my-encoder"

    [data]
    corpus = ["corpus.jsonl"]

`tamis.train.recipe` explains bases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tamis.base.errors import InputError
from tamis.models.settings import Count, Positive, Settings, Text, build
from tamis.train.masked import LEAST
from tamis.train.recipe import Optimiser, Run, check_patience, read_tables
from tamis.train.recipe_model import check_sizes
from tamis.train.rop import MEAN_SIZE, MU

Length = Annotated[Count, Field(ge=LEAST)]


class Random(Settings):
    """Random weights instead of those of `start`, in the same shape or another."""

    layers: Count | None = None  # left out, these are as in `start`
    hidden: Count | None = None  # width of the hidden states
    heads: Count | None = None  # of attention; they divide `hidden`
    feed_forward: Count | None = None  # width inside a layer

    def model_post_init(self, _: object) -> None:
        check_sizes(self)


class Model(Settings):
    """Where pretraining starts. With random weights, `start` gives only the tokenizer and the shape."""

    start: Text  # a bundled model, a folder or a name on the hub
    revision: Text | None = None  # of the hub
    random: Random | None = None  # left out: the weights of `start`


class Data(Settings):
    """The texts."""

    corpus: tuple[Text, ...]  # an index, or files and folders as `tamis index` takes them

    def model_post_init(self, _: object) -> None:
        require_corpus(self.corpus, "data")


def require_corpus(corpus: tuple[str, ...], table: str) -> None:
    if not corpus:
        raise InputError(f"corpus of [{table}] is []", remedy="name an index, or files")


class Objective(Settings):
    """What is learned: mlm, masked words; nsp, with mlm, whether a text follows another (Devlin et al. 2019);
    rop, which words are typical of a text (Ma et al. 2021)."""

    learn: tuple[Literal["mlm", "nsp", "rop"], ...] = ("mlm", "nsp")  # which of these
    length: Length = 128  # tokens of an input at most
    mean_size: Positive = MEAN_SIZE  # of rop: words of a set, on average
    mu: Positive = MU  # of rop: the prior of query likelihood

    def model_post_init(self, _: object) -> None:
        if not self.learn or len(set(self.learn)) < len(self.learn):
            raise InputError(
                f"learn of [objective] is {list(self.learn)}", remedy="name mlm or rop, each once"
            )
        if "nsp" in self.learn and "mlm" not in self.learn:
            raise InputError("learn of [objective] has nsp without mlm", remedy="add mlm, or leave out nsp")


class PretrainRecipe(Settings):
    """Everything that determines the pretrained model. A batch of [run] is counted in inputs, or for rop in
    pairs of inputs.

    >>> recipe = PretrainRecipe(Model("my-encoder"), Data(("corpus.jsonl",)), Optimiser(steps=100))
    >>> recipe.objective.learn
    ('mlm', 'nsp')
    """

    model: Model
    data: Data
    optimiser: Optimiser
    objective: Objective = Objective()
    run: Run = Run()
    about: str = ""  # a note without effect

    def model_post_init(self, _: object) -> None:
        require_steps(self.optimiser)
        check_patience(self.run, None)


def require_steps(optimiser: Optimiser) -> None:
    """Refuse epochs: a batch is drawn from anywhere in a corpus, so there are none."""
    if optimiser.steps is None:
        raise InputError(
            "[optimiser] has epochs, and a corpus is drawn from and not read through", remedy="give steps"
        )


def read_pretrain_recipe(path: str | Path) -> PretrainRecipe:
    """Read a recipe file, merged over its base.

    >>> file = getfixture("tmp_path") / "mine.toml"
    >>> _ = file.write_text('''
    ... base = "tcp"
    ... [model]
    ... start = "my-encoder"
    ... [data]
    ... corpus = ["corpus.jsonl"]
    ... ''')
    >>> recipe = read_pretrain_recipe(file)
    >>> recipe.objective.learn, recipe.optimiser.steps
    (('mlm', 'nsp'), 100000)
    """
    return build(PretrainRecipe, read_tables(path, "pretrain"), path)
