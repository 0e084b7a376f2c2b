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
from tamis.core.candidates import placed  # noqa: E402
from tamis.core.ranking import Ranking  # noqa: E402
from tamis.infer.scorer import Scorer  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models import feed  # noqa: E402
from tamis.models.architectures.listwise import Listwise, ListwiseSettings  # noqa: E402
from tamis.models.architectures.mono import Mono  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.templates import Tokenised, text_spans  # noqa: E402
from tamis.models.tokenizer import open_tokenizer  # noqa: E402
from tamis.rank.given_run import Documents  # noqa: E402
from tamis.rank.groups import drawn_groups  # noqa: E402
from tamis.rank.listwise import Listwise as ListwiseStage  # noqa: E402
from tamis.train import losses  # noqa: E402
from tamis.train.dev import DevRun, dev_stage  # noqa: E402
from tamis.train.loop import parameter_groups  # noqa: E402
from tamis.train.ranking import RankingTask, train  # noqa: E402
from tamis.train.recipe import Data, Limits, Loss, Model, Optimiser, Recipe, Run, bundled, read_recipe  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Group, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples  # noqa: E402
from tamis.train.start import begin  # noqa: E402
from tamis.train.state import read_log  # noqa: E402
from tests.unit.train import builders  # noqa: E402
from tests.unit.train.builders import UNUSED, dev_run, weights  # noqa: E402

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


def kind(**settings: int) -> Listwise:
    return Listwise(ListwiseSettings(**settings))


def recipe(folder: Path, **changes: Any) -> Recipe:
    least = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(learning_rate=3e-3, steps=STEPS),
        Run(batch=4, checkpoint_every=5, log_every=3),
        Drawn(group=N),
        loss=Loss("listwise"),
        limits=Limits(8, 48),
        architecture=kind(n=N, k=10),
    )
    return changed(least, **changes)


def task_of(plan: Recipe, set_: TrainingSet | None = None) -> RankingTask:
    return builders.task_of(plan, set_ or data())


def trained(plan: Recipe, out: Path, **options: Any) -> dict[str, np.ndarray]:
    return builders.trained(plan, data(), out, **options)


# -- batches


def test_a_group_is_one_input_with_its_texts_in_any_order(folder: Path) -> None:
    """Which text is relevant must not be told by its place."""
    task, set_ = task_of(recipe(folder)), data()
    places = []
    for step in range(40):
        (part,) = task.parts(step, 0, 1)
        batch = part.batch
        assert len(batch.inputs) == 4 and batch.input_offsets.tolist() == [0, 1, 2, 3, 4]
        assert batch.offsets.tolist() == [0, 4, 8, 12, 16] and batch.labels.tolist().count(1) == 4
        firsts = batch.inputs.ids[text_spans(batch.inputs, task.learning.reading.special).starts]
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
    batch = task.learning.batch(set_, groups)
    assert np.diff(batch.offsets).tolist() == sizes
    network = task.module.network
    margins = network(batch.inputs)
    alone = [network(task.learning.batch(set_, [group]).inputs) for group in groups]
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
        margins = module.network(whole.batch.inputs)
        wanted = losses.listwise(
            margins, torch.from_numpy(whole.batch.labels), torch.from_numpy(whole.batch.offsets)
        )
        assert loss == pytest.approx(wanted.item())
        monkeypatch.setitem(feed._RECTANGLES, "cpu", 50)
        assert torch.allclose(module.network(whole.batch.inputs), margins, atol=1e-5)
        module.network.packed = True
        assert torch.allclose(module.network(whole.batch.inputs), margins, atol=1e-5)


# -- what learns


def test_the_head_of_the_texts_learns_and_that_of_the_cls_does_not(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder)
    start, end = weights(folder), trained(plan, tmp_path)
    for name, values in start.items():
        changed = not np.array_equal(values, end[name])
        assert changed == (not name.startswith(("bert.pooler", "classifier"))), name
    assert not np.array_equal(end["listwise.head.weight"], begin(plan).head["listwise.head.weight"])
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
        dev=changed(UNUSED, every=40),
    )
    dev = dev_run(data(), folder)
    result = train(plan, Examples.of(data(), plan), tmp_path, dev=dev, device="cpu")
    assert load_checkpoint(result.model).architecture == kind(n=N, k=10)
    assert (
        builders.task_of(changed(plan, model=Model(str(result.model))), data(), dev).evaluate() == result.best
    )
    log = read_log(tmp_path)
    steps = [line["loss"] for line in log if "loss" in line]
    assert steps[-1] < steps[0] / 4
    assert result.best is not None and result.best > 0.9 > dev.first()


def test_a_state_goes_with_its_groups(folder: Path, tmp_path: Path) -> None:
    trained(recipe(folder), tmp_path)
    with pytest.raises(InputError, match="of another recipe, other data or another start"):
        trained(recipe(folder, architecture=kind(n=3), examples=Drawn(group=3)), tmp_path, resume=True)


def staged(start: Any, limits: Limits) -> ListwiseStage:
    """The stage of a dev run."""
    stage = dev_stage(Scorer.over(start, TorchBackend(start, "cpu")), limits)
    assert isinstance(stage, ListwiseStage)
    return stage


def test_a_dev_run_has_the_groups_and_the_depth_of_the_recipe(folder: Path) -> None:
    texts = Documents(
        [Document(f"d{n}", "castle song " * n) for n in range(9)], only=[f"d{n}" for n in range(9)]
    )
    rankings = [
        Ranking(
            Query(f"q{q}", "castle"), [f"d{n}" for n in range(count)], -np.arange(count * 1.0), texts=texts
        )
        for q, count in enumerate((9, 2))
    ]
    stage = staged(begin(recipe(folder, architecture=kind(n=N, k=6, rounds=3))), Limits(8, 48))
    built = stage.build_inputs(rankings)
    assert [members.tolist() for members in built.members] == [
        drawn_groups(count, N, 3).tolist() for count in (6, 2)
    ]
    assert [len(inputs) for inputs in built.inputs] == [6, 3]
    assert max(inputs.lengths.max() for inputs in built.inputs) <= 48
    # the relevant one is beyond k, and keeps its place
    dev = DevRun(rankings, {"q0": {"d8": 1}}, "nDCG@10")
    assert dev.score(stage) == pytest.approx(1 / np.log2(10))


def test_a_dev_run_of_texts_of_more_than_512_tokens(folder: Path) -> None:
    start = begin(recipe(folder, architecture=kind(n=N, rounds=1)))
    start = replace(start, config=replace(start.config, positions=4096))
    start = replace(start, tensors=_longer(start.tensors, 4096))
    given = placed(Query("q", "castle"), [Document("d", "a " * 600)])
    (inputs,) = staged(start, Limits(8, 4096)).build_inputs([given]).inputs
    castle = len(open_tokenizer(start).encode(["castle"]).ids)
    assert inputs.lengths.tolist() == [1 + castle + 1 + 600 + 1]


def _longer(tensors: Mapping[str, np.ndarray], positions: int) -> dict[str, np.ndarray]:
    name = "embeddings.position"
    return {**tensors, name: np.resize(tensors[name], (positions, tensors[name].shape[1]))}


# -- starts


def test_from_a_listwise_model_its_head_goes_on_and_a_mono_is_a_mono(folder: Path, tmp_path: Path) -> None:
    first = trained(recipe(folder), tmp_path / "first")
    model = tmp_path / "first" / "last"
    again = begin(recipe(model, architecture=kind(n=5), examples=Drawn(group=5)))
    assert again.architecture == kind(n=5)
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
    assert made.architecture == Mono()
    assert not any(name.startswith("listwise.") for name in weights(tmp_path / "mono" / "last"))


# -- recipes


def test_the_bundled_recipe(tmp_path: Path) -> None:
    assert "listwise" in bundled()
    path = tmp_path / "mine.toml"
    path.write_text('base = "listwise"\n[[data]]\nset = "data"\n')
    found = read_recipe(path)
    assert found.architecture == kind(n=8, k=20, rounds=2) and found.examples.group == 8
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
