"""Passage scores and what becomes of them, over tiny models: whatever scores these give, the bookkeeping
around them must be right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tamis import AvgP, Document, FirstP, Index, KMaxP, MaxP, Mono, Query, Ranking, ScoreKind, SumP
from tamis.base.errors import InputError, TamisError
from tamis.core.registry import build
from tamis.infer.tokens import build_tokens
from tamis.models.templates import COUNTED
from tamis.rank import passage as passage_module
from tamis.rank.given_run import Documents
from tamis.rank.passage import PassageStage, avg_p, first_p, k_max_p, max_p, sum_p
from tamis.rank.reading import Cutting
from tamis.text.segment import token_places, word_windows

WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle", "king"]
ALL: list[type[PassageStage]] = [FirstP, MaxP, SumP, AvgP, KMaxP]


def text_of(count: int, seed: int) -> str:
    generator = np.random.default_rng(seed)
    drawn = generator.choice(WORDS, count)
    return " ".join(word + (". " if n % 9 == 8 else "") for n, word in enumerate(drawn))


DOCUMENTS = [
    Document(f"d{n:02}", text_of(count, n), title=f"the {WORDS[n]}" if n % 2 else "")
    for n, count in enumerate([1, 30, 90, 400, 12, 150, 77, 260])
]


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "mono", labels=2)
    tiny_checkpoint(folder / "roberta", "roberta", segments=1)
    tiny_checkpoint(folder / "short", positions=48)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(DOCUMENTS, tmp_path_factory.mktemp("index") / "idx")


def mono(models: Path, name: str = "mono", **options: object) -> Mono:
    return Mono(str(models / name), workers=1, **options)  # type: ignore[arg-type]


def given(documents: list[Document], query: str = "castle song") -> Ranking:
    ids = tuple(document.id for document in documents)
    scores = -np.arange(len(ids), dtype=np.float64)
    return Ranking(Query("q", query), ids, scores, ScoreKind.RETRIEVAL, Documents(documents, only=ids))


def passages_by_hand(stage: Mono, document: Document, window: int, stride: int) -> list[float]:
    """Each window as a document of its own, scored by mono."""
    places = word_windows(document.text, window, stride)
    texts = [replace(document, text=document.text[start:stop]) for start, stop in places]
    ranked = stage.rank("castle song", texts)
    return [each.score for each in sorted(ranked, key=lambda each: each.position)]


# -- formulae


def test_formulae() -> None:
    scores = np.array([0.25, 0.75, 0.5, 0.0])
    assert (first_p(scores), max_p(scores), sum_p(scores), avg_p(scores)) == (0.25, 0.75, 1.5, 0.375)
    assert (k_max_p(scores, 1), k_max_p(scores, 2), k_max_p(scores, 9)) == (0.75, 0.625, 0.375)


# -- scores


@pytest.mark.parametrize(
    ("kind", "formula"),
    [(FirstP, first_p), (MaxP, max_p), (SumP, sum_p), (AvgP, avg_p), (KMaxP, lambda s: k_max_p(s, 3))],
)
def test_scores_are_made_of_the_passages_scores(
    models: Path, kind: type[PassageStage], formula: Callable[[np.ndarray], float]
) -> None:
    stage = mono(models)
    ranked = kind(stage, window=40, stride=20)(given(DOCUMENTS))
    expected = {d.id: formula(np.array(passages_by_hand(stage, d, 40, 20))) for d in DOCUMENTS}
    assert {hit.id: hit.score for hit in ranked} == expected
    assert list(ranked.scores) == sorted(ranked.scores, reverse=True)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("name", ["mono", "roberta"])
def test_one_passage_scores_as_the_document_does(models: Path, kind: type[PassageStage], name: str) -> None:
    stage = mono(models, name)
    short = given([d for d in DOCUMENTS if len(d.text.split()) <= 40])
    ranked = kind(stage, window=40)(short)
    assert ranked.ids == stage(short).ids
    assert ranked.scores.tobytes() == stage(short).scores.tobytes()


def test_kinds_of_score(models: Path) -> None:
    found = given(DOCUMENTS[:3])
    assert MaxP(mono(models))(found).kind == ScoreKind.PROBABILITY
    assert AvgP(mono(models, score="logit"))(found).kind == ScoreKind.LOGIT
    assert SumP(mono(models))(found).kind == ScoreKind.COMBINED


def test_saturated_probabilities_keep_the_order_of_the_margins(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MaxP(mono(models), window=40)
    margins = np.array([50.0, 60.0, 55.0], np.float32)
    monkeypatch.setattr(type(stage.scorer), "margins", lambda self, inputs, progress=None: margins)
    short = [DOCUMENTS[n] for n in (0, 1, 4)]
    assert stage(given(short)).ids == ("d01", "d04", "d00")


@pytest.mark.parametrize("together", [1, 7, 4096])
@pytest.mark.parametrize("unit", ["words", "tokens", "sentences", "even"])
def test_scores_do_not_depend_on_what_is_scored_together(
    models: Path, monkeypatch: pytest.MonkeyPatch, together: int, unit: str
) -> None:
    alone = {}
    stage = SumP(mono(models), window=30, unit=unit)  # type: ignore[arg-type]
    for document in DOCUMENTS:
        (alone[document.id],) = stage(given([document])).scores
    monkeypatch.setattr(passage_module, "_TOGETHER", together)
    monkeypatch.setattr(passage_module, "_DOCUMENTS", 3)
    one, other = stage([given(DOCUMENTS), given(DOCUMENTS[::-1])])
    assert {hit.id: hit.score for hit in one} == alone == {hit.id: hit.score for hit in other}


def test_several_queries_at_once(models: Path) -> None:
    stage = MaxP(mono(models), window=30)
    rankings = [given(DOCUMENTS, "castle"), given([], "song"), given(DOCUMENTS[2:5], "river film")]
    assert stage(rankings) == [stage(each) for each in rankings]


# -- the title, and how many passages


def test_the_title_stands_before_each_passage_or_not(models: Path) -> None:
    stage = mono(models)
    titled, bare = DOCUMENTS[3], replace(DOCUMENTS[3], title="")
    with_it, without = (MaxP(stage, window=40, title=title)(given([titled])) for title in (True, False))
    assert with_it.scores[0] == max(passages_by_hand(stage, titled, 40, 20))
    assert without.scores[0] == max(passages_by_hand(stage, bare, 40, 20)) != with_it.scores[0]


def test_a_title_as_long_as_the_model_reads_leaves_half_the_room(models: Path) -> None:
    stage = MaxP(mono(models, "short"))
    document = Document("d", text_of(60, 1), title="king " * 200)
    (read,) = stage.reader.read(given([document]), ["d"])
    assert len(read.passages) > 3
    assert (read.tokens.lengths <= stage.reader.room).all()
    assert read.passages[-1].stop == len(document.text.rstrip())


def test_passages_that_are_left_out_are_counted(models: Path) -> None:
    stage = SumP(mono(models), window=40, stride=40, passages=3)
    ranked = stage(given([DOCUMENTS[3]]))  # 400 words: ten windows
    assert ranked.scores[0] == sum_p(np.array(passages_by_hand(stage.stage, DOCUMENTS[3], 40, 40)[:3]))
    assert stage.tally.inferences == 3
    assert (stage.tally.truncation.texts_cut, stage.tally.truncation.text_tokens_lost) == (1, 280)
    assert str(stage.tally).startswith("3 inferences; 1 of 1 texts cut, at least 280 of ")


@pytest.mark.parametrize("unit", ["words", "tokens", "even"])
def test_what_is_cut_is_counted_in_documents(models: Path, unit: str) -> None:
    stage = SumP(mono(models), window=80, unit=unit, passages=1)  # type: ignore[arg-type]
    stage(given(DOCUMENTS))
    texts = [document.text for document in DOCUMENTS]
    tokens = stage.scorer.tokenizer.encode(texts).lengths
    lengths = [len(text.split()) for text in texts] if unit == "words" else tokens.tolist()
    cut = stage.tally.truncation
    assert (cut.texts, cut.texts_cut) == (len(DOCUMENTS), sum(length > 80 for length in lengths))


def test_sampled_passages_are_the_first_the_last_and_others(models: Path) -> None:
    stage = SumP(mono(models), window=20, stride=20, passages=5, keep="sampled", evidence=9)
    spans = sorted(stage(given([DOCUMENTS[3]])).evidence["d03"])
    assert len(spans) == 5
    assert spans[0].start == 0 and spans[-1].stop == len(DOCUMENTS[3].text)


def test_firstp_reads_one_passage(models: Path) -> None:
    stage = FirstP(mono(models), window=40)
    stage(given(DOCUMENTS))
    assert stage.tally.inferences == len(DOCUMENTS) == stage.inferences(len(DOCUMENTS))


def test_a_passage_too_long_for_the_model_is_cut_in_pieces(models: Path) -> None:
    stage = MaxP(mono(models, "short"), evidence=99, passages=None)
    ranked = stage(given(DOCUMENTS))
    assert stage.tally.truncation.texts_cut == 0
    for document in DOCUMENTS:  # all of it was read
        spans = sorted(ranked.evidence[document.id])
        assert spans[0].start == 0
        assert spans[-1].stop == len(document.text.rstrip())


# -- tokens


@pytest.mark.parametrize("unit", ["words", "tokens", "even", "sentences"])
@pytest.mark.parametrize("query", ["castle", "castle song " * 40])
def test_nothing_of_a_window_falls_off_its_end(models: Path, unit: str, query: str) -> None:
    stage = SumP(mono(models, "short"), unit=unit, window=300, passages=None)  # type: ignore[arg-type]
    stage(given(DOCUMENTS, query))
    lengths = stage.scorer.tokenizer.encode([document.text for document in DOCUMENTS]).lengths
    assert stage.tally.truncation.text_tokens_lost == 0
    assert stage.tally.truncation.text_tokens >= lengths.sum()


def test_a_window_of_tokens_is_as_long_as_the_query_leaves_room(models: Path) -> None:
    """And not as the longest query would: a model that is trained on such windows has read them whole."""
    (size,) = mono(models).scorer.tokenizer.encode([DOCUMENTS[1].text]).lengths.tolist()
    reader = mono(models, limit=size + 20, query_limit=60)
    stage = SumP(reader, unit="tokens", window=size, stride=size, title=False)
    assert stage.reader.room < size
    stage(given([DOCUMENTS[1]], "castle"))
    assert stage.tally.inferences == 1
    stage(given([DOCUMENTS[1]], "castle song " * 40))
    assert stage.tally.inferences == 1 + -(-size // stage.reader.room)


def test_a_long_title_leaves_half_the_room_to_even_chunks(models: Path) -> None:
    document = Document("d", text_of(60, 1), title="king " * 200)
    for title in (True, False):
        stage = MaxP(mono(models, "short"), unit="even", passages=None, title=title)
        (read,), room = stage.reader.read(given([document]), ["d"]), stage.reader.room
        assert read.tokens.lengths.max() <= room
        assert len(read.passages) == -(-read.passages[-1].stop // (room - room // 2 if title else room))


def test_windows_of_tokens_are_cut_from_the_tokens(models: Path) -> None:
    stage = MaxP(mono(models), unit="tokens", window=50, stride=40)
    tokenizer = stage.scorer.tokenizer
    for document in DOCUMENTS:
        (read,) = stage.reader.read(given([document]), [document.id])
        whole = tokenizer.encode([document.text]).ids
        title = tokenizer.encode([document.title]).ids
        for number, (start, stop) in enumerate(read.passages):
            assert np.array_equal(read.tokens.take([number]).ids, [*title, *whole[start:stop]])
        assert read.passages[0].start == 0 and read.passages[-1].stop == len(whole)
        assert [p.start for p in read.passages] == [40 * n for n in range(len(read.passages))]


@pytest.mark.parametrize("unit", ["words", "tokens", "even", "sentences"])
def test_tokens_kept_beside_the_index_change_nothing(models: Path, tmp_path: Path, unit: str) -> None:
    stage = MaxP(mono(models), unit=unit, window=20)  # type: ignore[arg-type]
    index = Index.build(DOCUMENTS, tmp_path / "idx")
    before = (index.bm25() >> stage)("castle song")
    build_tokens(index, stage.scorer.tokenizer, limit=COUNTED)
    after = (Index.open(tmp_path / "idx").bm25() >> stage)("castle song")
    assert len(before) > 4
    assert before == after
    assert before.evidence == after.evidence


def test_kept_tokens_are_not_made_again(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MaxP(mono(models), unit="tokens", window=50, evidence=0)
    index = Index.build([replace(d, title="") for d in DOCUMENTS], tmp_path / "idx")
    build_tokens(index, stage.scorer.tokenizer, limit=COUNTED)
    tokenised: list[str] = []
    encode = type(stage.scorer.tokenizer).encode

    def counting(self: object, texts: list[str], **options: int) -> object:
        tokenised.extend(texts)
        return encode(self, texts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(stage.scorer.tokenizer), "encode", counting)
    (index.bm25() >> stage)("castle song")
    assert tokenised == ["castle song"]


def test_even_chunks_fill_the_model(models: Path) -> None:
    stage = MaxP(mono(models, "short"), unit="even", passages=None)
    (read,) = stage.reader.read(given([DOCUMENTS[7]]), ["d07"])
    lengths = read.tokens.lengths
    assert lengths.max() <= stage.reader.room
    assert lengths.max() - lengths.min() <= 1
    assert len(lengths) == -(
        -read.passages[-1].stop // (stage.reader.room - (lengths[0] - read.passages[0].stop))
    )


# -- evidence


@pytest.mark.parametrize("unit", ["words", "tokens", "sentences", "even"])
def test_evidence_is_the_passages_that_earned_the_score(models: Path, unit: str) -> None:
    stage = mono(models)
    ranked = MaxP(stage, window=30 if unit != "sentences" else 1, unit=unit, passages=None)(given(DOCUMENTS))  # type: ignore[arg-type]
    assert set(ranked.evidence) == set(ranked.ids)
    for document in DOCUMENTS:
        spans = ranked.evidence[document.id]
        assert 1 <= len(spans) <= 3
        assert spans[0].score == dict(zip(ranked.ids, ranked.scores, strict=True))[document.id]
        assert [span.score for span in spans] == sorted((span.score for span in spans), reverse=True)
        for start, stop, score in spans if unit in ("words", "sentences") else ():
            # what is shown has that score when it is read by itself
            again = stage.rank("castle song", [replace(document, text=document.text[start:stop])])
            assert again[0].score == score
        places = sorted(span[:2] for span in spans)
        assert all(one[1] <= other[0] for one, other in pairwise(places))


def test_evidence_is_of_those_that_are_looked_at(models: Path) -> None:
    stage = MaxP(mono(models), window=30)
    assert len((stage % 2)(given(DOCUMENTS)).evidence) == 2
    assert MaxP(mono(models), evidence=0)(given(DOCUMENTS)).evidence == {}


def test_evidence_goes_through_a_journal(models: Path, index: Index, tmp_path: Path) -> None:
    pipeline = index.bm25() >> MaxP(mono(models), window=30)
    first = pipeline.run([Query("q", "castle song")], journal=tmp_path / "journal")
    again = pipeline.run([Query("q", "castle song")], journal=tmp_path / "journal")
    assert again["q"].evidence == first["q"].evidence != {}


# -- the cache


def test_passages_and_documents_share_a_cache(models: Path, tmp_path: Path) -> None:
    stage = mono(models, cache=tmp_path / "scores.db")
    first = MaxP(stage, window=40)
    before = first(given(DOCUMENTS))
    read = first.tally.inferences
    second = SumP(stage, window=40)
    second(given(DOCUMENTS))
    assert (second.tally.inferences, second.tally.cached) == (0, read)
    third = MaxP(mono(models, cache=tmp_path / "scores.db"), window=40)
    assert third(given(DOCUMENTS)) == before
    stage(given([DOCUMENTS[0]]))  # one passage: mono finds what MaxP has read
    assert (stage.tally.inferences, stage.tally.cached) == (0, 1)


def test_a_query_is_counted_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passage_module, "_TOGETHER", 1)
    monkeypatch.setattr(passage_module, "_DOCUMENTS", 1)
    stage = MaxP(mono(models), window=40)
    stage(given(DOCUMENTS, "castle " * 100))
    assert (stage.tally.truncation.queries, stage.tally.truncation.queries_cut) == (1, 1)


# -- bad input


@pytest.mark.parametrize("unit", ["words", "tokens", "sentences", "even"])
@pytest.mark.parametrize("text", ["", "word", "🙂 🙂🙂\n🙂", " \n ", "\ud800", "\x00"])
def test_texts_that_are_hardly_texts(models: Path, text: str, unit: str) -> None:
    stage = MaxP(mono(models), unit=unit)  # type: ignore[arg-type]
    ranked = stage(given([Document("d", text), DOCUMENTS[1]]))
    assert stage.tally.inferences >= 2
    alone = stage.stage(given([Document("d", text)])).scores[0]
    assert dict(zip(ranked.ids, ranked.scores, strict=True))["d"] == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "keep"), [("words", "sampled"), ("tokens", "first"), ("sentences", "first"), ("words", "first")]
)
def test_five_megabytes_without_an_end(models: Path, unit: str, keep: str) -> None:
    stage = MaxP(mono(models, "short"), unit=unit, keep=keep)  # type: ignore[arg-type]
    text = "river castle " * (5_000_000 // 13) + "king"
    spans = stage(given([Document("d", text)])).evidence["d"]
    assert stage.tally.inferences == 30
    assert len(spans) == 3
    assert all(text[start:stop] in text[:2000] or text.endswith(text[start:stop]) for start, stop, _ in spans)


@pytest.mark.parametrize("text", ["a" * 5_000_000, "!?" * 2_500_000])
def test_five_megabytes_without_a_space(models: Path, text: str) -> None:
    stage = MaxP(mono(models, "short"), unit="sentences")
    assert len(stage(given([Document("d", text)]))) == 1


@pytest.mark.parametrize("unit", ["tokens", "even"])
def test_evidence_in_tokens_is_where_the_tokens_stand(models: Path, unit: str) -> None:
    stage = MaxP(mono(models), unit=unit, window=30, passages=None)  # type: ignore[arg-type]
    ranked = stage(given(DOCUMENTS))
    tokenizer = stage.scorer.tokenizer
    for document in DOCUMENTS:
        (read,) = stage.reader.read(given([document]), [document.id])
        _, starts, stops = token_places(document.text, tokenizer)
        possible = {(int(starts[a]), int(stops[b - 1])) for a, b in read.passages}
        assert {(span.start, span.stop) for span in ranked.evidence[document.id]} <= possible


@pytest.mark.parametrize("unit", ["tokens", "even"])
@pytest.mark.parametrize("passages", [30, None])
def test_a_document_of_more_tokens_than_are_kept(models: Path, unit: str, passages: int | None) -> None:
    """The last windows of a document of some 30,000 tokens are read too, unless only the first are wanted."""
    stage = MaxP(mono(models), unit=unit, passages=passages, evidence=0)  # type: ignore[arg-type]
    document = Document("d", text_of(10_000, 5), title="the king")
    (read,) = stage.reader.read(given([document]), ["d"])
    tokens = len(token_places(document.text, stage.scorer.tokenizer).ids)
    assert tokens > 2 * COUNTED
    if passages is None:
        assert (read.passages[-1].stop, read.lost) == (tokens, 0)
    else:
        assert len(read.passages) == 30
        assert 0 < read.lost <= tokens - read.passages[-1].stop


def test_ten_thousand_passages(models: Path) -> None:
    stage = SumP(mono(models), window=1, stride=1, passages=None, title=False)
    ranked = stage(given([Document("d", "river " * 10_000)]))
    assert stage.tally.inferences == 10_000
    (one,) = stage(given([Document("d", "river")])).scores
    assert ranked.scores[0] == pytest.approx(10_000 * one, rel=1e-12)


def test_no_candidates(models: Path) -> None:
    assert len(MaxP(mono(models))(Ranking(Query("q", "castle")))) == 0
    assert MaxP(mono(models))([]) == []


def test_candidates_without_texts(models: Path) -> None:
    bare = Ranking(Query("q", "castle"), ("d1",), np.array([1.0]), ScoreKind.RETRIEVAL)
    with pytest.raises(TamisError, match="the candidates of query 'q' have no texts"):
        MaxP(mono(models))(bare)


def test_candidates_from_elsewhere(models: Path) -> None:
    ranked = MaxP(mono(models), window=30).rank("castle", [DOCUMENTS[3].text, {"id": "x", "text": "war"}])
    assert sorted(each.id for each in ranked) == ["0", "x"]


def test_candidates_from_elsewhere_come_with_their_evidence(models: Path) -> None:
    stage = MaxP(mono(models), window=30, evidence=2)
    items = [{"id": "x", "text": DOCUMENTS[3].text}, {"id": "x", "text": "war"}]  # ids may be the same
    for each in stage.rank("castle song", items):
        (alone,) = stage([given([Document("d", items[each.position]["text"])])])
        assert each.evidence == alone.evidence["d"]
        assert each.evidence[0].score == each.score
    assert MaxP(mono(models), evidence=0).rank("castle", ["war"])[0].evidence == ()
    assert mono(models).rank("castle", ["war"])[0].evidence == ()


# -- the language


@pytest.mark.parametrize(
    "text",
    [
        "maxp(mono)",
        "firstp(mono, window=100)",
        "sump(mono(score=logit), window=100, stride=100, unit=tokens, title=false)",
        "avgp(mono, passages=none)",
        "kmaxp(mono, k=2, passages=16, keep=sampled, seed=7, evidence=0)",
        "maxp(mono, unit=even)",
    ],
)
def test_stages_in_the_language(text: str) -> None:
    assert repr(build(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maxp", "maxp takes a stage: write maxp(stage)"),
        ("maxp(duo)", "in maxp(duo): maxp of duo: give a pointwise stage, as in maxp(mono)"),
        ("maxp(mono % 3)", "maxp of mono % 3: give a pointwise stage, as in maxp(mono)"),
        ("maxp(mono, unit=pages)", "unit of maxp cannot be 'pages': give words, tokens, sentences or even"),
        ("maxp(mono, window=10, stride=20)", "windows of 10 with a stride of 20: use a window of at least 1"),
        ("maxp(mono, unit=even, stride=3)", "even chunks with a stride: leave it out"),
        ("maxp(mono, passages=0)", "at most 0 passages: use a whole number of at least 1, or none"),
        ("maxp(mono, evidence=-1)", "-1 passages as evidence"),
        ("kmaxp(mono, k=0)", "the 0 best passages: use a k of 1 or more"),
        ("firstp(mono, passages=3)", "firstp has no option 'passages'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        build(text)
    assert message in str(refused.value)


def test_a_window_without_a_stride_overlaps_as_usual() -> None:
    assert Cutting(window=100).sizes == (100, 50)
    assert Cutting("tokens", window=45).sizes == (45, 40)
    assert Cutting("sentences", window=3).sizes == (3, 3)
    assert Cutting(window=1).sizes == (1, 1)


def test_a_fingerprint_says_how_documents_are_cut(models: Path) -> None:
    stage = mono(models)
    stages = [MaxP(stage), MaxP(stage, window=100), SumP(stage), MaxP(stage, title=False), stage]
    assert len({each.fingerprint for each in stages}) == len(stages)
