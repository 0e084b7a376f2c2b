"""One model in memory however many stages name it, and no more of them than a server has room for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index, Mono, Query
from tamis.base.errors import InputError
from tamis.core.plan import rerankers
from tamis.core.pool import ModelPool, shared
from tamis.core.registry import build
from tamis.core.runtime import Runtime
from tamis.infer import scorer as infer
from tamis.storage.score_cache import ScoreCache


class Scorer:
    """A stand-in that says what it was made with."""

    def __init__(self, model: str, **options: Any) -> None:
        self.model, self.options = model, options


class Other(Scorer):
    pass


def test_what_is_alike_in_everything_is_one() -> None:
    pool = ModelPool()
    first = pool.get(Scorer, "a", device="cpu", precision="int8")
    assert pool.get(Scorer, Path("a"), precision="int8", device="cpu") is first
    others = [
        pool.get(Scorer, "b", device="cpu", precision="int8"),
        pool.get(Scorer, "a", device="cuda", precision="int8"),
        pool.get(Scorer, "a", device="cpu", precision="fp32"),
        pool.get(Scorer, "a", device="cpu", precision="int8", revision="v1"),
        pool.get(Scorer, "a", device="cpu", precision="int8", architectures=("duo",)),
        pool.get(Other, "a", device="cpu", precision="int8"),
    ]
    assert len({id(each) for each in (first, *others)}) == 7
    assert pool.scorers == [first, *others] and pool.dropped == 0


def test_the_one_that_was_asked_for_least_lately_goes() -> None:
    pool = ModelPool(most=2)
    a, b = pool.get(Scorer, "a"), pool.get(Scorer, "b")
    assert pool.get(Scorer, "a") is a
    c = pool.get(Scorer, "c")
    assert pool.scorers == [a, c] and pool.dropped == 1
    assert pool.get(Scorer, "b") is not b, "it was dropped"
    assert [each.model for each in pool.scorers] == ["c", "b"] and pool.dropped == 2


def test_what_is_pinned_stays_and_does_not_count() -> None:
    pool = ModelPool(most=1)
    own = [pool.pinned.get(Scorer, name) for name in "xyz"]
    assert pool.scorers == own, "more than the most, and none is dropped"
    for name in "abab":
        pool.get(Scorer, name)
    assert [each.model for each in pool.scorers] == ["x", "y", "z", "b"]
    assert [pool.get(Scorer, name) for name in "xyz"] == own
    b = pool.get(Scorer, "b")
    assert pool.pinned.get(Scorer, "b") is b, "pinned later"
    pool.get(Scorer, "a")
    assert b in pool.scorers


def test_a_scorer_that_cannot_be_made_is_not_held() -> None:
    pool = ModelPool()
    with pytest.raises(InputError, match="no precision 'int9'"):
        pool.get(infer.Scorer, "mono", precision="int9")
    assert pool.scorers == []
    with pytest.raises(InputError, match="a pool of 0 models: use at least 1"):
        ModelPool(most=0)


def test_threads_that_ask_at_once_get_one() -> None:
    made: list[str] = []
    together = threading.Barrier(2)

    class Slow(Scorer):
        def __init__(self, model: str) -> None:
            made.append(model)
            super().__init__(model)

    pool = ModelPool()

    def ask(name: str) -> Slow:
        together.wait(60)
        return pool.get(Slow, name)

    with ThreadPoolExecutor(2) as threads:
        for name in map(str, range(50)):
            one, other = threads.map(ask, [name, name])
            assert one is other
    assert made == list(map(str, range(50)))


# -- stages
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), layers=1, positions=48).as_posix()


def test_a_stage_without_a_pool_has_its_own_model(model: str) -> None:
    pool = ModelPool()
    assert Mono(model).scorer is not Mono(model).scorer
    assert Mono(model, pool=pool).scorer is Mono(model, score="logit", pool=pool).scorer
    assert pool.scorers == [Mono(model, pool=pool).scorer]


def test_every_stage_with_a_model_takes_it_from_the_pool(model: str) -> None:
    runtime = shared(Runtime(workers=1))
    assert runtime.pool is not None
    own = f'(model="{model}")'
    text = f"mono{own} >> maxp(mono{own}, choose=mono{own}, passages=3) >> birch(mono{own}) >> mono{own} % 3"
    stages = rerankers(build(text, runtime=runtime)) + rerankers(build(f"mono{own}", runtime=runtime))
    assert len(stages) == 6 and {id(each.scorer) for each in stages} == {id(runtime.pool.scorers[0])}
    for name in ("duo", "listwise", "cascade", "cedr", "parade"):
        one, other = (rerankers(build(f"{name}{own}", runtime=runtime))[0].scorer for _ in range(2))
        assert one is other and one in runtime.pool.scorers
    # each takes models of other architectures
    assert len(runtime.pool.scorers) == 6


def test_a_runtime_that_is_shared_has_one_cache_and_one_pool(tmp_path: Path, model: str) -> None:
    runtime = shared(Runtime(cache=tmp_path / "scores.db"))
    assert isinstance(runtime.cache, ScoreCache) and shared(runtime) == runtime
    stages = [
        build(f'mono(model="{model}", score={score})', runtime=runtime) for score in ("logit", "probability")
    ]
    assert [each.cache for stage in stages for each in rerankers(stage)] == [runtime.cache] * 2
    assert not (tmp_path / "none.db").exists() and shared(Runtime()).cache is None


def test_stages_of_two_threads_share_a_model(model: str, tmp_path: Path) -> None:
    """It is loaded once, and each thread has what it would have had alone."""
    index = Index.build([Document("a", "a castle"), Document("b", "a song of a castle")], tmp_path / "idx")
    runtime, text = shared(Runtime(workers=1)), f'bm25 >> mono(model="{model}")'
    alone = build(text, index, Runtime(workers=1)).run([Query("q", "castle")])
    with ThreadPoolExecutor(2) as threads:
        runs = threads.map(lambda _: build(text, index, runtime).run([Query("q", "castle")]), range(8))
        assert all(list(run.values()) == list(alone.values()) for run in runs)
    assert runtime.pool is not None and len(runtime.pool.scorers) == 1
