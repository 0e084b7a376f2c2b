"""Training listwise models: their batches, what learns, a kill, and recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis.base.documents import Document, Query  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.cli import main  # noqa: E402
from tamis.core.ranking import Ranking  # noqa: E402
from tamis.infer.listwise_backend import ListwiseBackend  # noqa: E402
from tamis.models import states  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.lists import load_lists  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import Inputs, Tokenised, listwise, text_spans  # noqa: E402
from tamis.models.tokenizer import open_tokenizer  # noqa: E402
from tamis.models.weights import stored_tensors  # noqa: E402
from tamis.rank.given_run import Documents, placed  # noqa: E402
from tamis.rank.groups import drawn_groups  # noqa: E402
from tamis.train import losses  # noqa: E402
from tamis.train.dev import DevRun  # noqa: E402
from tamis.train.listwise import ListBatch, ListDev, ListTask, in_groups, open_start, train_lists  # noqa: E402
from tamis.train.listwise_recipe import ListRecipe, Listwise  # noqa: E402
from tamis.train.loop import parameter_groups  # noqa: E402
from tamis.train.ranking import train  # noqa: E402
from tamis.train.recipe import Data, Dev, Limits, Loss, Model, Optimiser, Recipe, Run, bundled, read_recipe  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Group, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples  # noqa: E402
from tamis.train.state import STATE, read_log  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES, EACH, RELEVANT, STEPS, N = 6, 10, 7, 12, 4


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "model", layers=2, hidden=16, heads=2, positions=64
    )


def data(scores: bool = False) -> TrainingSet:
    """Ten candidates a query, of which the eighth is relevant and begins with a token that no other has."""
    rng = np.random.default_rng(5)
    documents = rng.integers(20, 90, (QUERIES * EACH, 7))
    documents[RELEVANT::EACH, 0] = 99
    offsets = np.arange(QUERIES + 1)
    numbers = np.arange(QUERIES * EACH, dtype=np.int32)
    return TrainingSet(
        Tokenised.of([[10 + q, 5] for q in range(QUERIES)]),
        Tokenised.of(documents.tolist()),
        [f"q{q}" for q in range(QUERIES)],
        [f"d{n}" for n in numbers],
        Judged(offsets, numbers[RELEVANT::EACH], np.ones(QUERIES, np.int32)),
        Candidates(offsets * EACH, numbers, -numbers.astype(np.float32)),
        rng.random(QUERIES * EACH).astype(np.float32) if scores else None,
    )


def recipe(folder: Path, **changes: Any) -> ListRecipe:
    least = ListRecipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(learning_rate=3e-3, steps=STEPS),
        Run(batch=4, checkpoint_every=5, log_every=3),
        Drawn(group=N),
        loss=Loss("listwise"),
        limits=Limits(8, 48),
        listwise=Listwise(n=N, k=10),
    )
    return changed(least, **changes)


def task_of(plan: ListRecipe, set_: TrainingSet | None = None) -> ListTask:
    return ListTask(plan, open_start(plan), Examples.of(set_ or data(), plan), device="cpu")


def trained(plan: ListRecipe, out: Path, **options: Any) -> dict[str, np.ndarray]:
    result = train_lists(plan, Examples.of(data(), plan), out, device="cpu", **options)
    return weights(result.model)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: stored.read() for name, stored in stored_tensors(folder / "model.safetensors").items()}


def same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def dev_run(folder: Path) -> ListDev:
    """The training queries themselves."""
    texts = Documents([Document(f"d{n}", "") for n in range(QUERIES * EACH)], only=[])
    set_, special = data(), open_tokenizer(load_checkpoint(folder)).special
    scores = -np.arange(EACH, dtype=np.float64)
    ids = [[f"d{n}" for n in set_.candidates_of(q)] for q in range(QUERIES)]
    rankings = [Ranking(Query(f"q{q}", ""), ids[q], scores, texts=texts) for q in range(QUERIES)]
    groups = drawn_groups(EACH, N, 2)
    inputs = [
        listwise(
            set_.queries.take([q]).ids,
            set_.documents.take(set_.candidates_of(q)),
            groups,
            special,
            query_limit=8,
            total_limit=48,
        )[0]
        for q in range(QUERIES)
    ]
    qrels = {f"q{q}": {f"d{EACH * q + RELEVANT}": 1} for q in range(QUERIES)}
    offsets = np.arange(QUERIES + 1) * len(groups)
    joined = Inputs.join(inputs)
    return ListDev(rankings, joined, offsets, None, qrels, "nDCG@10", groups=[groups] * QUERIES)


# -- batches


def test_a_group_is_one_input_with_its_texts_in_any_order(folder: Path) -> None:
    """Which text is relevant must not be told by its place."""
    task, set_ = task_of(recipe(folder)), data()
    places = []
    for step in range(40):
        (part,) = task.parts(step, 0, 1)
        batch = part.batch
        assert isinstance(batch, ListBatch) and len(batch.inputs) == 4
        assert batch.offsets.tolist() == [0, 4, 8, 12, 16] and batch.labels.tolist().count(1) == 4
        firsts = batch.inputs.ids[text_spans(batch.inputs, task.special).starts]
        assert np.array_equal(firsts == 99, batch.labels == 1), "the label goes with its text"
        places += np.flatnonzero(batch.labels.reshape(4, 4))[:4].tolist()
        again = task.parts(step, 0, 1)[0].batch
        assert np.array_equal(again.inputs.ids, batch.inputs.ids)
    counts = np.bincount(np.array(places) % N, minlength=N)
    assert counts.min() > 20, "of 160, 40 at each place"
    assert set_.documents.ids[RELEVANT * 7] == 99


def test_a_teachers_scores_go_with_their_texts(folder: Path) -> None:
    set_ = data(scores=True)
    task = task_of(recipe(folder, loss=Loss("kl")), set_)
    (part,) = task.parts(0, 0, 1)
    _, groups = task.examples.stream.batch(0)
    assert set_.scores is not None
    for group in groups:  # a query's candidates have its numbers, so that a document is a place in the scores
        assert np.array_equal(group.teacher, set_.scores[group.documents])
    assert np.array_equal(part.batch.teacher, np.concatenate([group.teacher for group in groups]))


def test_groups_that_are_not_full(folder: Path) -> None:
    task, set_ = task_of(recipe(folder)), data()
    sizes = [2, 4, 3]
    groups = [Group(q, np.arange(n) + EACH * q, np.eye(n)[0]) for q, n in enumerate(sizes)]
    batch = task.batch(set_, groups)
    assert np.diff(batch.offsets).tolist() == sizes
    margins = task.module.eval().margins(batch.inputs)
    alone = [task.module.margins(task.batch(set_, [group]).inputs) for group in groups]
    assert torch.allclose(margins, torch.cat(alone), atol=1e-5), "text by text, input after input"


def test_rectangles_and_parts_change_no_loss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recipe(folder, optimiser=Optimiser(steps=1, dropout=0.0))
    (whole,) = task_of(plan).parts(0, 0, 1)
    task = task_of(changed(plan, run=Run(batch=4, tokens=80)))
    parts = task.parts(0, 0, 1)
    assert len(parts) > 1
    module = task.module.eval()
    with torch.no_grad():
        loss = module(whole.batch).item()
        assert sum(part.share * module(part.batch).item() for part in parts) == pytest.approx(loss, rel=1e-5)
        margins = module.margins(whole.batch.inputs)
        wanted = losses.listwise(
            margins, torch.from_numpy(whole.batch.labels), torch.from_numpy(whole.batch.offsets)
        )
        assert loss == pytest.approx(wanted.item())
        monkeypatch.setitem(states._RECTANGLES, "cpu", 50)
        assert torch.allclose(module.margins(whole.batch.inputs), margins, atol=1e-5)
        module.packed = True
        assert torch.allclose(module.margins(whole.batch.inputs), margins, atol=1e-5)


# -- what learns


def test_the_head_of_the_texts_learns_and_that_of_the_cls_does_not(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder)
    start, end = weights(folder), trained(plan, tmp_path)
    for name, values in start.items():
        changed = not np.array_equal(values, end[name])
        assert changed == (not name.startswith(("bert.pooler", "classifier"))), name
    assert not np.array_equal(end["listwise.head.weight"], open_start(plan).head["listwise.head.weight"])
    fast = parameter_groups(
        task_of(plan).module, Optimiser(learning_rate=1e-5, head_learning_rate=1e-3, steps=1)
    )
    assert sum(len(group["params"]) for group in fast if group["scale"] > 1) == 2, "a matrix and a bias"


@pytest.mark.parametrize("loss", ["listwise", "hinge"])
def test_it_learns_and_the_best_scores_what_the_log_says(loss: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(
        folder,
        optimiser=Optimiser(learning_rate=1e-2, steps=120, dropout=0.0, schedule="constant"),
        run=Run(batch=8, log_every=10),
        loss=Loss(loss),
        dev=Dev("unused", "unused", ("unused",), "unused", every=40),
    )
    dev = dev_run(folder)
    result = train_lists(plan, Examples.of(data(), plan), tmp_path, dev=dev, device="cpu")
    checkpoint = load_lists(result.model)
    assert checkpoint.texts == N
    assert dev.score(ListwiseBackend(checkpoint, "cpu")) == result.best
    log = read_log(tmp_path)
    steps = [line["loss"] for line in log if "loss" in line]
    assert steps[-1] < steps[0] / 4
    assert result.best is not None and result.best > 0.9 > dev.first()


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("killed", [3, 6, 12])
def test_after_a_kill_it_goes_on_as_if_nothing_had_happened(
    killed: int, folder: Path, tmp_path: Path
) -> None:
    plan = recipe(folder, dev=Dev("unused", "unused", ("unused",), "unused", every=4))
    dev = dev_run(folder)

    def kill(line: Mapping[str, Any]) -> None:
        if line["step"] >= killed:
            raise _Killed

    def curve(out: Path) -> list[dict[str, Any]]:
        return [{name: line[name] for name in line if name != "pairs_per_second"} for line in read_log(out)]

    whole = trained(plan, tmp_path / "whole", dev=dev)
    with pytest.raises(_Killed):
        trained(plan, tmp_path / "killed", dev=dev, progress=kill)
    assert (tmp_path / "killed" / STATE).exists() == (killed > 3)
    assert same(whole, trained(plan, tmp_path / "killed", dev=dev, resume=True))
    assert curve(tmp_path / "whole") == curve(tmp_path / "killed")
    assert same(weights(tmp_path / "whole" / "last"), weights(tmp_path / "killed" / "last"))


def test_a_state_goes_with_its_groups(folder: Path, tmp_path: Path) -> None:
    trained(recipe(folder), tmp_path)
    with pytest.raises(InputError, match="of another recipe, other data or another start"):
        trained(recipe(folder, listwise=Listwise(n=3), examples=Drawn(group=3)), tmp_path, resume=True)


def test_a_dev_run_is_read_as_the_stage_reads(folder: Path) -> None:
    """The groups of `in_groups` are those of the stage, and so is what is below them."""
    texts = Documents(
        [Document(f"d{n}", "castle song " * n) for n in range(9)], only=[f"d{n}" for n in range(9)]
    )
    rankings = [
        Ranking(
            Query(f"q{q}", "castle"), [f"d{n}" for n in range(count)], -np.arange(count * 1.0), texts=texts
        )
        for q, count in enumerate((9, 2))
    ]
    nothing = Inputs(np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(1, np.int64))
    plain = DevRun(rankings, nothing, np.zeros(3, np.int64), None, {"q0": {"d8": 1}}, "nDCG@10")
    start = open_start(recipe(folder))
    tokenizer = open_tokenizer(start.start)
    dev = in_groups(plain, tokenizer, start.start.config, Limits(8, 48), Listwise(n=N, k=6, rounds=3))
    assert [groups.tolist() for groups in dev.groups] == [
        drawn_groups(count, N, 3).tolist() for count in (6, 2)
    ]
    assert dev.offsets.tolist() == [0, 6, 9] and dev.inputs.lengths.max() <= 48
    # the relevant one is beyond k, and keeps its place
    assert dev.score(ListwiseBackend(start, "cpu")) == pytest.approx(1 / np.log2(10))


def test_a_dev_run_of_texts_of_more_than_512_tokens(folder: Path) -> None:
    given = placed(Query("q", "castle"), [Document("d", "a " * 600)])
    nothing = Inputs(np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(1, np.int64))
    plain = DevRun([given], nothing, np.zeros(2, np.int64), None, {}, "nDCG@10")
    checkpoint = open_start(recipe(folder)).start
    config = replace(checkpoint.config, positions=4096)
    dev = in_groups(plain, open_tokenizer(checkpoint), config, Limits(8, 4096), Listwise(n=N, rounds=1))
    assert dev.inputs.lengths.tolist() == [2 + 3 + 600 + 1]


# -- starts


def test_from_a_listwise_model_its_head_goes_on_and_a_mono_is_a_mono(folder: Path, tmp_path: Path) -> None:
    first = trained(recipe(folder), tmp_path / "first")
    model = tmp_path / "first" / "last"
    again = open_start(recipe(model, listwise=Listwise(n=5), examples=Drawn(group=5)))
    assert again.texts == 5
    assert np.array_equal(again.head["listwise.head.weight"], first["listwise.head.weight"])
    mono = Recipe(
        Model(str(model)),
        (Data(set="unused"),),
        Optimiser(steps=1),
        Run(batch=4),
        Drawn(group=N),
        limits=Limits(8, 48),
    )
    train(mono, Examples.of(data(), mono), tmp_path / "mono", device="cpu")
    made = load_checkpoint(tmp_path / "mono" / "last")
    assert made.config.texts == 0
    assert not any(name.startswith("listwise.") for name in weights(tmp_path / "mono" / "last"))


# -- recipes


def test_the_bundled_recipe(tmp_path: Path) -> None:
    assert "listwise" in bundled()
    path = tmp_path / "mine.toml"
    path.write_text('base = "listwise"\n[[data]]\nset = "data"\n')
    found = read_recipe(path)
    assert isinstance(found, ListRecipe)
    assert found.listwise == Listwise(8, 20, 2) and found.examples.group == 8
    assert (found.examples.kind, found.loss.name, found.limits) == ("grouped", "listwise", Limits(62, 512))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n = 4", r"n of \[listwise\] is 4, and group of \[examples\] 8: make them equal"),
        ("rounds = 0", r"rounds of \[listwise\] is 0: it must be a whole number of at least 1"),
        ("m = 3", r"\[listwise\] has no field 'm': the known ones are n, k, rounds"),
        (
            '[examples]\nkind = "balanced"\n[loss]\nname = "pointwise"',
            "a listwise model reads groups, and the examples are balanced",
        ),
        ('[loss]\nname = "duo"', "the loss duo is not for grouped examples"),
        (
            '[examples]\nkind = "duo_lists"',
            "a listwise model reads groups, and the examples are duo_lists",
        ),
        (
            '[folds]\ncount = 5\nrun = "x"\n[[data]]\nqueries = "q"\nqrels = "r"\ncorpus = ["c"]',
            "listwise models are not trained by folds: leave out",
        ),
    ],
)
def test_what_a_recipe_may_not_say(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    head = "" if "[[data]]" in text else '[[data]]\nset = "data"\n'
    path.write_text(f'base = "listwise"\n{head}[listwise]\n{text}\n')
    with pytest.raises(InputError, match=said):
        read_recipe(path)


def test_too_many_texts_for_the_model_cost_no_time(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"""
        base = "listwise"
        [model]
        start = "{folder}"
        [listwise]
        n = 40
        [examples]
        group = 40
        [[data]]
        set = "nowhere"
    """)
    assert main(["train", str(path), "--out", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert "no room for 40 texts and a query" in capsys.readouterr().err
