"""Birch tuned: whatever its alpha, its weights and n, sentences are read once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tamis import Birch, Document, Index, Query, Stage
from tamis.core.plan import rerankers
from tamis.core.registry import build
from tamis.core.runtime import Runtime
from tamis.evaluate.candidates import candidates
from tamis.evaluate.folds import Fold
from tamis.evaluate.grid import Grid, Setting, pipelines_of, settings
from tamis.evaluate.measures import evaluate
from tamis.evaluate.sweep import Sweep, run_each
from tamis.evaluate.tradeoff import trade_off
from tamis.evaluate.tune import cross_validate
from tamis.storage.score_cache import ScoreCache

TEXTS = {
    "a": "A sieve for flour. The king has a castle. A song was sung.",
    "b": "Flour and water. War came! The river rose. A film ended. The sieve broke.",
    "c": "The sieve of an old mill.",
    "d": "Water is old. The mill has flour.",
}
SENTENCES = {"a": 3, "b": 5, "c": 1, "d": 2}
QUERIES = [Query("q1", "flour sieve"), Query("q2", "old mill water")]
QRELS = {"q1": {"c": 1, "b": 2}, "q2": {"b": 1}}
FOLDS = [Fold(("q1",), ("q2",)), Fold(("q2",), ("q1",))]
GRID: Grid = {"n": [1, 2, 3], "alpha": [0.0, 0.3, 1.0], "w2": [0.0, 0.4], "w3": [0.7]}


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model"), positions=64)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build([Document(*item) for item in TEXTS.items()], tmp_path_factory.mktemp("birch") / "idx")


def template(model: Path, options: str = "") -> str:
    mono = f'mono(model="{model.as_posix()}")'
    return f"bm25 >> birch({mono}, n={{n}}, alpha={{alpha}}, w2={{w2}}, w3={{w3}}{options})"


def sentences(index: Index, queries: Sequence[Query] = QUERIES) -> int:
    return sum(SENTENCES[identity] for query in queries for identity in index.bm25()(query).ids)


def inferences(stages: Sequence[Stage]) -> int:
    return sum(each.tally.inferences for stage in stages for each in rerankers(stage))


def loaded(stages: Sequence[Stage]) -> int:
    """How many models are in memory."""
    birches = [each for stage in stages for each in rerankers(stage) if isinstance(each, Birch)]
    scorers = {id(each): each for birch in birches for each in (birch.scorer, birch.stage.scorer)}
    return sum(each._engine is not None for each in scorers.values())


@pytest.fixture(scope="module")
def alone(model: Path, index: Index) -> dict[str, list[dict[str, object]]]:
    """Each setting by itself: what there is to be the same."""
    made: dict[str, list[dict[str, object]]] = {}
    for setting in settings(GRID):
        run = pipelines_of(template(model), index, Runtime(workers=1))(setting).run(QUERIES)
        made[repr(setting)] = [
            {"ids": ranking.ids, "scores": ranking.scores.tolist(), "evidence": dict(ranking.evidence)}
            for ranking in run.values()
        ]
    return made


def test_a_model_scores_each_sentence_once_whatever_the_setting(
    model: Path, index: Index, alone: dict[str, list[dict[str, object]]]
) -> None:
    make = pipelines_of(template(model), index, Runtime(workers=1))
    made = [make(setting) for setting in settings(GRID)]
    found = dict(run_each(made, QUERIES))
    assert inferences(made) == sentences(index)
    assert loaded(made) == 1
    for number, setting in enumerate(settings(GRID)):
        assert [
            {"ids": ranking.ids, "scores": ranking.scores.tolist(), "evidence": dict(ranking.evidence)}
            for ranking in found[number].values()
        ] == alone[repr(setting)]


def test_so_does_cross_validation(model: Path, index: Index) -> None:
    made: list[Stage] = []
    make = pipelines_of(f"({template(model)}) % 2", index, Runtime(workers=1))

    def pipeline_of(setting: Setting) -> Stage:
        made.append(make(setting))
        return made[-1]

    result = cross_validate(pipeline_of, GRID, QUERIES, QRELS, FOLDS, "nDCG@2")
    assert len(made) == 18
    assert inferences(made) == sentences(index)
    for tried in result.tried:
        apart = make(tried.setting).run(QUERIES)
        values = evaluate(QRELS, apart, ["nDCG@2"]).per_query["nDCG@2"]
        assert tried.train == [values["q1"], values["q2"]]


def test_other_readings_are_not_shared(model: Path, index: Index) -> None:
    """Another model, other windows, other sentences left out: each reads for itself."""
    mono = f'mono(model="{model.as_posix()}")'
    other = f'mono(model="{model.as_posix()}", score=logit)'
    texts = [
        f"bm25 >> birch({mono})",
        f"bm25 >> birch({mono}, window=2)",
        f"bm25 >> birch({mono}, exact_match=false)",
        f"bm25 >> birch({mono}, passages=1)",
        f"bm25 >> birch({mono}, evidence=1)",
        f"bm25 >> birch({other})",
    ]
    stages = [build(text, index, Runtime(workers=1)) for text in texts]
    for number, run in run_each(stages, QUERIES):
        apart = build(texts[number], index, Runtime(workers=1)).run(QUERIES)
        assert list(run.values()) == list(apart.values())
        assert [ranking.evidence for ranking in run.values()] == [
            ranking.evidence for ranking in apart.values()
        ]


def test_it_is_shared_inside_of_other_stages(model: Path, index: Index) -> None:
    mono = f'mono(model="{model.as_posix()}")'
    texts = [f"bm25 >> interpolate(birch({mono}, alpha={alpha}) % 3)" for alpha in (0.1, 0.9)]
    texts += [f"bm25 >> fuse(birch({mono}, n={n}), birch({mono}, w2=0.1)) % 2" for n in (1, 2)]
    stages = [build(text, index, Runtime(workers=1)) for text in texts]
    found = dict(run_each(stages, QUERIES))
    assert inferences(stages) == sentences(index)
    for number, text in enumerate(texts):
        apart = build(text, index, Runtime(workers=1)).run(QUERIES)
        assert list(found[number].values()) == list(apart.values())


@pytest.mark.parametrize("tail", ["", " % 2"])
def test_a_trade_off_reads_once_and_counts_what_each_would_have_read(
    model: Path, index: Index, tail: str
) -> None:
    tried = candidates(template(model) + tail, GRID, index, runtime=Runtime(workers=1))
    stages = [each.stage for each in tried]
    found = trade_off(tried, QUERIES, QRELS, "nDCG@2", timed=0)
    assert found.work.inferences == sentences(index) == inferences(stages)
    assert loaded(stages) == 1
    assert {point.inferences for point in found.points} == {sentences(index) / 2}
    for point in found.points:
        apart = build(point.pipeline, index, Runtime(workers=1)).run(QUERIES)
        assert point.per_query == evaluate(QRELS, apart, ["nDCG@2"]).per_query["nDCG@2"]


@pytest.mark.parametrize("tail", ["", " % 2"])
def test_the_clock_reads_once_too(model: Path, index: Index, tail: str) -> None:
    """Settings that read alike take the same time: it is measured once, without a cache."""
    tried = candidates(template(model) + tail, GRID, index, runtime=Runtime(workers=1))
    stages = [each.timed for each in tried if each.timed is not None]
    times = Sweep([each.stage for each in tried], stages).time(QUERIES)
    assert len(times) == len(stages) == len(tried)
    if not tail:  # a cut has a time of its own
        assert len({tuple(each) for each in times.values()}) == 1
    assert inferences(stages) == sentences(index, [QUERIES[0], *QUERIES])
    assert loaded([*stages, *(each.stage for each in tried)]) == 1
    assert not inferences([each.stage for each in tried])


def test_a_cache_is_opened_once(model: Path, index: Index, tmp_path: Path) -> None:
    make = pipelines_of(template(model), index, Runtime(workers=1, cache=tmp_path / "scores.db"))
    birches = [each for setting in settings(GRID) for each in rerankers(make(setting))]
    assert len({id(each.cache) for each in birches}) == 1
    assert isinstance(birches[0].cache, ScoreCache)
