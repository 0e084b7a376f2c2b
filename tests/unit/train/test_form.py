"""Input forms: a model is trained in one, is measured in it, and is read in it afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Mono  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.infer.scorer import Scorer  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models import templates  # noqa: E402
from tamis.models.architecture import Reading  # noqa: E402
from tamis.models.architectures.mono import Mono as MonoModel  # noqa: E402
from tamis.models.architectures.mono import MonoSettings, form_of  # noqa: E402
from tamis.models.checkpoint import load_checkpoint, save_checkpoint  # noqa: E402
from tamis.models.config import RECORD  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import ABLATED, Form, Tokenised  # noqa: E402
from tamis.models.tokenizer import Tokenizer  # noqa: E402
from tamis.rank.passage import MaxP  # noqa: E402
from tamis.train.batch import ranking_batch  # noqa: E402
from tamis.train.dev import dev_stage, open_dev  # noqa: E402
from tamis.train.distill_recipe import DistillRecipe, Student  # noqa: E402
from tamis.train.distill_recipe import Ranker as Taught  # noqa: E402
from tamis.train.distillation import distill  # noqa: E402
from tamis.train.pretrain_recipe import Random  # noqa: E402
from tamis.train.ranking import RankingTask, train  # noqa: E402
from tamis.train.recipe import Data, Dev, Limits, Loss, Model, Narrow, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Group, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples  # noqa: E402
from tamis.train.start import load_start  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

FORMS: tuple[Form, ...] = get_args(Form)
TEXTS = ["an onion in butter", "soup of onion and butter", "a spoon of steel for the soup"]


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("form") / "model"
    return tiny_checkpoint(where, layers=1, hidden=16, heads=2, positions=64)


def data() -> TrainingSet:
    rng = np.random.default_rng(3)
    documents = [rng.integers(60, 300, 5 + n % 3).tolist() for n in range(12)]
    return TrainingSet(
        Tokenised.of([[50, 51], [52]]),
        Tokenised.of(documents),
        ["q1", "q2"],
        [f"d{n}" for n in range(12)],
        Judged(np.array([0, 1, 2]), np.array([0, 6], np.int32), np.ones(2, np.int32)),
        Candidates(np.array([0, 6, 12]), np.arange(12, dtype=np.int32), -np.arange(12, dtype=np.float32)),
    )


def recipe(folder: Path, form: Form | None, **changes: Any) -> Recipe:
    least = Recipe(
        Model(str(folder), form=form),
        (Data(set="unused"),),
        Optimiser(learning_rate=1e-2, steps=4, weight_decay=0.1),
        Run(batch=2),
        Drawn(group=3),
        limits=Limits(8, 32),
    )
    return changed(least, **changes)


def trained(plan: Recipe, out: Path) -> Path:
    return train(plan, Examples.of(data(), plan), out, device="cpu").model


def scores(stage: Mono) -> list[float]:
    ranked = stage.rank("onion soup", TEXTS)
    return [one.score for one in sorted(ranked, key=lambda one: one.position)]


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_made_in_the_form_and_the_model_is_read_in_it(
    form: Form, folder: Path, tmp_path: Path
) -> None:
    plan = recipe(folder, form)
    start = load_start(plan.model, 0, forms=True)
    special = Tokenizer(folder).special
    reading = Reading(special, start.config, 8, 32)
    group = Group(0, np.array([0, 3]), np.array([1.0, 0.0], np.float32))
    made = ranking_batch([group], data(), start.architecture, reading).inputs
    wanted, _ = templates.mono(
        [50, 51], data().documents.take([0, 3]), special, query_limit=8, total_limit=32, form=form
    )
    assert made.ids.tolist() == wanted.ids.tolist() and made.segments.tolist() == wanted.segments.tolist()

    model = trained(plan, tmp_path / "out")
    assert form_of(load_checkpoint(model)) == form
    own = scores(Mono(str(model), precision="fp32", device="cpu"))
    told = scores(Mono(str(model), form=form, precision="fp32", device="cpu"))
    assert own == told
    other: Form = "markers" if form in ("default", "swapped") else "swapped"
    assert own != scores(Mono(str(model), form=other, precision="fp32", device="cpu"))
    passages = MaxP(Mono(str(model), precision="fp32", device="cpu"))
    assert [one.score for one in sorted(passages.rank("onion soup", TEXTS), key=lambda x: x.position)] == own


@pytest.mark.parametrize("form", list(ABLATED))
def test_the_table_that_a_form_does_without_stays_zero(form: Form, folder: Path, tmp_path: Path) -> None:
    tensors = load_checkpoint(trained(recipe(folder, form), tmp_path / "out")).tensors
    assert not tensors[ABLATED[form]].any()
    before = load_checkpoint(folder).tensors
    for name in ("embeddings.word", *(set(ABLATED.values()) - {ABLATED[form]})):
        assert tensors[name].any() and not np.array_equal(tensors[name], before[name])


def test_the_dev_run_is_in_the_form_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("q1\tonion soup\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d2 1\n")
    (tmp_path / "c.tsv").write_text("".join(f"d{n}\t{text}\n" for n, text in enumerate(TEXTS)))
    (tmp_path / "run.txt").write_text("".join(f"q1 Q0 d{n} {n + 1} {9 - n} x\n" for n in range(3)))
    dev = Dev(
        *(str(tmp_path / name) for name in ("q.tsv", "qrels.txt")),
        (str(tmp_path / "c.tsv"),),
        str(tmp_path / "run.txt"),
    )
    start = load_start(Model(str(folder), form="swapped"), 0, forms=True)
    live = dev_stage(Scorer.over(start, TorchBackend(start, "cpu")), Limits())
    (ranked,) = live.apply(open_dev(dev).rankings)
    mono = Mono(str(folder), form="swapped", precision="fp32", device="cpu")
    assert ranked.scores[list(ranked.ids).index("d0")] == pytest.approx(scores(mono)[0], abs=1e-4)


def test_the_next_training_goes_on_in_the_form_unless_told_otherwise(folder: Path, tmp_path: Path) -> None:
    first = trained(recipe(folder, "swapped"), tmp_path / "first")
    assert json.loads((first / "config.json").read_text())[RECORD]["settings"] == {"form": "swapped"}
    again = trained(recipe(first, None), tmp_path / "again")
    assert form_of(load_checkpoint(again)) == "swapped"
    back = trained(recipe(first, "default"), tmp_path / "back")
    assert form_of(load_checkpoint(back)) == "default"
    assert RECORD not in json.loads((back / "config.json").read_text())
    tabled = recipe(first, None, architecture=MonoModel(MonoSettings(form="markers")))
    assert form_of(load_checkpoint(trained(tabled, tmp_path / "tabled"))) == "markers"


def test_the_form_is_part_of_what_a_stage_and_a_training_are(folder: Path, tmp_path: Path) -> None:
    """An exported graph or a cached score of another form must not be taken for this one's."""
    assert repr(Mono(str(folder))) == f'mono(model="{folder}")'
    assert repr(Mono(str(folder), form="default")) == f'mono(model="{folder}", form=default)'
    swapped = load_start(Model(str(folder), form="swapped"), 0, forms=True)
    save_checkpoint(swapped, tmp_path / "swapped")
    prints = {
        Mono(str(model), form=form, precision="fp32", device="cpu").fingerprint
        for model, form in ((folder, "default"), (folder, "swapped"), (tmp_path / "swapped", None))
    }
    assert len(prints) == 3
    tasks = [
        RankingTask(plan, load_start(plan.model, 0, forms=True), Examples.of(data(), plan), device="cpu")
        for plan in (recipe(folder, None), recipe(folder, "swapped"))
    ]
    assert tasks[0].identity != tasks[1].identity


def test_a_model_of_other_sizes_reads_in_the_form_of_its_start(folder: Path, tmp_path: Path) -> None:
    first = trained(recipe(folder, "swapped"), tmp_path / "first")
    narrow = Model(str(first), narrow=Narrow(layers=1, hidden=8, heads=2, feed_forward=16))
    assert form_of(load_start(narrow, 0, forms=True)) == "swapped"
    shallow = Model(str(first), layers=(0,))
    assert form_of(load_start(shallow, 0, forms=True)) == "swapped"


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_graph_is_of_the_models_own_form(form: Form, folder: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = tmp_path / "model"
    save_checkpoint(load_start(Model(str(folder), form=form), 0, forms=True), model)
    before = Mono(str(model), device="cpu").rank("an onion", TEXTS)
    assert main(["export", str(model)]) == 0
    made = {each.key: each.value for each in onnx.load(model / "model.int8.onnx").metadata_props}
    mono = Mono(str(model), device="cpu")
    assert made["tamis.checkpoint"] == mono.scorer.checkpoint.fingerprint, "or it would never be used"
    assert mono.rank("an onion", TEXTS) == before


def test_no_form_is_none_of_them(folder: Path) -> None:
    with pytest.raises(InputError, match="no form '': use default, no-positions"):
        Mono(str(folder), form="")  # type: ignore[arg-type]


def test_a_student_reads_as_its_teacher_does(folder: Path, tmp_path: Path) -> None:
    data().save(tmp_path / "set")
    teacher = trained(recipe(folder, "swapped"), tmp_path / "teacher")
    phase = Taught(
        (Data(set=str(tmp_path / "set")),),
        Optimiser(steps=1),
        str(teacher),
        loss=Loss("logit_mse_ce", alpha=0.0),
        run=Run(batch=2),
        limits=Limits(8, 32),
    )
    result = distill(DistillRecipe(Student(), ranker=phase), tmp_path / "student", device="cpu")
    assert form_of(load_checkpoint(result.model)) == "swapped"
    bare = trained(recipe(folder, "no-segments"), tmp_path / "bare")
    drawn = Student(random=Random())
    result = distill(
        DistillRecipe(drawn, ranker=changed(phase, teacher=str(bare))), tmp_path / "drawn", device="cpu"
    )
    assert not load_checkpoint(result.model).tensors["embeddings.segment"].any()
    with pytest.raises(InputError, match="reads inputs of the form swapped, the student of the form default"):
        distill(DistillRecipe(Student(start=str(folder)), ranker=phase), tmp_path / "other", device="cpu")


# -- what is refused


def test_only_mono_has_forms(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"form of .model. is of inputs with one text, and duo examples have"
    ):
        recipe(folder, "swapped", examples=Drawn("duo"), loss=Loss("duo"))
    with pytest.raises(
        InputError, match=r"form of .model. is 'swapped', and only mono has inputs in that form"
    ):
        load_start(Model(str(folder), form="swapped"), 0)
    save_checkpoint(load_start(Model(str(folder), form="swapped"), 0, forms=True), tmp_path)
    with pytest.raises(InputError, match="is for inputs of the form swapped, and only mono has those"):
        load_start(Model(str(tmp_path)), 0)
    with pytest.raises(
        InputError, match=r"form of .model. is 'odd': it must be one of default, no-positions"
    ):
        Model("m", form="odd")  # type: ignore[arg-type]


def test_a_config_with_an_unknown_form_is_refused(folder: Path, tmp_path: Path) -> None:
    save_checkpoint(load_checkpoint(folder), tmp_path / "odd")
    path = tmp_path / "odd" / "config.json"
    record = {"format": 2, "architecture": "mono", "settings": {"form": "odd"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | {RECORD: record}))
    said = r"form of \[mono\] is 'odd': it must be one of default, no-positions"
    with pytest.raises(InputError, match=said):
        load_checkpoint(tmp_path / "odd")
