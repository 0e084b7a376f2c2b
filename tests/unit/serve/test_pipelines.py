"""Which pipelines a client may ask for, and what becomes of them when the index changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Ranking
from tamis.base.errors import ExpressionError, InputError, TamisError
from tamis.core.options import Kind
from tamis.core.registry import BUILT_IN, parameters_of
from tamis.core.stage import Role, Stage, stage
from tamis.rank.groupwise import GroupwiseModel
from tamis.serve.limits import Limits
from tamis.serve.models import stage_of
from tamis.serve.pipelines import Pipelines, reload_or_keep


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build([Document("d1", "a sieve"), Document("d2", "soup")], tmp_path / "idx")


@pytest.fixture
def model(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> str:
    return str(tiny_checkpoint(tmp_path / "m", layers=1, positions=48))


@pytest.fixture
def scorer(tmp_path: Path) -> str:
    """A model of groupwise, which is a file."""
    GroupwiseModel(("score",), [(np.eye(2), np.zeros(2))], texts=2).save(tmp_path / "gsf.json")
    return str(tmp_path / "gsf.json")


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
    assert len({id(each.steps[-1].models[0].scorer) for each in (first, *others)}) == 1
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
        ("bm25 % 9 >> fuse(MONO, k=10) % 3 >> MONO", "MONO"),
        ("bm25 % 9 >> fuse(MONO, k=10) % 3", "MONO"),
        ("bm25 % 9 >> fuse(MONO, k=10) % 3 >> normalise", "MONO % 3 >> normalise"),
        ("bm25 % 9 >> fuse(MONO, MONO) % 3 >> MONO", "fuse(MONO, MONO) % 3 >> MONO"),
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


def test_a_revision_that_the_server_does_not_have_is_named(index: Index) -> None:
    pipelines = Pipelines(index, "bm25 % 5 >> mono(revision=v1)")
    remedy = "use duo, mono of revision v1, mono, mono-nano, mono-tiny"
    with pytest.raises(ExpressionError, match=f"this server has no model 'mono' of revision 'abc': {remedy}"):
        pipelines.search("bm25 >> mono(model=mono, revision=abc)")
    assert pipelines.search("bm25 % 5 >> mono(revision=v1)")


def test_what_chooses_passages_is_looked_at_like_any_stage(index: Index, model: str) -> None:
    pipelines = Pipelines(index, "bm25 % 10", limits=Limits(inferences=60))
    with pytest.raises(ExpressionError, match="this server has no model"):
        pipelines.search(f'bm25 % 5 >> maxp(mono, choose=mono(model="{model}"), passages=3)')
    with pytest.raises(ExpressionError, match="finds no candidates"):
        pipelines.search("maxp(mono, choose=bm25, passages=3)")
    with pytest.raises(InputError, match="may take 66 inferences"):  # 30 and 3 of each document
        pipelines.search("bm25 % 2 >> maxp(mono, choose=mono(model=mono-tiny), passages=3)")
    built = pipelines.search("bm25 % 1 >> maxp(mono, choose=mono(model=mono-tiny), passages=3)")
    strong, weak = built.steps[-1].models
    assert (strong.scorer.model, weak.scorer.model) == ("mono", "mono-tiny")
    assert weak.scorer is pipelines.search("bm25 % 1 >> mono(model=mono-tiny)").steps[-1].models[0].scorer


def test_bm25_that_chooses_searches_nothing(index: Index, model: str) -> None:
    own = f'maxp(mono(model="{model}"), choose=bm25, passages=3)'
    pipelines = Pipelines(index, f"bm25 % 10 >> {own}")
    assert pipelines.rerank(None).expression == own == pipelines.rerank(own).expression
    assert pipelines.search(None).expression == f"bm25 % 10 >> {own}"


def _text_options(name: str) -> list[str]:
    """Those of a stage that take any text."""
    return [key for key, each in parameters_of(name).items() if each.takes_text]


#: All options of the language that take any text; of `weights` see below.
NAMING = [(name, option) for name in BUILT_IN for option in _text_options(name) if option != "weights"]


def test_every_option_that_takes_any_text_is_looked_at() -> None:
    assert {("groupwise", "model"), ("mono", "model"), ("mono", "revision"), ("cedr", "model")} < set(NAMING)


@pytest.mark.parametrize(("name", "option"), NAMING)
def test_a_path_that_a_client_names_is_refused(index: Index, tmp_path: Path, name: str, option: str) -> None:
    pipelines = Pipelines(index, "bm25")
    (tmp_path / "secret").write_text("x")
    takes_stage = any(each.kind is Kind.STAGE for each in parameters_of(name).values())
    for path in (tmp_path / "secret", tmp_path / "gone", tmp_path, "/dev/zero"):
        stage = f'{name}({"mono, " if takes_stage else ""}{option}="{path}")'
        for ask, pipeline in ((pipelines.search, f"bm25 >> {stage}"), (pipelines.rerank, stage)):
            with pytest.raises(ExpressionError, match=f"this server has no model .*'{path}'"):
                ask(pipeline)


def test_weights_are_numbers_and_no_path(index: Index) -> None:
    pipelines = Pipelines(index, "bm25")
    assert pipelines.search('bm25 >> ltr(bm25, ql, weights="0.5 0.5")')
    with pytest.raises(ExpressionError, match="write numbers"):
        pipelines.search('bm25 >> ltr(bm25, weights="/etc/passwd")')


def test_a_stage_that_is_new_opens_no_file_for_clients(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    @stage("reads", role=Role.ORDERS)
    class Reads(Stage):
        def __init__(self, file: str | None = "own.txt") -> None:
            raise AssertionError("not even made")

        def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
            return list(rankings)

    monkeypatch.setitem(BUILT_IN, "reads", Reads)
    pipelines = Pipelines(index, "bm25")
    for asked, path in (("reads", "own.txt"), ('reads(file="/etc/shadow")', "/etc/shadow")):
        with pytest.raises(ExpressionError, match=f"lets no client choose file of reads, here '{path}'"):
            pipelines.search(f"bm25 >> {asked}")


@pytest.mark.parametrize(
    "around", ["STAGE", "interpolate(STAGE)", "if_unsure(STAGE % 5)", "fuse(mono, normalise >> STAGE)"]
)
def test_a_file_of_groupwise_is_a_model(index: Index, scorer: str, around: str) -> None:
    pipelines = Pipelines(index, "bm25")
    stage = around.replace("STAGE", f'groupwise(model="{scorer}")')
    with pytest.raises(ExpressionError, match=r"gsf.json': use a pipeline without groupwise"):
        pipelines.search(f"bm25 % 5 >> {stage}")
    with pytest.raises(ExpressionError, match=r"this server has no model 'groupwise.json'"):
        pipelines.search("bm25 % 5 >> " + around.replace("STAGE", "groupwise"))
    with pytest.raises(ExpressionError, match="this server has no model"):
        pipelines.rerank(stage)
    named = Pipelines(index, "bm25", models=[scorer])
    assert named.search(f"bm25 % 5 >> {stage}") and named.models[scorer] == "groupwise"


def test_the_files_of_groupwise_are_not_those_of_others(index: Index, model: str, scorer: str) -> None:
    own = f'bm25 % 5 >> groupwise(model="{scorer}")'
    pipelines = Pipelines(index, own, models=[model])
    assert pipelines.search(None).expression == pipelines.search(own).expression == own
    with pytest.raises(ExpressionError, match=f"has no model 'mono': use {scorer}"):
        pipelines.search("bm25 % 5 >> groupwise(model=mono)")
    with pytest.raises(ExpressionError, match=r"has no model .*gsf.json': use .*, duo, mono"):
        pipelines.search(f'bm25 % 5 >> mono(model="{scorer}")')


def test_a_file_of_groupwise_that_cannot_be_read_is_an_error_at_the_start(
    index: Index, tmp_path: Path, scorer: str
) -> None:
    with pytest.raises(InputError, match=r"groupwise.json: no such file: check the path"):
        Pipelines(index, "bm25 % 5 >> groupwise")
    with pytest.raises(InputError, match=r"was trained with no stages: write groupwise\(model="):
        Pipelines(index, f'bm25 % 5 >> groupwise(ql, model="{scorer}")')
    Path(scorer).write_text("{}")
    for pipeline, models in (
        (f'bm25 % 5 >> interpolate(groupwise(model="{scorer}"))', []),
        ("bm25", [scorer]),
    ):
        with pytest.raises(InputError, match="not a groupwise model"):
            Pipelines(index, pipeline, models=models)


def test_the_stage_of_a_model_is_in_the_model(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    for segments, name in ((1, "mono"), (2, "mono"), (3, "duo")):
        assert stage_of(str(tiny_checkpoint(tmp_path / "m", layers=1, segments=segments))) == name
    (tmp_path / "m" / "tamis.json").write_text('{"format": 1, "kind": "parade-max"}')
    assert stage_of(str(tmp_path / "m")) == "parade"


def test_passages_without_number_are_for_who_starts_the_server(index: Index, model: str) -> None:
    whole = f'bm25 % 5 >> birch(mono(model="{model}"))'
    with pytest.raises(ExpressionError, match="set a limit, as in passages=30"):
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


@pytest.mark.parametrize(
    ("own", "limits", "why"),
    [
        ("sdm", Limits(), "sdm needs positions: build the index with positions (--positions)"),
        (
            "bm25 >> mono",
            Limits(inferences=2),
            "bm25 >> mono may take 3 inferences: rank fewer candidates: this server takes 2 at most",
        ),
    ],
)
def test_a_commit_that_the_own_pipeline_cannot_run_over_is_not_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own: str, limits: Limits, why: str
) -> None:
    two = [Document("d1", "a fine sieve"), Document("d2", "soup")]
    Index.build(two, tmp_path / "idx", positions=True)
    pipelines = Pipelines(Index.open(tmp_path / "idx"), own, limits=limits)
    pipelines.search(None)
    Index.build([*two, Document("d3", "sieves")], tmp_path / "idx", overwrite=True)
    with caplog.at_level(logging.ERROR, "tamis.serve"):
        assert (pipelines.outdated(), reload_or_keep(pipelines)) == (True, "failed")
        pipelines._looked = 0.0
        assert not pipelines.outdated(), "told once, not at every request"
    assert [record.getMessage() for record in caplog.records] == [
        f"the index has changed, and {own} cannot run over it ({why}): the previous state is served"
    ]
    assert len(pipelines.index) == 2 and pipelines.search("bm25").stage("sieve").ids == ("d1",)
    assert pipelines.search(None).expression == own
    Index.build([Document("d4", "a fine sieve")], tmp_path / "idx", overwrite=True, positions=True)
    assert reload_or_keep(pipelines) == "new"
    assert pipelines.search(None).index.document("d4")
