"""Training recipes: a TOML file as settings, one settings class per table.

    base = "small"                     # a bundled recipe, or a file beside this one

    [model]
    start = "my-encoder"

    [[data]]
    queries = "train.queries.jsonl"
    qrels = "train.qrels.txt"
    corpus = ["corpus.jsonl"]
    run = "train.bm25.txt"

The fields of a recipe replace those of its base. Paths are relative to the working directory, as on the
command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ConfigDict, Field

from tamis.base.errors import InputError
from tamis.models.architecture import Architecture
from tamis.models.settings import (
    BelowOne,
    Count,
    NotNegative,
    Positive,
    Settings,
    Share,
    Text,
    Whole,
    build,
    changed,
)
from tamis.text.topics import TopicField
from tamis.train.bases import bundled, read_tables
from tamis.train.recipe_architecture import with_architecture
from tamis.train.recipe_model import Model, Narrow

__all__ = [
    "KINDS",
    "Curriculum",
    "Data",
    "Dev",
    "Examples",
    "Folds",
    "Kind",
    "Limits",
    "Loss",
    "LossName",
    "Model",
    "Narrow",
    "Optimiser",
    "Recipe",
    "Run",
    "bundled",
    "check_kind",
    "check_patience",
    "in_steps",
    "read_recipe",
    "read_tables",
]

#: balanced: as many relevant texts as others; grouped: for losses over lists; duo: ordered pairs of a
#: relevant text and another; teacher_pairs: ordered pairs of texts that a teacher scores differently;
#: duo_lists: grouped, with all ordered pairs of a group
Kind = Literal["balanced", "grouped", "duo", "teacher_pairs", "duo_lists"]
LossName = Literal["pointwise", "duo", "hinge", "softmax", "listwise", "margin_mse", "logit_mse_ce", "kl"]
Curriculum = Literal["rank", "score"]


class Data(Settings):
    """One collection to learn from: `set`, the folder of a saved `TrainingSet`, or the files to make one, or
    `triples` (see `tamis.train.triples`).

    Several collections are a chain if they have `steps` (pre-fine-tuning: the last gets the remaining steps),
    and otherwise are mixed by their `weight`."""

    set: Text | None = None  # a folder with a `TrainingSet`, instead of the files below
    triples: Text | None = None  # per line a query, a relevant text and another; with `queries`, ids
    queries: Text | None = None  # a file, as `tamis run` takes it
    field: TopicField = "title"  # the part of a TREC topic that is the query
    only: tuple[Text, ...] | None = None  # the ids of the queries to learn from; left out: all
    whole: bool = False  # with [folds]: another collection, which every fold uses completely
    corpus: tuple[Text, ...] = ()  # an index, or files and folders as `tamis index` takes them
    qrels: Text | None = None  # a file with judgments; left out: only the teacher's scores are learned
    run: Text | None = None  # candidates; left out: the teacher's, or of an index BM25's, or any documents
    teacher: Text | None = None  # a run whose scores are to be learned
    skip: bool = False  # leave out ids that are not in the queries or the corpus instead of refusing them
    text_limit: Count | None = None  # tokens kept of a text, to match those to rank; left out: as [limits]
    weight: Positive = 1.0  # in a mixture: how often it is drawn from
    steps: Count | None = None  # in a chain: how long it is used
    sample: Count | None = None  # this many relevant texts and as many others, drawn once; left out: all

    def model_post_init(self, _: object) -> None:
        if self.triples is not None:
            self._check_triples()
            return
        if (self.set is None) == (self.queries is None):
            raise InputError("[[data]] has not one of set and queries", remedy="give one of them")
        if self.queries is not None and not self.corpus:
            raise InputError("[[data]] has queries without a corpus", remedy="name an index, or files")
        if self.queries is not None and self.qrels is None and self.teacher is None:
            raise InputError("[[data]] has neither qrels nor teacher", remedy="give one of them")
        if self.set is not None and (self.field != "title" or self.only is not None):
            raise InputError(
                "[[data]] has a set with field or only, and its queries are tokens already",
                remedy="leave them out, or give the files that the set was made of",
            )
        bare = {"corpus": (), "qrels": None, "run": None, "teacher": None, "skip": False, "text_limit": None}
        given = [name for name, default in bare.items() if getattr(self, name) != default]
        if self.set is not None and given:
            raise InputError(
                f"[[data]] has a set with {given[0]}, and a set is made already",
                remedy="leave it out, or give the files that the set was made of",
            )

    def _check_triples(self) -> None:
        alone = ("set", "qrels", "run", "teacher", "only", "sample")
        if others := [name for name in alone if getattr(self, name) is not None]:
            raise InputError(f"[[data]] has triples with {others[0]}", remedy="leave out one of them")
        if self.skip:
            raise InputError("[[data]] has triples with skip", remedy="take out what is not in the corpus")
        if (self.queries is None) != (not self.corpus):
            raise InputError(
                "[[data]] has triples with one of queries and corpus",
                remedy="give both, for triples of ids, or none, for triples of texts",
            )

    @property
    def name(self) -> str:
        return str(self.set or self.triples or self.queries)


class Examples(Settings):
    """What is drawn from the data: see `tamis.train.examples`."""

    kind: Kind = "grouped"  # what an example consists of
    group: Count = 8  # of grouped and duo_lists: documents of a group ...
    positives: Count = 1  # ... of which at most this many are relevant
    relevant: Count = 1  # the lowest grade that counts as relevant
    first: Count = 1  # negatives are candidates from this rank on ...
    last: Count | None = None  # ... to this one
    judged: bool = False  # prefer documents that were judged not relevant
    random: Share = 0.0  # the share of negatives that are any documents
    alone: bool = False  # of duo_lists: each text is also an input alone, as mono reads it
    curriculum: Curriculum | None = None  # weights by BM25's rank or score of an example ...
    curriculum_steps: Whole = 0  # ... which change to 1 over this many steps

    @property
    def in_pairs(self) -> bool:
        """Whether an input has two texts."""
        return self.kind in ("duo", "teacher_pairs", "duo_lists")

    def model_post_init(self, _: object) -> None:
        if self.positives >= self.group:
            raise InputError(
                f"[examples] has groups of {self.group} with {self.positives} relevant",
                remedy="leave room for at least one other document",
            )
        if self.last is not None and self.last < self.first:
            raise InputError(
                f"[examples] draws from ranks {self.first} to {self.last}", remedy="make last the larger"
            )
        if self.alone and self.kind != "duo_lists":
            raise InputError(
                f"[examples] has alone with the kind {self.kind}", remedy="use it with duo_lists"
            )
        if (self.curriculum is None) != (self.curriculum_steps == 0):
            raise InputError(
                "[examples] has one of curriculum and curriculum_steps", remedy="give both or none"
            )


class Loss(Settings):
    """What is minimised, a function of `tamis.train.losses`. kl and margin_mse learn from a teacher, and so
    do others if `alpha` is below 1."""

    name: LossName = "softmax"  # which of them
    alpha: Share = 1.0  # the labels' share: of pointwise's and duo's target, of logit_mse_ce's loss (Eq. 39)
    margin: Positive = 1.0  # of hinge
    probabilities: bool = False  # of hinge: it compares probabilities, not margins
    temperature: Positive = 1.0  # of the teacher's scores, in kl, pointwise and duo: below 1 sharpens them
    labels: NotNegative = 0.0  # of kl and margin_mse: the weight of an added softmax loss on labels

    @property
    def taught(self) -> bool:
        """Whether the loss needs a teacher's scores."""
        return self.name in ("kl", "margin_mse") or (self.name in _SHARED and self.alpha < 1)

    @property
    def labelled(self) -> bool:
        """Whether the loss needs labels."""
        if self.name in ("kl", "margin_mse"):
            return self.labels > 0
        return self.name not in _SHARED or self.alpha > 0


_SHARED = ("pointwise", "duo", "logit_mse_ce")  # between labels and a teacher


class Optimiser(Settings):
    """AdamW (Loshchilov & Hutter 2019) and its schedule. Biases and norms do not decay."""

    learning_rate: Positive = 2e-5  # the highest, at the end of the warm-up
    head_learning_rate: Positive | None = None  # of new weights in the head; left out: the same
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)  # of the running means of the gradient and its square
    epsilon: Positive = 1e-8  # added to the root by which the step is divided
    weight_decay: NotNegative = 0.01  # decoupled from the gradient
    warm_up: NotNegative = 0.1  # steps, or below 1 a share of all
    schedule: Literal["linear", "constant"] = "linear"  # after the warm-up: down to 0, or unchanged
    steps: Count | None = None  # how many there are ...
    epochs: Positive | None = None  # ... or how often each relevant text comes; of teacher_pairs each query
    dropout: BelowOne = 0.1  # of hidden states, and if inputs are padded also of attention
    clip: NotNegative = 1.0  # largest norm of the gradient; 0: any
    accumulate: Count = 1  # batches a step

    def model_post_init(self, _: object) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InputError("[optimiser] has not one of steps and epochs", remedy="give one of them")
        if self.steps is not None and self.warm_up >= 1 and self.warm_up > self.steps:
            raise InputError(
                f"warm_up of [optimiser] is {self.warm_up:g} of {self.steps:,} steps",
                remedy="warm up over fewer steps, or over a share such as 0.1",
            )


class Run(Settings):
    """How the work is done. A run may be resumed with other values of the fields that do not change what is
    learned: those that are left out of its `repr`."""

    seed: Whole = 0  # of new weights, of what is drawn and of dropout
    batch: Count = 32  # texts (balanced), ordered pairs (duo) or queries (grouped, duo_lists), on all devices
    tokens: Count | None = Field(default=None, repr=False)  # in the model at once: larger batches are split
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # bf16 on CUDA; the weights are fp32 in any case
    compile: bool = Field(default=False, repr=False)  # layers by torch.compile: a minute, then faster steps
    log_every: Count = Field(default=10, repr=False)  # steps
    checkpoint_every: Count = Field(default=1000, repr=False)  # steps: what --resume starts from
    patience: Count | None = None  # stop after this many dev runs without a better one; left out: never


class Dev(Settings):
    """A run that is reranked at intervals: the weights that rank it best are kept."""

    queries: Text  # a file, as `tamis run` takes it
    qrels: Text  # a file with their judgments
    corpus: tuple[Text, ...]  # an index, or files and folders as `tamis index` takes them
    run: Text  # a file with their candidates
    depth: Count = 100  # how many candidates of each query; duo takes 20 of them at most
    measure: Text = "nDCG@10"  # of the dev run, in the language of `tamis eval`
    every: Count = 1000  # steps
    field: TopicField = "title"  # the part of a TREC topic that is the query
    only: tuple[Text, ...] | None = None  # ids of the queries that are ranked; left out: all judged ones


class Folds(Settings):
    """Cross-validation: one model per fold, trained on the fold's training queries, which then reranks its
    test queries. See `tamis.train.folds`."""

    files: tuple[Text, ...] = ()  # the folds, as `tamis tune` reads them ...
    count: Count | None = None  # ... or how many to make, of similar difficulty
    seed: Whole = 0  # of the folds that are made, and of the queries held out
    held_out: BelowOne = 0.1  # the share of training queries for [dev], if a fold names none
    run: Text | None = None  # candidates to rerank; left out: those of the first [[data]] that is not whole
    depth: Count = 1000  # how many of them for each query
    pipeline: Text | None = None  # that reranks them, with {model} in it; left out: the recipe's own stage

    def model_post_init(self, _: object) -> None:
        if (not self.files) == (self.count is None):
            raise InputError("[folds] has not one of files and count", remedy="give one of them")
        if self.pipeline is not None and ("{model}" not in self.pipeline or '"{model}"' in self.pipeline):
            raise InputError(
                f"pipeline of [folds] is {self.pipeline!r}",
                remedy="write {model} where the model goes, without quotes, as in mono(model={model})",
            )


class Limits(Settings):
    """Tokens of an input, as in the stages."""

    query: Count | None = None  # left out: 64, for duo and listwise 62
    total: Count = 512  # of the query, the text or texts, and special tokens


class Recipe(Settings):
    """Everything that determines the trained model.

    >>> recipe = Recipe(Model("my-encoder"), (Data(set="training-set"),), Optimiser(steps=100))
    >>> recipe.loss.name, recipe.optimiser.learning_rate
    ('softmax', 2e-05)
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: Model
    data: tuple[Data, ...]
    optimiser: Optimiser
    run: Run = Run()
    examples: Examples = Examples()
    loss: Loss = Loss()
    limits: Limits = Limits()
    dev: Dev | None = None
    about: str = ""  # a note without effect
    folds: Folds | None = None
    architecture: Architecture | None = None  # of the model, and its table; by default mono, or of pairs duo
    gains: Text | None = None  # of pcgm: a file of gains, see `tamis.train.gains`

    def model_post_init(self, _: object) -> None:
        if not self.data:
            raise InputError("the recipe has no data", remedy="add a table [[data]]")
        _check_chain(self.data, self.optimiser.steps)
        _check_loss(self)
        _check_folds(self)
        check_patience(self.run, self.dev)
        if self.examples.in_pairs and self.model.form is not None:
            raise InputError(
                f"form of [model] is of inputs with one text, and {self.examples.kind} examples have two",
                remedy="leave it out",
            )
        if self.architecture is not None:
            self.architecture.check_recipe(self)
        if self.gains is not None and not (self.architecture and self.architecture.learns_gains):
            kind = self.architecture.kind if self.architecture else "mono"
            raise InputError(f"a {kind} model does not learn gains", remedy="leave out `gains`")


def _check_chain(data: tuple[Data, ...], steps: int | None) -> None:
    own = [each.steps for each in data]
    if any(own) and not all(own[:-1]):
        raise InputError(
            "some [[data]] have steps, and not all but the last",
            remedy="give steps to make a chain, or weights to mix them",
        )
    given = sum(each or 0 for each in own)
    if any(own) and (steps is None or given > steps or (own[-1] and given != steps)):
        raise InputError(
            f"the steps of [[data]] are {given:,}, those of [optimiser] {steps or 'not given'}",
            remedy="make [optimiser] steps the sum, or leave out the last [[data]] steps",
        )
    if any(own) and own[-1] is None and given == steps:
        raise InputError(
            f"[[data]] but the last take all {given:,} steps",
            remedy="raise [optimiser] steps: the last [[data]] has none left",
        )


def _check_pairs(data: Data, recipe: Recipe) -> None:
    """Check the kind of examples: triples and samples always have one relevant text and one other."""
    drawn, given = recipe.examples, "triples are" if data.triples is not None else "a sample is of"
    if data.triples is None and data.sample is None:
        return
    if drawn.kind == "teacher_pairs" or (drawn.kind in ("grouped", "duo_lists") and drawn.group != 2):
        group = "" if drawn.kind == "teacher_pairs" else f" of {drawn.group}"
        raise InputError(
            f"{data.name}: {given} pairs, and the examples are {drawn.kind}{group}",
            remedy="use balanced or duo examples, or groups of 2",
        )
    if data.triples is not None and (recipe.loss.taught or drawn.curriculum is not None):
        raise InputError(
            f"{data.name}: triples have neither ranks nor a teacher's scores",
            remedy="leave out the curriculum, and use a loss of labels alone",
        )


def _check_folds(recipe: Recipe) -> None:
    if recipe.folds is None:
        if any(data.whole for data in recipe.data):
            raise InputError("[[data]] is whole, and there are no folds", remedy="leave out whole")
        return
    split = [data for data in recipe.data if not data.whole]
    if not split:
        raise InputError("every [[data]] is whole", remedy="leave one to the folds")
    for data in split:
        if data.queries is None or data.triples is not None:
            raise InputError(
                f"{data.name} cannot be split into folds",
                remedy="give queries and qrels, or whole = true if it is another collection",
            )
    if recipe.folds.run is None and split[0].run is None:
        raise InputError("[folds] lacks run", remedy="give the candidates that are to be reranked")


def check_patience(run: Run, dev: Dev | None) -> None:
    """Refuse early stopping without a dev run."""
    if run.patience is not None and dev is None:
        raise InputError(
            f"patience of [run] is {run.patience}, and there is no dev run",
            remedy="leave it out, or, of a ranker, add a table [dev]",
        )


def check_kind(name: LossName, kind: Kind) -> None:
    """Refuse a loss that does not fit this kind of examples."""
    wanted = KINDS[name]
    if kind not in wanted:
        fitting = [loss for loss, kinds in KINDS.items() if kind in kinds]
        raise InputError(
            f"the loss {name} is not for {kind} examples",
            remedy=f"use one of {', '.join(fitting)}, or examples of kind {' or '.join(wanted)}",
        )


def _check_loss(recipe: Recipe) -> None:
    name, kind = recipe.loss.name, recipe.examples.kind
    check_kind(name, kind)
    for data in recipe.data:
        _check_pairs(data, recipe)
        if data.set is not None or data.triples is not None:
            continue  # a set is checked when it is opened
        if (recipe.loss.labelled and kind != "teacher_pairs") and data.qrels is None:
            raise InputError(
                f"the loss {name} learns from labels, and {data.name} has no qrels",
                remedy="give them, or learn from a teacher alone (kl, or logit_mse_ce with alpha = 0)",
            )
        if (recipe.loss.taught or kind == "teacher_pairs") and data.teacher is None:
            raise InputError(
                f"the loss {name} of {kind} examples learns from a teacher, and {data.name} has none",
                remedy="give teacher, a run with its scores",
            )


#: The kinds of examples that each loss fits.
KINDS: Mapping[LossName, tuple[Kind, ...]] = {
    "pointwise": ("balanced", "grouped"),
    "duo": ("duo", "teacher_pairs"),
    "hinge": ("balanced", "grouped"),
    "softmax": ("grouped", "duo_lists"),
    "listwise": ("grouped", "duo_lists"),
    "margin_mse": ("grouped", "duo_lists"),
    "logit_mse_ce": ("balanced", "grouped", "duo", "teacher_pairs"),
    "kl": ("grouped", "duo_lists"),
}


def read_recipe(path: str | Path) -> Recipe:
    """Read a recipe file, merged over its base, for the architecture that has a table in it.

    >>> file = getfixture("tmp_path") / "mine.toml"
    >>> _ = file.write_text('''
    ... base = "monobert"
    ... [model]
    ... start = "my-encoder"
    ... [[data]]
    ... queries = "queries.jsonl"
    ... qrels = "qrels.txt"
    ... corpus = ["corpus.jsonl"]
    ... [optimiser]
    ... learning_rate = 1e-5
    ... ''')
    >>> recipe = read_recipe(file)
    >>> recipe.model.start, recipe.optimiser.learning_rate, recipe.optimiser.steps
    ('my-encoder', 1e-05, 100000)
    """
    tables = read_tables(path, "train")
    return build(Recipe, with_architecture(tables, path), path)


_R = TypeVar("_R", bound=Recipe)


def in_steps(recipe: _R, epoch: int) -> _R:
    """The recipe with steps instead of epochs; `epoch` is the number of batches of an epoch."""
    plan = recipe.optimiser
    if plan.epochs is None:
        return recipe
    steps = max(round(plan.epochs * epoch / plan.accumulate), 1)
    return changed(recipe, optimiser=changed(plan, steps=steps, epochs=None))
