"""Birch: combines the document's score with those of its best sentences.

    s_f = a s_doc + (1 - a) (w_1 s_1 + ... + w_n s_n)      s_1 >= s_2 >= ... scores of the sentences, w_1 = 1

Yilmaz et al. 2019; Eq. 18 of the survey. s_doc is the document's incoming score, from the first stage. The
papers do not say on what scale: it is min-max normalised within the query's list, as in Eq. 17 of the survey,
or used unchanged. For a document with fewer than n sentences the last terms are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError
from tamis.core.ranking import Ranking, ScoreKind, Span
from tamis.core.stage import Role, Stage, stage
from tamis.rank.combine import Interpolation, normalised
from tamis.rank.mono import Mono
from tamis.rank.passage import PassageReranker, ScoredPassages
from tamis.rank.reading import Cutting, Title, Unit, Wanted, analyzer_of
from tamis.rank.reranker import to_score
from tamis.text.segment import Keep

if TYPE_CHECKING:
    from tamis.core.executor import Memo

MOST = 4  # sentences: a fourth was tried, and its weight learned to be 0


# -- formulae
# ------------------------------------------------------------------------------------------------------------


def birch(document: float, sentences: Array, alpha: float, weights: Sequence[float]) -> float:
    """alpha * document + (1 - alpha) * (the highest of the sentences' scores, weighted).

    >>> birch(0.5, np.array([0.1, 0.9, 0.3]), alpha=0.5, weights=[1.0, 0.5])
    0.775
    """
    return float(weighted(np.array([document]), highest([sentences]), alpha, weights)[0])


def highest(sentences: Sequence[Array]) -> Array:
    """The highest scores of each document's sentences, one row per document; 0 where it has fewer sentences.

    >>> highest([np.array([0.1, 0.9, 0.3]), np.array([])]).tolist()
    [[0.9, 0.3, 0.1, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    rows = np.zeros((len(sentences), MOST))
    for row, scores in zip(rows, sentences, strict=True):
        best = np.sort(scores)[::-1][:MOST]
        row[: len(best)] = best
    return rows


def weighted(documents: Array, best: Array, alpha: float, weights: Sequence[float]) -> Array:
    """`birch` for many documents; the rows of `best` are the scores of their best sentences.

    >>> weighted(np.array([0.5, 1.0]), np.array([[0.9, 0.3], [0.0, 0.0]]), 0.5, [1.0, 0.5]).tolist()
    [0.775, 0.5]
    """
    own = np.zeros(len(documents))
    # not a matrix product: its rounding depends on the number of documents
    for weight, scores in zip(weights, best.T, strict=False):
        own += weight * scores
    return np.asarray(alpha * documents + (1 - alpha) * own)


# -- the stage
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sentences:
    """What Birch needs to know about the sentences of a ranking's documents, for any alpha, weights and n."""

    best: Array  # one row per document, in the ranking's order: its highest scores
    spans: Callable[[str], tuple[Span, ...]]  # the best sentences of a document, by its id

    def of(self, ids: Iterable[str]) -> Sentences:
        """The same for these documents only, without references to the other sentences."""
        return replace(self, spans={doc_id: self.spans(doc_id) for doc_id in ids}.__getitem__)


@stage("birch", role=Role.ORDERS)
class Birch(PassageReranker):
    """Sorts documents by their first-stage scores and the scores of their `n` best sentences.

    `alpha` is the weight of the first stage, `w2` to `w4` are the weights of the second to fourth sentence
    (the first has 1); the first n are used. The papers tune them on folds in steps of 0.1. `normalise` says
    how the incoming scores are normalised. With `exact_match=False` only sentences without a query term are
    read, so that only matches by meaning count; terms are made as in the index that the texts come from, or
    else as for English. The other options are those of `MaxP`.

    >>> Birch(Mono("models/my-model"), n=2, alpha=0.3, w2=0.4)
    birch(mono(model="models/my-model"), n=2, alpha=0.3, w2=0.4)
    """

    def __init__(
        self,
        stage: Mono,
        n: int = 3,
        alpha: float = 0.5,
        w2: float = 0.5,
        w3: float = 0.5,
        w4: float = 0.0,
        normalise: Interpolation = "minmax",
        exact_match: bool = True,
        unit: Unit = "sentences",
        window: int | None = None,
        stride: int | None = None,
        title: Title = False,
        passages: int | None = None,
        keep: Keep = "first",
        seed: int = 0,
        evidence: int = 3,
    ) -> None:
        super().__init__(stage, Cutting(unit, window, stride, title, passages, keep, seed), evidence)
        if not 1 <= n <= MOST:
            raise InputError(f"birch with {n} sentences", remedy=f"use an n from 1 to {MOST}")
        if not 0 <= alpha <= 1:
            raise InputError(f"birch with alpha={alpha}", remedy="use an alpha between 0 and 1")
        if min(w2, w3, w4) < 0:
            raise InputError("birch with a weight below 0", remedy="use weights of at least 0")
        if normalise not in get_args(Interpolation):
            raise InputError(
                f"birch with normalise={normalise!r}", remedy=f"use {', '.join(get_args(Interpolation))}"
            )
        if not exact_match and self.cutting.unit in ("tokens", "even"):
            raise InputError(
                f"birch without exact matches in windows of {unit}", remedy="use sentences or words"
            )
        self.n, self.alpha, self.normalise, self.exact_match = n, float(alpha), normalise, exact_match
        self.w2, self.w3, self.w4 = float(w2), float(w3), float(w4)

    @property
    def weights(self) -> tuple[float, ...]:
        """w_1 to w_n."""
        return (1.0, self.w2, self.w3, self.w4)[: self.n]

    @property
    def reads(self) -> Hashable:
        """What the scores of sentences depend on: Birch stages with an equal value share what one has
        read."""
        return self.stage.fingerprint, self.cutting, self.exact_match, self.evidence

    def sharing(self, memo: Memo) -> Stage:
        return memo.once(self, self.reads, self._read_once, self.combined)

    def _read_once(self, rankings: Sequence[Ranking]) -> list[Sentences]:
        found = zip(rankings, self.read(rankings), strict=True)
        return [sentences.of(ranking.ids) for ranking, sentences in found]

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        found = zip(rankings, self.read(rankings), strict=True)
        return [self.combined(ranking, sentences, depth) for ranking, sentences in found]

    def read(self, rankings: Sequence[Ranking]) -> list[Sentences]:
        """The sentences of each ranking's documents, with their scores."""
        for ranking in rankings:  # before the model runs
            self._require_scores(ranking)
        return list(map(self._sentences, rankings, self._scored(rankings)))

    def _require_scores(self, ranking: Ranking) -> None:
        if len(ranking) and ranking.kind is ScoreKind.NONE and self.alpha:
            raise TamisError(
                f"birch has no document scores to work on for query {ranking.query.id!r}",
                remedy="put a stage that scores before it, as in `bm25 >> birch(mono)` or, where the "
                "candidates are given, `mono >> birch(mono)`; or use alpha=0, which counts the sentences "
                "alone",
            )

    def _sentences(self, ranking: Ranking, scored: Sequence[ScoredPassages]) -> Sentences:
        by_id = dict(zip(ranking.ids, scored, strict=True))
        return Sentences(
            highest([to_score(each.margins, self.stage.kind) for each in scored]),
            lambda doc_id: self._spans(by_id[doc_id], *self._read(ranking, [doc_id])),
        )

    def combined(self, ranking: Ranking, sentences: Sentences, depth: int | None = None) -> Ranking:
        """The ranking, scored by its incoming scores and those of its sentences."""
        self._require_scores(ranking)
        documents = normalised(ranking.scores, self.normalise)
        scores = weighted(documents, sentences.best, self.alpha, self.weights)
        best = ranking.rescored(scores, ScoreKind.COMBINED)
        looked_at = best.ids[:depth] if self.evidence else ()
        return replace(best, evidence={doc_id: sentences.spans(doc_id) for doc_id in looked_at})

    def _wanted(self, ranking: Ranking) -> Wanted | None:
        if self.exact_match:
            return None
        analyzer = analyzer_of(ranking)
        terms = frozenset(analyzer.tokens(ranking.query.text))
        return lambda sentence: terms.isdisjoint(analyzer.tokens(sentence))
