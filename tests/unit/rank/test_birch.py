"""Birch's formula, its sentences, and the scores that come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Birch, Document, Index, MaxP, Mono, Query, Ranking, Run, ScoreKind
from tamis.base.errors import InputError, TamisError
from tamis.core.registry import build
from tamis.rank.birch import birch
from tamis.rank.given_run import Documents, GivenRun

DOCUMENTS = [
    Document("a", "The king took the castle. A song was sung. War came. The river rose!", title="News"),
    Document("b", "Music is a bridge."),
    Document("c", "The singer left the city. The film ended."),
    Document("d", ""),
]
SCORES = np.array([12.0, 8.0, 6.0, 4.0])


@pytest.fixture(scope="module")
def stage(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Mono:
    return Mono(str(tiny_checkpoint(tmp_path_factory.mktemp("model"), positions=64)), workers=1)


def given(documents: list[Document] = DOCUMENTS, query: str = "castle song") -> Ranking:
    ids = tuple(document.id for document in documents)
    texts = Documents(documents, only=ids)
    return Ranking(Query("q", query), ids, SCORES[: len(ids)], ScoreKind.RETRIEVAL, texts)


def sentence_scores(stage: Mono, sentences: list[str]) -> list[float]:
    return [each.score for each in stage.rank("castle song", sentences)]  # best first


def scores_of(ranking: Ranking) -> dict[str, float]:
    return {hit.id: hit.score for hit in ranking}


SENTENCES = {
    "a": ["The king took the castle.", "A song was sung.", "War came.", "The river rose!"],
    "b": ["Music is a bridge."],
    "c": ["The singer left the city.", "The film ended."],
    "d": [""],
}


def test_the_formula() -> None:
    sentences = np.array([0.2, 0.8, 0.5])
    assert birch(0.5, sentences, alpha=0.25, weights=[1.0]) == pytest.approx(0.125 + 0.75 * 0.8)
    assert birch(0.5, sentences, alpha=0.25, weights=[1, 0.5, 0.1]) == pytest.approx(0.125 + 0.75 * 1.07)
    assert birch(0.5, sentences[:1], alpha=0.25, weights=[1, 0.5, 0.1]) == pytest.approx(0.125 + 0.15)
    assert birch(0.5, sentences[:0], alpha=0.25, weights=[1, 0.5]) == 0.125


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_scores_of_the_best_sentences(stage: Mono, n: int) -> None:
    ranked = Birch(stage, n=n, alpha=0.3, w2=0.6, w3=0.4, w4=0.2)(given())
    weights = [1.0, 0.6, 0.4, 0.2][:n]
    for identity, first in zip("abcd", [1.0, 0.5, 0.25, 0.0], strict=True):  # min-max of 12, 8, 6, 4
        best = sentence_scores(stage, SENTENCES[identity])[:n]
        expected = 0.3 * first + 0.7 * sum(w * s for w, s in zip(weights, best, strict=False))
        assert scores_of(ranked)[identity] == pytest.approx(expected, rel=1e-12)
    assert ranked.kind == ScoreKind.COMBINED


def test_raw_scores_are_taken_as_they_are(stage: Mono) -> None:
    ranked = Birch(stage, n=1, alpha=0.5, normalise="raw")(given())
    assert scores_of(ranked)["b"] == pytest.approx(4.0 + sentence_scores(stage, SENTENCES["b"])[0] / 2)


def test_the_ends_of_alpha(stage: Mono) -> None:
    assert Birch(stage, alpha=1)(given()).ids == ("a", "b", "c", "d")
    best = Birch(stage, n=1, alpha=0)(given())
    assert best.ids == MaxP(stage, unit="sentences", title=False)(given()).ids


def test_evidence_is_the_best_sentences(stage: Mono) -> None:
    spans = Birch(stage, evidence=2)(given()).evidence["a"]
    text = DOCUMENTS[0].text
    assert [text[start:stop] for start, stop, _ in spans] == [
        each.text for each in stage.rank("castle song", SENTENCES["a"])[:2]
    ]
    assert [span.score for span in spans] == sentence_scores(stage, SENTENCES["a"])[:2]


def test_without_exact_matches_no_sentence_with_a_query_term_is_read(stage: Mono) -> None:
    """ "castles" and "songs" are the terms "castl" and "song"; "the" is no term."""
    query = "the castles of songs"
    ranker = Birch(stage, n=1, alpha=0.5, exact_match=False)
    ranked = ranker(given(query=query))
    assert ranker.tally.inferences == 2 + 1 + 2 + 1
    shown = [DOCUMENTS[0].text[start:stop] for start, stop, _ in ranked.evidence["a"]]
    assert sorted(shown) == ["The river rose!", "War came."]
    assert ranker.tally.truncation.texts_cut == 0


@pytest.mark.parametrize(
    ("analyzer", "read"),
    [
        ("english", ["The river rose!", "War came."]),  # "castles" is "castle", "sung" is not "songs"
        ("plain", ["A song was sung.", "The king took the castle.", "The river rose!", "War came."]),
    ],
)
def test_words_are_compared_as_the_index_compares_them(
    stage: Mono, tmp_path: Path, analyzer: str, read: list[str]
) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "idx", analyzer=analyzer)
    query = Query("q", "castles songs")
    first = GivenRun(Run([given(query=query.text)]), index)
    spans = (first >> Birch(stage, exact_match=False, evidence=9))(query).evidence["a"]
    assert sorted(DOCUMENTS[0].text[start:stop] for start, stop, _ in spans) == read
    # texts from elsewhere: english
    spans = Birch(stage, exact_match=False, evidence=9)(given(query=query.text)).evidence["a"]
    assert len(spans) == 2


def test_where_every_sentence_is_an_exact_match_the_first_stage_is_left(stage: Mono) -> None:
    ranked = Birch(stage, alpha=0.5, exact_match=False)(given(DOCUMENTS[1:3], "music bridge"))
    assert scores_of(ranked)["b"] == 0.5  # half of the best of the list
    assert ranked.evidence["b"] == ()


def test_a_sentence_too_long_for_the_model_is_read_in_pieces(stage: Mono) -> None:
    ranker = Birch(stage)
    ranker(given([Document("a", "river castle " * 300)]))
    assert ranker.tally.inferences > 10
    assert ranker.tally.truncation.texts_cut == 0


def test_scores_do_not_depend_on_the_other_documents(stage: Mono) -> None:
    together = scores_of(Birch(stage, normalise="raw")(given()))
    for number, document in enumerate(DOCUMENTS):
        alone = given([document])
        alone = Ranking(alone.query, alone.ids, SCORES[number : number + 1], alone.kind, alone.texts)
        assert Birch(stage, normalise="raw")(alone).scores[0] == together[document.id]


def test_candidates_must_come_with_scores(stage: Mono) -> None:
    bare = Ranking(Query("q", "x"), ("a",), np.array([1.0]), texts=Documents(DOCUMENTS, only=["a"]))
    with pytest.raises(TamisError, match="birch has no document scores to work on for query 'q'"):
        Birch(stage)(bare)
    assert len(Birch(stage)(Ranking(Query("q", "x")))) == 0
    with pytest.raises(TamisError, match="or use alpha=0, which counts the sentences alone"):
        Birch(stage).rank("x", ["a castle."])
    texts = [document.text for document in DOCUMENTS]
    found = {each.position: each.score for each in Birch(stage, alpha=0).rank(given().query.text, texts)}
    wanted = scores_of(Birch(stage, alpha=0)(given()))
    assert [found[place] for place in range(len(texts))] == [wanted[each.id] for each in DOCUMENTS]


def test_over_an_index(stage: Mono, tmp_path: Path) -> None:
    index = Index.build(DOCUMENTS, tmp_path / "idx")
    ranked = (index.bm25() >> Birch(stage))("castle song film")
    assert set(ranked.ids) == {"a", "c"}


@pytest.mark.parametrize(
    "text",
    [
        "birch(mono)",
        "birch(mono, n=2, alpha=0.3, w2=0.1)",
        "birch(mono(score=logit), w3=0.0, w4=1.0, normalise=raw, exact_match=false)",
        "birch(mono, unit=tokens, window=225, stride=200, title=true, passages=16, keep=sampled, seed=1)",
    ],
)
def test_birch_in_the_language(text: str) -> None:
    assert repr(build(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("birch(mono, n=5)", "birch with 5 sentences: use an n from 1 to 4"),
        ("birch(mono, n=0)", "birch with 0 sentences"),
        ("birch(mono, alpha=1.5)", "birch with alpha=1.5: use an alpha between 0 and 1"),
        ("birch(mono, w2=-1)", "birch with a weight below 0"),
        ("birch(mono, normalise=log)", "normalise of birch cannot be 'log': give minmax, raw or z"),
        ("birch(duo)", "birch of duo: give a pointwise stage, as in birch(mono)"),
        ("birch(mono, exact_match=false, unit=tokens)", "without exact matches in windows of tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        build(text)
    assert message in str(refused.value)


def test_normalise_is_checked_in_python_too(stage: Mono) -> None:
    with pytest.raises(InputError, match="birch with normalise='log': use minmax, raw, z"):
        Birch(stage, normalise="log")  # type: ignore[arg-type]
