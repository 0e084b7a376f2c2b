"""Training sets and what is drawn from them, on collections small enough to read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking, Run
from tamis.errors import CorruptError, InputError, TamisError
from tamis.expression import Call
from tamis.infer.tokens import build_tokens
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.ranking import ScoreKind
from tamis.stage import Stage
from tamis.train.build import logits
from tamis.train.examples import (
    Candidates,
    Group,
    Judged,
    Negatives,
    Report,
    Stream,
    TrainingSet,
    balanced,
    chain,
    curriculum,
    curriculum_weights,
    duo_pairs,
    ease,
    grouped,
    length_matched,
    mixed,
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
    return texts.ids[texts.ends[number] : texts.ends[number + 1]].tolist()


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
    assert logits(ranking) == pytest.approx(margins, rel=1e-2 if kind == ScoreKind.PROBABILITY else 1e-9)
    certain = Ranking(Query("q", ""), ("a", "b"), np.array([1.0, 0.0]), ScoreKind.PROBABILITY)
    assert np.isfinite(logits(certain)).all()


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
    qrels = QRELS | {f"x{number}": {"d1": 1} for number in range(5)}
    with pytest.raises(InputError, match="not given: 'x0', 'x1', 'x2' and 2 more: give all queries, or skip"):
        training_set(QUERIES, qrels, index, tokenizer)
    assert training_set(QUERIES, qrels, index, tokenizer, skip=True).report.unknown_queries == 5


@pytest.mark.parametrize("kind", ["index", "documents"])
def test_qrels_of_unknown_documents(kind: str, tokenizer: Tokenizer, index: Index) -> None:
    qrels = QRELS | {"q3": {f"x{number}": 1 for number in range(5)}}
    corpus = index if kind == "index" else CORPUS
    with pytest.raises(InputError, match="the qrels or the run: 'x0', 'x1', 'x2' and 2 more: give the whole"):
        training_set(QUERIES, qrels, corpus, tokenizer, RUN)
    data = training_set(QUERIES, qrels, corpus, tokenizer, RUN, skip=True)
    assert list(data.query_ids) == ["q1", "q2"]  # q3 has no positive left
    assert data.report == Report(queries_without_positives=1, unknown_documents=5)
    assert str(data.report) == "left out: 1 queries without positives, 5 unknown documents"


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


def test_lists_of_other_queries() -> None:
    with pytest.raises(TamisError, match="of other queries"):
        replace(by_hand({0: [0]}), judged=Judged(np.array([0]), np.zeros(0), np.zeros(0)))
    with pytest.raises(TamisError, match="2 teacher's scores for 3 candidates"):
        replace(by_hand({0: [0]}, candidates=[[0, 1, 2]]), scores=np.zeros(2))


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


def test_the_fingerprint_is_of_all_that_matters() -> None:
    data = by_hand({0: [1]}, candidates=[[0, 1, 2]], scores=[3.0, 2.0, 1.0])
    assert data.candidates is not None and data.scores is not None
    judged, candidates = data.judged, data.candidates
    changed = [
        replace(data, queries=Tokenised.of([[99]])),
        replace(data, documents=Tokenised.of([[50, 51], [], [52]])),
        replace(data, judged=replace(judged, grades=judged.grades + 1)),
        replace(data, judged=replace(judged, documents=judged.documents + 1)),
        replace(data, candidates=replace(candidates, documents=candidates.documents[::-1])),
        replace(data, candidates=replace(candidates, retrieval=candidates.retrieval + 1)),
        replace(data, scores=data.scores + 1),
        replace(data, scores=None),
        replace(data, relevant=2),
    ]
    fingerprints = [each.fingerprint for each in (data, *changed)]
    assert len(set(fingerprints)) == len(fingerprints)
    assert replace(data, document_ids=["x", "y", "z"]).fingerprint == data.fingerprint


def test_damage_is_found(tmp_path: Path) -> None:
    data = by_hand({0: [1]}, candidates=[[0, 1, 2]])
    data.save(tmp_path / "set")
    for path in sorted((tmp_path / "set").iterdir()):
        copy = tmp_path / f"without-{path.name}"
        shutil.copytree(tmp_path / "set", copy)
        (copy / path.name).unlink()
        with pytest.raises(InputError if path.name == "set.json" else CorruptError, match=r"make|write"):
            TrainingSet.open(copy)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        (copy / path.name).write_bytes(bytes(content))
        with pytest.raises(CorruptError, match="make the training set again"):
            TrainingSet.open(copy)


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
        by_hand({0: [1]}).save(tmp_path / "set")
    with pytest.raises(InputError, match="holds no training set"):
        TrainingSet.open(tmp_path / "set")


# -- drawing
# ------------------------------------------------------------------------------------------------------------


def by_hand(
    positives: dict[int, list[int]],
    *,
    negatives: dict[int, list[int]] | None = None,
    candidates: list[list[int]] | None = None,
    scores: list[float] | None = None,
    documents: int = 3,
) -> TrainingSet:
    """A set of numbers: who is relevant, who was judged and is not, who was found, what a teacher thinks."""
    queries = max(positives) + 1
    rows = [
        [(d, 1) for d in positives.get(q, [])] + [(d, 0) for d in (negatives or {}).get(q, [])]
        for q in range(queries)
    ]
    flat = [entry for row in rows for entry in row]
    ends = np.cumsum([0, *map(len, rows)])
    judged = Judged(ends, np.array([d for d, _ in flat], np.int32), np.array([g for _, g in flat], np.int32))
    listed = None
    if candidates is not None:
        found = [np.array(each, np.int32) for each in candidates]
        retrieval = [np.arange(len(each), 0, -1, dtype=np.float32) for each in candidates]
        sizes = np.cumsum([0, *map(len, candidates)])
        listed = Candidates(sizes, np.concatenate(found), np.concatenate(retrieval))
    return TrainingSet(
        Tokenised.of([[100 + query] for query in range(queries)]),
        Tokenised.of([[200 + document] * (document + 1) for document in range(documents)]),
        [f"q{query}" for query in range(queries)],
        [f"d{document}" for document in range(documents)],
        judged,
        listed,
        None if scores is None else np.array(scores, np.float32),
    )


def groups(stream: Stream, batches: int, start: int = 0) -> list[Group]:
    return [group for batch in islice(stream.batches(start), batches) for group in batch.groups]


def plain(group: Group) -> tuple[object, ...]:
    teacher = None if group.teacher is None else group.teacher.tolist()
    return group.query, group.documents.tolist(), group.labels.tolist(), teacher, group.weight


def test_balanced_batches_are_half_relevant() -> None:
    data = by_hand({0: [0, 1], 1: [2]}, candidates=[[3, 4, 0], [4, 2]], documents=6)
    for batch in islice(balanced(data, 8, seed=1).batches(), 20):
        labels = np.concatenate([group.labels for group in batch.groups])
        assert len(labels) == 8 and labels.sum() == 4
        for group in batch.groups:
            assert set(group.documents.tolist()) <= ({0, 1, 3, 4} if group.query == 0 else {2, 4})


def test_negatives_are_drawn_from_everywhere_they_may() -> None:
    data = by_hand({0: [1]}, candidates=[[5, 1, 3, 7, 2]], documents=9)

    def drawn(negatives: Negatives) -> set[int]:
        return {int(group.documents[1]) for group in groups(balanced(data, 2, 0, negatives), 200)}

    assert drawn(Negatives()) == {5, 3, 7, 2}
    assert drawn(Negatives(first=3, last=4)) == {3, 7}  # ranks 3 and 4
    assert drawn(Negatives(first=1, last=2)) == {5}  # rank 2 is relevant
    assert drawn(Negatives(first=4)) == {7, 2}
    assert drawn(Negatives(random=1.0)) == {0, 2, 3, 4, 5, 6, 7, 8}


def test_of_long_lists_every_wanted_candidate_is_as_likely_as_another() -> None:
    """Only some of such a list are looked at: 100 wanted ones, of which 2 are relevant."""
    listed = list(range(300))
    data = by_hand({0: [150, 7, 160]}, candidates=[listed], documents=400)
    for size, batches in ((2, 3000), (4, 1000)):
        stream = grouped(data, size, 4, 0, Negatives(first=101, last=200))
        drawn = np.concatenate([group.documents[1:] for group in groups(stream, batches // 4)])
        counts = np.bincount(drawn, minlength=400)
        assert set(np.flatnonzero(counts)) == set(range(100, 200)) - {150, 160}
        expected = len(drawn) / 98
        chi_square = ((counts[counts > 0] - expected) ** 2 / expected).sum()
        assert chi_square < 150  # 97 degrees of freedom: about 97, give or take 14


def test_a_window_with_just_enough_has_no_others() -> None:
    data = by_hand({0: [0]}, candidates=[list(range(40))], documents=60)
    for size in (3, 4, 5, 6):  # of the window's five all but the relevant are wanted, or one more
        stream = grouped(data, size, 1, 0, Negatives(last=5))
        for group in groups(stream, 30):
            assert len(set(group.documents.tolist()) - {0}) == size - 1
            assert len(set(group.documents.tolist()) & {1, 2, 3, 4}) == min(size - 1, 4)


def test_the_share_of_random_documents() -> None:
    data = by_hand({0: [0]}, candidates=[[1]], documents=1000)
    found = groups(balanced(data, 20, 0, Negatives(random=0.25)), 100)
    share = np.mean([group.documents[1] != 1 for group in found])
    assert share == pytest.approx(0.25, abs=0.05)


def test_where_there_are_too_few_others_fill_up() -> None:
    """The window, then the other candidates, then judged documents, then any."""
    data = by_hand({0: [0]}, negatives={0: [5]}, candidates=[[1, 2, 0, 3]], documents=8)

    def of_size(size: int) -> set[int]:
        (group,) = grouped(data, size, 1, seed=4, negatives=Negatives(last=2)).batch(0).groups
        assert len(group.documents) == len(set(group.documents.tolist())) == min(size, 8)
        return set(group.documents[1:].tolist())

    assert of_size(3) == {1, 2}
    assert of_size(4) == {1, 2, 3}
    assert of_size(5) == {1, 2, 3, 5}
    assert of_size(6) > {1, 2, 3, 5}
    assert of_size(20) == {1, 2, 3, 4, 5, 6, 7}


def test_judged_negatives_come_first_where_they_are_wanted() -> None:
    data = by_hand({0: [0]}, negatives={0: [5, 6]}, candidates=[[1, 2]], documents=8)
    judged = grouped(data, 3, 1, seed=0, negatives=Negatives(judged=True)).batch(0).groups[0]
    assert set(judged.documents[1:].tolist()) == {5, 6}


def test_groups_have_as_many_positives_as_are_wanted() -> None:
    data = by_hand({0: [0, 1, 2], 1: [3]}, candidates=[[4, 5, 6, 7], [4, 5, 6, 7]], documents=8)
    for group in groups(grouped(data, 4, 2, seed=0, positives=2), 10):
        assert group.labels.tolist() == ([1, 1, 0, 0] if group.query == 0 else [1, 0, 0, 0])


def test_pairs_come_in_both_orders() -> None:
    data = by_hand({0: [0]}, candidates=[[1, 0, 2]], scores=[0.5, 2.0, -1.0])
    for batch in islice(duo_pairs(data, 4, seed=0).batches(), 5):
        for one, other in zip(batch.groups[0::2], batch.groups[1::2], strict=True):
            assert one.documents.tolist() == other.documents.tolist()[::-1]
            assert (one.labels.tolist(), other.labels.tolist()) == ([1, 0], [0, 1])
            assert one.teacher is not None and other.teacher is not None
            assert one.teacher.tolist() == other.teacher.tolist()[::-1]
            assert one.teacher[0] == 2.0


def test_groups_of_a_taught_set_have_the_teachers_scores() -> None:
    """Query 1 has no relevant document, and comes too; the others of query 0 may be relevant."""
    data = by_hand(
        {0: [0, 1], 1: []}, candidates=[[3, 1, 0, 2], [2, 4, 5]], scores=[3, 1, 0, 2, 12, 14, 15], documents=6
    )
    found = groups(grouped(data, 3, 3, seed=0), 20)
    assert {group.query for group in found} == {0, 1}
    for group in found:
        assert group.teacher is not None
        assert group.teacher.tolist() == [d + 10 * group.query for d in group.documents.tolist()]
        assert group.labels.tolist() == [float(group.query == 0 and d < 2) for d in group.documents.tolist()]
    assert {group.labels.sum() for group in found if group.query == 0} == {1, 2}


def test_random_documents_have_no_teacher() -> None:
    data = by_hand({0: [0]}, candidates=[[1, 0]], scores=[1.0, 2.0])
    with pytest.raises(InputError, match="random documents have no teacher's scores"):
        balanced(data, 2, 0, Negatives(random=0.5))


def test_pairs_of_a_teacher() -> None:
    data = by_hand(
        {0: [], 1: [], 2: []}, candidates=[[0, 1, 2], [2, 1], [1]], scores=[1, 5, 5, 3, 3, 7], documents=3
    )
    stream = teacher_pairs(data, 6, seed=0)
    assert stream.epoch == 1
    found = groups(stream, 20)
    assert {group.query for group in found} == {0}  # the others have no two scores
    assert {tuple(group.documents.tolist()) for group in found} == {(0, 1), (1, 0), (0, 2), (2, 0)}
    for group in found:
        assert group.teacher is not None
        assert (group.labels[0] > group.labels[1]) == (group.teacher[0] > group.teacher[1])
    near = by_hand({0: []}, candidates=[[0, 1, 2]], scores=[1, 5, 9])
    assert {d for group in groups(teacher_pairs(near, 2, 0, last=2), 9) for d in group.documents} == {0, 1}
    with pytest.raises(InputError, match="give training_set a teacher"):
        teacher_pairs(by_hand({0: [0]}), 2, seed=0)


def test_an_epoch_is_every_positive_once() -> None:
    data = by_hand({0: [0, 1, 2], 1: [3], 2: [0, 4]}, documents=6)
    stream = balanced(data, 4, seed=3)
    assert stream.epoch == 3
    for epoch in range(3):
        seen = [(g.query, int(g.documents[0])) for g in groups(stream, 3, start=3 * epoch)]
        assert sorted(seen) == [(0, 0), (0, 1), (0, 2), (1, 3), (2, 0), (2, 4)]


def test_streams_depend_on_the_seed_and_go_on_anywhere() -> None:
    data = by_hand({0: [0, 1], 1: [2]}, candidates=[list(range(3, 30)), list(range(3, 30))], documents=30)
    for stream in (balanced, duo_pairs, lambda d, n, seed: grouped(d, 4, n, seed)):
        whole = [plain(group) for group in groups(stream(data, 4, 7), 12)]
        again = [plain(group) for group in groups(stream(data, 4, 7), 6, start=6)]
        other = [plain(group) for group in groups(stream(data, 4, 8), 12)]
        assert whole[-len(again) :] == again
        assert whole != other


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda data: balanced(data, 3, 0), "a batch of 3 texts has no two halves: use an even"),
        (lambda data: duo_pairs(data, 0, 0), "a batch of 0 ordered pairs"),
        (lambda data: grouped(data, 1, 4, 0), "4 groups of 1 documents"),
        (lambda data: grouped(data, 4, 1, 0, positives=4), "4 of them relevant"),
        (lambda data: balanced(data, 2, -1).batch(0), "a seed of -1"),
        (lambda data: Negatives(first=0), "ranks 0 to None: count from 1"),
        (lambda data: Negatives(first=5, last=4), "ranks 5 to 4"),
        (lambda data: Negatives(random=1.5), "a share of 1.5"),
        (lambda data: length_matched(data, 0), "cannot cut texts to 0 tokens"),
        (lambda data: chain([]), "a chain"),
        (lambda data: chain([(balanced(data, 2, 0), None), (balanced(data, 2, 0), 3)]), "the last its steps"),
        (lambda data: mixed([(balanced(data, 2, 0), 0.0)]), "a weight above 0"),
        (lambda data: curriculum(balanced(data, 2, 0), 0), "a curriculum of 0 steps"),
    ],
)
def test_what_cannot_be_drawn(make: Callable[[TrainingSet], object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make(by_hand({0: [0]}))


def test_nothing_but_positives() -> None:
    with pytest.raises(InputError, match="no query has both a relevant document and another"):
        balanced(by_hand({0: [0, 1, 2]}), 2, 0)
    taught = by_hand({0: [0, 1]}, candidates=[[1, 0]], scores=[1.0, 2.0])
    with pytest.raises(InputError, match="no query has both"):
        duo_pairs(taught, 2, 0)
    assert len(grouped(taught, 4, 1, 0).batch(0).groups[0].documents) == 2  # which a list can learn from


# -- curricula, chains, mixtures
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("documents", "by_rank", "by_score"),
    [
        ([0, 1], (1 - 1 / 2 + 1) / 2, (1 - 0.75 + 1) / 2),  # scores 5, 4, 1: 1, 3/4, 0
        ([0, 2], (1 - 1 / 3 + 1) / 2, (1 - 0 + 1) / 2),
        ([0, 9], (1 - 0 + 1) / 2, (1 - 0 + 1) / 2),  # 9 was not found
        ([9, 0], (0 - 1 + 1) / 2, (0 - 1 + 1) / 2),
        ([1, 0, 2], (1 / 2 - (1 + 1 / 3) / 2 + 1) / 2, (0.75 - 0.5 + 1) / 2),
    ],
)
def test_ease(documents: list[int], by_rank: float, by_score: float) -> None:
    data = by_hand({0: [0]}, candidates=[[0, 1, 2]], documents=10)
    assert data.candidates is not None
    retrieval = np.array([5, 4, 1], np.float32)
    data = replace(data, candidates=replace(data.candidates, retrieval=retrieval))
    group = Group(0, np.array(documents), np.array([1.0] + [0.0] * (len(documents) - 1)))
    assert ease(data, group, "rank") == pytest.approx(by_rank)
    assert ease(data, group, "score") == pytest.approx(by_score)


def test_equal_scores_say_nothing() -> None:
    data = by_hand({0: [0]}, candidates=[[0]], documents=2)
    group = Group(0, np.array([0, 1]), np.array([1.0, 0.0]))
    assert ease(data, group, "score") == 0.5
    assert ease(by_hand({0: [0]}), group, "rank") == 0.5  # nor does a set without candidates
    with pytest.raises(InputError, match="no curriculum 'kde'"):
        ease(data, group, "kde")  # type: ignore[arg-type]


def test_curriculum_weights_rise_to_one() -> None:
    eases = np.array([0.0, 0.4, 1.0])
    assert curriculum_weights(eases, 0, 10).tolist() == [0.0, 0.4, 1.0]
    assert curriculum_weights(eases, 5, 10) == pytest.approx([0.5, 0.7, 1.0])
    assert curriculum_weights(eases, 10, 10).tolist() == curriculum_weights(eases, 99, 10).tolist() == [1] * 3


def test_a_curriculum_changes_weights_alone() -> None:
    data = by_hand({0: [2]}, candidates=[[0, 1, 2]])
    stream = balanced(data, 4, seed=0)
    eased = curriculum(stream, steps=4, heuristic="rank")
    for number in range(6):
        for before, after in zip(stream.batch(number).groups, eased.batch(number).groups, strict=True):
            easiness = (1 / 3 - 1 / (1 + before.documents[1]) + 1) / 2
            assert after.weight == pytest.approx(min(easiness + (1 - easiness) * number / 4, 1))
            assert plain(replace(after, weight=1.0)) == plain(before)


def test_a_chain_is_one_stream_after_the_other() -> None:
    large, target = by_hand({0: [0, 1]}), by_hand({0: [2]})
    first, second = balanced(large, 2, seed=0), grouped(target, 2, 1, seed=0)
    stream = chain([(first, 3), (second, None)])
    found = list(islice(stream.batches(1), 6))
    assert [batch.data is target for batch in found] == [False, False, True, True, True, True]
    assert [plain(batch.groups[0]) for batch in found] == [
        plain(batch.groups[0])
        for batch in [first.batch(1), first.batch(2), *(second.batch(number) for number in range(4))]
    ]
    assert stream.epoch == 4


def test_a_mixture_goes_through_each_stream_in_order() -> None:
    sets = [by_hand({0: [0, 1]}), by_hand({0: [2]})]
    parts = [balanced(data, 2, seed=0) for data in sets]
    stream = mixed([(parts[0], 3.0), (parts[1], 1.0)])
    seen = [0, 0]
    for number, batch in enumerate(islice(stream.batches(), 3000)):
        which = 0 if batch.data is sets[0] else 1
        if number < 50:
            assert plain(batch.groups[0]) == plain(parts[which].batch(seen[which]).groups[0])
        seen[which] += 1
        assert abs(seen[0] - 0.75 * (number + 1)) <= 1
    assert plain(stream.batch(2999).groups[0]) == plain(batch.groups[0])
