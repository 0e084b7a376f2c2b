"""The papers' recipes, figure by figure: what a file of the package says is what the paper says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.models.architectures.parade import Parade, ParadeSettings
from tamis.models.settings import changed
from tamis.models.templates import Special, Tokenised, duo
from tamis.train.distill_recipe import Student, Terms, read_distill_recipe
from tamis.train.pretrain_recipe import Model as PretrainModel
from tamis.train.pretrain_recipe import Objective, Random, read_pretrain_recipe
from tamis.train.recipe import Data, Dev, Examples, Limits, Loss, Model, Optimiser, Recipe, Run, read_recipe

DATA = (Data(queries="q", qrels="r", corpus=("c",)),)
A_DATA = 'queries = "q"\nqrels = "r"\ncorpus = ["c"]\n'
A_DEV = '[dev]\nqueries = "q"\nqrels = "r"\ncorpus = ["c"]\nrun = "b"\n'

#: What BERT's own code has where the papers say nothing: epsilon and clipping.
BERT = Optimiser(
    learning_rate=3e-6,
    betas=(0.9, 0.999),
    epsilon=1e-6,
    clip=1.0,
    weight_decay=0.01,
    warm_up=10_000,
    schedule="linear",
    steps=100_000,
    dropout=0.1,
)
MONO = Recipe(
    Model("google-bert/bert-large-uncased", labels=2),
    DATA,
    BERT,
    Run(batch=128),
    Examples("balanced"),
    Loss("pointwise"),
    Limits(64, 512),
)

Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        (tmp_path / "mine.toml").write_text(text)
        return tmp_path / "mine.toml"

    return write


def silent(recipe: Any) -> Any:
    """A recipe without its words."""
    assert recipe.about
    return changed(recipe, about="")


def test_monobert(written: Written) -> None:
    mono = read_recipe(written(f'base = "monobert"\n[[data]]\n{A_DATA}'))
    assert silent(mono) == MONO
    assert mono.run.batch * 100_000 == 12_800_000  # the pairs that the papers count


def test_monobert_of_january_sees_as_many_pairs_in_smaller_batches(written: Written) -> None:
    first = read_recipe(written(f'base = "monobert-2019-01"\n[[data]]\n{A_DATA}'))
    assert silent(first) == changed(MONO, run=Run(batch=32), optimiser=changed(BERT, steps=400_000))
    assert 32 * 400_000 == 12_800_000


def test_duobert_starts_where_monobert_does(written: Written) -> None:
    """Only the embedding of the third segment is new."""
    read = read_recipe(written(f'base = "duobert"\n[[data]]\n{A_DATA}'))
    assert silent(read) == changed(
        MONO,
        model=changed(MONO.model, third_segment=True),
        examples=Examples("duo"),
        loss=Loss("duo"),
        limits=Limits(62, 512),
    )


@pytest.mark.parametrize("positions", [512, 1024, 4096])
def test_duo_texts_have_223_tokens_however_long_the_inputs_may_be(positions: int) -> None:
    texts = Tokenised.of([list(range(1000, 1400))] * 2)
    special = Special(cls=1, sep=2)
    inputs, _ = duo(range(3, 90), texts, np.array([[0, 1]]), special, total_limit=positions)
    assert np.bincount(inputs.segments).tolist() == [1 + 62 + 1, 223 + 1, 223 + 1]


def test_microblog(written: Written) -> None:
    read = read_recipe(written(f'base = "microblog"\n[[data]]\n{A_DATA}{A_DEV}'))
    assert silent(read) == Recipe(
        Model("google-bert/bert-base-uncased", labels=2),
        DATA,
        Optimiser(learning_rate=3e-6, epochs=10.0, weight_decay=0.01, warm_up=0.1, dropout=0.1),
        Run(batch=4),
        Examples("grouped", group=10, last=1000),
        Loss("pointwise"),
        Limits(64, 512),
        Dev("q", "r", ("c",), "b", depth=1000, measure="AP"),
    )


def test_tcp(written: Written) -> None:
    tcp = read_pretrain_recipe(written('base = "tcp"\n[data]\ncorpus = ["c"]\n'))
    assert tcp.model == PretrainModel("google-bert/bert-large-uncased")
    assert tcp.objective == Objective(("mlm", "nsp"), length=512)
    assert tcp.optimiser == changed(BERT, learning_rate=5e-5)
    assert (tcp.run, bool(tcp.about)) == (Run(batch=128), True)


def test_tinybert_ranker(written: Written) -> None:
    distilled = read_distill_recipe(
        written(f'base = "tinybert-ranker"\n[ranker]\nteacher = "t"\n[[ranker.data]]\n{A_DATA}')
    )
    assert distilled.student == Student(random=Random(layers=6))
    ranker = distilled.ranker
    assert ranker
    assert ranker.optimiser == Optimiser(learning_rate=5e-5, warm_up=0.1, steps=100_000, dropout=0.1)
    assert (ranker.run, ranker.limits) == (Run(batch=128), Limits(64, 512))
    assert (ranker.examples, ranker.loss) == (Examples("balanced"), Loss("logit_mse_ce", alpha=0.0))
    assert ranker.terms == Terms(1.0, 1.0, 1.0)


def test_the_smaller_student_is_as_the_recipe_tells_to_write_it(written: Written) -> None:
    given = f'base = "tinybert-ranker"\n[ranker]\nteacher = "t"\n[[ranker.data]]\n{A_DATA}'
    shape = re.search(r"random = \{[^}]*\}", read_distill_recipe(written(given)).about)
    assert shape
    small = read_distill_recipe(written(f"{given}[student]\n{shape[0]}\n"))
    # 12 heads as the teacher has, or attention could not be compared
    assert small.student == Student(random=Random(layers=4, hidden=312, heads=12, feed_forward=1200))


def test_parade_distilled(written: Written) -> None:
    rest = f'[model]\nstart = "e"\n[[data]]\n{A_DATA}teacher = "parade.run"\n{A_DEV}'
    full = read_recipe(written(f'base = "parade"\n{rest}'))
    small = read_recipe(written(f'base = "parade-distilled"\n{rest}'))
    assert full.architecture == Parade()
    cut = ParadeSettings(window=150, stride=100, passages=16)
    assert small.architecture == Parade(cut)
    assert cut.window + 15 * cut.stride == 1650  # the tokens that the paper counts
    assert small.loss == Loss("logit_mse_ce", alpha=0.0)  # the teacher's scores by MSE, and no label
    assert (small.examples.last, small.dev and small.dev.depth) == (100, 100)
    # all else is PARADE's
    examples = changed(full.examples, last=100)
    assert silent(small) == silent(
        changed(full, architecture=Parade(cut), examples=examples, loss=small.loss)
    )
