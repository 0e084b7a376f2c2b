"""Combine the scores of several stages: interpolate, normalise, fuse.

All formulae work within one query's list. A list whose scores are all equal carries no information about its
order, and is normalised to zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError, TamisError, UnknownDocumentError
from tamis.core.ranking import Ranking, Run, ScoreKind, Texts
from tamis.core.stage import Role, Stage, stage
from tamis.rank.aggregate import probability

if TYPE_CHECKING:
    from tamis.core.executor import Memo

Normalisation = Literal["minmax", "z"]
Interpolation = Literal["minmax", "raw", "z"]
Fusion = Literal["rrf", "combsum", "combmnz"]


# -- formulae
# ------------------------------------------------------------------------------------------------------------


def min_max(scores: Array) -> Array:
    """(s - s_min) / (s_max - s_min) (Eq. 17 of the survey); where all are equal, 0.

    >>> min_max(np.array([30.0, 15.0, 10.0])).tolist()
    [1.0, 0.25, 0.0]
    """
    exact = _scaled(_exact(scores))
    low, high = (exact.min(), exact.max()) if len(exact) else (0.0, 0.0)
    return np.asarray((exact - low) / (high - low)) if low < high else np.zeros(len(exact))


def z_norm(scores: Array) -> Array:
    """(s - mean) / standard deviation (of the list, not of a sample of it); where all are equal, 0.

    >>> z_norm(np.array([3.0, 1.0])).tolist()
    [1.0, -1.0]
    """
    exact = _scaled(_exact(scores))
    # not by the deviation: due to rounding, that of 0.1, 0.1, 0.1 is not zero
    if not len(exact) or exact.min() == exact.max():
        return np.zeros(len(exact))
    return np.asarray((exact - exact.mean()) / exact.std())


def normalised(scores: Array, how: Interpolation) -> Array:
    """The scores in double precision: min-max or z-normalised, or unchanged.

    >>> normalised(np.array([3, 1]), "raw").tolist()
    [3.0, 1.0]
    """
    if how == "raw":
        return _exact(scores)
    return min_max(scores) if how == "minmax" else z_norm(scores)


def _exact(scores: Array) -> Array:
    exact = scores.astype(np.float64)
    if not np.isfinite(exact).all():
        raise TamisError("a score is not a finite number", remedy="check the stage that made it")
    return exact


def _scaled(scores: Array) -> Array:
    """The scores scaled to -1..1: the squares and differences of larger scores overflow, and the squares of
    very small ones, such as likelihoods, are zero. The factor is a power of two, so nothing is rounded.

    >>> _scaled(np.array([6.0, -3.0])).tolist()
    [0.75, -0.375]
    """
    _, exponent = np.frexp(np.abs(scores).max(initial=0.0))
    return np.asarray(np.ldexp(scores, -exponent))


def reciprocal_rank(n: int, k: int = 60) -> Array:
    """1 / (k + rank) for ranks 1..n (Cormack, Clarke & Büttcher 2009).

    >>> reciprocal_rank(2, k=1).round(4).tolist()
    [0.5, 0.3333]
    """
    return 1 / (k + np.arange(1, n + 1, dtype=np.float64))


# -- interpolate
# ------------------------------------------------------------------------------------------------------------


@stage("interpolate", role=Role.MIXES)
class Interpolate(Stage):
    """alpha * (the candidate's incoming score) + (1 - alpha) * (the stage's score): Eqs. 16-17 of the survey.

    `normalise` says how the two scores are normalised first:

    - `minmax`, as in the equations: incoming scores are min-max normalised within the query's list, and the
      stage's scores are probabilities, used unchanged; logits and log-probabilities are converted to
      probabilities, so the form in which a stage shows its scores makes no difference; any other kind of
      score is min-max normalised too;
    - `z`: both are z-normalised, each within its list;
    - `raw`: both are used unchanged.

    The result has the candidates that the stage returns: one that it cuts off (`mono % 100`) is dropped, and
    one that the stage itself finds has the lowest incoming score. Equal scores stay in the stage's order, so
    alpha=0 ranks as the stage does.
    """

    uses_depth = False

    def __init__(self, stage: Stage, alpha: float = 0.5, normalise: Interpolation = "minmax") -> None:
        _check_stages("interpolate", stage)
        _check_choice("interpolate", "normalise", normalise, get_args(Interpolation))
        if not 0 <= alpha <= 1:
            raise InputError(f"interpolate with alpha={alpha}", remedy="use an alpha between 0 and 1")
        self.stage, self.alpha, self.normalise = stage, float(alpha), normalise

    def sharing(self, memo: Memo) -> Stage:
        return Interpolate(memo.ranked(self.stage), self.alpha, self.normalise)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        for ranking in rankings:
            _check_scored("interpolate", ranking)
        # not `depth`: a candidate that the stage ranks lower may come to the top
        found = self.stage.apply(rankings)
        return [self._interpolated(old, new) for old, new in zip(rankings, found, strict=True)]

    def _interpolated(self, old: Ranking, new: Ranking) -> Ranking:
        first = normalised(old.scores, self.normalise)
        last = float(first.min()) if len(first) else 0.0
        score_of = dict(zip(old.ids, first.tolist(), strict=True))
        came_with = np.array([score_of.get(doc_id, last) for doc_id in new.ids], dtype=np.float64)
        scores = self.alpha * came_with + (1 - self.alpha) * self._own(new)
        return new.reordered(np.argsort(-scores, kind="stable"), scores, ScoreKind.COMBINED)

    def _own(self, ranking: Ranking) -> Array:
        if self.normalise == "minmax":
            if ranking.kind is ScoreKind.LOGIT:
                return probability(ranking.scores)
            if ranking.kind is ScoreKind.LOG_PROBABILITY:
                return np.asarray(np.exp(ranking.scores.astype(np.float64)))
            if ranking.kind is ScoreKind.PROBABILITY:
                return normalised(ranking.scores, "raw")
        return normalised(ranking.scores, self.normalise)


# -- normalise
# ------------------------------------------------------------------------------------------------------------


@stage("normalise", role=Role.MIXES)
class Normalise(Stage):
    """The same candidates in the same order, with scores normalised within the query's list.

    >>> from tamis.base.documents import Query
    >>> ranking = Ranking(Query("q", ""), ("a", "b"), np.array([7.0, 4.0]), ScoreKind.RETRIEVAL)
    >>> Normalise("z")(ranking).scores.tolist()
    [1.0, -1.0]
    """

    uses_depth = False

    def __init__(self, how: Normalisation = "minmax") -> None:
        _check_choice("normalise", "how", how, get_args(Normalisation))
        self.how = how

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        for ranking in rankings:
            _check_scored("normalise", ranking)
        return [
            replace(ranking, scores=normalised(ranking.scores, self.how), kind=ScoreKind.COMBINED)
            for ranking in rankings
        ]


# -- fuse
# ------------------------------------------------------------------------------------------------------------


@stage("fuse", role=Role.MIXES)
class Fuse(Stage):
    """Applies several stages to the incoming ranking and fuses their rankings into one: RRF (Cormack, Clarke
    & Büttcher 2009), CombSUM or CombMNZ (Fox & Shaw 1994). A single stage is fused with the incoming ranking:
    in `bm25 % 100 >> fuse(mono) % 20`, BM25 also influences which candidates are kept.

    The result has every document of any of the rankings; see `fuse_rankings` for the scores. Each stage ranks
    to its own depth: in `fuse(bm25 % 100, ql) % 10`, 100 and 1,000.
    """

    uses_depth = False

    def __init__(self, *stages: Stage, how: Fusion = "rrf", k: int = 60) -> None:
        _check_stages("fuse", *stages)
        if not stages:
            raise InputError("fuse needs a stage", remedy="give one or more, as in fuse(bm25, ql)")
        _check_fusion(how, k)
        self.stages, self.how, self.k = stages, how, int(k)
        # a single stage is fused with the incoming ranking
        self.pointwise = len(stages) == 1 and stages[0].pointwise

    def sharing(self, memo: Memo) -> Stage:
        return Fuse(*map(memo.ranked, self.stages), how=self.how, k=self.k)

    def attach(self, ranking: Ranking) -> Ranking:
        attached = [stage.attach(ranking) for stage in self.stages]
        return replace(ranking, texts=_texts_of(attached), origin=_origin_of(attached))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        # not `depth`: a document in the middle of every list may be the best one overall
        lists = [stage.apply(rankings) for stage in self.stages]
        if len(lists) == 1:
            if any(ranking.kind is ScoreKind.NONE and not ranking.ids for ranking in rankings):
                raise InputError(
                    "fuse of one stage fuses it with the ranking that comes in, and none does",
                    remedy="give two stages, as in fuse(bm25, ql), or put it behind one that searches",
                )
            lists.insert(0, list(rankings))
        return [fuse_rankings(of_one_query, self.how, self.k) for of_one_query in zip(*lists, strict=True)]


def fuse_rankings(rankings: Sequence[Ranking], how: Fusion = "rrf", k: int = 60) -> Ranking:
    """Fuse several rankings of a query into one.

    `rrf` sums 1 / (k + rank) and ignores the scores; `combsum` sums min-max normalised scores; `combmnz`
    multiplies that sum by the number of rankings that contain the document. A ranking that does not contain
    it adds 0. The scores do not depend on the order of the rankings; the query's text, the documents' texts
    and evidence, and the retriever that feedback searches again, are those of the first ranking that has
    them.

    >>> from tamis.base.documents import Query
    >>> one = Ranking(Query("q", ""), ("a", "b", "c"), np.array([9.0, 8.0, 5.0]), ScoreKind.RETRIEVAL)
    >>> two = Ranking(Query("q", ""), ("c", "b"), np.array([0.7, 0.1]), ScoreKind.PROBABILITY)
    >>> [(hit.id, round(hit.score, 4)) for hit in fuse_rankings([one, two])]
    [('c', 0.0323), ('b', 0.0323), ('a', 0.0164)]
    >>> [(hit.id, hit.score) for hit in fuse_rankings([one, two], "combmnz")]
    [('c', 2.0), ('b', 1.5), ('a', 1.0)]
    """
    _check_fusion(how, k)
    if len({ranking.query.id for ranking in rankings}) != 1:
        raise InputError("fuse needs rankings of one query", remedy="give the rankings of each by themselves")
    ids = tuple(dict.fromkeys(doc_id for ranking in rankings for doc_id in ranking.ids))
    column = {doc_id: number for number, doc_id in enumerate(ids)}
    parts = np.zeros((len(rankings), len(ids)))
    lists = np.zeros(len(ids), dtype=np.int64)
    for row, ranking in zip(parts, rankings, strict=True):
        held = [column[doc_id] for doc_id in ranking.ids]
        if how == "rrf":
            row[held] = reciprocal_rank(len(held), k)
        else:
            if held:
                _check_scored(how, ranking)
            row[held] = min_max(ranking.scores)
        lists[held] += 1
    # starts with the smallest, so that the sum does not depend on the order of the rankings
    scores = np.sort(parts, axis=0).sum(axis=0)
    if how == "combmnz":
        scores *= lists
    evidence = {document: spans for ranking in rankings[::-1] for document, spans in ranking.evidence.items()}
    joined = Ranking(
        next((ranking.query for ranking in rankings if ranking.query.text), rankings[0].query),
        ids,
        scores,
        texts=_texts_of(rankings),
        origin=_origin_of(rankings),
        evidence=evidence,
    )
    return joined.rescored(scores, ScoreKind.COMBINED)


def fuse_runs(runs: Sequence[Run], how: Fusion = "rrf", k: int = 60) -> Run:
    """Fuse several runs into one, each query as in `fuse_rankings`; a query that is missing from a run has an
    empty ranking there.

    >>> from tamis.base.documents import Query
    >>> one = Run([Ranking(Query("q1", ""), ("a", "b"), np.array([2.0, 1.0]), ScoreKind.RETRIEVAL)])
    >>> two = Run([Ranking(Query("q2", ""), ("c",), np.array([1.0]), ScoreKind.RETRIEVAL)])
    >>> [(qid, ranking.ids) for qid, ranking in fuse_runs([one, two]).items()]
    [('q1', ('a', 'b')), ('q2', ('c',))]
    """
    from tamis import __version__

    _check_fusion(how, k)
    qids = dict.fromkeys(qid for run in runs for qid in run)
    rankings = [fuse_rankings([run[qid] for run in runs if qid in run], how, k) for qid in qids]
    manifest = {"tamis": __version__, "fused": how, **({"k": k} if how == "rrf" else {})}
    return Run(rankings, {**manifest, "queries": len(rankings), "of": [run.manifest for run in runs]})


@dataclass(frozen=True, slots=True)
class _AnyOf:
    """Looks up a document in several sources; the first that contains it answers."""

    sources: Sequence[Texts]

    def document(self, doc_id: str) -> Document:
        for source in self.sources[:-1]:
            try:
                return source.document(doc_id)
            except UnknownDocumentError:
                continue
        return self.sources[-1].document(doc_id)


def _texts_of(rankings: Sequence[Ranking]) -> Texts | None:
    sources: list[Texts] = []
    for ranking in rankings:
        if ranking.texts is not None and not any(ranking.texts is source for source in sources):
            sources.append(ranking.texts)
    return _AnyOf(sources) if len(sources) > 1 else next(iter(sources), None)


def _origin_of(rankings: Sequence[Ranking]) -> Stage | None:
    return next((ranking.origin for ranking in rankings if ranking.origin is not None), None)


# -- checks and printing
# ------------------------------------------------------------------------------------------------------------


def _check_stages(name: str, *stages: object) -> None:
    for each in stages:
        if not isinstance(each, Stage):
            raise InputError(f"{name} of {each!r}", remedy="give stages, such as index.bm25()")


def _check_choice(name: str, option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(f"{name} with {option}={value!r}", remedy=f"use {', '.join(choices)}")


def _check_fusion(how: Fusion, k: int) -> None:
    _check_choice("fuse", "how", how, get_args(Fusion))
    if not 0 <= k < math.inf or k != int(k):
        raise InputError(f"fuse with k={k}", remedy="use a whole number of at least 0")
    if how != "rrf" and k != 60:
        raise InputError(f"fuse with how={how} has no k", remedy="leave k out, or use how=rrf")


def _check_scored(name: str, ranking: Ranking) -> None:
    if ranking.kind is ScoreKind.NONE:
        raise TamisError(
            f"{name} has no scores to work on for query {ranking.query.id!r}",
            remedy="put a stage that scores before it: bm25, or where the candidates are given mono",
        )
