"""A title that is read once, as the beginning of its document: as training reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Birch, Document, Index, MaxP, Mono, Query, Ranking, ScoreKind
from tamis.base.errors import InputError
from tamis.core.registry import build
from tamis.infer.tokens import build_tokens
from tamis.models.templates import COUNTED
from tamis.rank.given_run import Documents
from tamis.rank.reading import Cutting, Unit

TITLE = "The Drum Sieve of the Kings"
TEXT = "a tamis is a fine sieve. it is made of a drum and a net! onions are sweet. " * 4
TITLED = Document("d1", TEXT, title=TITLE)
UNITS: list[Unit] = ["words", "tokens", "sentences", "even"]
WINDOWS: dict[str, dict[str, int]] = {
    "words": {"window": 12, "stride": 12},
    "tokens": {"window": 20, "stride": 20},
    "sentences": {"window": 2, "stride": 2},
    "even": {"window": 25},
}


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", hidden=16, heads=2, positions=96))


def given(*documents: Document, query: str = "what is a tamis") -> Ranking:
    ids = tuple(document.id for document in documents)
    texts = Documents(documents, only=ids)
    return Ranking(Query("q", query), ids, -np.arange(float(len(ids))), ScoreKind.RETRIEVAL, texts)


def mono(model: str) -> Mono:
    return Mono(model, query_limit=8, device="cpu", workers=1)


# -- what is read


@pytest.mark.parametrize("unit", UNITS)
def test_the_document_is_read_as_one_without_a_title_that_begins_with_it(unit: Unit, model: str) -> None:
    once = MaxP(mono(model), unit=unit, title="once", **WINDOWS[unit])
    untitled = MaxP(mono(model), unit=unit, **WINDOWS[unit])
    whole = Document("d1", TITLED.contents)
    (read,), (same,) = (
        stage.reader.read(given(each), ["d1"]) for stage, each in ((once, TITLED), (untitled, whole))
    )
    assert len(read.passages) > 2 and read.passages == same.passages
    assert read.tokens.ids.tolist() == same.tokens.ids.tolist()
    one, other = once(given(TITLED)), untitled(given(whole))
    assert one.scores.tolist() == other.scores.tolist()
    assert one.scores.tolist() != MaxP(mono(model), unit=unit, **WINDOWS[unit])(given(TITLED)).scores.tolist()


@pytest.mark.parametrize("unit", UNITS)
def test_evidence_is_of_the_text_and_not_of_the_title(unit: Unit, model: str) -> None:
    whole = Document("d1", TITLED.contents)
    once = MaxP(mono(model), unit=unit, title="once", evidence=9, **WINDOWS[unit])(given(TITLED))
    shown = MaxP(mono(model), unit=unit, evidence=9, **WINDOWS[unit])(given(whole))
    before = len(TITLE) + 1
    spans = [TEXT[start:stop] for start, stop, _ in once.evidence["d1"]]
    assert spans == [whole.text[max(start, before) : stop] for start, stop, _ in shown.evidence["d1"]]
    assert any(start < before for start, _, _ in shown.evidence["d1"])  # one that begins in the title
    for start, stop, _ in once.evidence["d1"]:
        assert 0 <= start < stop <= len(TEXT)


def test_a_window_in_the_title_alone_is_nowhere_in_the_text(model: str) -> None:
    stage = MaxP(mono(model), window=3, stride=3, title="once", passages=2)
    (found,) = stage([given(TITLED)])
    assert [each[:2] for each in found.evidence["d1"]] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("unit", ["tokens", "even"])
def test_tokens_kept_beside_an_index_change_nothing(unit: Unit, model: str, tmp_path: Path) -> None:
    stage = MaxP(mono(model), unit=unit, title="once", **WINDOWS[unit])
    index = Index.build([TITLED, Document("d2", "a tamis")], tmp_path / "idx")
    before = (index.bm25() >> stage)("tamis")
    build_tokens(index, stage.scorer.tokenizer, limit=COUNTED)
    after = (Index.open(tmp_path / "idx").bm25() >> stage)("tamis")
    assert before == after and before.evidence == after.evidence and len(before) == 2


def test_birch_may_read_it_so_too(model: str) -> None:
    once = Birch(mono(model), title="once", window=2)(given(TITLED))
    whole = Birch(mono(model), window=2)(given(Document("d1", TITLED.contents)))
    assert once.scores.tolist() == whole.scores.tolist()


# -- the language


@pytest.mark.parametrize("stage", ["firstp", "maxp", "sump", "avgp", "kmaxp", "birch"])
def test_it_prints_back_and_is_another_stage(stage: str, model: str) -> None:
    prints = [build(f"{stage}(mono, title={title})") for title in ("true", "false", "once")]
    assert repr(prints[2]) == f"{stage}(mono, title=once)"
    assert repr(build(repr(prints[2]))) == repr(prints[2])
    own = [build(f"{stage}(mono(model={json.dumps(model)}), title={t})") for t in ("true", "false", "once")]
    assert len({each.fingerprint for each in own}) == 3


def test_another_title_is_refused() -> None:
    with pytest.raises(InputError, match="title of maxp cannot be 'twice': give true or false or once"):
        build("maxp(mono, title=twice)")
    with pytest.raises(InputError, match="a title 'twice': use true, false or once"):
        Cutting(title="twice")  # type: ignore[arg-type]


# -- training


@pytest.mark.parametrize("query", ["what is a tamis", "what is a tamis " * 9])
def test_a_fold_is_tested_on_what_its_dev_run_reads(query: str, model: str, tmp_path: Path) -> None:
    """And what it learns from, for that is read by the same function."""
    pytest.importorskip("torch")
    from tamis.infer.scorer import Scorer
    from tamis.infer.torch_backend import TorchBackend
    from tamis.models.architectures.maxp import MaxP as MaxPModel
    from tamis.models.architectures.maxp import MaxPSettings
    from tamis.models.documents import Layout
    from tamis.rank.scored import Scored
    from tamis.train.dev import dev_stage, open_dev
    from tamis.train.folds import pipeline_of
    from tamis.train.recipe import Data, Dev, Model, Optimiser, Recipe
    from tamis.train.start import begin

    documents = [TITLED, Document("d2", "soup " * 50, title="soup " * 40), Document("d3", "", title="Net")]
    records = [{"_id": each.id, "title": each.title, "text": each.text} for each in documents]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "q.jsonl").write_text(json.dumps({"_id": "q", "text": query}))
    (tmp_path / "qrels.txt").write_text("q 0 d1 1\n")
    (tmp_path / "run.txt").write_text("".join(f"q Q0 d{n} {n} {9 - n} x\n" for n in (1, 2, 3)))
    paths = {name: str(tmp_path / f"{name}.txt") for name in ("qrels", "run")}
    dev = Dev(queries=str(tmp_path / "q.jsonl"), corpus=(str(tmp_path / "c.jsonl"),), **paths)
    plan = Recipe(
        Model(model),
        (Data(set="unused"),),
        Optimiser(steps=1),
        dev=dev,
        architecture=MaxPModel(MaxPSettings(window=20, stride=15, passages=5, sequence=40, query=8)),
    )
    start = begin(plan)
    measures = dev_stage(Scorer.over(start, TorchBackend(start, "cpu")), plan.limits)
    assert isinstance(measures, Scored)
    (learned,) = measures.build_inputs(open_dev(dev).rankings).inputs

    stage = build(pipeline_of(plan).replace("{model}", json.dumps(model)))
    assert isinstance(stage, MaxP)
    asked, ranking = stage.scorer.tokenizer.encode([query]), given(*documents, query=query)
    tested = [
        stage.stage.inputs_of(asked, read.tokens)[0]
        for read in stage.reader.read(ranking, ranking.ids, room=stage._room(asked))
    ]
    layout = Layout.of(learned, stage.scorer.tokenizer.special)
    passages = layout.passages
    assert [len(each) for each in tested] == np.diff(layout.offsets).tolist()
    assert np.concatenate([each.ids for each in tested]).tolist() == passages.ids.tolist()
    assert np.concatenate([each.segments for each in tested]).tolist() == passages.segments.tolist()
