"""Training sets from queries, qrels, a corpus and candidates."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.documents import Document, Query
from tamis.base.errors import NAMED, InputError
from tamis.core.ranking import Ranking, Run
from tamis.core.stage import Stage
from tamis.index.index import Index
from tamis.infer.tokens import KEPT, TokenStore
from tamis.models.templates import COUNTED, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.train.sets import Candidates, Judged, Report, Texts, TrainingSet, offsets_of, write

Qrels = Mapping[str, Mapping[str, int]]
_BATCH = 1024  # documents tokenised together


def training_set(
    queries: Iterable[Query],
    qrels: Qrels,
    documents: Index | Iterable[Document],
    tokenizer: Tokenizer,
    run: Run | Stage | None = None,
    teacher: Run | Stage | None = None,
    *,
    relevant: int = 1,
    limit: int = KEPT,
    depth: int = 1000,
    skip: bool = False,
    into: str | Path | None = None,
    progress: Callable[[int], object] | None = None,
) -> TrainingSet:
    """Tokenise everything needed to learn from `qrels`, from a teacher's scores, or from both.

    A query's candidates, from which its negatives are drawn, are the first `depth` of `run`, which may be a
    stage that finds them now. Without `run` they are the teacher's, if that is a run; else BM25's, if
    `documents` is an index; else there are none. A document that is neither judged nor a candidate is left
    out, unless no query has candidates, so that negatives are drawn from all documents.

    A teacher that is a stage scores the candidates and the judged documents. Probabilities are converted to
    log-odds, because losses compare logits. With a teacher, judged documents without its score are left out,
    and a query without a relevant document is kept for its scores; without a teacher such a query is left
    out.

    Grades of at least `relevant` are relevant. At most `limit` tokens of a document are kept; tokens stored
    beside an index (`tamis tokens`) are used if they exist. Ids that are missing from the queries, the corpus
    or the teacher's run raise an error, or with `skip` are left out and counted in the set's `report`. With
    `into` the set is written to that folder while it is made, which allows a set larger than memory.
    `progress` receives how many more queries have their candidates.

    >>> from tokenizers import Tokenizer as Library, models, pre_tokenizers
    >>> library = Library(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "?": 2, "sieve": 3}, unk_token="?"))
    >>> library.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> library.save(str(getfixture("tmp_path") / "tokenizer.json"))
    >>> documents = [Document("d1", "the sieve"), Document("d2", "a sieve")]
    >>> index = Index.build(documents, getfixture("tmp_path") / "idx")
    >>> tokenizer = Tokenizer(getfixture("tmp_path"))
    >>> data = training_set([Query("q1", "sieve")], {"q1": {"d2": 1}}, index, tokenizer)
    >>> data.positives(0).tolist(), data.candidates_of(0).tolist(), data.document_ids
    ([0], [1, 0], ['d2', 'd1'])
    """
    if not 1 <= limit <= COUNTED:
        raise InputError(f"cannot keep {limit} tokens a document", remedy=f"use 1 to {COUNTED}")
    asked, taught = _distinct(queries), teacher is not None
    others = _Few(qid for qid in qrels if qid not in asked)
    if others and not skip:
        raise InputError(
            f"the qrels judge documents for queries that are not given: {others}",
            remedy="give all queries, or skip those judgments (`skip`)",
        )
    wanted = _wanted(asked, qrels, relevant, run, teacher)
    lists = _lists(wanted, qrels, documents, _source(documents, run, teacher, depth), teacher, progress)
    if lists.unscored and not skip:
        raise InputError(
            f"the teacher has no score for some candidates: {lists.unscored}",
            remedy="let it score them all, or skip those (`skip`)",
        )
    places: dict[str, int] = {}
    texts = _texts(documents, lists, places, tokenizer, limit, skip)

    def finish(tokens: Tokenised, ids: Sequence[str]) -> TrainingSet:
        kept, judged, candidates, scores = lists.numbered(places, relevant)
        if not len(kept):
            raise _nothing_left(relevant, taught)
        left_out = len(asked) - len(kept)
        queries = [wanted[number] for number in kept.tolist()]
        return TrainingSet(
            tokenizer.encode([query.text for query in queries], limit=KEPT),
            tokens,
            [query.id for query in queries],
            ids,
            judged,
            candidates,
            scores,
            relevant,
            Report(
                queries_without_positives=0 if taught else left_out,
                unknown_queries=len(others),
                unknown_documents=sum(docid not in places for docid in lists.numbers),
                unscored_judgments=lists.unscored_judgments,
                unscored_candidates=len(lists.unscored),
                queries_without_two_candidates_of_the_teacher=left_out if taught else 0,
                queries_without_candidates=0 if taught else _without_candidates(candidates),
            ),
        )

    if into is None:
        parts = [tokens for _, tokens in texts]
        return finish(Tokenised.join(parts), list(places))
    write(into, texts, lambda: finish(Tokenised.of([]), []))
    return TrainingSet.open(into)


class Weak(NamedTuple):
    """The results of a stage, as judgments and as a run."""

    qrels: dict[str, dict[str, int]]
    run: Run


def weakly_supervised(queries: Iterable[Query], stage: Stage, *, positives: int = 1) -> Weak:
    """Make labels from the scores of any stage (weak supervision, Dehghani et al. 2017): its first
    `positives` documents of each query count as relevant. Pass the qrels to `training_set`, and the run as
    its `run` or, to learn the scores too, as its `teacher`.

    >>> documents = [Document("d1", "the sieve"), Document("d2", "soup")]
    >>> index = Index.build(documents, getfixture("tmp_path") / "idx")
    >>> weakly_supervised([Query("q1", "sieve")], index.bm25() % 10).qrels
    {'q1': {'d1': 1}}
    """
    if positives < 1:
        raise InputError(f"{positives} positives a query", remedy="use 1 or more")
    run = stage.run(queries)
    found = {qid: ranking.head(positives).ids for qid, ranking in run.items() if len(ranking)}
    return Weak({qid: dict.fromkeys(ids, 1) for qid, ids in found.items()}, run)


# -- candidates and a teacher's scores
# ------------------------------------------------------------------------------------------------------------


def _distinct(queries: Iterable[Query]) -> dict[str, Query]:
    found: dict[str, Query] = {}
    for query in queries:
        if query.id in found:
            raise InputError(f"the query id {query.id!r} occurs twice", remedy="give each its own")
        found[query.id] = query
    return found


def _wanted(
    asked: Mapping[str, Query],
    qrels: Qrels,
    relevant: int,
    run: Run | Stage | None,
    teacher: Run | Stage | None,
) -> list[Query]:
    """The queries that can be used for training."""
    taught = teacher is not None
    wanted = [query for query in asked.values() if taught or _has_positive(qrels, query, relevant)]
    if not asked:
        raise InputError("there are no queries", remedy="give some to learn from")
    if not wanted:
        raise _nothing_left(relevant, taught)
    for given, what in ((run, "run"), (teacher, "teacher's run")):
        if isinstance(given, Run) and not any(query.id in given for query in wanted):
            raise InputError(
                f"the {what} answers none of the queries", remedy="check that the query ids match"
            )
    return wanted


def _has_positive(qrels: Qrels, query: Query, relevant: int) -> bool:
    return any(grade >= relevant for grade in qrels.get(query.id, {}).values())


def _nothing_left(relevant: int, taught: bool) -> InputError:
    if taught:
        return InputError(
            "the teacher scores fewer than two documents of every query", remedy="let it score more"
        )
    return InputError(
        f"no query has a document of grade {relevant} or above that the corpus holds",
        remedy="check that queries, qrels and corpus belong together, or lower `relevant`",
    )


def _source(
    documents: Index | Iterable[Document], run: Run | Stage | None, teacher: Run | Stage | None, depth: int
) -> Run | Stage | None:
    """The source of the candidates."""
    if depth < 1:
        raise InputError(f"cannot take {depth} candidates", remedy="use a depth of 1 or more")
    if run is None and isinstance(teacher, Run):
        run = teacher
    if run is None and isinstance(documents, Index):
        run = documents.bm25()
    if isinstance(run, Run):
        return Run(ranking.head(depth) for ranking in run.values())
    return None if run is None else run % depth


def _lists(
    wanted: Sequence[Query],
    qrels: Qrels,
    documents: Index | Iterable[Document],
    source: Run | Stage | None,
    teacher: Run | Stage | None,
    progress: Callable[[int], object] | None,
) -> _Lists:
    """The judged, retrieved and scored documents of each query."""
    lists = _Lists(source is not None, teacher is not None)
    for rankings in _batches(wanted, source):
        for ranking, judged, scores in _taught(rankings, qrels, documents, teacher):
            lists.add(ranking, judged, scores)
        if progress:
            progress(len(rankings))
    return lists


def _batches(queries: Sequence[Query], source: Run | Stage | None) -> Iterator[list[Ranking]]:
    """Yield the queries with their candidates, in batches."""
    at_once = _BATCH
    if isinstance(source, Stage):
        source.prepare()
        at_once = source.queries_at_once
    for start in range(0, len(queries), at_once):
        some = [Ranking(query) for query in queries[start : start + at_once]]
        if isinstance(source, Stage):
            yield source.apply(some)
        elif source is None:
            yield some
        else:
            yield [replace(source.get(each.query.id, each), query=each.query) for each in some]


def _taught(
    rankings: Sequence[Ranking],
    qrels: Qrels,
    documents: Index | Iterable[Document],
    teacher: Run | Stage | None,
) -> Iterator[tuple[Ranking, Mapping[str, int], Mapping[str, float]]]:
    """Yield each query's candidates, its judgments, and the teacher's scores by document."""
    judgments = [qrels.get(ranking.query.id, {}) for ranking in rankings]
    scored: Sequence[Ranking | None] = [None] * len(rankings)
    if isinstance(teacher, Stage):
        held = frozenset(docid for judged in judgments for docid in judged)
        if isinstance(documents, Index):
            held = held.difference(documents.missing(held))
        pairs = zip(rankings, judgments, strict=True)
        scored = teacher.apply(
            [_extended(each, held.intersection(judged), documents) for each, judged in pairs]
        )
    elif teacher is not None:
        scored = [teacher.get(ranking.query.id) for ranking in rankings]
    for ranking, judged, given in zip(rankings, judgments, scored, strict=True):
        yield ranking, judged, dict(zip(given.ids, given.log_odds().tolist(), strict=True)) if given else {}


def _extended(ranking: Ranking, ids: Iterable[str], documents: Index | Iterable[Document]) -> Ranking:
    """The candidates followed by other documents that must be scored too."""
    more = sorted(frozenset(ids).difference(ranking.ids))
    texts = documents if isinstance(documents, Index) else ranking.texts
    scores = np.append(ranking.scores, np.full(len(more), _lowest(ranking)))
    return replace(ranking, ids=(*ranking.ids, *more), scores=scores, texts=texts)


def _lowest(ranking: Ranking) -> float:
    return float(ranking.scores[-1]) if len(ranking) else 0.0


# -- from ids to numbers
# ------------------------------------------------------------------------------------------------------------


class _Few:
    """Counts ids and keeps the first few for a message."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._count, self._first = 0, list[str]()
        for doc_id in ids:
            self.add(doc_id)

    def add(self, doc_id: str) -> None:
        self._count += 1
        if self._count <= NAMED:
            self._first.append(repr(doc_id))

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        more = self._count - len(self._first)
        return ", ".join(self._first) + (f" and {more:,} more" if more else "")


class _Lists:
    """Collects the judgments and candidates of each query. Documents are numbered in the order in which they
    are first named; their numbers in the set are known when the corpus has been read."""

    def __init__(self, has_candidates: bool, taught: bool) -> None:
        self.numbers: dict[str, int] = {}
        self.has_candidates, self._taught = has_candidates, taught
        self.unscored, self.unscored_judgments = _Few(), 0
        self._judged, self._grades = list[Array](), list[Array]()
        self._candidates, self._retrieval, self._scores = list[Array](), list[Array](), list[Array]()

    def add(self, ranking: Ranking, judged: Mapping[str, int], scores: Mapping[str, float]) -> None:
        """Add a query's candidates, its judgments, and the teacher's scores of both."""
        ids, retrieval = list(ranking.ids), ranking.scores
        if len(frozenset(ids)) < len(ids):
            twice = next(docid for place, docid in enumerate(ids) if docid in ids[:place])
            raise InputError(
                f"the document {twice!r} comes twice for {ranking.query.id!r}", remedy="keep one of them"
            )
        if self._taught:
            ids, retrieval = self._with_scores(ranking, scores)
            self.unscored_judgments += sum(docid not in scores for docid in judged)
            judged = {docid: grade for docid, grade in judged.items() if docid in scores}
            others = list(judged.keys() - frozenset(ids))
            ids += sorted(others)
            retrieval = np.append(retrieval, np.full(len(others), _lowest(ranking)))
            self._scores.append(np.array([scores[docid] for docid in ids], dtype=np.float32))
        self._judged.append(self._number(judged))
        self._grades.append(np.fromiter(judged.values(), dtype=np.int32, count=len(judged)))
        self._candidates.append(self._number(ids))
        self._retrieval.append(retrieval.astype(np.float32))

    def _with_scores(self, ranking: Ranking, scores: Mapping[str, float]) -> tuple[list[str], Array]:
        has_score = [docid in scores for docid in ranking.ids]
        for docid, scored in zip(ranking.ids, has_score, strict=True):
            if not scored:
                self.unscored.add(docid)
        return list(compress(ranking.ids, has_score)), ranking.scores[np.array(has_score, dtype=bool)]

    def _number(self, ids: Iterable[str]) -> Array:
        numbers = self.numbers
        return np.array([numbers.setdefault(docid, len(numbers)) for docid in ids], dtype=np.int32)

    def numbered(
        self, places: Mapping[str, int], relevant: int
    ) -> tuple[Array, Judged, Candidates | None, Array | None]:
        """The queries to keep, and their lists without the documents that are not in the set."""
        place = np.array([places.get(docid, -1) for docid in self.numbers], dtype=np.int32)
        offsets, (documents, grades) = _placed(place, self._judged, self._grades)
        positives = _counts(offsets, grades >= relevant)
        keep = positives > 0
        own_ends, (own, retrieval, *scores) = _placed(
            place, self._candidates, self._retrieval, *([self._scores] if self._taught else [])
        )
        if self._taught:
            keep |= np.diff(own_ends) > 1
        kept = np.flatnonzero(keep)
        offsets, (documents, grades) = _rows(kept, offsets, documents, grades)
        own_ends, (own, retrieval, *scores) = _rows(kept, own_ends, own, retrieval, *scores)
        candidates = Candidates(own_ends, own, retrieval) if self.has_candidates else None
        return kept, Judged(offsets, documents, grades), candidates, scores[0] if scores else None


def _without_candidates(candidates: Candidates | None) -> int:
    """The number of queries without candidates, if others have some."""
    return 0 if candidates is None else int(np.count_nonzero(np.diff(candidates.offsets) == 0))


def _placed(place: Array, documents: Sequence[Array], *values: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Concatenate lists: the places of those documents that have one, and their values."""
    offsets = offsets_of(np.array([len(each) for each in documents]))
    numbers = place[np.concatenate(documents)]
    known = numbers >= 0
    kept_ends = offsets_of(_counts(offsets, known))
    return kept_ends, [numbers[known], *(np.concatenate(each)[known] for each in values)]


def _counts(offsets: Array, chosen: Array) -> Array:
    """The number of chosen items in each list."""
    return np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(chosen, dtype=np.int64)])[offsets])


def _rows(kept: Array, offsets: Array, *values: Array) -> tuple[Array, list[Array]]:
    """Concatenate the lists with these numbers."""
    counts = np.diff(offsets)[kept]
    at = ranges(offsets[kept], counts)
    return offsets_of(counts), [each[at] for each in values]


# -- texts
# ------------------------------------------------------------------------------------------------------------


def _texts(
    documents: Index | Iterable[Document],
    lists: _Lists,
    places: dict[str, int],
    tokenizer: Tokenizer,
    limit: int,
    skip: bool,
) -> Texts:
    """Yield the named documents, in the order of the corpus or, for an index, in the order in which they were
    named; their ids are added to `places` on the way. Without candidates all documents are taken."""
    if isinstance(documents, Index):
        missing = frozenset(documents.missing(lists.numbers))
        _check_known(missing, skip)
        known = (docid for docid in lists.numbers if docid not in missing)
        store = TokenStore(documents, tokenizer, limit=limit)
        while ids := list(islice(known, _BATCH)):
            places.update(zip(ids, range(len(places), len(places) + len(ids)), strict=True))
            yield ids, store.texts(ids)
        return
    wanted = (each for each in documents if each.id in lists.numbers or not lists.has_candidates)
    while some := list(islice(wanted, _BATCH)):
        for document in some:
            if document.id in places:
                raise InputError(
                    f"the document id {document.id!r} occurs twice", remedy="give every document its own"
                )
            places[document.id] = len(places)
        yield [each.id for each in some], tokenizer.encode([each.contents for each in some], limit=limit)
    _check_known([docid for docid in lists.numbers if docid not in places], skip)


def _check_known(missing: Collection[str], skip: bool) -> None:
    if missing and not skip:
        raise InputError(
            f"the corpus has no text for some documents of the qrels or the run: {_Few(sorted(missing))}",
            remedy="give the whole corpus, or skip those (`skip`)",
        )
