"""A cascade with few candidates, odd texts, scores that are no numbers, few cores, and nobody who waits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")

from tamis import Cascade, Document, Mono, Query, Ranking  # noqa: E402
from tamis.errors import InputError, TamisError  # noqa: E402
from tamis.infer.cascade_backend import CascadeBackend  # noqa: E402
from tamis.infer.cores import cores  # noqa: E402
from tamis.infer.engine import Engine  # noqa: E402
from tamis.models.checkpoint import load_checkpoint  # noqa: E402
from tamis.models.exit_encoder import Walk  # noqa: E402
from tamis.models.exits import begin_exits, save_exits  # noqa: E402
from tamis.models.templates import Inputs  # noqa: E402
from tamis.rank.cache import ScoreCache  # noqa: E402
from tamis.rank.given import placed  # noqa: E402
from tamis.rank.reranker import Reranker  # noqa: E402
from tamis.serve.lane import Job, Lane  # noqa: E402
from tamis.serve.metrics import Metrics  # noqa: E402
from tamis.serve.pipelines import Step  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["castle", "", "song " * 200, "river war music", "castle bridge"]


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four layers, with exits after 1, 2 and 4; an input has at most 48 tokens."""
    place = tmp_path_factory.mktemp("cascade")
    plain = load_checkpoint(tiny_checkpoint(place / "plain", layers=4, positions=48))
    start = begin_exits(plain, (1, 2, 4), seed=1)
    heads = {name: start.heads[name] * 10 for name in start.heads}
    save_exits(replace(start, heads=heads), place / "model")
    return str(place / "model")


def test_limits_that_leave_nothing_to_read(model: str) -> None:
    with pytest.raises(InputError, match="a query_limit of 0 tokens: use 1 or more"):
        Cascade(model, query_limit=0)
    with pytest.raises(InputError, match="no room for a text and a query: raise the limit"):
        Cascade(model, limit=4).prepare()


def given(texts: list[str]) -> Ranking:
    return placed(Query("q", "castle song"), [Document(f"d{n}", text) for n, text in enumerate(texts)])


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("count", [0, 1, 2, len(TEXTS)])
def test_any_number_of_candidates_with_a_cache_as_without(
    count: int, alpha: float, model: str, tmp_path: Path
) -> None:
    found = given(TEXTS[:count])
    ranked = Cascade(model, alpha=alpha)(found)
    assert sorted(ranked.ids) == sorted(found.ids) and (np.diff(ranked.scores) <= 0).all()
    with ScoreCache(tmp_path / "scores.db") as cache:
        for _ in range(2):
            assert Cascade(model, alpha=alpha, cache=cache)(found) == ranked
    if not alpha:
        whole = Mono(model, precision="fp32")(found)
        assert whole.ids == ranked.ids and np.allclose(whole.scores, ranked.scores, atol=1e-5)


@pytest.mark.parametrize("exit", [0, 1, 2])
def test_scores_that_are_no_numbers_are_an_error_at_every_exit(
    exit: int, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As activations beyond half precision make them: of all others NaN says that a candidate has left."""
    real = Walk.logits

    def logits(walk: Walk) -> object:
        number = walk.passed
        return real(walk) * (float("nan") if number == exit else 1)

    monkeypatch.setattr(Walk, "logits", logits)
    with pytest.raises(TamisError, match="the scores of torch, processor, fp32 are not numbers: use precis"):
        Cascade(model)(given(TEXTS))


@pytest.mark.parametrize("workers", [None, 1, 2])
def test_it_runs_on_as_many_cores_as_it_is_told(
    workers: int | None, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = CascadeBackend.walk

    def watched(self: CascadeBackend, inputs: Inputs, *more: object) -> object:
        seen.append(torch.get_num_threads())
        return real(self, inputs, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(CascadeBackend, "walk", watched)
    torch.set_num_threads(3)  # the caller's own
    Cascade(model, workers=workers)(given(TEXTS))
    assert seen == [workers or 3] and torch.get_num_threads() == 3


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


def test_a_walk_is_given_up_before_any_of_its_batches(model: str) -> None:
    stage = Cascade(model, alpha=0.3)
    engine: Engine = stage.encoder.engine
    engine.token_budget = 50  # one input a batch, for these
    asked = itertools.count()
    engine.check = lambda: next(asked)
    before = stage(given(["song " * 40] * 5))
    batches = next(asked)
    assert batches == 5 + 4 + 3, "those that live, at each exit"
    for last in range(batches):
        left = iter(range(last))
        engine.check = lambda left=left: next(left)  # type: ignore[misc]
        with pytest.raises(StopIteration):
            stage(given(["song " * 40] * 5))
    engine.check = lambda: None
    assert stage(given(["song " * 40] * 5)) == before
