"""Pretraining by a recipe: what it says is what is done, twice alike, and a kill costs nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.errors import InputError  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.weights import stored_tensors  # noqa: E402
from tamis.train.pretrain import load_pretraining  # noqa: E402
from tamis.train.pretrain_recipe import Data, Model, Objective, PretrainRecipe, Random, read_pretrain_recipe  # noqa: E402
from tamis.train.pretrain_task import _task, pretrain  # noqa: E402
from tamis.train.recipe import Optimiser, Run  # noqa: E402
from tamis.train.state import STATE, read_log  # noqa: E402
from tamis.train.watch import Watch  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 8
HEADS = "cls.predictions.transform.dense.weight"
SCORE = "classifier.weight"
POOLER = "bert.pooler.dense.weight"
LEAST = '[model]\nstart = "m"\n[data]\ncorpus = ["c"]\n[optimiser]\nsteps = 9\n'


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    tiny_checkpoint(folder / "model", layers=2, hidden=16, heads=2, positions=32)
    words = ["sieve", "flour", "soup", "onion", "butter", "tamis", "horse", "steel", "cake", "day"]
    texts = [
        f"{words[n % 10]} {words[(3 * n) % 10]} and the {words[(n + 4) % 10]}. It is {words[n // 3]} of {n}."
        for n in range(24)
    ]
    lines = [json.dumps({"_id": str(n), "text": text}) + "\n" for n, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    return folder


def recipe(made: Path, *learn: str, **changes: Any) -> PretrainRecipe:
    least = PretrainRecipe(
        Model(str(made / "model")),
        Data((str(made / "corpus.jsonl"),)),
        Optimiser(learning_rate=3e-3, steps=STEPS),
        Objective(learn or ("mlm", "nsp"), length=24),  # type: ignore[arg-type]
        Run(batch=4, checkpoint_every=3, log_every=2),
    )
    return changed(least, **changes)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: stored.read() for name, stored in stored_tensors(folder / "model.safetensors").items()}


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def pretrained(plan: PretrainRecipe, out: Path, **options: Any) -> dict[str, np.ndarray]:
    return weights(pretrain(plan, out, device="cpu", **options).model)


class Killed(BaseException):
    pass


class Killing(Watch):
    """Stops a job at a line of the log."""

    def __init__(self, step: int) -> None:
        self.step = step

    def training(
        self, what: str, steps: int, measure: str = ""
    ) -> AbstractContextManager[Callable[[Mapping[str, Any]], object]]:
        def tell(line: Mapping[str, Any]) -> None:
            if line["step"] >= self.step:
                raise Killed

        return nullcontext(tell)


def losses(out: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in read_log(out)]


# -- the recipe


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_pretrain_recipe(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "\n" not in said
    return said.removeprefix(f"{path}: ")


def test_the_papers_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "tcp"\n[data]\ncorpus = ["c"]')
    tcp = read_pretrain_recipe(path)
    plan = tcp.optimiser
    assert (plan.steps, plan.learning_rate, tcp.run.batch, tcp.objective.length) == (100_000, 5e-5, 128, 512)
    assert tcp.objective.learn == ("mlm", "nsp") and tcp.about
    path.write_text('base = "rop"\n[data]\ncorpus = ["c"]\n[optimiser]\nsteps = 20_000')
    rop = read_pretrain_recipe(path)
    assert rop.objective.learn == ("rop", "mlm") and rop.objective.mean_size == 3.0
    assert rop.optimiser == changed(plan, steps=20_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[data]", "[data]\nqueries = 'q'"), "[data] has no field 'queries': the known one is corpus"),
        (("[data]", "[objective]\nlearn = []\n[data]"), "learn of [objective] is []: name mlm or rop"),
        (("[data]", "[objective]\nlearn = ['mln']\n[data]"), "it must be a list of one of mlm, nsp, rop"),
        (("[data]", "[objective]\nlearn = ['nsp']\n[data]"), "has nsp without mlm: add mlm"),
        (("[data]", "[objective]\nlength = 4\n[data]"), "it must be a whole number of at least 5"),
        (("[data]", "[model.random]\nwidth = 4\n[data]"), "[model.random] has no field 'width'"),
        (
            ("[data]", "[model.random]\nlayers = 0\n[data]"),
            "layers of [model.random] is 0: it must be a whole",
        ),
        (("steps = 9", "epochs = 9"), "[optimiser] has epochs, and a corpus is drawn from"),
        (('["c"]', "[]"), "corpus of [data] is []: name an index, or files"),
        (('corpus = ["c"]', ""), "[data] lacks corpus: give it a list of texts"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert change[0] in LEAST
    (tmp_path / "mine.toml").write_text(LEAST.replace(*change))
    assert said in refused(tmp_path / "mine.toml")


TABLES = {"model": Model, "model.random": Random, "data": Data, "objective": Objective}


@pytest.mark.parametrize(
    ("table", "field"),
    [(table, field) for table, kind in TABLES.items() for field in kind.model_fields if field != "random"],
)
def test_every_field_has_a_type_that_is_checked(table: str, field: str, tmp_path: Path) -> None:
    header = f"[{table}]"
    text = LEAST.replace(f"{field} = ", "# ") if table in ("model", "data") else LEAST + f"{header}\n"
    (tmp_path / "mine.toml").write_text(text.replace(header, f"{header}\n{field} = 2020-01-01"))
    assert refused(tmp_path / "mine.toml").startswith(f"{field} of [{table}] is datetime.date(2020, 1, 1): ")


def test_a_recipe_is_read_without_torch() -> None:
    names = "tamis.train.pretrain_recipe, tamis.train.distill_recipe"
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == 0


# -- what is learned


@pytest.mark.parametrize("learn", [("mlm", "nsp"), ("mlm",), ("rop",), ("rop", "mlm")])
def test_each_objective_trains_what_it_needs_and_no_more(
    learn: tuple[str, ...], made: Path, tmp_path: Path
) -> None:
    before = weights(made / "model")
    plan = recipe(made, *learn, optimiser=Optimiser(learning_rate=3e-3, steps=40, dropout=0.0))
    after = pretrained(plan, tmp_path)
    found = [loss for _, loss in losses(tmp_path)]
    assert np.mean(found[-4:]) < np.mean(found[:4])
    changed = {name for name in before.keys() & after.keys() if not np.array_equal(before[name], after[name])}
    assert "bert.embeddings.word_embeddings.weight" in changed
    assert (HEADS in after) == ("mlm" in learn)
    assert (POOLER in changed) == ("nsp" in learn or "rop" in learn)
    assert (SCORE in after) == (SCORE in changed) == ("rop" in learn)  # a head that ranks is kept, else not
    start = load_checkpoint(tmp_path / "last", require_head=False)
    assert start.config == load_checkpoint(made / "model").config


def test_going_on_from_what_was_pretrained_keeps_its_heads(made: Path, tmp_path: Path) -> None:
    first = pretrained(recipe(made), tmp_path / "first")
    again = recipe(made, model=Model(str(tmp_path / "first" / "last")), optimiser=Optimiser(steps=1))
    _, model = load_pretraining(tmp_path / "first" / "last")
    task = _task(again, "cpu", Watch())
    assert torch.equal(task.module.model.heads.dense.weight, model.heads.dense.weight)
    assert np.array_equal(first[HEADS], model.heads.dense.weight.detach().numpy())


def test_from_scratch_in_another_shape(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, model=Model(str(made / "model"), random=Random(layers=1, hidden=8, feed_forward=12)))
    after = pretrained(plan, tmp_path)
    assert after["bert.encoder.layer.0.intermediate.dense.weight"].shape == (12, 8)
    assert "bert.encoder.layer.1.output.dense.weight" not in after
    assert load_checkpoint(tmp_path / "last", require_head=False).config.layers == 1
    other = pretrained(changed(plan, run=changed(plan.run, seed=1)), tmp_path / "other")
    assert not np.array_equal(after[HEADS], other[HEADS])


def test_other_families_learn_by_rop(
    made: Path, tmp_path: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    model = tiny_checkpoint(tmp_path / "model", "distilbert", hidden=16, heads=2, positions=32)
    plan = recipe(made, "rop", model=Model(str(model)), optimiser=Optimiser(steps=2))
    pretrained(plan, tmp_path / "out")
    assert load_checkpoint(tmp_path / "out" / "last").config.family == "distilbert"
    with pytest.raises(InputError, match="pretraining is for BERT models"):
        pretrain(recipe(made, model=Model(str(model))), tmp_path / "no", device="cpu")


# -- shares of a batch


def gradient(plan: PretrainRecipe, world: int = 1) -> tuple[int, torch.Tensor]:
    task = _task(plan, "cpu", Watch())
    parts = [part for rank in range(world) for part in task.parts(0, rank, world)]
    assert sum(part.share for part in parts) == pytest.approx(world)
    for part in parts:
        (task.module(part.batch) * part.share / world).backward()
    return len(parts), torch.cat([p.grad.flatten() for p in task.module.parameters() if p.requires_grad])


@pytest.mark.parametrize("learn", [("rop",), ("rop", "mlm")])
def test_a_batch_that_is_split_has_the_gradient_of_the_whole(learn: tuple[str, ...], made: Path) -> None:
    """Of ROP exactly; of MLM nearly, for inputs count alike, and not their tokens."""
    plan = recipe(made, *learn, optimiser=Optimiser(steps=1, dropout=0.0))
    _, whole = gradient(plan)
    count, split = gradient(changed(plan, run=changed(plan.run, tokens=60)))
    _, shared = gradient(plan, world=2)
    assert count > 1
    for other in (split, shared):
        if learn == ("rop",):
            assert torch.allclose(whole, other, atol=1e-6)
        assert torch.nn.functional.cosine_similarity(whole, other, dim=0) > 0.95


def test_a_step_of_several_batches(made: Path) -> None:
    plan = recipe(made, optimiser=Optimiser(steps=4, accumulate=3))
    parts = _task(plan, "cpu", Watch()).parts(1, 0, 1)
    fourth = _task(recipe(made), "cpu", Watch()).parts(3, 0, 1)[0]
    assert [part.share for part in parts] == pytest.approx([1 / 3] * 3)
    assert np.array_equal(parts[0].batch.inputs.ids, fourth.batch.inputs.ids)
    assert parts[2].names() == "batch 5 of the corpus"
    with pytest.raises(InputError, match="4 inputs for 5 processes: use a larger batch"):
        _task(recipe(made), "cpu", Watch()).parts(0, 4, 5)


# -- the same again, and going on


def test_the_same_seed_gives_the_same_weights(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, "rop", "mlm")
    one, again = pretrained(plan, tmp_path / "one"), pretrained(plan, tmp_path / "again")
    assert same(one, again)
    assert not same(one, pretrained(changed(plan, run=changed(plan.run, seed=1)), tmp_path / "other"))


@pytest.mark.parametrize("killed", [2, 6, 8])
def test_after_a_kill_it_goes_on_as_if_nothing_had_happened(killed: int, made: Path, tmp_path: Path) -> None:
    """Checkpoints are at 3, 6 and 8."""
    plan = recipe(made)
    whole = pretrained(plan, tmp_path / "whole")
    with pytest.raises(Killed):
        pretrain(plan, tmp_path / "killed", device="cpu", watch=Killing(killed))
    assert (tmp_path / "killed" / STATE).exists() == (killed > 2)
    assert same(whole, pretrained(plan, tmp_path / "killed", resume=True))
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


def test_a_state_goes_with_its_recipe_and_its_corpus(made: Path, tmp_path: Path) -> None:
    plan = recipe(made, data=Data((str(tmp_path / "corpus.jsonl"),)))
    text = (made / "corpus.jsonl").read_text()
    (tmp_path / "corpus.jsonl").write_text(text)
    pretrained(plan, tmp_path / "out")
    with pytest.raises(InputError, match="contains a training run: add --resume"):
        pretrained(plan, tmp_path / "out")
    for other in (changed(plan, objective=Objective(("mlm",), length=24)), plan):
        if other is plan:
            (tmp_path / "corpus.jsonl").write_text(text.replace("soup", "cake"))
        with pytest.raises(InputError, match="is of another recipe, other data or another start"):
            pretrained(other, tmp_path / "out", resume=True)


@pytest.mark.parametrize("learn", ["mlm", "rop"])
def test_an_empty_corpus(learn: str, made: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    plan = recipe(made, learn, data=Data((str(tmp_path / "empty.jsonl"),)))
    with pytest.raises(InputError, match=r"0 documents of at least two|no document has two different words"):
        pretrained(plan, tmp_path / "out")
