"""Training models of long documents: what they learn from, that they learn, and how they go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Mono  # noqa: E402
from tamis.base.errors import InputError  # noqa: E402
from tamis.models import legacy  # noqa: E402
from tamis.models.architecture import Architecture, architecture  # noqa: E402
from tamis.models.architectures.mono import Mono as MonoModel  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.settings import changed  # noqa: E402
from tamis.models.states import first_states  # noqa: E402
from tamis.models.templates import Tokenised  # noqa: E402
from tamis.train.document_learning import DocumentLearning  # noqa: E402
from tamis.train.gains import read_gains  # noqa: E402
from tamis.train.loop import parameter_groups  # noqa: E402
from tamis.train.passage_learning import PcgmLearning  # noqa: E402
from tamis.train.ranking import RankingTask, train  # noqa: E402
from tamis.train.recipe import Data, Loss, Model, Optimiser, Recipe, Run  # noqa: E402
from tamis.train.recipe import Examples as Drawn  # noqa: E402
from tamis.train.sets import Candidates, Group, Judged, TrainingSet  # noqa: E402
from tamis.train.sources import Examples  # noqa: E402
from tamis.train.state import read_log  # noqa: E402
from tests.unit.train import builders  # noqa: E402
from tests.unit.train.builders import weights  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

QUERIES, PER_QUERY, STEPS = 5, 6, 30
COMMON = ("the", "of", "and", "to", "in", "for", "with", "on", "as", "by", "at", "from")
SMALL = {"window": 8, "stride": 6, "passages": 4, "sequence": 16, "query": 4, "tokens": 40}


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("tiny") / "model"
    return tiny_checkpoint(where, layers=2, hidden=16, heads=2, positions=32)


def data() -> TrainingSet:
    """The query's token is in its relevant document, behind the first passage."""
    rng = np.random.default_rng(5)
    documents = []
    for query in range(QUERIES):
        for number in range(PER_QUERY):
            text = rng.integers(60, 300, 30).tolist()
            if number == 0:
                text[12:18] = [10 + query] * 6
            documents.append(text)
    count = QUERIES * PER_QUERY
    return TrainingSet(
        Tokenised.of([[10 + query] for query in range(QUERIES)]),
        Tokenised.of(documents),
        [f"q{query}" for query in range(QUERIES)],
        [f"d{number}" for number in range(count)],
        Judged(
            np.arange(QUERIES + 1),
            np.arange(0, count, PER_QUERY, dtype=np.int32),
            np.ones(QUERIES, np.int32),
        ),
        Candidates(
            np.arange(QUERIES + 1) * PER_QUERY,
            np.arange(count, dtype=np.int32),
            -np.arange(count, dtype=np.float32),
        ),
    )


def model(kind: str, **settings: Any) -> Architecture:
    """By the full name of its kind, such as parade-max."""
    name, own = legacy.document(kind, {**SMALL, **settings})
    of = architecture(name)
    return of(of.Settings(**own))


def recipe(folder: Path, kind: str = "parade-max", plan: Mapping[str, Any] = {}, **changes: Any) -> Recipe:
    least = Recipe(
        Model(str(folder)),
        (Data(set="unused"),),
        Optimiser(learning_rate=3e-3, head_learning_rate=1e-2, steps=STEPS, warm_up=0, dropout=0.0),
        Run(batch=4, checkpoint_every=1000, log_every=3),
        Drawn(group=2),
        Loss("hinge"),
        architecture=model(kind, **plan),
    )
    return changed(least, **changes)


def trained(plan: Recipe, out: Path, **options: Any) -> dict[str, np.ndarray]:
    return builders.trained(plan, data(), out, **options)


def task(plan: Recipe) -> RankingTask:
    return builders.task_of(plan, data())


def reading(plan: Recipe) -> DocumentLearning:
    learning = task(plan).learning
    assert isinstance(learning, DocumentLearning)
    return learning


# -- learning

KINDS = [
    "maxp",
    "birch",
    "vanilla",
    "cedr-knrm",
    "cedr-pacrr",
    "cedr-drmm",
    "parade-max",
    "parade-attn",
    "parade-cnn",
    "parade-transformer",
    "pcgm",
    "knrm",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_learns(kind: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, kind, {"keep": 0.5} if kind == "maxp" else {})
    if kind == "cedr-drmm":  # its hidden layer has five units only: with seed 0 all of them begin at 0
        plan = changed(plan, run=changed(plan.run, seed=1))
    trained(plan, tmp_path)
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:2]), losses
    found = load_checkpoint(tmp_path / "last").architecture
    assert found == (MonoModel() if kind == "maxp" else plan.architecture)


@pytest.mark.parametrize("loss", ["pointwise", "hinge", "softmax"])
def test_cross_entropy_and_hinge(loss: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, loss=Loss(loss), examples=Drawn(group=3))
    trained(plan, tmp_path)
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert losses[-1] < losses[0]


def test_maxp_comes_out_as_an_ordinary_checkpoint(folder: Path, tmp_path: Path) -> None:
    trained(recipe(folder, "maxp"), tmp_path)
    assert Mono(str(tmp_path / "last"), device="cpu", precision="fp32").rank("soup", ["a", "b"])


@pytest.mark.parametrize(
    ("kind", "frozen"), [("cedr-drmm", False), ("cedr-knrm", True), ("cedr-knrm", False)]
)
def test_a_frozen_encoder_stays_as_it_is(kind: Any, frozen: bool, folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, kind, {"frozen": frozen})
    assert task(plan).module.train().network.encoder.training == (not frozen and kind != "cedr-drmm")
    trained(plan, tmp_path)
    before, after = weights(folder), weights(tmp_path / "last")
    body = [name for name in before if "pooler" not in name and "classifier" not in name]
    stayed = all(before[name].tobytes() == after[name].tobytes() for name in body)
    assert stayed == (frozen or kind == "cedr-drmm")


def test_two_learning_rates(folder: Path) -> None:
    plan = recipe(folder, "parade-transformer")
    module = task(plan).module
    found: dict[float, int] = {}
    for group in parameter_groups(module, plan.optimiser):
        scale = round(group["scale"], 6)
        found[scale] = found.get(scale, 0) + sum(p.numel() for p in group["params"])

    def size(part: Any) -> int:
        return sum(p.numel() for p in part.parameters())

    network = module.network
    body = size(network.encoder) - size(network.encoder.head)  # whose head is not used
    assert found == {round(1e-2 / 3e-3, 6): size(network.head), 1.0: body}


def test_split_batches_have_the_gradient_of_whole_ones(folder: Path) -> None:
    for kind, changes in (("parade-sum", {}), ("maxp", {"keep": 0.6})):
        gradients = []
        for most in (None, 40):
            plan = recipe(folder, kind, changes, run=Run(batch=4, tokens=most))
            made = task(plan)
            parts = made.parts(0, 0, 1)
            assert (len(parts) > 1) == (most is not None)
            for part in parts:
                (made.module(part.batch) * part.share).backward()
            gradients.append([p.grad for p in made.module.parameters() if p.grad is not None])
        assert all(torch.allclose(one, two, atol=1e-5) for one, two in zip(*gradients, strict=True)), kind


def test_processes_share_a_batch_without_overlap(folder: Path) -> None:
    made = task(recipe(folder))
    (whole,) = made.parts(3, 0, 1)
    halves = [made.parts(3, rank, 2)[0] for rank in (0, 1)]
    assert sum(half.pairs for half in halves) == whole.pairs
    assert [half.share for half in halves] == [1.0, 1.0]
    with pytest.raises(InputError, match="4 groups for 9 processes"):
        made.parts(0, 8, 9)


def test_a_run_goes_with_its_plan(folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, optimiser=Optimiser(steps=2))
    trained(plan, tmp_path)
    other = changed(plan, architecture=model("parade-max", tokens=30))
    with pytest.raises(InputError, match="is of another recipe"):
        trained(other, tmp_path, resume=True)


# -- what is read: MaxP's passages, and gains


def kept(folder: Path, keep: float, in_rounds: bool = True, seeds: int = 200) -> list[Any]:
    loss = Loss("hinge" if in_rounds else "pointwise")
    learning = reading(recipe(folder, "maxp", {"keep": keep}, loss=loss))
    group = Group(0, np.array([0, 1]), np.array([1.0, 0.0]))
    return [learning.read(group, data(), seed) for seed in range(seeds)]


def test_the_first_passage_is_always_kept_and_others_now_and_then(folder: Path) -> None:
    first = data().documents.ids[:8].tolist()
    counts = []
    for batch in kept(folder, 0.1, in_rounds=False):
        ids = batch.inputs.ids.tolist()
        assert any(ids[place : place + 8] == first for place in range(len(ids)))
        counts.append(len(batch.inputs))
    # two documents of 30 tokens have five windows of 8 every 6, of which four are read: 2 + 6 x 0.1
    assert np.mean(counts) == pytest.approx(2.6, abs=0.15)
    assert {len(batch.inputs) for batch in kept(folder, 0.0, seeds=5)} == {2}


def test_passages_have_their_documents_label(folder: Path) -> None:
    texts = data().documents.take([0, 1])
    relevant = set(texts.ids[:30].tolist())
    for batch in kept(folder, 0.7, in_rounds=False, seeds=20):
        for number, label in enumerate(batch.labels):
            start, stop = batch.inputs.offsets[number : number + 2]
            passage = batch.inputs.ids[start + 3 : stop - 1].tolist()  # behind [CLS] q [SEP]
            assert (set(passage) <= relevant) == bool(label)


def test_rounds_pair_a_passage_of_each_document(folder: Path) -> None:
    sizes = set()
    for batch in kept(folder, 0.5, seeds=30):
        rounds = len(batch.offsets) - 1
        sizes.add(rounds)
        assert batch.labels.tolist() == [1.0, 0.0] * rounds
        assert batch.offsets.tolist() == list(range(0, 2 * rounds + 1, 2))
    assert len(sizes) > 1


def test_rounds_pair_any_passage_of_one_document_with_any_of_another(folder: Path) -> None:
    """At random: that the first of one always met the first of another would be no comparison of the rest."""
    texts, window, stride = data().documents.ids, 8, 6
    starts = [document * 30 + number * stride for document in (0, 1) for number in range(4)]
    passages = {tuple(texts[start : start + window].tolist()): start for start in starts}
    met = set()
    for batch in kept(folder, 1.0, seeds=60):
        offsets = batch.inputs.offsets
        own = [batch.inputs.ids[a + 3 : b - 1].tolist() for a, b in pairwise(offsets)]  # behind [CLS] q [SEP]
        found = [passages[tuple(each)] for each in own]
        assert sorted(found) == sorted(starts)  # each once
        met |= set(zip(found[0::2], found[1::2], strict=True))
    assert met == {(one, other) for one in starts[:4] for other in starts[4:]}


def test_maxp_is_trained_on_what_it_ranks_by(folder: Path) -> None:
    """Of a document with more windows than are read, the first: as `maxp(mono)` reads it."""
    texts = data().documents.ids
    last = set(texts[26:30].tolist()) - set(texts[:26].tolist())  # behind the fourth window
    assert last
    for batch in kept(folder, 1.0, in_rounds=False, seeds=20):
        assert not last & set(batch.inputs.ids[: int(batch.inputs.offsets[4])].tolist())


def test_maxp_compares_probabilities_by_its_hinge(folder: Path, tmp_path: Path) -> None:
    """Zhang et al. 2021: s is the softmax's positive class, so that a loss of one pair is 1 - s+ + s-."""
    hinge = Loss("hinge", probabilities=True)
    plan = recipe(folder, "maxp", {"keep": 0.5}, model=Model(str(folder), labels=2), loss=hinge)
    made = task(plan)
    (part,) = made.parts(0, 0, 1)
    with torch.no_grad():
        made.module.network.encoder.head.output.weight *= 5.0
    encoder = made.module.eval().network.encoder
    with torch.inference_mode():
        logits = encoder.head(first_states(encoder, part.batch.inputs, False))
        positive = logits.softmax(1)[:, 1]
        pairs = (1 - positive[0::2] + positive[1::2]) * torch.from_numpy(part.batch.weights)
        assert logits.shape[1] == 2 and positive.std() > 0.01
        assert made.module(part.batch).item() == pytest.approx(pairs.mean().item(), rel=1e-5)


def test_gains_where_they_are_given(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "gains.jsonl"
    file.write_text(json.dumps({"query": "q0", "document": "d0", "gains": [0, 1, 3]}) + "\n\n")
    plan = recipe(folder, "pcgm", {"passages": 5}, gains=str(file))
    group = Group(0, np.array([0, 1]), np.array([1.0, 0.0]))
    whole = reading(plan).read(group, data(), 0)
    assert whole.gains is not None and whole.gains.tolist() == [[0, 1, 3, -1, -1], [-1] * 5]
    # where windows are left out, those that are read keep their gains
    fewer = reading(recipe(folder, "pcgm", {"passages": 2}, gains=str(file))).read(group, data(), 0)
    assert fewer.gains is not None and fewer.gains.tolist() == [[0, -1], [-1, -1]]
    trained(plan, tmp_path / "out")
    losses = [line["loss"] for line in read_log(tmp_path / "out")]
    assert losses[-1] < losses[0]
    for line, problem in (
        (
            '{"query": "q0", "document": "d0", "gains": [9]}',
            r"line 1: no gains: give a list of whole numbers",
        ),
        ('{"document": "d0", "gains": [1]}', r"line 1: null is not an id"),
        ("gains", r"line 1: not JSON"),
        (
            '{"query": "q0", "document": "d0", "gains": [1]}\n' * 2,
            r"line 2: gains of 'd0' for 'q0' again: keep one of the two lines",
        ),
        ("\n", r"there are no gains: give a line a document, or no file"),
    ):
        file.write_text(line)
        with pytest.raises(InputError, match=problem):
            read_gains(file, 4)
    with pytest.raises(InputError, match="a parade-max model does not learn gains"):
        recipe(folder, gains="gains.jsonl")


def test_gains_of_other_data_or_other_windows_are_refused_before_training(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "gains.jsonl"

    def given(query: str, document: str, count: int, **plan: int) -> PcgmLearning:
        file.write_text(json.dumps({"query": query, "document": document, "gains": [1] * count}))
        learning = reading(recipe(folder, "pcgm", plan, gains=str(file)))
        assert isinstance(learning, PcgmLearning)
        return learning

    for query, document in (("x0", "d0"), ("q0", "x0")):
        with pytest.raises(InputError, match="none of the gains is of a query and a document of the data"):
            given(query, document, 3)
    # 30 tokens are five windows, whether all of them are read or two
    for passages in (2, 5):
        assert given("q0", "d0", 5, passages=passages).gains
        with pytest.raises(InputError, match="document 'd0' has 6 gains for query 'q0', and fewer windows"):
            given("q0", "d0", 6, passages=passages)
    # whoever judged all of it does not know how much is read
    assert given("q0", "d0", 6, tokens=20).gains


# -- teachers and cards


@pytest.mark.parametrize("loss", [Loss("margin_mse"), Loss("logit_mse_ce", alpha=0.0)])
def test_a_teacher_may_be_learned_from(loss: Loss, folder: Path, tmp_path: Path) -> None:
    """PARADE distilled: a teacher's scores of documents are those of any run."""
    known = data()
    scores = np.zeros(len(known.candidates.documents), np.float32)
    scores[::PER_QUERY] = 4.0
    taught = replace(known, scores=scores)
    plan = recipe(folder, loss=loss, examples=Drawn(group=4))
    train(plan, Examples.of(taught, plan), tmp_path, device="cpu")
    losses = [line["loss"] for line in read_log(tmp_path)]
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("kind", ["parade-transformer", "cedr-knrm", "pcgm"])
def test_on_a_card_in_bf16_they_learn_as_on_a_processor(kind: Any, folder: Path, tmp_path: Path) -> None:
    plan = recipe(folder, kind)
    examples = Examples.of(data(), plan)
    for device in ("cuda", "cpu"):
        train(plan, examples, tmp_path / device, device=device)
    card, processor = ([line["loss"] for line in read_log(tmp_path / n)] for n in ("cuda", "cpu"))
    assert card[0] == pytest.approx(processor[0], rel=0.1, abs=0.05)
    assert np.mean(card[-3:]) < 0.8 * np.mean(card[:2])
