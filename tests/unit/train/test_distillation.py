"""Distillation by a recipe: students, teachers and phases are what it says, and a kill costs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Mono  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.models.architectures.listwise import Listwise, ListwiseSettings  # noqa: E402
from tamis.models.architectures.parade import Parade  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.feed import padded  # noqa: E402
from tamis.models.network import Pointwise  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import Inputs  # noqa: E402
from tamis.models.tokenizer import Tokenizer  # noqa: E402
from tamis.models.weights import write_tensors  # noqa: E402
from tamis.train.batch import RankingBatch  # noqa: E402
from tamis.train.distill import Distiller, Weights  # noqa: E402
from tamis.train.distill_recipe import LM, DistillRecipe, Ranker, Student, Terms  # noqa: E402
from tamis.train.distillation import Taught, TaughtInside, distill, load_student  # noqa: E402
from tamis.train.pretrain_recipe import Random  # noqa: E402
from tamis.train.ranking import train  # noqa: E402
from tamis.train.recipe import Data, Dev, Examples, Limits, Loss, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.sources import open_examples  # noqa: E402
from tamis.train.state import STATE, read_log  # noqa: E402
from tamis.train.watch import Watch  # noqa: E402
from tests.unit.train.builders import Killed, same, weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 6
WORD = "bert.embeddings.word_embeddings.weight"
SCORE = "classifier.weight"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two teachers of four layers, and a collection in which a query is a word of its document."""
    folder = tmp_path_factory.mktemp("distilling")
    for name, seed in (("lm", 1), ("mono", 2)):
        tiny_checkpoint(folder / name, layers=4, hidden=16, heads=2, positions=48, seed=seed)
    words = ["sieve", "flour", "soup", "onion", "butter", "tamis", "horse", "steel", "cake", "day"]
    texts = [f"{words[n % 10]} and {words[(3 * n + 1) % 10]}. It is text {n}." for n in range(30)]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts))
    )
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{n}", "text": words[n]}) + "\n" for n in range(6))
    )
    (folder / "qrels.txt").write_text("".join(f"q{n} 0 d{n} 1\n" for n in range(6)))
    (folder / "run.txt").write_text(
        "".join(f"q{n} Q0 d{n + k} {k + 1} {20 - k} x\n" for n in range(6) for k in range(8))
    )
    return folder


def lm(made: Path, **changes: Any) -> LM:
    plan = Optimiser(learning_rate=3e-3, steps=STEPS)
    run = Run(batch=4, checkpoint_every=2, log_every=2)
    return changed(LM(str(made / "lm"), (str(made / "corpus.jsonl"),), plan, length=24, run=run), **changes)


def files(made: Path) -> dict[str, Any]:
    names = {"queries": "queries.jsonl", "qrels": "qrels.txt", "run": "run.txt"}
    return {name: str(made / file) for name, file in names.items()} | {
        "corpus": (str(made / "corpus.jsonl"),)
    }


def ranker(made: Path, **changes: Any) -> Ranker:
    least = Ranker(
        (Data(**files(made)),),
        Optimiser(learning_rate=3e-3, steps=STEPS),
        str(made / "mono"),
        terms=Terms(),
        examples=Examples(group=4),
        limits=Limits(8, 32),
        run=Run(batch=4, checkpoint_every=2, log_every=2),
    )
    return changed(least, **changes)


def both(made: Path) -> DistillRecipe:
    return DistillRecipe(Student(layers=2), lm(made), ranker(made))


def distilled(plan: DistillRecipe, out: Path, **options: Any) -> dict[str, np.ndarray]:
    return weights(distill(plan, out, device="cpu", **options).model)


class Watching(Watch):
    """Notes what is begun, and stops at a line of the log of a phase."""

    def __init__(self, phase: str = "", step: int = 0) -> None:
        self.phase, self.step = phase, step
        self.begun: list[str] = []
        self.warned: list[str] = []

    def reading(self, what: str, noun: str) -> AbstractContextManager[Callable[[int], object]]:
        self.begun.append(f"Reading {what}")
        return nullcontext(lambda more: None)

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        self.begun.append(f"{what}, {steps}")

        def tell(line: Mapping[str, Any]) -> None:
            if what == self.phase and line["step"] >= self.step:
                raise Killed

        return nullcontext(tell)

    def left_out(self, what: str) -> None:
        self.warned.append(what)


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_log(out) if "loss" in line]


# -- the student


def test_a_student_starts_where_the_recipe_says(made: Path, tmp_path: Path) -> None:
    def layers(student: Student) -> list[int]:
        """Which of the language model's they are."""
        name = "layers.{}.feed_forward.up.weight"
        teacher, start = load_checkpoint(made / "lm").tensors, load_student(plan(student))
        theirs = [teacher[name.format(k)].tobytes() for k in range(4)]
        return [theirs.index(start.tensors[name.format(m)].tobytes()) for m in range(start.config.layers)]

    def plan(student: Student) -> DistillRecipe:
        return DistillRecipe(student, lm(made), ranker(made))

    assert layers(Student()) == [0, 1, 2, 3]
    assert layers(Student(layers=2)) == [1, 3]
    assert layers(Student(keep=(0, 2))) == [0, 2]
    elsewhere = load_student(plan(Student(start=str(made / "mono"))))
    assert elsewhere.fingerprint == load_checkpoint(made / "mono").fingerprint
    drawn = load_student(plan(Student(random=Random(layers=1, hidden=8), labels=2)))
    assert (drawn.config.layers, drawn.config.hidden, drawn.config.labels) == (1, 8, 2)
    assert load_student(plan(Student(third_segment=True))).config.segments == 3
    with pytest.raises(InputError, match="layers 7 of a model that has 4: choose from 0 to 3"):
        load_student(plan(Student(keep=(7,))))
    with pytest.raises(InputError, match="a student of 9 layers for a teacher of 4"):
        load_student(plan(Student(layers=9)))
    of_ranker = DistillRecipe(Student(layers=2), ranker=ranker(made))
    word = load_student(of_ranker).tensors["embeddings.word"]
    assert np.array_equal(word, load_checkpoint(made / "mono").tensors["embeddings.word"])


# -- the losses


IDS = [[2, 30, 3, 50, 3], [2, 31, 3, 51, 60, 3]]
SEGMENTS = [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]
BATCH = RankingBatch(
    Inputs(np.concatenate(IDS), np.concatenate(SEGMENTS), np.array([0, 5, 11])),
    np.array([0, 2]),
    np.array([1.0, 0.0], np.float32),
    np.array([99.0, 99.0], np.float32),  # of a run, which a teacher that reads along replaces
    np.ones(1, np.float32),
)


def test_a_teachers_scores_are_the_losses_and_its_terms_are_added(made: Path) -> None:
    student, teacher = (Pointwise.of(load_checkpoint(made / name)) for name in ("lm", "mono"))
    inputs = padded(BATCH.inputs)
    with torch.no_grad():
        own, theirs = (each.encoder.padded(*inputs)[:, 0] for each in (student, teacher))
    squares = (own - theirs).square()
    entropies = -torch.stack([torch.sigmoid(own[0]).log(), torch.sigmoid(-own[1]).log()])
    expected = (0.25 * entropies + 0.75 * squares).mean().item()
    loss = Loss("logit_mse_ce", alpha=0.25)
    outside = Taught(student, teacher, loss).eval()
    assert outside(BATCH).item() == pytest.approx(expected, rel=1e-5)
    assert {name.split(".")[0] for name, _ in outside.named_parameters()} == {"network"}
    distiller = Distiller(student.encoder, teacher.encoder, weights=Weights(2.0, 0.5, 0.0, prediction=0.0))
    terms = distiller.loss(*inputs)
    assert set(terms) == {"embedding", "hidden"}
    inside = TaughtInside(distiller, loss).eval()
    expected += 2.0 * terms["embedding"].item() + 0.5 * terms["hidden"].item()
    assert inside(BATCH).item() == pytest.approx(expected, rel=1e-5)


# -- the phases


def test_a_language_models_student_learns_and_is_no_ranker(made: Path, tmp_path: Path) -> None:
    plan = lm(made, optimiser=Optimiser(learning_rate=3e-3, steps=40, dropout=0.0))
    recipe = DistillRecipe(Student(random=Random(layers=2, hidden=8)), plan)  # of another width: projected
    after = distilled(recipe, tmp_path)
    found = [loss for _, loss in losses(tmp_path)]
    assert np.mean(found[-4:]) < 0.9 * np.mean(found[:4])
    before = load_student(recipe)
    assert not np.array_equal(after[WORD], before.tensors["embeddings.word"])
    assert SCORE not in after, "a head that was drawn and not trained"
    with pytest.raises(InputError, match=r"no classification head .*choose a model trained to rank"):
        Mono(str(tmp_path / "last")).rank("sieve", ["a sieve"])
    of_ranker = DistillRecipe(Student(start=str(made / "mono"), layers=2), plan)
    head = load_student(of_ranker).tensors["head.output.weight"]
    assert np.array_equal(distilled(of_ranker, tmp_path / "of-ranker")[SCORE], head), "which was trained"


@pytest.mark.parametrize("terms", [None, Terms(), Terms(0.0, 1.0, 0.0, layers=(1, 4))])
def test_a_rankers_student_learns_to_score_as_it_does(
    terms: Terms | None, made: Path, tmp_path: Path
) -> None:
    plan = ranker(made, terms=terms, optimiser=Optimiser(learning_rate=3e-3, steps=60, dropout=0.0))
    distilled(DistillRecipe(Student(layers=2), ranker=plan), tmp_path)
    found = [loss for _, loss in losses(tmp_path)]
    assert np.mean(found[-4:]) < 0.7 * np.mean(found[:4])


@pytest.mark.parametrize("loss", [Loss("kl", labels=0.1), Loss("margin_mse"), Loss("pointwise", alpha=0.5)])
def test_any_loss_may_have_a_teacher(loss: Loss, made: Path, tmp_path: Path) -> None:
    plan = ranker(made, loss=loss, terms=None, optimiser=Optimiser(steps=2))
    distilled(DistillRecipe(Student(layers=1), ranker=plan), tmp_path)
    assert all(np.isfinite(loss) for _, loss in losses(tmp_path))


def test_queries_without_judgments_are_learned_from_a_teacher_alone(made: Path, tmp_path: Path) -> None:
    """Their candidates are a run's, whose scores are not used."""
    data = Data(queries=files(made)["queries"], corpus=files(made)["corpus"], teacher=files(made)["run"])
    plan = ranker(made, data=(data,), loss=Loss("kl"), terms=None, optimiser=Optimiser(steps=2))
    distilled(DistillRecipe(Student(layers=1), ranker=plan), tmp_path)
    with pytest.raises(InputError, match=r"learns from labels, and .* has no qrels"):
        changed(plan, loss=Loss("logit_mse_ce", alpha=0.5))


def test_from_labels_it_is_trained_as_by_train(made: Path, tmp_path: Path) -> None:
    plan = ranker(made, teacher=None, terms=None, loss=Loss("softmax"))
    watch = Watching()
    distilled(DistillRecipe(Student(layers=2), lm(made), plan), tmp_path, watch=watch)
    assert watch.begun == [
        "Reading the data",
        "Reading the corpus",
        "Distilling the language model, 6",
        "Training the student, 6",
    ]
    start = tmp_path / "lm" / "last"
    recipe = Recipe(
        Model(str(start)), plan.data, plan.optimiser, plan.run, plan.examples, plan.loss, plan.limits
    )
    train(recipe, open_examples(recipe, Tokenizer(start)), tmp_path / "by-train", device="cpu")
    assert same(weights(tmp_path / "last"), weights(tmp_path / "by-train" / "last"))


def test_the_best_weights_by_a_dev_run_are_kept(made: Path, tmp_path: Path) -> None:
    dev = Dev(**files(made), depth=8, every=10)
    plan = ranker(
        made, dev=dev, loss=Loss("logit_mse_ce", alpha=0.9), optimiser=Optimiser(learning_rate=3e-3, steps=30)
    )
    result = distill(DistillRecipe(Student(layers=2), ranker=plan), tmp_path, device="cpu")
    measured = {line["step"]: line["dev"] for line in read_log(tmp_path) if "dev" in line}
    assert list(measured) == [0, 10, 20, 30]
    assert result.model == tmp_path / "best" and result.best == max(measured.values())


def test_a_duo_teaches_a_duo(made: Path, tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    duo = tiny_checkpoint(tmp_path / "duo", layers=2, hidden=16, heads=2, positions=48, segments=3)
    plan = ranker(made, teacher=str(duo), examples=Examples("duo"), optimiser=Optimiser(steps=2))
    distilled(DistillRecipe(Student(layers=1), ranker=plan), tmp_path / "out")
    assert load_checkpoint(tmp_path / "out" / "last").config.segments == 3
    mono = changed(plan, teacher=str(made / "mono"))
    with pytest.raises(InputError, match="inputs of 3 segments for a teacher of 2"):
        distilled(DistillRecipe(Student(start=str(duo), layers=1), ranker=mono), tmp_path / "no")


# -- the same again, and going on


def test_the_same_seed_gives_the_same_weights(made: Path, tmp_path: Path) -> None:
    plan = changed(both(made), student=Student(random=Random(layers=2, hidden=8)))
    torch.manual_seed(1)
    one = distilled(plan, tmp_path / "one")
    torch.manual_seed(2)  # what else draws random numbers has nothing to do with it
    assert same(one, distilled(plan, tmp_path / "again"))


@pytest.mark.parametrize(
    ("phase", "step"),
    [("Distilling the language model", s) for s in (2, 4, 6)]
    + [("Training the student", s) for s in (2, 4, 6)],
)
def test_after_a_kill_it_goes_on_where_it_was(phase: str, step: int, made: Path, tmp_path: Path) -> None:
    plan, killed = both(made), tmp_path / "killed"
    whole = distilled(plan, tmp_path / "whole")
    with pytest.raises(Killed):
        distill(plan, killed, device="cpu", watch=Watching(phase, step))
    if (killed / STATE).exists() or (killed / "lm" / STATE).exists():
        with pytest.raises(InputError, match="contains a training run: add --resume"):
            distill(plan, killed, device="cpu")
    watch = Watching()
    assert same(whole, distilled(plan, killed, resume=True, watch=watch))
    over = phase == "Training the student" and step > 2
    assert ("Reading the corpus" in watch.begun) == (not over)  # not for a phase that is known to be over
    for folder in ("", "lm"):
        assert losses(killed / folder) == losses(tmp_path / "whole" / folder)


def test_a_state_goes_with_both_phases(made: Path, tmp_path: Path) -> None:
    plan = both(made)
    distilled(plan, tmp_path)
    assert plan.lm and plan.ranker
    for other in (
        changed(plan, lm=changed(plan.lm, length=20)),
        changed(plan, student=Student(keep=(0, 1))),
        changed(plan, ranker=changed(plan.ranker, terms=Terms(hidden=2.0))),
    ):
        with pytest.raises(InputError, match="is of another recipe, other data or another start"):
            distilled(other, tmp_path, resume=True)


# -- what does not fit together


def test_a_teacher_with_another_vocabulary(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes((made / "mono" / name).read_bytes())
    raw = json.loads((made / "mono" / "tokenizer.json").read_text())
    raw["model"]["vocab"] = {f"{word}x" if n > 99 else word: n for word, n in raw["model"]["vocab"].items()}
    (other / "tokenizer.json").write_text(json.dumps(raw))
    said = r"has another vocabulary than the student .*: start from a model with the teacher's, or learn from"
    for plan in (
        DistillRecipe(Student(start=str(made / "lm")), ranker=ranker(made, teacher=str(other))),
        DistillRecipe(Student(start=str(made / "mono")), lm(made, teacher=str(other))),
    ):
        with pytest.raises(InputError, match=said):
            distilled(plan, tmp_path / "out")


def test_a_teacher_of_rankings_has_a_head(made: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (bare / name).write_bytes((made / "mono" / name).read_bytes())
    kept = {name: values for name, values in weights(made / "mono").items() if name != SCORE}
    write_tensors(bare / "model.safetensors", kept)
    with pytest.raises(InputError, match="head"):
        distilled(DistillRecipe(Student(layers=1), ranker=ranker(made, teacher=str(bare))), tmp_path / "out")


def test_a_teacher_scores_texts_by_themselves(made: Path, tmp_path: Path) -> None:
    """Other models have a head for single texts too, which they have not trained."""
    mono = load_checkpoint(made / "mono")
    save_checkpoint(Listwise(ListwiseSettings(n=3)).begin(mono), tmp_path / "lists")
    recipe = DistillRecipe(Student(layers=2), ranker=ranker(made, teacher=str(tmp_path / "lists")))
    with pytest.raises(InputError, match=r"a listwise model, .*: learn from a run of its scores"):
        distill(recipe, tmp_path / "out", device="cpu")
    save_checkpoint(Parade().begin(mono), tmp_path / "long")
    recipe = DistillRecipe(Student(layers=2), ranker=ranker(made, teacher=str(tmp_path / "long")))
    with pytest.raises(InputError, match=r"a parade-transformer model, .*: learn from a run of its scores"):
        distill(recipe, tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_layers_and_heads_that_do_not_fit(made: Path, tmp_path: Path) -> None:
    five = ranker(made, terms=Terms(layers=(1, 5)))
    with pytest.raises(InputError, match="2 layers cannot learn from layers 1, 5 of 4"):
        distilled(DistillRecipe(Student(layers=2), ranker=five), tmp_path / "out")
    heads = Student(random=Random(heads=4))
    with pytest.raises(InputError, match="4 heads cannot learn attention from 2"):
        distilled(DistillRecipe(heads, ranker=ranker(made)), tmp_path / "out")


def test_an_empty_corpus(made: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="0 documents of at least two words"):
        distilled(DistillRecipe(lm=lm(made, corpus=(str(tmp_path / "empty.jsonl"),))), tmp_path / "out")
