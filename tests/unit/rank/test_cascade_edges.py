"""A cascade with few candidates, odd texts, scores that are no numbers, few cores, and nobody who waits; and
one that candidates leave when an exit is sure of them."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Cascade, Document, Mono, Query, Ranking, ScoreKind  # noqa: E402
from tamis.base.errors import ExpressionError, InputError, TamisError  # noqa: E402
from tamis.base.interrupt import interruptible  # noqa: E402
from tamis.core.candidates import placed  # noqa: E402
from tamis.core.plan import counts, plan  # noqa: E402
from tamis.core.registry import build  # noqa: E402
from tamis.infer.cores import cores  # noqa: E402
from tamis.infer.engine import Engine  # noqa: E402
from tamis.infer.torch_backend import TorchBackend  # noqa: E402
from tamis.models.architectures.cascade import Cascade as Architecture  # noqa: E402
from tamis.models.architectures.cascade import CascadeSettings, entropies  # noqa: E402
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint  # noqa: E402
from tamis.rank.cascade import unsure  # noqa: E402
from tamis.rank.reranker import Reranker  # noqa: E402
from tamis.serve.lane import Job, Lane  # noqa: E402
from tamis.serve.metrics import Metrics  # noqa: E402
from tamis.serve.pipelines import Step  # noqa: E402
from tamis.storage.score_cache import ScoreCache  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["castle", "", "song " * 200, "river war music", "castle bridge"]


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four layers, with exits after 1, 2 and 4; an input has at most 48 tokens."""
    place = tmp_path_factory.mktemp("cascade")
    plain = load_checkpoint(tiny_checkpoint(place / "plain", layers=4, positions=48))
    start = begin(plain)
    head = {name: values * 10 for name, values in start.head.items()}
    save_checkpoint(replace(start, head=head), place / "model")
    return str(place / "model")


def begin(plain: Checkpoint) -> Checkpoint:
    """The same model with exits after layers 1, 2 and 4."""
    return Architecture(CascadeSettings(exits=(1, 2))).begin(plain, seed=1)


def test_limits_that_leave_nothing_to_read(model: str) -> None:
    with pytest.raises(InputError, match="a query_limit of 0 tokens: use 1 or more"):
        Cascade(model, query_limit=0)
    with pytest.raises(InputError, match="no room for a text and a query: raise the limit"):
        Cascade(model, limit=4).prepare()


def given(texts: list[str]) -> Ranking:
    return placed(Query("q", "castle song"), [Document(f"d{n}", text) for n, text in enumerate(texts)])


@pytest.mark.parametrize("rule", ["alpha", "entropy"])
@pytest.mark.parametrize("number", [0.0, 0.3, 0.68, 0.99])
@pytest.mark.parametrize("count", [0, 1, 2, len(TEXTS)])
def test_any_number_of_candidates_with_a_cache_as_without(
    count: int, number: float, rule: str, model: str, tmp_path: Path
) -> None:
    found = given(TEXTS[:count])
    options: dict[str, Any] = {rule: number}
    ranked = Cascade(model, **options)(found)
    assert sorted(ranked.ids) == sorted(found.ids) and (np.diff(ranked.scores) <= 0).all()
    with ScoreCache(tmp_path / "scores.db") as cache:
        for _ in range(2):
            assert Cascade(model, **options, cache=cache)(found) == ranked
    if not number:
        assert ranked.kind is ScoreKind.PROBABILITY
        whole = Mono(model)(found)
        assert whole.ids == ranked.ids and whole.scores.tolist() == ranked.scores.tolist()


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("exit", [0, 1, 2])
def test_scores_that_are_no_numbers_are_an_error_at_every_exit(
    exit: int, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """As numbers beyond a precision's largest make them: of all others NaN says that a candidate has left."""
    plain = load_checkpoint(tiny_checkpoint(tmp_path / "plain", layers=4, positions=48, labels=2))
    start = begin(plain)
    tensors, head = dict(start.tensors), dict(start.head)
    where, name = ((head, "exits.1"), (head, "exits.2"), (tensors, "head"))[exit]
    where[f"{name}.dense.bias"] = np.full(32, 100, np.float32)
    where[f"{name}.output.weight"] = np.full((2, 32), 3e38, np.float32)  # both logits are infinite
    spoiled = replace(start, tensors=tensors, head=head)
    save_checkpoint(spoiled, tmp_path / "model")
    said = "the scores of {} are not numbers: use precision=fp32, or another model"
    stage = Cascade(str(tmp_path / "model"), workers=1, device="cpu")
    with pytest.raises(TamisError, match=said.format("ONNX Runtime, int8, 1 core")):
        stage(given(TEXTS))
    (inputs,), *_ = stage.build_inputs([given(TEXTS)])
    with pytest.raises(TamisError, match=said.format("torch, processor, fp32")):
        Engine(TorchBackend(spoiled, "cpu")).walk(inputs, lambda live, margins: live)


@pytest.mark.parametrize("stage", [Mono, Cascade])
def test_no_core_is_too_few(stage: Callable[..., Reranker]) -> None:
    with pytest.raises(InputError, match="0 processor cores: use at least 1"):
        stage("model", workers=0)


def test_threads_that_overlap_leave_the_callers_cores() -> None:
    """The one that came second must not take the first's number for the caller's."""
    torch.set_num_threads(3)
    first_is_in, second_is_in, first_may_go, second_may_go = (threading.Event() for _ in range(4))

    def use(
        count: int, after: threading.Event | None, is_in: threading.Event, may_go: threading.Event
    ) -> None:
        assert after is None or after.wait(60)
        with cores(count):
            is_in.set()
            assert may_go.wait(60)

    first = threading.Thread(target=use, args=(1, None, first_is_in, first_may_go))
    second = threading.Thread(target=use, args=(2, first_is_in, second_is_in, second_may_go))
    first.start()
    second.start()
    second_is_in.wait(0.2)  # for as long as the first is in, it should not be
    first_may_go.set()
    first.join(60)
    second_may_go.set()
    second.join(60)
    seen: list[int] = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join(60)
    assert seen == [3]


class Leaving:
    """Texts whose reader is left by everyone who waited."""

    def __init__(self, ranking: Ranking) -> None:
        self.texts = ranking.texts
        self.leave: Callable[[], object] = lambda: None

    def document(self, identity: str) -> Document:
        self.leave()
        assert self.texts is not None
        return self.texts.document(identity)


@pytest.mark.parametrize("kind", [Mono, Cascade])
def test_a_call_that_nobody_waits_for_is_given_up(kind: Callable[..., Reranker], model: str) -> None:
    stage = kind(model, workers=1)
    ranking = given(TEXTS)
    texts = Leaving(ranking)
    step = Step("s", "s", stage, "s", None, (stage,))
    job = Job([step], replace(ranking, texts=texts), time.monotonic() + 60)
    texts.leave = job.future.cancel
    lane = Lane("test", lambda job: job.end(), Metrics(), join=True)
    lane.add(job)
    lane.start()
    lane.close()
    lane.join(60)
    assert job.future.cancelled() and not job.done and stage.tally.inferences == 0


def checked(check: Callable[[], object]) -> AbstractContextManager[None]:
    """Called before each batch."""
    return interruptible(check, np.ones(1, dtype=bool))


def test_a_walk_is_given_up_before_any_of_its_batches(model: str) -> None:
    stage = Cascade(model, alpha=0.3, workers=1)
    engine: Engine = stage.scorer.engine
    engine.token_budget = 50  # one input a batch, for these
    asked: list[None] = []
    with checked(lambda: asked.append(None)):
        before = stage(given(["song " * 40] * 5))
    batches = len(asked)
    assert batches == 5 + 4 + 3, "those that live, at each exit"
    for last in range(batches):
        left = list(range(last))
        # of an empty list, an error
        with pytest.raises(IndexError), checked(left.pop):
            stage(given(["song " * 40] * 5))
    assert stage(given(["song " * 40] * 5)) == before


# -- those leave of which an exit is sure


def everywhere(model: str, found: Ranking) -> np.ndarray:
    """The margins of all candidates at all exits."""
    stage = Cascade(model)
    (inputs,), *_ = stage.build_inputs([found])
    return stage.scorer.walk(inputs, lambda live, margins: live)


def test_entropy_by_hand() -> None:
    """Of 1/2 it is ln 2; of 1/4 and 3/4, 2 ln 2 - 3/4 ln 3; of 1/10 and 9/10, ln 10 - 9/10 ln 9."""
    odds = np.array([1, 3, 1 / 3, 9, 1 / 9])
    two, three, nine = math.log(2), 2 * math.log(2) - 0.75 * math.log(3), math.log(10) - 0.9 * math.log(9)
    assert np.allclose(entropies(np.log(odds)), [two, three, three, nine, nine], rtol=1e-14, atol=0)
    # what is left of it where p is 1 to double precision
    assert np.allclose(entropies(np.array([-40.0, 40.0])), 41 * math.exp(-40), rtol=1e-12, atol=0)
    assert entropies(np.array([-1e30, 1e30], np.float32)).tolist() == [0, 0]


def test_below_the_threshold_they_leave_and_at_it_they_stay() -> None:
    live, margins = np.array([3, 5]), np.array([0.0, 1.0])
    assert unsure(math.log(2))(live, margins).tolist() == [3]
    assert unsure(math.nextafter(math.log(2), 1))(live, margins).tolist() == []
    assert unsure(0)(live, np.array([0.0, 1e30])).tolist() == [3, 5]


def centred(model: str, found: Ranking, out: Path) -> str:
    """The model with biases that make its first two exits say yes to half of the candidates."""
    start = load_checkpoint(model)
    head = dict(start.head)
    for layer, middle in zip((1, 2), np.median(everywhere(model, found), axis=0), strict=False):
        head[f"exits.{layer}.output.bias"] = head[f"exits.{layer}.output.bias"] - middle
    save_checkpoint(replace(start, head=head), out)
    return str(out)


def test_each_keeps_the_score_of_the_exit_that_was_sure_of_it(model: str, tmp_path: Path) -> None:
    """Against the margins of all candidates at all exits, one by one."""
    texts = [" ".join(words) for words in itertools.permutations(["castle", "song", "river", "war"], 3)]
    found = given(texts)
    model = centred(model, found, tmp_path / "model")
    margins = everywhere(model, found).astype(np.float64)
    p = 1 / (1 + np.exp(-margins))
    unsureness = -p * np.log(p) - (1 - p) * np.log(1 - p)
    threshold = float(np.median(unsureness[:, :2]))
    left = [next((n for n in (0, 1) if row[n] < threshold), 2) for row in unsureness]
    assert set(left) == {0, 1, 2}, "or the test says little"
    wanted = {identity: p[n, exit] for n, (identity, exit) in enumerate(zip(found.ids, left, strict=True))}
    stage = Cascade(model, entropy=threshold)
    ranked = stage(found)
    assert ranked.kind is ScoreKind.PROBABILITY
    assert list(ranked.ids) == sorted(wanted, key=lambda identity: -wanted[identity])
    assert np.allclose(ranked.scores, sorted(wanted.values(), reverse=True), atol=1e-6)
    exits = [left[found.ids.index(identity)] for identity in ranked.ids]
    assert exits != sorted(exits, reverse=True), "one that left stands above one that stayed"
    # after layers 1, 2 and 4: what was done, and no candidate's layers counted twice
    done = math.ceil(sum((1, 2, 4)[exit] for exit in left) / 4)
    assert stage.tally.inferences == done < len(texts) == stage.inferences(len(texts))


def test_entropy_0_reads_all_to_the_end(model: str) -> None:
    found = given(TEXTS)
    stage = Cascade(model, entropy=0)
    ranked, whole = stage(found), Mono(model)(found)
    assert ranked.ids == whole.ids and ranked.kind is whole.kind
    assert ranked.scores.tolist() == whole.scores.tolist()
    assert stage.tally.inferences == stage.inferences(len(TEXTS)) == len(TEXTS)


def test_above_ln_2_all_leave_at_the_first_exit(model: str) -> None:
    found = given(TEXTS)
    first = 1 / (1 + np.exp(-everywhere(model, found)[:, 0].astype(np.float64)))
    stage = Cascade(model, entropy=0.7, workers=1)
    stage.scorer.engine.token_budget = 1  # one input a batch
    asked: list[None] = []
    with checked(lambda: asked.append(None)):
        ranked = stage(found)
    assert np.allclose(ranked.scores, np.sort(first)[::-1], atol=1e-6)
    assert len(asked) == len(TEXTS), "the layers above the first exit read nothing"
    assert stage.tally.inferences == math.ceil(len(TEXTS) / 4)


def test_scores_of_an_earlier_pass_serve_every_higher_entropy_and_alpha(model: str, tmp_path: Path) -> None:
    found = given(TEXTS)
    with ScoreCache(tmp_path / "scores.db") as cache:
        Cascade(model, entropy=0, cache=cache)(found)
        for options in ({"entropy": 0.5}, {"entropy": 0.68}, {"entropy": 0.7}, {"alpha": 0.5}):
            again, alone = Cascade(model, **options, cache=cache), Cascade(model, **options)
            known, computed = again(found), alone(found)
            assert known.ids == computed.ids and np.allclose(known.scores, computed.scores, atol=1e-6)
            assert (again.tally.inferences, again.tally.cached) == (0, alone.tally.inferences)


def test_how_much_is_read_is_known_afterwards(model: str) -> None:
    stage = Cascade(model, entropy=0.1)
    (step,) = plan(stage, [40])
    assert step.inferences.tolist() == [40] and stage.share == 1 and counts(stage) == "most"
    assert {counts(Cascade(model, alpha=0.1)), counts(Cascade(model, entropy=0))} == {"exact"}


def test_it_is_alpha_or_entropy() -> None:
    for text in (
        "cascade(model=c, entropy=0.1)",
        "cascade(entropy=0.0, precision=fp32)",
        "cascade(alpha=0.0)",
        "cascade",
    ):
        assert repr(build(text)) == text
    assert repr(build("cascade(alpha=none, entropy=1)")) == "cascade(entropy=1.0)"
    fingerprints = {Cascade(alpha=0).expression, Cascade(entropy=0).expression, Cascade().expression}
    assert len(fingerprints) == 3
    with pytest.raises(ExpressionError, match=r"a cascade with alpha=0.0 and entropy=0.1: give one of them"):
        build("cascade(alpha=0, entropy=0.1)")
    for wrong in (-0.1, math.nan, math.inf):
        with pytest.raises(InputError, match=f"a cascade with entropy={wrong}: use a number of at least 0"):
            Cascade(entropy=wrong)
