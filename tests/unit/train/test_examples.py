"""Training sets: how they are made of collections small enough to read, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking, Run
from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import ScoreKind
from tamis.core.stage import Stage
from tamis.infer.tokens import build_tokens
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.train.examples import (
    Report,
    TrainingSet,
    length_matched,
    teacher_pairs,
    training_set,
    weakly_supervised,
)

QUERIES = [Query("q1", "which river runs through the city"), Query("q2", "film actor"), Query("q3", "song")]
CORPUS = [
    Document("d1", "the river runs through the city", title="River"),
    Document("d2", "a city of rivers"),
    Document("d3", "the actor was born in the city"),
    Document("d4", "a film with an actor"),
    Document("d5", "a song of the river"),
    Document("d6", "county fair"),
    Document("d7", "nobody asks for this text"),
]
QRELS = {"q1": {"d1": 2, "d3": 0}, "q2": {"d4": 1, "d3": 1}, "q3": {"d6": 1}}


def run_of(**candidates: str) -> Run:
    """A run from lists of ids, the first of which scores highest."""
    lists = {qid: tuple(ids.split()) for qid, ids in candidates.items()}
    return Run(
        Ranking(Query(qid, ""), ids, np.arange(len(ids), 0, -1, dtype=np.float64))
        for qid, ids in lists.items()
    )


RUN = run_of(q1="d2 d1 d5", q2="d3 d4", q3="d5 d1")


class ByLength(Stage):
    """A teacher that likes long texts."""

    def __init__(self, kind: ScoreKind = ScoreKind.LOGIT) -> None:
        self.kind = kind

    @property
    def expression(self) -> Call:
        return Call("by_length")

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [
            ranking.rescored(np.array([len(each.text) / 100 for each in ranking.documents()]), self.kind)
            for ranking in rankings
        ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[..., Path]) -> Tokenizer:
    return Tokenizer(tiny_checkpoint(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(CORPUS, tmp_path_factory.mktemp("index") / "idx")


def names(data: TrainingSet, numbers: Sequence[int] | np.ndarray) -> list[str]:
    return [data.document_ids[int(number)] for number in numbers]


def tokens(texts: Tokenised, number: int) -> list[int]:
    return texts.ids[texts.offsets[number] : texts.offsets[number + 1]].tolist()


# -- making a set
# ------------------------------------------------------------------------------------------------------------


def test_texts_are_the_tokens_of_their_contents(tokenizer: Tokenizer, index: Index) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer)
    assert list(data.query_ids) == ["q1", "q2", "q3"]
    for number, query in enumerate(QUERIES):
        assert tokens(data.queries, number) == tokenizer.encode([query.text]).ids.tolist()
    by_id = {document.id: document for document in CORPUS}
    for number, docid in enumerate(data.document_ids):
        assert tokens(data.documents, number) == tokenizer.encode([by_id[docid].contents]).ids.tolist()


def test_candidates_of_an_index_are_bm25s(tokenizer: Tokenizer, index: Index) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer, depth=2)
    for number, query in enumerate(QUERIES):
        expected = (index.bm25() % 2)(query)
        assert names(data, data.candidates_of(number)) == list(expected.ids)
        assert data.retrieval_of(number).tolist() == expected.scores.tolist()
    assert data.report == Report()


def test_judgments_keep_their_grades(tokenizer: Tokenizer, index: Index) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer)
    assert names(data, data.positives(0)) == ["d1"]
    assert names(data, data.judged_negatives(0)) == ["d3"]
    assert sorted(names(data, data.positives(1))) == ["d3", "d4"]
    queries, documents = data.all_positives()
    pairs = [(data.query_ids[q], data.document_ids[d]) for q, d in zip(queries, documents, strict=True)]
    assert sorted(pairs) == [("q1", "d1"), ("q2", "d3"), ("q2", "d4"), ("q3", "d6")]


def test_documents_that_nobody_names_are_left_out(tokenizer: Tokenizer) -> None:
    data = training_set(QUERIES, QRELS, iter(CORPUS), tokenizer, RUN)
    assert list(data.document_ids) == ["d1", "d2", "d3", "d4", "d5", "d6"]
    assert names(data, data.candidates_of(0)) == ["d2", "d1", "d5"]
    assert data.retrieval_of(0).tolist() == [3, 2, 1]


def test_without_candidates_all_documents_stay(tokenizer: Tokenizer) -> None:
    data = training_set(QUERIES, QRELS, iter(CORPUS), tokenizer)
    assert list(data.document_ids) == [document.id for document in CORPUS]
    assert data.candidates is None
    assert data.report.unknown_documents == 0


def test_candidates_may_come_from_another_stage(tokenizer: Tokenizer, index: Index) -> None:
    """Hard negatives: those that a reranker, not BM25, has at the top."""
    data = training_set(QUERIES, QRELS, index, tokenizer, run=index.bm25() % 10 >> ByLength(), depth=1)
    assert names(data, data.candidates_of(0)) == ["d1"]
    assert names(data, data.candidates_of(1)) == ["d3"]


def test_an_index_and_its_documents_give_the_same_set(tokenizer: Tokenizer, index: Index) -> None:
    one = training_set(QUERIES, QRELS, index, tokenizer, RUN)
    other = training_set(QUERIES, QRELS, CORPUS, tokenizer, RUN)
    for number in range(len(QUERIES)):
        assert names(one, one.candidates_of(number)) == names(other, other.candidates_of(number))
        assert sorted(names(one, one.positives(number))) == sorted(names(other, other.positives(number)))


def test_tokens_beside_an_index_are_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    index = Index.build(CORPUS, tmp_path / "idx")
    before = training_set(QUERIES, QRELS, index, tokenizer)
    build_tokens(index, tokenizer)
    assert training_set(QUERIES, QRELS, index, tokenizer).fingerprint == before.fingerprint


def test_texts_are_cut(tokenizer: Tokenizer, index: Index) -> None:
    whole = training_set(QUERIES, QRELS, index, tokenizer)
    data = training_set(QUERIES, QRELS, index, tokenizer, limit=3)
    assert [tokens(data.documents, i) for i in range(6)] == [tokens(whole.documents, i)[:3] for i in range(6)]
    assert data.documents.lengths.tolist() == whole.documents.lengths.tolist()
    assert data.queries.ids.tolist() == whole.queries.ids.tolist()
    assert length_matched(whole, 3).fingerprint == data.fingerprint


def test_progress_counts_queries(tokenizer: Tokenizer, index: Index) -> None:
    told: list[int] = []
    training_set(QUERIES, QRELS, index, tokenizer, progress=told.append)
    assert sum(told) == 3


# -- teachers
# ------------------------------------------------------------------------------------------------------------


def test_a_teachers_run_gives_candidates_and_scores(tokenizer: Tokenizer, index: Index) -> None:
    data = training_set(QUERIES[:1], {}, index, tokenizer, teacher=RUN)
    assert names(data, data.candidates_of(0)) == ["d2", "d1", "d5"]
    assert data.scores is not None and data.scores.tolist() == [3, 2, 1]
    assert not len(data.positives(0))


def test_a_teacher_that_is_a_stage_scores_candidates_and_judged_documents(
    tokenizer: Tokenizer, index: Index
) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer, RUN, teacher=ByLength())
    assert names(data, data.candidates_of(0)) == ["d2", "d1", "d5", "d3"]  # d3 was judged, not found
    assert names(data, data.candidates_of(2)) == ["d5", "d1", "d6"]
    assert data.retrieval_of(2).tolist() == [2, 1, 1]
    by_id = {document.id: len(document.text) / 100 for document in CORPUS}
    for number in range(3):
        expected = [by_id[docid] for docid in names(data, data.candidates_of(number))]
        assert data.scores_of(number) == pytest.approx(expected)


def test_probabilities_become_log_odds(tokenizer: Tokenizer, index: Index) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer, RUN, teacher=ByLength(ScoreKind.PROBABILITY))
    length = len("the river runs through the city") / 100
    assert data.scores is not None
    assert data.scores[1] == pytest.approx(np.log(length / (1 - length)), rel=1e-6)


@pytest.mark.parametrize("kind", [ScoreKind.PROBABILITY, ScoreKind.LOG_PROBABILITY])
def test_log_odds_are_margins_as_far_as_they_can_be(kind: ScoreKind) -> None:
    margins = np.array([30.0, 2.0, 0.0, -2.0, -300.0])
    scores = -np.logaddexp(0, -margins)
    scores = np.exp(scores) if kind == ScoreKind.PROBABILITY else scores
    ranking = Ranking(Query("q", ""), tuple("abcde"), scores, kind)
    assert ranking.log_odds() == pytest.approx(margins, rel=1e-2 if kind == ScoreKind.PROBABILITY else 1e-9)
    certain = Ranking(Query("q", ""), ("a", "b"), np.array([1.0, 0.0]), ScoreKind.PROBABILITY)
    assert np.isfinite(certain.log_odds()).all()


def test_judged_documents_without_a_score_are_left_out_and_counted(
    tokenizer: Tokenizer, index: Index
) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer, teacher=run_of(q1="d1 d2", q2="d1 d2", q3="d6"))
    assert list(data.query_ids) == ["q1", "q2", "q3"]
    assert [len(data.positives(number)) for number in range(3)] == [1, 0, 1]
    assert data.report.unscored_judgments == 3  # d3 of q1; d3 and d4 of q2


def test_candidates_without_a_score(tokenizer: Tokenizer, index: Index) -> None:
    teacher = run_of(q1="d1 d2", q2="d3 d4", q3="d6 d5 d1")
    with pytest.raises(InputError, match="no score for some candidates: 'd5': let it score them all"):
        training_set(QUERIES, QRELS, index, tokenizer, RUN, teacher)
    data = training_set(QUERIES, QRELS, index, tokenizer, RUN, teacher, skip=True)
    assert names(data, data.candidates_of(0)) == ["d2", "d1"]
    assert data.report.unscored_candidates == 1
    assert data.scores_of(0) is not None and data.scores_of(0).tolist() == [1, 2]  # type: ignore[union-attr]


def test_weak_supervision(tokenizer: Tokenizer, index: Index) -> None:
    weak = weakly_supervised(QUERIES, index.bm25() % 3, positives=1)
    best = {query.id: index.bm25()(query).ids[0] for query in QUERIES}
    assert weak.qrels == {qid: {docid: 1} for qid, docid in best.items()}
    data = training_set(QUERIES, weak.qrels, index, tokenizer, teacher=weak.run)
    assert [names(data, data.positives(number))[0] for number in range(3)] == list(best.values())
    assert data.scores is not None and data.scores.tolist() == data.candidates.retrieval.tolist()  # type: ignore[union-attr]
    with pytest.raises(InputError, match="0 positives a query"):
        weakly_supervised(QUERIES, index.bm25(), positives=0)


# -- bad input
# ------------------------------------------------------------------------------------------------------------


def test_qrels_of_unknown_queries(tokenizer: Tokenizer, index: Index) -> None:
    qrels = QRELS | {f"x{number}": {"d1": 1} for number in range(7)}
    expected = "not given: 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more: give all queries, or skip"
    with pytest.raises(InputError, match=expected):
        training_set(QUERIES, qrels, index, tokenizer)
    assert training_set(QUERIES, qrels, index, tokenizer, skip=True).report.unknown_queries == 7


@pytest.mark.parametrize("kind", ["index", "documents"])
def test_qrels_of_unknown_documents(kind: str, tokenizer: Tokenizer, index: Index) -> None:
    qrels = QRELS | {"q3": {f"x{number}": 1 for number in range(7)}}
    corpus = index if kind == "index" else CORPUS
    expected = "the qrels or the run: 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more: give the whole"
    with pytest.raises(InputError, match=expected):
        training_set(QUERIES, qrels, corpus, tokenizer, RUN)
    data = training_set(QUERIES, qrels, corpus, tokenizer, RUN, skip=True)
    assert list(data.query_ids) == ["q1", "q2"]  # q3 has no positive left
    assert data.report == Report(queries_without_positives=1, unknown_documents=7)
    assert str(data.report) == "left out: 1 queries without positives, 7 unknown documents"


def test_candidates_of_unknown_documents(tokenizer: Tokenizer) -> None:
    run = run_of(q1="d2 x9 d1", q2="d3", q3="d5")
    with pytest.raises(InputError, match="'x9'"):
        training_set(QUERIES, QRELS, CORPUS, tokenizer, run)
    data = training_set(QUERIES, QRELS, CORPUS, tokenizer, run, skip=True)
    assert names(data, data.candidates_of(0)) == ["d2", "d1"]
    assert data.retrieval_of(0).tolist() == [3, 1]


def test_a_query_without_positives_is_left_out_and_counted(tokenizer: Tokenizer, index: Index) -> None:
    qrels = {"q1": {"d1": 0}, "q2": {"d4": 1}}
    data = training_set(QUERIES, qrels, index, tokenizer)
    assert list(data.query_ids) == ["q2"]
    assert data.report.queries_without_positives == 2


def test_queries_that_a_run_does_not_answer_are_counted(tokenizer: Tokenizer) -> None:
    data = training_set(QUERIES, QRELS, CORPUS, tokenizer, run_of(q1="d2 d1", q9="d1"))
    assert data.report == Report(queries_without_candidates=2)
    assert str(data.report) == "2 queries without candidates: any documents stand in for them"
    assert training_set(QUERIES, QRELS, CORPUS, tokenizer).report == Report()  # which has no run at all


def test_queries_that_a_teacher_does_not_answer_are_not_those_without_positives(tokenizer: Tokenizer) -> None:
    data = training_set(QUERIES, {}, CORPUS, tokenizer, teacher=run_of(q1="d2 d1", q2="d3"))
    assert list(data.query_ids) == ["q1"]
    assert str(data.report) == "left out: 2 queries without two candidates of the teacher"
    said = "the teacher scores fewer than two documents of every query: let it score more"
    with pytest.raises(InputError, match=said):
        training_set(QUERIES, {}, CORPUS, tokenizer, teacher=run_of(q1="d2", q2="d3"))
    with pytest.raises(InputError, match="there are no queries: give some"):
        training_set([], {}, CORPUS, tokenizer, teacher=run_of(q1="d2 d1"))


def test_a_teacher_that_scores_all_alike_has_no_pairs(tokenizer: Tokenizer) -> None:
    alike = Run.from_scores({"q1": {"d1": 1.0, "d2": 1.0}})
    data = training_set(QUERIES, {}, CORPUS, tokenizer, teacher=alike)
    with pytest.raises(InputError, match="differently: give a teacher whose scores differ within a query"):
        teacher_pairs(data, 2, seed=0)


def test_the_grade_that_counts_as_relevant(tokenizer: Tokenizer, index: Index) -> None:
    data = training_set(QUERIES, QRELS, index, tokenizer, relevant=2)
    assert list(data.query_ids) == ["q1"]
    with pytest.raises(InputError, match="no query has a document of grade 3 or above"):
        training_set(QUERIES, QRELS, index, tokenizer, relevant=3)
    with pytest.raises(InputError, match="no query has a document of grade 1 or above"):
        training_set(QUERIES, {"q1": {"x": 1}}, index, tokenizer, skip=True)


def test_duplicates(tokenizer: Tokenizer, index: Index) -> None:
    with pytest.raises(InputError, match="the query id 'q1' occurs twice"):
        training_set([*QUERIES, QUERIES[0]], QRELS, index, tokenizer)
    for corpus in ([*CORPUS, CORPUS[0]], [CORPUS[0], *CORPUS]):
        with pytest.raises(InputError, match="the document id 'd1' occurs twice"):
            training_set(QUERIES, QRELS, corpus, tokenizer, RUN)
    with pytest.raises(InputError, match="the document 'd2' comes twice for 'q1'"):
        training_set(QUERIES, QRELS, index, tokenizer, run_of(q1="d2 d1 d2"))


def test_limits(tokenizer: Tokenizer, index: Index) -> None:
    with pytest.raises(InputError, match="cannot take 0 candidates"):
        training_set(QUERIES, QRELS, index, tokenizer, depth=0)
    with pytest.raises(InputError, match="cannot keep 0 tokens"):
        training_set(QUERIES, QRELS, index, tokenizer, limit=0)


# -- on disk
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taught", [False, True])
def test_a_set_on_disk_is_the_set_in_memory(
    taught: bool, tokenizer: Tokenizer, index: Index, tmp_path: Path
) -> None:
    teacher = ByLength() if taught else None
    data = training_set(QUERIES, QRELS, index, tokenizer, RUN, teacher)
    data.save(tmp_path / "saved")
    written = training_set(QUERIES, QRELS, index, tokenizer, RUN, teacher, into=tmp_path / "written")
    for other in (TrainingSet.open(tmp_path / "saved"), written):
        assert other.fingerprint == data.fingerprint
        assert list(other.document_ids) == list(data.document_ids)
        assert list(other.query_ids) == list(data.query_ids)
        assert other.query_ids[-1] == "q3" and other.query_ids[:2] == ["q1", "q2"]
        assert other.documents.lengths.tolist() == data.documents.lengths.tolist()
        assert (other.relevant, other.report) == (data.relevant, data.report)
        assert other.documents.ids.dtype == np.int32
        assert (other.scores is None) == (not taught)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "written"]


def test_a_set_without_candidates_on_disk(tokenizer: Tokenizer, tmp_path: Path) -> None:
    data = training_set(QUERIES, QRELS, CORPUS, tokenizer, into=tmp_path / "set")
    assert data.candidates is None
    assert len(data.document_ids) == 7


def test_a_folder_is_written_whole_or_not_at_all(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def broken() -> Iterator[Document]:
        yield from CORPUS[:2]
        raise RuntimeError("the corpus ends here")

    with pytest.raises(RuntimeError):
        training_set(QUERIES, QRELS, broken(), tokenizer, RUN, into=tmp_path / "set")
    with pytest.raises(InputError, match="'d3'"):
        training_set(QUERIES, QRELS, CORPUS[:2], tokenizer, RUN, into=tmp_path / "set")
    assert not list(tmp_path.iterdir())
    (tmp_path / "set").mkdir()
    with pytest.raises(InputError, match="set exists: remove it"):
        training_set(QUERIES, QRELS, CORPUS, tokenizer, RUN).save(tmp_path / "set")
    with pytest.raises(InputError, match="holds no training set"):
        TrainingSet.open(tmp_path / "set")
