"""The training loop: its schedule, its steps, what it leaves on disk, and how it goes on."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tamis.base.errors import CorruptError, InputError, StorageError, TamisError  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.encoder import Encoder  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import Tokenised  # noqa: E402
from tamis.train.loop import Part, fit, learning_rate, parameter_groups  # noqa: E402
from tamis.train.ranking import RankingTask, train  # noqa: E402
from tamis.train.recipe import Data, Limits, Loss, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples  # noqa: E402
from tamis.train.state import LOG, STATE, read_log  # noqa: E402
from tests.unit.train import builders  # noqa: E402
from tests.unit.train.builders import UNUSED, Killed, curve, dev_run, killed_at, same, weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES, DOCUMENTS, STEPS = 6, 30, 12


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "model", layers=2, hidden=16, heads=2, positions=64
    )


def data(taught: bool = False, spoiled: float | None = None) -> TrainingSet:
    """A query's relevant document is one that begins with its token; others are candidates too."""
    rng = np.random.default_rng(5)
    documents = [[10 + n % QUERIES, *rng.integers(20, 90, 6).tolist()] for n in range(DOCUMENTS)]
    per_query = DOCUMENTS // 2
    listed = np.concatenate([np.arange(per_query) + q for q in range(QUERIES)])
    scores = (listed % QUERIES == np.repeat(np.arange(QUERIES), per_query)).astype(np.float32)
    if spoiled is not None:
        scores[:] = spoiled
    return TrainingSet(
        Tokenised.of([[10 + q, 5] for q in range(QUERIES)]),
        Tokenised.of(documents),
        [f"q{q}" for q in range(QUERIES)],
        [f"d{n}" for n in range(DOCUMENTS)],
        Judged(
            np.arange(QUERIES + 1), np.arange(QUERIES, dtype=np.int32) + QUERIES, np.ones(QUERIES, np.int32)
        ),
        Candidates(
            np.arange(QUERIES + 1) * per_query,
            listed.astype(np.int32),
            -np.arange(len(listed), dtype=np.float32),
        ),
        scores if taught else None,
    )


def recipe(folder: Path, **changes: Any) -> Recipe:
    least = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(learning_rate=3e-3, steps=STEPS),
        Run(batch=4, checkpoint_every=5, log_every=3),
        Drawn(group=4),
        limits=Limits(8, 32),
    )
    return changed(least, **changes)


def trained(
    plan: Recipe, out: Path, data_: TrainingSet | None = None, **options: Any
) -> dict[str, np.ndarray]:
    return builders.trained(plan, data_ or data(), out, **options)


def task_of(plan: Recipe) -> RankingTask:
    return builders.task_of(plan, data())


# -- the schedule and the groups of parameters


def test_the_papers_schedule_by_hand() -> None:
    plan = Optimiser(learning_rate=3e-6, warm_up=10_000, steps=100_000)
    for step, rate in (
        (0, 3e-10),
        (4_999, 1.5e-6),
        (9_999, 3e-6),
        (10_000, 3e-6),
        (55_000, 1.5e-6),
        (99_999, 3e-6 / 90_000),
    ):
        assert learning_rate(step, plan) == pytest.approx(rate, rel=1e-12)


def test_other_schedules() -> None:
    flat = Optimiser(learning_rate=1.0, warm_up=0.5, schedule="constant", steps=4)
    assert [learning_rate(step, flat) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]
    bare = Optimiser(learning_rate=1.0, warm_up=0, steps=4)
    assert [learning_rate(step, bare) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    all_of_it = Optimiser(learning_rate=1.0, warm_up=4, steps=4)
    assert [learning_rate(step, all_of_it) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


def test_only_matrices_decay_and_what_is_new_in_the_head_has_its_own_rate(folder: Path) -> None:
    network = task_of(recipe(folder)).module.network
    plan = Optimiser(learning_rate=1e-5, head_learning_rate=1e-4, weight_decay=0.05, steps=1)
    names = {id(parameter): name for name, parameter in network.encoder.named_parameters()}
    groups = parameter_groups(network, plan)
    found = {names[id(p)]: (g["weight_decay"], round(g["scale"], 6)) for g in groups for p in g["params"]}
    assert found.keys() == set(names.values())
    for name, (decay, scale) in found.items():
        assert decay == (0.0 if name.endswith(".bias") or ".norm." in name else 0.05), name
        assert scale == (10.0 if name.startswith("head.output.") else 1.0), name


class _Line:
    """The least task: one number, whose loss is three times it."""

    device, autocast = torch.device("cpu"), None

    def __init__(self, start: float, shares: Sequence[float] = (1.0,)) -> None:
        self.module = torch.nn.Module()
        self.module.weight = torch.nn.Parameter(torch.full((1, 1), start))
        self.module.forward = lambda batch: 3 * self.module.weight.sum()
        self.shares = shares

    identity = "line"

    def parts(self, step: int, rank: int, world: int) -> list[Part]:
        return [Part(None, 1, share) for share in self.shares]

    def save(self, folder: Path) -> None:
        pass

    def evaluate(self) -> float:
        raise AssertionError


def test_a_step_of_adamw_by_hand(tmp_path: Path) -> None:
    """At the first step the moments' ratio is the gradient's sign, so that the weight goes down by the rate,
    and by the rate times the decay times itself; the decay is not part of the gradient."""
    task = _Line(2.0)
    result = fit(task, Optimiser(learning_rate=0.1, weight_decay=0.5, warm_up=0, steps=1), Run(), tmp_path)
    assert task.module.weight.item() == pytest.approx(2.0 - 0.1 * 0.5 * 2.0 - 0.1, rel=1e-6)
    assert result.loss == pytest.approx(6.0)
    assert read_log(tmp_path)[0]["learning_rate"] == 0.1


def test_the_parts_of_a_step_are_one_step(tmp_path: Path) -> None:
    one, two = _Line(2.0), _Line(2.0, shares=(0.25, 0.75))
    losses = [
        fit(each, Optimiser(steps=3), Run(), tmp_path / str(n)).loss for n, each in enumerate((one, two))
    ]
    assert losses[0] == pytest.approx(losses[1])
    assert one.module.weight.item() == pytest.approx(two.module.weight.item(), rel=1e-6)


@pytest.mark.parametrize("kind", ["grouped", "duo_lists"])
def test_split_batches_have_the_gradient_of_whole_ones(kind: Any, folder: Path) -> None:
    drawn, optimiser = Drawn(kind, group=3), Optimiser(steps=1, dropout=0.0)

    def gradient(world: int = 1, **run: Any) -> tuple[int, torch.Tensor]:
        model = Model(str(folder), third_segment=kind == "duo_lists")
        plan = recipe(folder, model=model, examples=drawn, run=Run(batch=4, **run), optimiser=optimiser)
        task = task_of(plan)
        parts = [part for rank in range(world) for part in task.parts(0, rank, world)]
        for part in parts:
            (task.module(part.batch) * part.share / world).backward()
        return len(parts), torch.cat([p.grad.flatten() for p in task.module.parameters()])

    (_, whole), (parts, split), (_, shared) = gradient(), gradient(tokens=60), gradient(world=2)
    assert parts > 1
    assert torch.allclose(whole, split, atol=1e-6) and torch.allclose(whole, shared, atol=1e-6)
    accumulated = recipe(folder, optimiser=Optimiser(accumulate=3, steps=1))
    parts_of_a_step = task_of(accumulated).parts(1, 0, 1)
    assert [part.share for part in parts_of_a_step] == pytest.approx([1 / 3] * 3)
    fourth = task_of(recipe(folder)).parts(3, 0, 1)[0]  # a step of three batches, 3, 4 and 5
    assert np.array_equal(parts_of_a_step[0].batch.inputs.ids, fourth.batch.inputs.ids)


# -- learning


def test_it_learns_and_the_log_says_so(folder: Path, tmp_path: Path) -> None:
    told: list[Mapping[str, Any]] = []
    plan = recipe(folder, optimiser=Optimiser(learning_rate=3e-3, dropout=0.0, steps=60))
    trained(plan, tmp_path, progress=told.append)
    lines = read_log(tmp_path)
    assert lines == told
    assert [line["step"] for line in lines] == list(range(3, 61, 3))
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]
    assert lines[0]["learning_rate"] == pytest.approx(learning_rate(2, plan.optimiser))
    assert all(line["pairs_per_second"] > 0 for line in lines)


@pytest.mark.parametrize("loss", ["pointwise", "hinge", "softmax", "margin_mse", "logit_mse_ce", "kl"])
def test_every_loss_of_lists_trains(loss: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(
        folder, loss=Loss(loss, alpha=0.5, labels=0.1), optimiser=Optimiser(learning_rate=3e-3, steps=40)
    )
    trained(plan, tmp_path, data(taught=True))
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


@pytest.mark.parametrize("kind", ["duo", "teacher_pairs"])
def test_duo_trains_from_a_mono(kind: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(
        folder,
        model=Model(str(folder), third_segment=True),
        examples=Drawn(kind),
        loss=Loss("duo"),
        optimiser=Optimiser(learning_rate=3e-3, steps=40, dropout=0.0),
        run=Run(batch=8),
    )
    after = trained(plan, tmp_path, data(taught=kind == "teacher_pairs"))
    assert after["bert.embeddings.token_type_embeddings.weight"].shape == (3, 16)
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("loss", ["softmax", "margin_mse", "kl"])
def test_duo_learns_from_all_pairs_of_a_list(loss: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(
        folder,
        model=Model(str(folder), third_segment=True),
        examples=Drawn("duo_lists", group=3),
        loss=Loss(loss, labels=0.1),
        optimiser=Optimiser(learning_rate=3e-3, steps=40, dropout=0.0),
        run=Run(batch=8),
    )
    trained(plan, tmp_path, data(taught=True))
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert losses[-1] < losses[0]


def test_dropout_falls_on_packed_inputs_too_and_not_on_their_attention(folder: Path) -> None:
    encoder = Encoder.from_checkpoint(load_checkpoint(folder)).train()
    inputs = torch.tensor([2, 11, 3, 30, 31, 3]), torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 6]).int()
    assert not torch.equal(encoder.packed(*inputs, 6), encoder.packed(*inputs, 6))
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()  # what is left is what attention itself would drop
    assert torch.equal(encoder.packed(*inputs, 6), encoder.packed(*inputs, 6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_on_a_card_packed_inputs_in_bf16_learn_as_padded_ones(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, optimiser=Optimiser(learning_rate=1e-3, dropout=0.0, steps=40))
    examples = Examples.of(data(), plan)
    for device, name in (("cuda", "card"), ("cpu", "processor")):
        train(plan, examples, tmp_path / name, device=device)
    card, processor = ([line["loss"] for line in read_log(tmp_path / n)] for n in ("card", "processor"))
    assert card == pytest.approx(processor, rel=0.1, abs=0.02)
    dropped = recipe(folder, optimiser=Optimiser(learning_rate=1e-3, dropout=0.1, steps=5))
    trained_ = train(dropped, examples, tmp_path / "dropped", device="cuda")
    assert trained_.loss is not None and math.isfinite(trained_.loss)


# -- the same again, and going on


def test_the_same_seed_gives_the_same_weights(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder)
    one, again = trained(plan, tmp_path / "one"), trained(plan, tmp_path / "again")
    other = trained(changed(plan, run=changed(plan.run, seed=1)), tmp_path / "other")
    assert same(one, again)
    assert not same(one, other)


@pytest.mark.parametrize("killed", [3, 6, 12])
def test_after_a_kill_it_goes_on_as_if_nothing_had_happened(
    killed: int, folder: Path, tmp_path: Path
) -> None:
    """Checkpoints are at 5, 10 and 12: before the first, between two, at the end."""
    plan = recipe(folder, dev=changed(UNUSED, every=4))
    dev = dev_run(data(), folder)
    whole = trained(plan, tmp_path / "whole", dev=dev)
    with pytest.raises(Killed):
        trained(plan, tmp_path / "killed", dev=dev, progress=killed_at(killed))
    assert (tmp_path / "killed" / STATE).exists() == (killed > 3)
    assert same(whole, trained(plan, tmp_path / "killed", dev=dev, resume=True))
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")
    assert same(weights(tmp_path / "whole" / "last"), weights(tmp_path / "killed" / "last"))


def test_a_run_that_has_ended_has_nothing_left_to_do(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder)
    once = trained(plan, tmp_path)
    log = (tmp_path / LOG).read_bytes()
    result = train(plan, Examples.of(data(), plan), tmp_path, device="cpu", resume=True)
    assert same(once, weights(result.model)) and result.steps == STEPS and result.loss is None
    assert (tmp_path / LOG).read_bytes() == log


def test_a_folder_with_a_run_in_it_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    trained(recipe(folder), tmp_path)
    with pytest.raises(InputError, match="contains a training run: add --resume"):
        trained(recipe(folder), tmp_path)


@pytest.mark.parametrize("what", ["recipe", "data", "start"])
def test_a_state_goes_with_its_recipe_its_data_and_its_start(
    what: str, folder: Path, tmp_path: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    plan = recipe(folder)
    trained(plan, tmp_path / "out")
    other = data()
    if what == "recipe":
        plan = changed(plan, optimiser=changed(plan.optimiser, learning_rate=1e-4))
    elif what == "data":
        other = data(taught=True)
    else:
        start = tiny_checkpoint(tmp_path / "model", layers=2, hidden=16, heads=2, positions=64, seed=9)
        plan = changed(plan, model=Model(str(folder)))
        with pytest.raises(InputError, match="another start"):
            trained(plan, tmp_path / "out", resume=True, start=load_checkpoint(start))
        return
    with pytest.raises(
        InputError, match="is of another recipe, other data or another start: resume with the"
    ):
        trained(plan, tmp_path / "out", other, resume=True)


def test_a_run_goes_on_with_smaller_parts_of_its_batches(folder: Path, tmp_path: Path) -> None:
    """As the error of a batch that does not fit says."""
    plan = recipe(folder, optimiser=Optimiser(learning_rate=1e-3, steps=STEPS, dropout=0.0))
    trained(plan, tmp_path / "whole")
    with pytest.raises(Killed):
        trained(plan, tmp_path / "out", progress=killed_at(6))
    trained(changed(plan, run=changed(plan.run, tokens=20)), tmp_path / "out", resume=True)
    whole, smaller = ([line["loss"] for line in curve(tmp_path / name)] for name in ("whole", "out"))
    assert smaller == pytest.approx(whole, rel=1e-4)


def test_a_damaged_state_is_an_error_not_a_start(folder: Path, tmp_path: Path) -> None:
    trained(recipe(folder), tmp_path)
    for content in (b"", b"nothing", (tmp_path / STATE).read_bytes()[:1000]):
        (tmp_path / STATE).write_bytes(content)
        with pytest.raises(CorruptError, match=r"state.pt is damaged"):
            trained(recipe(folder), tmp_path, resume=True)


def test_lines_after_the_state_and_half_lines_are_cut(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder)
    whole = tmp_path / "whole"
    trained(plan, whole)
    with pytest.raises(Killed):
        trained(plan, tmp_path / "killed", progress=killed_at(9))
    with (tmp_path / "killed" / LOG).open("a") as log:
        log.write(json.dumps({"step": 11, "loss": 9.0}) + '\n{"step": 12, "lo')
    trained(plan, tmp_path / "killed", resume=True)
    assert curve(tmp_path / "killed") == curve(whole)


# -- what goes wrong


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_with_the_step_and_the_ids(
    value: float, folder: Path, tmp_path: Path
) -> None:
    plan = recipe(folder, loss=Loss("margin_mse"))
    with pytest.raises(TamisError) as caught:
        trained(plan, tmp_path, data(taught=True, spoiled=value))
    said = str(caught.value)
    groups = Examples.of(data(taught=True, spoiled=value), plan).stream.batch(0).groups
    assert said.startswith("the loss of step 1 is nan" if math.isnan(value) else "the loss of step 1 is")
    assert f"queries {', '.join(f'q{group.query}' for group in groups)}; documents d" in said
    assert f"d{groups[0].documents[0]}" in said and "\n" not in said
    assert not (tmp_path / STATE).exists()


def test_a_gradient_that_is_not_finite_stops_too(tmp_path: Path) -> None:
    task = _Line(1.0)
    weight = task.module.weight
    task.module.forward = lambda batch: (weight - 1.0).abs().sqrt().sum()  # 0, with an infinite slope
    with pytest.raises(TamisError, match="the gradient of step 1 is not finite"):
        fit(task, Optimiser(steps=1), Run(), tmp_path)


@pytest.mark.parametrize("refused", ["fsync", "size"])
def test_a_full_disk_leaves_the_state_before_whole(
    refused: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = recipe(folder)
    whole = trained(plan, tmp_path / "whole")
    out = tmp_path / "out"
    with pytest.raises(Killed):
        trained(plan, out, progress=killed_at(6))
    before = (out / STATE).read_bytes()
    if refused == "fsync":

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(StorageError, match=r"No space left on device.*: free some space"):
                trained(plan, out, resume=True)
    else:
        resource = pytest.importorskip("resource")  # a limit on sizes is refused as a full disk is: by write
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
        try:
            with pytest.raises(StorageError, match=r"cannot write .*state.pt \(File too large\)"):
                trained(plan, out, resume=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (out / STATE).read_bytes() == before
    assert [path.name for path in (out / STATE).parent.iterdir()] == [STATE.name]
    assert same(whole, trained(plan, out, resume=True))


def test_a_batch_that_processes_cannot_share(folder: Path) -> None:
    task = task_of(recipe(folder, run=Run(batch=2)))
    with pytest.raises(InputError, match="2 groups for 4 processes: use a larger batch"):
        task.parts(0, 3, 4)


# -- the dev run


def test_the_best_weights_are_kept_and_score_what_the_log_says(folder: Path, tmp_path: Path) -> None:
    plan = recipe(
        folder,
        optimiser=Optimiser(learning_rate=1e-2, steps=60, dropout=0.0, schedule="constant"),
        dev=changed(UNUSED, every=10),
    )
    dev = dev_run(data(), folder)
    result = train(plan, Examples.of(data(), plan), tmp_path, dev=dev, device="cpu")
    measured = {line["step"]: line["dev"] for line in read_log(tmp_path) if "dev" in line}
    assert list(measured) == list(range(0, 61, 10))
    assert result.best == max(measured.values()) > measured[0]
    assert measured[result.best_step or 0] == result.best and result.model == tmp_path / "best"
    best = RankingTask(plan, load_checkpoint(result.model), Examples.of(data(), plan), dev, "cpu")
    assert best.evaluate() == result.best
