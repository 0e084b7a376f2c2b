"""Which passages are read of a long document: formulae by hand, and the bookkeeping around tiny models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

from tamis import BM25, Document, Index, KMaxP, MaxP, Mono, Query, QueryLikelihood, Ranking, SumP, TfIdf
from tamis.base.errors import ExpressionError, InputError
from tamis.core.plan import counts, plan, rerankers, work_done
from tamis.core.ranking import ScoreKind
from tamis.core.registry import build, check_searches, parse
from tamis.core.stage import Stage
from tamis.index.score import Collection, Terms
from tamis.index.search import statistics
from tamis.rank import passage as passage_module
from tamis.rank.choose import AMONG, Lexical, highest, lexical_scores, own_statistics
from tamis.rank.given_run import Documents
from tamis.rank.passage import k_max_p, sum_p
from tamis.storage.score_cache import ScoreCache
from tamis.text.segment import word_windows

FILLER = ["onions", "and", "butter", "go", "into", "the", "soup", "with", "salt", "and", "some", "pepper"]
MODELS: list[Lexical] = [
    *(BM25(variant=variant) for variant in ("lucene", "robertson", "atire", "bm25l", "bm25+")),
    TfIdf(),
    QueryLikelihood(),
    QueryLikelihood(variant="exact"),
    QueryLikelihood(smoothing="jelinek-mercer", variant="exact"),
]


def long_text(words: int, holding: dict[int, str]) -> str:
    """Filler, with some words at some places."""
    return " ".join(holding.get(n, FILLER[n % len(FILLER)]) for n in range(words))


#: Windows of 20 words, one every 20: d0 has one of them, d1 ten, d2 five, d3 three, d4 none.
DOCUMENTS = [
    Document("d0", long_text(18, {3: "tamis"})),
    Document(
        "d1",
        long_text(
            200,
            {
                5: "sieve",
                **dict.fromkeys(range(85, 95, 2), "tamis"),
                **dict.fromkeys(range(86, 95, 2), "sieve"),
            },
        ),
        title="Tools",
    ),
    Document("d2", long_text(100, {99: "drum"}), title="The tamis"),
    Document("d3", long_text(60, {25: "sieve", 45: "sieve", 46: "sieve"})),
    Document("d4", ""),
]
QUERY = "what tamis is a sieve"
WINDOWS = {"window": 20, "stride": 20}


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_checkpoint(folder / "mono", labels=2)
    tiny_checkpoint(folder / "nano", layers=1, seed=5)
    tiny_checkpoint(folder / "roberta", "roberta", segments=1)
    tiny_checkpoint(folder / "short", positions=48)
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(DOCUMENTS, tmp_path_factory.mktemp("index") / "idx")


def mono(models: Path, name: str = "mono", **options: object) -> Mono:
    return Mono(str(models / name), workers=1, **options)  # type: ignore[arg-type]


def given(documents: list[Document], query: str = QUERY) -> Ranking:
    ids = tuple(document.id for document in documents)
    scores = -np.arange(len(ids), dtype=np.float64)
    return Ranking(Query("q", query), ids, scores, ScoreKind.RETRIEVAL, Documents(documents, only=ids))


def windows_of(document: Document) -> list[Document]:
    """Each window as a document of its own."""
    places = word_windows(document.text, 20, 20) or [(0, 0)]
    return [
        replace(document, id=f"{n}", text=document.text[start:stop]) for n, (start, stop) in enumerate(places)
    ]


def by_hand(reader: Mono, chooser: Mono, document: Document, k: int) -> list[float]:
    """The scores that the first gives to the k passages of which the second thinks most."""
    windows = windows_of(document)
    chosen = {each.position for each in chooser.rank(QUERY, windows, top_k=k)}
    read = {each.position: each.score for each in reader.rank(QUERY, windows)}
    return [read[position] for position in sorted(chosen)]


# -- formulae


def test_bm25_of_passages_by_hand() -> None:
    """Three passages of 4, 2 and 3 terms: the mean is 3. idf: log(1 + (3 - df + 0.5) / (df + 0.5))."""
    tf = np.array([[2, 0, 0], [0, 1, 0], [1, 1, 0]])
    lengths, weight = np.array([4, 2, 3]), np.array([1.0, 2.0, 1.0])
    terms, collection = own_statistics(tf, lengths, weight)
    assert (terms.df.tolist(), terms.cf.tolist(), collection) == ([2, 2, 0], [3, 2, 0], Collection(3, 9))
    idf = log(1 + 1.5 / 2.5)
    expected = [
        idf * 2 / (2 + 0.9 * (0.6 + 0.4 * 4 / 3)),
        2 * idf * 1 / (1 + 0.9 * (0.6 + 0.4 * 2 / 3)),
        idf * 1 / (1 + 0.9) + 2 * idf * 1 / (1 + 0.9),
    ]
    assert lexical_scores(BM25(), tf, lengths, terms, collection) == pytest.approx(expected, rel=1e-6)


def test_statistics_of_a_collection_by_hand() -> None:
    """A term of 1 in 99 documents counts for more than one of 50; the mean length is 10."""
    terms = Terms(np.ones(2), np.array([1, 50]), np.array([1, 90]))
    found = lexical_scores(BM25(), np.eye(2, dtype=int), np.array([10, 10]), terms, Collection(99, 990))
    expected = [log(1 + 98.5 / 1.5) / 1.9, log(1 + 49.5 / 50.5) / 1.9]
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_passage_scores_as_a_document_of_that_text_would(index: Index, model: Lexical) -> None:
    weights = index.weights(QUERY)
    _, terms = statistics(index.segments, weights)
    ids, scores = index.search(weights, model, 10)
    assert len(ids) >= 2
    for identity, score in zip(ids, scores.tolist(), strict=True):
        counted = index.document_terms(identity)
        tf = np.array([[counted.get(term, 0) for term in weights]])
        length = np.array([sum(counted.values())])
        assert lexical_scores(model, tf, length, terms, index.collection)[0] == pytest.approx(score, rel=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_nothing_to_go_by_is_no_error(model: Lexical) -> None:
    for tf in (np.zeros((2, 0), int), np.zeros((2, 3), int), np.array([[0, 1, 0], [0, 0, 0]])):
        lengths = tf.sum(axis=1)
        found = lexical_scores(model, tf, lengths, *own_statistics(tf, lengths, np.ones(tf.shape[1])))
        assert np.isfinite(found).all() and len(found) == 2


def test_of_equal_scores_the_first() -> None:
    assert highest(np.array([1.0, 3.0, 3.0, 3.0, 2.0]), 2).tolist() == [1, 2]
    assert highest(np.array([1.0, 2.0]), 5).tolist() == [0, 1]


# -- scores


@pytest.mark.parametrize("name", ["nano", "roberta", "short"])
def test_a_model_chooses_what_another_reads(models: Path, name: str) -> None:
    """Also one with a vocabulary of its own, or one that reads less."""
    reader, chooser = mono(models), mono(models, name)
    for kind, formula in ((MaxP, max), (SumP, lambda s: sum_p(np.array(s)))):
        ranked = kind(reader, **WINDOWS, choose=chooser, passages=2)(given(DOCUMENTS))  # type: ignore[arg-type]
        expected = {d.id: formula(by_hand(reader, chooser, d, 2)) for d in DOCUMENTS}
        assert {hit.id: hit.score for hit in ranked} == expected
    ranked = KMaxP(reader, k=2, **WINDOWS, choose=chooser, passages=3)(given(DOCUMENTS))  # type: ignore[arg-type]
    expected = {d.id: k_max_p(np.array(by_hand(reader, chooser, d, 3)), 2) for d in DOCUMENTS}
    assert {hit.id: hit.score for hit in ranked} == expected


@pytest.mark.parametrize("unit", ["words", "tokens", "sentences", "even"])
@pytest.mark.parametrize("kept", [True, "once"])
def test_bm25_chooses_the_passages_with_the_query_terms(
    models: Path, index: Index, unit: str, kept: object
) -> None:
    stage = MaxP(
        mono(models),
        window=None if unit == "sentences" else 40,
        unit=unit,  # type: ignore[arg-type]
        title=kept,  # type: ignore[arg-type]
        choose=BM25(),
        passages=1,
        among=99,
    )
    for ranking in (given(DOCUMENTS), (index.bm25() % 9)(QUERY)):
        ((start, stop, _),) = stage(ranking).evidence["d1"]
        assert "tamis sieve" in DOCUMENTS[1].text[start:stop]


def test_statistics_are_those_of_the_index_that_the_texts_come_from(models: Path, tmp_path: Path) -> None:
    """ "drum" is in one passage and "sieve" in two, but in the index everything holds a drum."""
    long = Document("d", long_text(60, {5: "drum", 25: "sieve", 45: "sieve"}))
    index = Index.build([long, *(Document(f"e{n}", "drum") for n in range(9))], tmp_path / "idx")
    stage = MaxP(mono(models), **WINDOWS, choose=BM25(), passages=1)  # type: ignore[arg-type]
    shown = {}
    for name, texts in (("own", Documents([long], only=["d"])), ("index", index)):
        ranking = Ranking(Query("q", "drum sieve"), ("d",), np.zeros(1), texts=texts)
        ((start, stop, _),) = stage(ranking).evidence["d"]
        shown[name] = long.text[start:stop]
    assert "drum" in shown["own"] and "sieve" in shown["index"]


def test_a_query_without_terms_has_the_first_passages_read(models: Path) -> None:
    stage = MaxP(mono(models), **WINDOWS, choose=BM25(), passages=2, evidence=9)  # type: ignore[arg-type]
    spans = stage(given(DOCUMENTS, "the")).evidence["d1"]
    assert sorted(span.start for span in spans) == [
        place.start for place in word_windows(DOCUMENTS[1].text, 20, 20)[:2]
    ]


def test_evidence_is_of_what_was_read(models: Path) -> None:
    reader, chooser = mono(models), mono(models, "nano")
    ranked = MaxP(reader, **WINDOWS, choose=chooser, passages=2, evidence=9)(given(DOCUMENTS))  # type: ignore[arg-type]
    for document in DOCUMENTS:
        spans = ranked.evidence[document.id]
        assert len(spans) == min(2, len(windows_of(document)))
        assert sorted(span.score for span in spans) == sorted(by_hand(reader, chooser, document, 2))


def test_pieces_of_what_is_too_long_for_the_model_are_chosen_from_too(models: Path) -> None:
    """A text without a space is one word, and so one window, which is cut in pieces."""
    text = "川" * 100 + "tamis" + "川" * 300
    stage = MaxP(mono(models, "short"), choose=BM25(), passages=1, among=99, title=False)
    ((start, stop, _),) = stage(given([Document("d", text)], "tamis 川")).evidence["d"]
    assert stop - start < len(text) and stage.tally.inferences == 1


# -- work


def test_each_model_counts_what_it_reads(models: Path, tmp_path: Path) -> None:
    stage = MaxP(mono(models), **WINDOWS, choose=mono(models, "nano"), passages=2)  # type: ignore[arg-type]
    stage(given(DOCUMENTS))
    strong, weak = work_done(stage)
    assert (strong["stage"], weak["stage"]) == (repr(stage), repr(mono(models, "nano")))
    # of one passage and of none there is nothing to choose
    assert (strong["inferences"], weak["inferences"]) == (1 + 2 + 2 + 2 + 1, 10 + 5 + 3)
    assert stage.tally.truncation.texts == len(DOCUMENTS)
    assert stage.tally.truncation.texts_cut == 0, "what was not chosen was looked at"


def test_what_is_not_looked_at_is_counted_as_cut(models: Path) -> None:
    stage = MaxP(mono(models), **WINDOWS, choose=BM25(), passages=2, among=3)  # type: ignore[arg-type]
    stage(given(DOCUMENTS))
    cut = stage.tally.truncation
    assert (cut.texts_cut, cut.text_tokens_lost) == (2, (200 - 60) + (100 - 60))


def test_the_cache_is_the_stages_own(models: Path, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.db")
    reader, chooser = mono(models, cache=cache), mono(models, "nano", cache=cache)
    MaxP(reader, **WINDOWS)(given(DOCUMENTS))  # type: ignore[arg-type]
    stage = MaxP(reader, **WINDOWS, choose=chooser, passages=2)  # type: ignore[arg-type]
    first = stage(given(DOCUMENTS))
    assert (stage.tally.inferences, stage.tally.cached, chooser.tally.inferences) == (0, 8, 18)
    assert stage(given(DOCUMENTS)) == first
    assert chooser.tally.inferences == 18 == chooser.tally.cached
    again = MaxP(chooser, **WINDOWS)  # type: ignore[arg-type]
    again(given(DOCUMENTS))
    assert (again.tally.inferences, again.tally.cached) == (2, 18)


@pytest.mark.parametrize("together", [1, 7, 4096])
def test_what_is_chosen_does_not_depend_on_what_is_read_together(
    models: Path, index: Index, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    choosers: list[Mono | Lexical] = [mono(models, "nano"), BM25()]
    for chooser in choosers:
        stage = SumP(mono(models), **WINDOWS, choose=chooser, passages=2)  # type: ignore[arg-type]
        alone = {d.id: stage(given([d])).scores[0] for d in DOCUMENTS}
        found = (index.bm25() % 9)(QUERY)
        searched = stage(found)
        with monkeypatch.context() as patch:
            patch.setattr(passage_module, "_TOGETHER", together)
            patch.setattr(passage_module, "_DOCUMENTS", 3)
            one, other, none, third = stage([given(DOCUMENTS), given(DOCUMENTS[::-1]), given([]), found])
        assert {hit.id: hit.score for hit in one} == alone == {hit.id: hit.score for hit in other}
        assert (len(none), third) == (0, searched)


def test_a_plan_counts_both_models(index: Index) -> None:
    stage = index.pipeline("bm25 % 4 >> maxp(mono, choose=mono(model=mono-tiny), passages=3, among=20) % 2")
    steps = plan(stage, [0, 0])
    assert [repr(step.stage).partition("(")[0] for step in steps] == ["bm25 % 4", "mono", "maxp"]
    assert [step.inferences.tolist() for step in steps] == [[0, 0], [80, 80], [12, 12]]
    assert [step.part for step in steps] == [False, True, False]
    assert steps[-1].leave.tolist() == [2, 2]
    steps = plan(build("maxp(mono, choose=bm25, passages=3)"), [5])
    assert [step.inferences.tolist() for step in steps] == [[15]]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("maxp(mono, choose=bm25, passages=3)", "most"),
        ("maxp(mono, choose=bm25, passages=1)", "exact"),
        ("maxp(mono, choose=mono(model=mono-tiny), passages=1)", "most"),
    ],
)
def test_what_the_numbers_of_a_plan_say(expression: str, said: str) -> None:
    assert counts(build(expression)) == said


def test_a_run_goes_on_from_its_journal(models: Path, index: Index, tmp_path: Path) -> None:
    stage = MaxP(mono(models), **WINDOWS, choose=mono(models, "nano"), passages=2)  # type: ignore[arg-type]
    pipeline = index.bm25() % 9 >> stage
    first = pipeline.run([Query("q", QUERY)], journal=tmp_path / "journal")
    assert pipeline.run([Query("q", QUERY)], journal=tmp_path / "journal")["q"] == first["q"]


# -- the language


@pytest.mark.parametrize(
    "expression",
    [
        "maxp(mono, choose=bm25, passages=3)",
        "kmaxp(mono, k=2, choose=bm25(k1=1.2), window=50, passages=3, among=100)",
        "sump(mono, choose=mono(model=mono-tiny, limit=128), passages=1)",
        "avgp(mono, choose=ql(mu=100.0), passages=29)",
        "interpolate(maxp(mono, choose=tfidf, passages=3)) % 5",
    ],
)
def test_it_prints_back_as_it_is_read(expression: str) -> None:
    assert repr(build(expression)) == expression == str(parse(expression))


def test_none_chooses_nothing() -> None:
    assert repr(build("maxp(mono, choose=none)")) == "maxp(mono)"


def test_a_fingerprint_says_what_chooses(models: Path) -> None:
    def stage(chooser: Mono | Lexical | None, passages: int = 2) -> Stage:
        return MaxP(mono(models), choose=chooser, passages=passages)

    stages = [stage(None), stage(BM25()), stage(BM25(), 3), stage(BM25(b=1)), stage(mono(models, "nano"))]
    assert len({each.fingerprint for each in stages}) == len(stages)
    assert mono(models, "nano").resources in stages[-1].resources


def test_the_model_that_chooses_is_a_part(models: Path) -> None:
    nano = mono(models, "nano")
    stage = MaxP(mono(models), choose=nano, passages=2)
    assert rerankers(stage) == [stage, nano]
    assert rerankers(MaxP(mono(models), choose=BM25(), passages=2))[1:] == []


def test_what_chooses_finds_no_candidates() -> None:
    check_searches(parse("bm25 >> maxp(mono, choose=bm25, passages=3)"))
    with pytest.raises(ExpressionError, match="finds no candidates"):
        check_searches(parse("maxp(mono, choose=bm25, passages=3)"))


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("maxp(mono, choose=duo, passages=3)", "maxp that chooses by duo: choose by bm25"),
        ("maxp(mono, choose=maxp(mono), passages=3)", r"maxp that chooses by maxp\(mono\)"),
        ("maxp(mono, choose=fuse(mono, mono), passages=3)", "maxp that chooses by fuse"),
        ("maxp(mono, choose=bm25)", "chooses 30 of 30 passages: read 1 or more, and fewer"),
        ("maxp(mono, choose=bm25, passages=0)", "chooses 0 of 30 passages"),
        ("maxp(mono, choose=bm25, passages=none)", "chooses all of 30 passages"),
        ("maxp(mono, choose=bm25, passages=3, among=0)", "chooses 3 of 0 passages"),
        ("maxp(mono, choose=bm25, passages=3, among=none)", "among of maxp cannot be None"),
        ("maxp(mono, among=20)", "maxp with among=20: say what chooses"),
        ("maxp(mono, choose=bm25 % 3)", "choose of maxp cannot be bm25 % 3: give one stage alone"),
        ("maxp(mono, choose=bm25 >> mono, passages=3)", "choose of maxp cannot be bm25 >> mono"),
        ("maxp(mono, choose=3, passages=3)", "choose of maxp cannot be 3: give a stage or none"),
        ('maxp(mono, choose="bm25", passages=3)', "choose of maxp cannot be 'bm25'"),
        ("maxp(mono, choose=sieve, passages=3)", "'sieve' is not a stage"),
        ("maxp(mono, choose=bm25(mono), passages=3)", "bm25 takes its options as name=value"),
        ("maxp(mono, choose=bm25(k1=-1), passages=3)", "BM25 with k1=-1"),
        ("firstp(mono, choose=bm25)", "firstp has no option 'choose'"),
        ("mono(choose=bm25)", "mono has no option 'choose'"),
    ],
)
def test_bad_choices(expression: str, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem):
        build(expression)


def test_a_retriever_is_not_what_chooses(models: Path, index: Index) -> None:
    with pytest.raises(InputError, match="maxp that chooses by bm25"):
        MaxP(mono(models), choose=index.bm25(), passages=2)  # type: ignore[arg-type]


def test_as_many_are_looked_at_as_are_read_without_it() -> None:
    assert AMONG == passage_module.PASSAGES
