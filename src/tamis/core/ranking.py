"""The one type that flows between stages, and the one order in which candidates stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import satisfies
from tamis.base.documents import Document, Query
from tamis.base.errors import InputError, TamisError

if TYPE_CHECKING:
    from tamis.core.stage import Stage


class ScoreKind(StrEnum):
    """What a score means."""

    NONE = "none"  # no candidates yet, or an order without scores
    RETRIEVAL = "retrieval"  # comparable only within one query's list
    PROBABILITY = "probability"
    LOGIT = "logit"
    LOG_PROBABILITY = "log-probability"
    COMBINED = "combined"  # interpolated, normalised or fused: comparable only within one query's list

    @property
    def comparable(self) -> bool:
        """Whether a score means the same in every query's list, so that one margin can be asked of all."""
        return self in (ScoreKind.PROBABILITY, ScoreKind.LOGIT, ScoreKind.LOG_PROBABILITY)


class Texts(Protocol):
    """Where candidates' texts come from: an index, a corpus, a dictionary in disguise. Where several can be
    had in one request, it may have a method `documents` for several ids too."""

    def document(self, doc_id: str) -> Document: ...


_AT_ONCE = 100  # documents of a request, so that not all of a ranking's need fit into the memory


def each_document(texts: Texts, ids: Sequence[str]) -> Iterator[Document]:
    """The documents with these ids, in this order, by the method `documents` of `texts` if it has one."""
    several = getattr(texts, "documents", None)
    if not callable(several):
        yield from map(texts.document, ids)
        return
    for start in range(0, len(ids), _AT_ONCE):
        yield from several(ids[start : start + _AT_ONCE])


class Span(NamedTuple):
    """A passage of a document that earned a score: characters start..stop of its text."""

    start: int
    stop: int
    score: float


class Hit(NamedTuple):
    """One candidate of a ranking."""

    rank: int
    id: str
    score: float


def best_first(scores: Array, ids: Sequence[str]) -> Array:
    """The one sort order: score descending, equal scores by id ascending.

    >>> best_first(np.array([1.0, 3.0, 3.0]), ["c", "b", "a"]).tolist()
    [2, 1, 0]
    """
    if np.isnan(scores).any():
        raise TamisError("a score is not a number", remedy="check the stage that made it")
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    if (ranked[1:] == ranked[:-1]).any():
        by_score_and_id = list(zip((-scores).tolist(), ids, strict=True))
        order = np.array(sorted(range(len(ids)), key=by_score_and_id.__getitem__), dtype=np.int64)
    return order


def check_ids(query: object, documents: Iterable[object]) -> None:
    """Refuse ids that are not texts: 2 and "2" are not alike, and no judgment would be found.

    >>> check_ids("q1", [2])
    Traceback (most recent call last):
    tamis.base.errors.InputError: query 'q1': the document id 2 is int, not str: give it as text
    """
    if not isinstance(query, str):
        raise InputError(
            f"the query id {query!r} is {type(query).__name__}, not str", remedy="give it as text"
        )
    other = next((each for each in documents if not isinstance(each, str)), None)
    if other is not None:
        problem = f"query {query!r}: the document id {other!r} is {type(other).__name__}, not str"
        raise InputError(problem, remedy="give it as text")


@dataclass(frozen=True, slots=True)
class Ranking:
    """A query and its candidates, best first. A bare query is a ranking with no candidates yet, so a
    retriever and a reranker have one signature.

    `texts` is where the candidates' texts come from, `origin` the retriever that found them (feedback
    searches it again), `evidence` the passages that earned the scores.

    >>> ranking = Ranking(Query("q", "sieve"), ("d1", "d2"), np.array([2.0, 1.0]), ScoreKind.RETRIEVAL)
    >>> [hit.id for hit in ranking.head(1)]
    ['d1']
    >>> ranking[0].id, "d2" in ranking
    ('d1', True)
    """

    query: Query
    ids: Sequence[str] = ()
    scores: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    kind: ScoreKind = ScoreKind.NONE
    texts: Texts | None = None
    origin: Stage | None = None
    evidence: Mapping[str, Sequence[Span]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.scores):
            raise TamisError(
                f"{len(self.ids)} ids with {len(self.scores)} scores", remedy="give one score per id"
            )
        if self.scores.flags.writeable:  # an array of the caller, who may go on changing it
            scores = self.scores.copy()
            scores.setflags(write=False)
            object.__setattr__(self, "scores", scores)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Hit]:
        pairs = zip(self.ids, self.scores.tolist(), strict=True)
        return (Hit(rank, doc_id, score) for rank, (doc_id, score) in enumerate(pairs, start=1))

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        """The candidate at a place, from 0, or those of a slice; `head` makes a shorter ranking."""
        return list(self)[place]

    def __contains__(self, doc_id: object) -> bool:
        """Whether a document is among the candidates, by its id, as it is asked of an index."""
        return doc_id in self.ids

    def __eq__(self, other: object) -> bool:
        """Same query, same candidates in the same order with the same scores and kind."""
        if not isinstance(other, Ranking):
            return NotImplemented
        return (
            self.query == other.query
            and list(self.ids) == list(other.ids)
            and self.kind == other.kind
            and bool(np.array_equal(self.scores, other.scores))
        )

    def head(self, k: int) -> Ranking:
        """The first k candidates."""
        return self if k >= len(self.ids) else replace(self, ids=self.ids[:k], scores=self.scores[:k])

    def found(
        self, ids: Sequence[str], scores: Sequence[float] | Array, texts: Texts | None, origin: Stage
    ) -> Ranking:
        """What a search has found for the query, in its order: `texts` has the documents, `origin` is the
        stage that searched. What does not satisfy the condition of the query is left out: a search that does
        not look at it itself may find too few.

        >>> from tamis.core.registry import build
        >>> Ranking(Query("q", "sieve")).found(["d1", "d2"], [0.5, 1.5], None, build("rm3")).ids
        ('d2', 'd1')
        """
        given = np.asarray(scores, dtype=np.float64)
        found = replace(self, ids=tuple(ids), scores=given, texts=texts, origin=origin, evidence={})
        return found.rescored(given, ScoreKind.RETRIEVAL).satisfying()

    def satisfying(self) -> Ranking:
        """Without the candidates that do not satisfy the condition of the query, if it has one: for a search
        that does not obey it itself."""
        if self.query.where is None or self.texts is None:
            return self
        from tamis.text.analyze import ENGLISH  # which few rankings need

        where, texts = self.query.where, self.texts
        places = getattr(texts, "analyzer", ENGLISH).places
        left = [n for n, each in enumerate(self.ids) if satisfies(where, texts.document(each), places)]
        return replace(self, ids=tuple(self.ids[n] for n in left), scores=self.scores[left])

    def rescored(self, scores: Array, kind: ScoreKind) -> Ranking:
        """The same candidates with new scores, in their new order.

        >>> old = Ranking(Query("q", "sieve"), ("d1", "d2"), np.array([2.0, 1.0]))
        >>> old.rescored(np.array([0.1, 0.9]), ScoreKind.PROBABILITY).ids
        ('d2', 'd1')
        """
        return self.reordered(best_first(scores, self.ids), scores, kind)

    def reordered(self, order: Array, scores: Array, kind: ScoreKind) -> Ranking:
        """The same candidates in a given order, with new scores. A stage may know more than its scores say:
        probabilities can be equal where the margins behind them are not.

        `order` is the candidates' present positions, best first; `scores` are given as they stand now.

        >>> old = Ranking(Query("q", "sieve"), ("d1", "d2"), np.array([2.0, 1.0]))
        >>> old.reordered(np.array([1, 0]), np.array([1.0, 1.0]), ScoreKind.PROBABILITY).ids
        ('d2', 'd1')
        """
        if len(scores) != len(self.ids) or not np.array_equal(np.sort(order), np.arange(len(self.ids))):
            raise TamisError("the scores or the order do not belong to these candidates")
        # the sigmoid of a smaller margin may be larger by its last bit
        ranked = np.minimum.accumulate(scores[order])
        if not np.allclose(ranked, scores[order], rtol=1e-6, atol=0):
            raise TamisError("the scores increase along the order", remedy="check the stage that made them")
        return replace(self, ids=tuple(self.ids[i] for i in order.tolist()), scores=ranked, kind=kind)

    def reorder_top(self, order: Array, scores: Array) -> Ranking:
        """The first candidates in a given order with new scores, as of `reordered`; those beyond stay below
        in their order, with scores that go down by one from below zero and from below all the others.

        >>> old = Ranking(Query("q", "sieve"), ("d1", "d2", "d3", "d4"), np.array([4.0, 3.0, 2.0, 1.0]))
        >>> new = old.reorder_top(np.array([1, 0]), np.array([-0.5, 2.0]))
        >>> new.ids, new.scores.tolist()
        (('d2', 'd1', 'd3', 'd4'), [2.0, -0.5, -1.5, -2.5])
        """
        below = np.arange(len(order), len(self.ids))
        floor = scores.min(initial=0.0)
        return self.reordered(
            np.concatenate([order, below]),
            np.concatenate([scores, floor - 1.0 - np.arange(len(below))]),
            ScoreKind.COMBINED,
        )

    def log_odds(self) -> Array:
        """The scores, in double precision; those that are probabilities as log-odds.

        >>> probable = Ranking(Query("q", ""), ("d1", "d2"), np.array([0.9, 0.5]), ScoreKind.PROBABILITY)
        >>> probable.log_odds().round(3)
        array([2.197, 0.   ])
        """
        scores = self.scores.astype(np.float64)
        limits = np.finfo(np.float64)
        if self.kind == ScoreKind.PROBABILITY:
            scores = np.log(np.maximum(scores, limits.tiny))
        elif self.kind != ScoreKind.LOG_PROBABILITY:
            return scores
        # a probability of 1 is one that double precision cannot tell from it: a margin of 37 or more
        scores = np.minimum(scores, -limits.epsneg)
        odds: Array = scores - np.log(-np.expm1(scores))
        return odds

    def documents(self) -> list[Document]:
        """The candidates' documents, in order."""
        if self.texts is None and not self.ids:
            remedy = "begin with a stage that searches, or give texts to `rank`"
            raise TamisError(f"query {self.query.id!r} has no candidates", remedy=remedy)
        if self.texts is None:
            raise TamisError(
                f"the candidates of query {self.query.id!r} have no texts",
                remedy="give the corpus they come from",
            )
        return list(each_document(self.texts, self.ids))


class Run(Mapping[str, Ranking]):
    """The rankings of many queries by query id, with a manifest that says how they were made.

    >>> run = Run([Ranking(Query("q1", "sieve"), ("d1",), np.array([2.0]))])
    >>> run["q1"].ids
    ('d1',)
    """

    def __init__(self, rankings: Iterable[Ranking], manifest: Mapping[str, Any] | None = None) -> None:
        self._rankings: dict[str, Ranking] = {}
        for ranking in rankings:
            if ranking.query.id in self._rankings:
                raise InputError(
                    f"the query id {ranking.query.id!r} occurs twice", remedy="give each its own"
                )
            self._rankings[ranking.query.id] = ranking
        self.manifest: dict[str, Any] = dict(manifest or {})

    def __getitem__(self, query_id: str) -> Ranking:
        return self._rankings[query_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rankings)

    def __len__(self) -> int:
        return len(self._rankings)

    def __repr__(self) -> str:
        return f"<Run of {len(self):,} queries, {sum(map(len, self._rankings.values())):,} results>"

    @classmethod
    def read(cls, path: str | Path, *, queries: Iterable[Query] = (), texts: Texts | None = None) -> Run:
        """A TREC run file; `queries` gives back the queries' texts, which a run does not hold."""
        from tamis.formats import read_run

        known = {query.id: query for query in queries}
        return cls(
            Ranking(known.get(qid, Query(qid, "")), tuple(ids), scores, ScoreKind.RETRIEVAL, texts)
            for qid, (ids, scores) in read_run(path).items()
        )

    @classmethod
    def from_scores(cls, scores: Mapping[str, Mapping[str, float]], *, queries: Iterable[Query] = ()) -> Run:
        """A run from documents' scores by query, as pytrec_eval takes them: the highest first, equal ones by
        id.

        >>> Run.from_scores({"q1": {"d1": 0.5, "d3": 2.0, "d2": 0.5}})["q1"].ids
        ('d3', 'd1', 'd2')
        """
        known = {query.id: query for query in queries}

        def ranked(qid: str, own: Mapping[str, float]) -> Ranking:
            if not isinstance(own, Mapping):
                problem = f"query {qid!r}: a {type(own).__name__} of scores"
                raise InputError(problem, remedy="give each query a dict: {document: score}")
            check_ids(qid, own)
            try:
                values = np.array(list(own.values()), dtype=np.float64)
            except (TypeError, ValueError):
                problem = f"query {qid!r}: a score is not a number"
                raise InputError(problem, remedy="give each document one") from None
            unordered = Ranking(known.get(qid, Query(qid, "")), tuple(own), values)
            return unordered.rescored(values, ScoreKind.RETRIEVAL)

        return cls(ranked(qid, own) for qid, own in scores.items())

    def write(self, path: str | Path, *, tag: str = "tamis") -> None:
        """A TREC run file in which no two scores of a query are equal."""
        from tamis.formats import write_run

        write_run(path, ((qid, r.ids, r.scores) for qid, r in self.items()), tag=tag)
