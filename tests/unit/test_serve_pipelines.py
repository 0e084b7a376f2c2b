"""Which pipelines a client may ask for, and what becomes of them when the index changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.errors import ExpressionError, TamisError
from tamis.serve.limits import Limits
from tamis.serve.models import stage_of
from tamis.serve.pipelines import Pipelines, reload_or_keep


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build([Document("d1", "a sieve"), Document("d2", "soup")], tmp_path / "idx")


@pytest.fixture
def model(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> str:
    return str(tiny_checkpoint(tmp_path / "m", layers=1, positions=48))


def test_a_search_that_names_no_number_gets_the_limit(index: Index) -> None:
    pipelines = Pipelines(index, "bm25", limits=Limits(candidates=200))
    assert pipelines.search(None).expression == "bm25 % 200"
    assert pipelines.search("bm25 % 20 >> rm3").expression == "bm25 % 20 >> rm3 % 200"
    fused = pipelines.search("fuse(bm25, ql % 10)").expression
    assert fused == "fuse(bm25 % 200, ql % 10)"
    with pytest.raises(ExpressionError, match="this server keeps 200 at most"):
        pipelines.search("fuse(bm25, ql % 201)")


def test_pipelines_that_are_alike_are_built_once_and_share_their_model(index: Index, model: str) -> None:
    own = f'mono(model="{model}")'
    pipelines = Pipelines(index, f"bm25 % 10 >> {own}")
    first, second = pipelines.search(None), pipelines.search(None)
    assert first is second
    others = [
        pipelines.search(f'bm25 % 5 >> mono(model="{model}", score=logit)'),
        pipelines.search(f"bm25 % 5 >> maxp({own})"),
        pipelines.rerank(None),
    ]
    assert len({id(each.steps[-1].models[0].encoder) for each in (first, *others)}) == 1
    assert pipelines.rerank(None).expression == own


@pytest.mark.parametrize(
    ("searching", "given"),
    [
        ("bm25 % 9 >> interpolate(MONO, alpha=0.3)", "MONO"),
        (
            "bm25 >> normalise % 5 >> interpolate(MONO % 4 >> MONO) % 3 >> MONO",
            "MONO % 4 >> MONO % 3 >> MONO",
        ),
        ("bm25 % 9 >> interpolate(interpolate(MONO)) % 3", "MONO"),
        ("bm25 % 9 >> ltr(score=1) >> MONO % 3 >> normalise", "MONO % 3 >> normalise"),
        ("bm25 % 9 >> MONO >> interpolate(MONO)", "MONO >> interpolate(MONO)"),
        ("bm25 % 9 >> ltr(score=1, idf=1)", "mono"),
    ],
)
def test_candidates_that_are_given_have_no_scores_to_work_on(
    index: Index, model: str, searching: str, given: str
) -> None:
    own = f'mono(model="{model}")'
    pipelines = Pipelines(index, searching.replace("MONO", own))
    assert pipelines.rerank(None).expression == given.replace("MONO", own)


def test_models_that_a_client_may_name(index: Index, model: str) -> None:
    pipelines = Pipelines(index, "bm25")
    with pytest.raises(ExpressionError, match="this server has no model"):
        pipelines.search(f'bm25 >> mono(model="{model}")')
    assert Pipelines(index, "bm25", models=[model]).search(f'bm25 % 5 >> mono(model="{model}")')


def test_the_stage_of_a_model_is_in_the_model(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    for segments, stage in ((1, "mono"), (2, "mono"), (3, "duo")):
        assert stage_of(str(tiny_checkpoint(tmp_path / "m", layers=1, segments=segments))) == stage
    (tmp_path / "m" / "tamis.json").write_text('{"format": 1, "kind": "parade-max"}')
    assert stage_of(str(tmp_path / "m")) == "parade"


def test_passages_without_number_are_for_who_starts_the_server(index: Index, model: str) -> None:
    whole = f'bm25 % 5 >> birch(mono(model="{model}"))'
    with pytest.raises(ExpressionError, match="give it one, as in passages=30"):
        Pipelines(index, "bm25", models=[model]).search(whole)
    own = Pipelines(index, whole)
    assert own.search(None).expression == own.search(whole).expression == whole


def test_a_new_commit_is_taken_up_and_the_old_one_stays_readable(index: Index) -> None:
    pipelines = Pipelines(Index.open(index.path), "bm25")
    before = pipelines.search(None)
    assert reload_or_keep(pipelines) == "same"
    index.delete(["d1"])
    index.merge()
    assert reload_or_keep(pipelines) == "new"
    assert before.stage("sieve").documents()[0].id == "d1"
    assert not pipelines.search(None).stage("sieve")


def test_an_index_that_is_away_for_a_moment(index: Index) -> None:
    pipelines = Pipelines(Index.open(index.path), "bm25")
    away = index.path.with_name("away")
    index.path.rename(away)
    assert pipelines.outdated()
    assert reload_or_keep(pipelines) == "failed"
    with pytest.raises(TamisError):
        pipelines.reload()
    assert pipelines.search(None).stage("sieve").ids == ("d1",)
    away.rename(index.path)
    Index.build([Document("d3", "sieves")], index.path, overwrite=True)
    assert reload_or_keep(pipelines) == "new"
    assert pipelines.search(None).stage("sieve").ids == ("d3",)
