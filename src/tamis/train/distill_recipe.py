"""Recipes of distillation: a TOML file as settings, one settings class per table.

    base = "tinybert-lm-ranker"

    [student]
    layers = 4                         # as many of the teacher's, evenly spread

    [lm]                               # first it learns from a language model, on any texts ...
    teacher = "google-bert/bert-base-uncased"
    corpus = ["corpus.jsonl"]

    [ranker]                           # ... then from a ranker, on queries with candidates
    teacher = "my-mono"

    [[ranker.data]]
    queries = "train.queries.jsonl"
    qrels = "train.qrels.txt"
    corpus = ["corpus.jsonl"]
    run = "train.bm25.txt"

Either phase may be left out. `tamis.train.recipe` explains bases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tamis.base.errors import InputError
from tamis.models.settings import Count, NotNegative, Settings, Text, Whole, build
from tamis.train.pretrain_recipe import Length, Random, require_corpus, require_steps
from tamis.train.recipe import (
    Data,
    Dev,
    Examples,
    Limits,
    Loss,
    Model,
    Optimiser,
    Recipe,
    Run,
    check_kind,
    check_patience,
    read_tables,
)


class Student(Settings):
    """Where the student starts: with some layers of its first teacher, or of another model with the same
    tokenizer, or with random weights in the shape of such a model or in another shape."""

    start: Text | None = None  # a bundled model, a folder or a name on the hub; left out: the first teacher
    revision: Text | None = None  # of the hub
    layers: Count | None = None  # how many of its layers to keep, evenly spread (all) ...
    keep: tuple[Whole, ...] | None = None  # ... or which, numbered from 0
    random: Random | None = None  # ... or random weights, in which shape
    labels: Literal[1, 2] | None = None  # outputs of the head, as in [model] of `tamis train`
    third_segment: bool = False  # for duo

    def model_post_init(self, _: object) -> None:
        if sum(each is not None for each in (self.layers, self.keep, self.random)) > 1:
            raise InputError(
                "[student] has more than one of layers, keep and random",
                remedy="give one of them; of random weights, layers goes into [student.random]",
            )
        if self.keep is not None and (not self.keep or list(self.keep) != sorted(set(self.keep))):
            raise InputError(
                f"keep of [student] is {list(self.keep)}", remedy="name each once, in their order"
            )


class Terms(Settings):
    """What is learned from the teacher's internal states (TinyBERT, Jiao et al. 2020): each term's weight."""

    embedding: NotNegative = 1.0  # of the embeddings
    hidden: NotNegative = 1.0  # of the hidden states of each layer
    attention: NotNegative = 1.0  # of the attention of each layer; needs as many heads as the teacher has
    layers: tuple[Count, ...] | None = None  # of the teacher, for each of the student's; evenly spread

    @property
    def count(self) -> bool:
        """Whether any term has a weight."""
        return max(self.embedding, self.hidden, self.attention) > 0


class LM(Settings):
    """The phase with a language model as the teacher: both read texts of a corpus, masked as in
    pretraining."""

    teacher: Text  # a bundled model, a folder or a name on the hub
    corpus: tuple[Text, ...]  # an index, or files and folders as `tamis index` takes them
    optimiser: Optimiser
    revision: Text | None = None  # of the hub
    length: Length = 128  # tokens of an input at most
    terms: Terms = Terms()
    run: Run = Run()

    def model_post_init(self, _: object) -> None:
        require_corpus(self.corpus, "lm")
        require_steps(self.optimiser)
        check_patience(self.run, None)
        if not self.terms.count:
            raise InputError("[lm] has no term that counts", remedy="give one a weight above 0")


class Ranker(Settings):
    """The phase that trains a ranker. A teacher reads the same inputs, and the loss uses its scores; without
    a teacher the loss uses labels, or the scores of a run (`teacher` of [[data]])."""

    data: tuple[Data, ...]
    optimiser: Optimiser
    teacher: Text | None = None  # a bundled model, a folder or a name on the hub
    revision: Text | None = None  # of the hub
    terms: Terms | None = None  # left out: only the teacher's scores are learned
    loss: Loss = Loss("logit_mse_ce", alpha=0.0)
    examples: Examples = Examples()
    limits: Limits = Limits()
    run: Run = Run()
    dev: Dev | None = None

    def model_post_init(self, _: object) -> None:
        if self.teacher is None and self.terms is not None and self.terms.count:
            raise InputError("[ranker] has terms without a teacher", remedy="give one, or leave them out")
        if self.teacher is not None and not (self.loss.taught or (self.terms and self.terms.count)):
            raise InputError(
                "[ranker] has a teacher from whom nothing is learned",
                remedy="give terms or a loss with a teacher (kl, or alpha below 1), or leave it out",
            )
        check_kind(self.loss.name, self.examples.kind)
        if self.examples.kind == "duo_lists":  # a teacher here scores pairs, not texts
            raise InputError("[ranker] has examples of kind duo_lists", remedy="use duo or teacher_pairs")
        self.recipe()

    def recipe(self) -> Recipe:
        """The equivalent recipe for `tamis train`. If a teacher reads the inputs, the data need no scores,
        and the recipe's loss does not require any."""
        scored = all(each.teacher is not None for each in self.data)
        loss = self.loss
        if self.teacher is not None and not scored:
            loss = Loss("duo" if self.examples.kind in ("duo", "teacher_pairs") else "pointwise")
        return Recipe(
            Model("student"),  # which is passed as an object, not loaded by its name
            self.data,
            self.optimiser,
            self.run,
            self.examples,
            loss,
            self.limits,
            self.dev,
        )


class DistillRecipe(Settings):
    """Everything that determines the trained student.

    >>> lm = LM("my-encoder", ("corpus.jsonl",), Optimiser(steps=100))
    >>> DistillRecipe(Student(layers=3), lm=lm).lm.terms.hidden
    1.0
    """

    student: Student = Student()
    lm: LM | None = None
    ranker: Ranker | None = None
    about: str = ""  # a note without effect

    def model_post_init(self, _: object) -> None:
        if self.lm is None and self.ranker is None:
            raise InputError("the recipe has neither [lm] nor [ranker]", remedy="give one of them, or both")
        if self.student.start is None and self.first_teacher is None:
            raise InputError("[student] has no start, and no teacher to start from", remedy="give it one")

    @property
    def first_teacher(self) -> Model | None:
        """The teacher of the first phase."""
        first = self.lm or self.ranker
        if first is None or first.teacher is None:
            return None
        return Model(first.teacher, first.revision)


def read_distill_recipe(path: str | Path) -> DistillRecipe:
    """Read a recipe file, merged over its base.

    >>> file = getfixture("tmp_path") / "mine.toml"
    >>> _ = file.write_text('''
    ... base = "tinybert-ranker"
    ... [ranker]
    ... teacher = "my-mono"
    ... [[ranker.data]]
    ... queries = "queries.jsonl"
    ... qrels = "qrels.txt"
    ... corpus = ["corpus.jsonl"]
    ... ''')
    >>> recipe = read_distill_recipe(file)
    >>> recipe.student.random.layers, recipe.ranker.loss.name
    (6, 'logit_mse_ce')
    """
    return build(DistillRecipe, read_tables(path, "distill"), path)
