"""Recipes of distillation: the paper's three, and what cannot be meant is refused, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.base.errors import InputError
from tamis.models.settings import changed
from tamis.train.distill_recipe import LM, DistillRecipe, Ranker, Student, Terms, read_distill_recipe
from tamis.train.pretrain_recipe import Random
from tamis.train.recipe import Loss, bundled

DATA = '[[ranker.data]]\nqueries = "q"\nqrels = "r"\ncorpus = ["c"]\n'
LEAST = (
    '[student]\nlayers = 2\n[lm]\nteacher = "t"\ncorpus = ["c"]\n[lm.optimiser]\nsteps = 9\n'
    f'[ranker]\nteacher = "t"\n[ranker.optimiser]\nsteps = 9\n{DATA}'
)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_distill_recipe(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "\n" not in said
    return said.removeprefix(f"{path}: ")


def test_the_three_recipes_of_the_paper(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"

    def read(base: str, given: str) -> DistillRecipe:
        assert base in bundled()
        path.write_text(f'base = "{base}"\n{given}{DATA}')
        recipe = read_distill_recipe(path)
        assert recipe.about
        return recipe

    teacher, corpus = '[ranker]\nteacher = "my-mono"\n', '[lm]\ncorpus = ["c"]\n'
    first = read("tinybert-ranker", teacher)
    assert first.lm is None and first.student == Student(random=Random(layers=6))
    assert first.ranker and first.ranker.terms == Terms(1.0, 1.0, 1.0)
    assert first.ranker.loss == Loss("logit_mse_ce", alpha=0.0)  # it mimics
    third = read("tinybert-lm-ranker", teacher + corpus)
    assert third.ranker == first.ranker and third.student == first.student
    assert third.lm and third.lm.terms == Terms(1.0, 1.0, 1.0)
    second = read("tinybert-lm-labels", corpus)
    assert second.lm == third.lm and second.student == first.student
    assert second.ranker and second.ranker.teacher is None and not second.ranker.loss.taught
    own = read("tinybert-ranker", f"{teacher}[student]\nkeep = [0, 3]\n[ranker.optimiser]\nepochs = 2\n")
    assert own.student == Student(keep=(0, 3))  # in place of random weights
    assert own.ranker and first.ranker
    assert own.ranker.optimiser == changed(first.ranker.optimiser, steps=None, epochs=2.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("layers = 2", "depth = 2"), "[student] has no field 'depth': the known ones are start"),
        (("layers = 2", "layers = 2\nkeep = [0]"), "[student] has more than one of layers, keep and random"),
        (("layers = 2", "keep = [1, 0]"), "keep of [student] is [1, 0]: name each once, in their order"),
        (("[lm.opt", "[lm.terms]\nhiden = 1\n[lm.opt"), "[lm.terms] has no field 'hiden'"),
        (
            ("[lm.opt", "[lm.terms]\nhidden = -1\n[lm.opt"),
            "hidden of [lm.terms] is -1: it must be a number of",
        ),
        (
            ("[lm.opt", "[lm.terms]\nembedding=0\nhidden=0\nattention=0\n[lm.opt"),
            "[lm] has no term that counts",
        ),
        (('corpus = ["c"]\n[lm', "corpus = []\n[lm"), "corpus of [lm] is []: name an index, or files"),
        (("[lm.optimiser]\nsteps", "[lm.optimiser]\nepochs"), "[optimiser] has epochs, and a corpus"),
        (
            ('[ranker]\nteacher = "t"', "[ranker]"),
            "the loss logit_mse_ce of grouped examples learns from a teacher, and q has none",
        ),
        (
            ('[ranker]\nteacher = "t"', '[ranker]\nterms = {}\nloss = {name = "softmax"}'),
            "[ranker] has terms without a teacher: give one",
        ),
        (
            ('[ranker]\nteacher = "t"', '[ranker]\nteacher = "t"\nloss = {name = "softmax"}'),
            "[ranker] has a teacher from whom nothing is learned: give terms or a loss with a teacher",
        ),
        (
            (
                "[[ranker.data]]",
                '[ranker.examples]\nkind = "duo"\n[ranker.loss]\nname = "kl"\n[[ranker.data]]',
            ),
            "the loss kl is not for duo examples",
        ),
        (('qrels = "r"\n', ""), "[[data]] has neither qrels nor teacher"),
        (("[[ranker.data]]", "[ranker.trees]\n[[ranker.data]]"), "[ranker] has no field 'trees'"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert change[0] in LEAST
    (tmp_path / "mine.toml").write_text(LEAST.replace(*change))
    assert said in refused(tmp_path / "mine.toml")


def test_a_recipe_has_a_phase_and_a_student_a_start(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[student]\nlayers = 2")
    assert refused(path) == "the recipe has neither [lm] nor [ranker]: give one of them, or both"
    path.write_text(f"[ranker]\nloss = {{name = 'softmax'}}\n[ranker.optimiser]\nsteps = 9\n{DATA}")
    assert refused(path) == "[student] has no start, and no teacher to start from: give it one"


@pytest.mark.parametrize(
    ("table", "header", "field"),
    [
        (table, header, field)
        for table, header, kind in (
            ("student", "[student]", Student),
            ("lm", "[lm]", LM),
            ("ranker", "[ranker]", Ranker),
            ("ranker.terms", "[ranker.terms]", Terms),
        )
        for field in kind.model_fields
        if field not in ("random", "optimiser", "terms", "run", "data", "loss", "examples", "limits", "dev")
    ],
)
def test_every_field_has_a_type_that_is_checked(table: str, header: str, field: str, tmp_path: Path) -> None:
    text = LEAST.replace(DATA, f"[ranker.terms]\n{DATA}")
    head, found, tail = text.partition(f"{header}\n")
    own, bracket, rest = tail.partition("\n[")
    own = "".join(line for line in own.splitlines(keepends=True) if not line.startswith(f"{field} ="))
    (tmp_path / "mine.toml").write_text(f"{head}{found}{field} = 2020-01-01\n{own}{bracket}{rest}")
    said = refused(tmp_path / "mine.toml")
    assert said.startswith(f"{field} of [{table}] is datetime.date(2020, 1, 1): it must be ")
