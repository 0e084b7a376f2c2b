"""What one query term adds to a document's score: BM25 and its variants, tf-idf, query likelihood.

Each model is a value (a frozen dataclass of its parameters) with one pure function, `contribution`, over
arrays. Searching, pruning and explaining all call that function, so each formula is written once. Every
contribution must grow with tf and shrink with length: the bounds of the index depend on it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.stage import Role, stage

if TYPE_CHECKING:
    from tamis.index.index import Index
    from tamis.index.retriever import Retriever

Lengths = Literal["lucene", "exact"]
Variant = Literal["lucene", "robertson", "atire", "bm25l", "bm25+"]
_DELTA = {"bm25l": 0.5, "bm25+": 1.0}
LARGEST_WEIGHT = 1e30  # of a query term: scores are single precision
LARGEST_MU, _LARGEST_K1 = 1_000_000, 1000  # beyond, single precision cannot distinguish scores
LEAST_SMOOTHING = 1e-9  # far below, one over it is more than any precision holds
_NO_K1 = 1e-20  # below, one over it may be more than single precision holds: the score is that of k1=0


@dataclass(frozen=True, slots=True)
class Collection:
    """The collection's statistics: documents that hold at least one term, and tokens in all."""

    documents: int
    tokens: int

    @property
    def mean_length(self) -> float:
        return self.tokens / self.documents if self.documents else 1.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Statistics of query terms, one entry a term: weight in the query, document and collection frequency."""

    weight: Array
    df: Array
    cf: Array

    def at(self, i: int) -> Terms:
        """One term of these."""
        return Terms(self.weight[i : i + 1], self.df[i : i + 1], self.cf[i : i + 1])

    def column(self) -> Terms:
        """Shaped to broadcast against (term, tf, length) arrays."""
        return Terms(*(values.reshape(-1, 1, 1) for values in (self.weight, self.df, self.cf)))


class Model(Protocol):
    """A first-stage scoring function."""

    name: ClassVar[str]

    @property
    def lengths(self) -> Lengths:
        """Whether documents' lengths are Lucene's rounded ones or exact."""
        ...

    def contribution(self, tf: Array, length: Array, terms: Terms, collection: Collection) -> Array:
        """What each term adds to the score of a document of this length where it occurs tf >= 1 times."""
        ...

    def prior(self, length: Array, terms: Terms, collection: Collection) -> Array | None:
        """The part of a score that does not depend on matching terms, never increasing with length; None if
        there is none."""
        ...


class _Searches:
    """A model that is a stage over an index, and by itself scores what it is given (`choose=bm25`)."""

    __slots__ = ()
    name: ClassVar[str]
    searches_again: ClassVar[bool] = False

    def over(self: Model, index: Index) -> Retriever:
        """The stage that searches an index by it."""
        from tamis.index.retriever import Retriever

        return Retriever(index, self)


def lucene_idf(df: Array, documents: int) -> Array:
    """log(1 + (N - df + 0.5) / (df + 0.5)): never negative.

    >>> float(lucene_idf(np.array([1]), 3).round(4)[0])
    0.9808
    """
    return np.log(1 + (documents - df + 0.5) / (df + 0.5))


@stage("bm25", role=Role.FINDS)
@dataclass(frozen=True, slots=True)
class BM25(_Searches):
    """BM25 (Eq. 2 of the survey) in five variants.

    `lucene` (the default) is what Lucene and Anserini compute, in single precision as they do, with their
    rounded document lengths; the others use exact lengths. `robertson` is the equation as printed: its idf is
    negative for terms in more than half of the documents.

    >>> terms = Terms(np.array([1.0]), np.array([1]), np.array([2]))
    >>> f"{BM25().contribution(np.array([2]), np.array([4]), terms, Collection(3, 12))[0]:.4f}"
    '0.6764'
    """

    k1: float = 0.9
    b: float = 0.4
    variant: Variant = "lucene"

    def __post_init__(self) -> None:
        if self.variant not in ("lucene", "robertson", "atire", "bm25l", "bm25+"):
            raise InputError(
                f"BM25 has no variant {self.variant!r}", remedy="use lucene, robertson, atire, bm25l or bm25+"
            )
        if not 0 <= self.k1 <= _LARGEST_K1 or not 0 <= self.b <= 1:
            raise InputError(
                f"BM25 with k1={self.k1}, b={self.b}", remedy=f"use 0 <= k1 <= {_LARGEST_K1} and 0 <= b <= 1"
            )

    @property
    def lengths(self) -> Lengths:
        return "lucene" if self.variant == "lucene" else "exact"

    def contribution(self, tf: Array, length: Array, terms: Terms, collection: Collection) -> Array:
        n, df, k1, b = collection.documents, terms.df, self.k1, self.b
        if self.variant == "lucene":
            return _lucene_bm25(tf, length, terms.weight, lucene_idf(df, n), collection.mean_length, k1, b)
        relative = 1 - b + b * np.maximum(length, 1) / collection.mean_length
        saturated = tf * (k1 + 1) / (tf + k1 * relative)
        if self.variant == "robertson":
            score = np.log((n - df + 0.5) / (df + 0.5)) * saturated
        elif self.variant == "atire":
            score = np.log(n / df) * saturated
        elif self.variant == "bm25l":
            c = tf / relative + _DELTA["bm25l"]
            score = np.log((n + 1) / (df + 0.5)) * (k1 + 1) * c / (k1 + c)
        else:
            score = np.log((n + 1) / df) * (_DELTA["bm25+"] + saturated)
        return np.asarray(terms.weight * score, dtype=np.float32)

    def prior(self, length: Array, terms: Terms, collection: Collection) -> None:
        return None


def _lucene_bm25(
    tf: Array, length: Array, weight: Array, idf: Array, mean_length: float, k1: float, b: float
) -> Array:
    """In single precision and in Lucene's order of operations, so that scores equal its own to the last
    bit."""
    f = np.float32
    extreme = k1 < _NO_K1 or f(b) == 1  # in single precision, as below
    with np.errstate(divide="ignore", over="ignore", under="ignore") if extreme else nullcontext():
        inverse = f(1) / (f(k1) * ((f(1) - f(b)) + f(b) * length.astype(f) / f(mean_length)))
        peak = weight.astype(f) * idf.astype(f)
        return np.asarray(peak - peak / (f(1) + tf.astype(f) * inverse), dtype=f)


@stage("tfidf", role=Role.FINDS)
@dataclass(frozen=True, slots=True)
class TfIdf(_Searches):
    """Lucene's classic tf-idf: sqrt(tf) * idf / sqrt(length), idf = 1 + log((N + 1) / (df + 1)).

    The idf counts once, as in the code of Lucene 9; its documentation squares it.

    >>> terms = Terms(np.array([1.0]), np.array([1]), np.array([4]))
    >>> float(TfIdf().contribution(np.array([4]), np.array([4]), terms, Collection(1, 4))[0])
    1.0
    """

    @property
    def lengths(self) -> Lengths:
        return "lucene"

    def contribution(self, tf: Array, length: Array, terms: Terms, collection: Collection) -> Array:
        f = np.float32  # Lucene's order of operations, as for BM25
        idf = (1 + np.log((collection.documents + 1) / (terms.df + 1))).astype(f)
        norm = (1 / np.sqrt(np.maximum(length, 1))).astype(f)
        return np.asarray(np.sqrt(tf).astype(f) * (terms.weight.astype(f) * idf) * norm, dtype=f)

    def prior(self, length: Array, terms: Terms, collection: Collection) -> None:
        return None


@stage("ql", role=Role.FINDS)
@dataclass(frozen=True, slots=True)
class QueryLikelihood(_Searches):
    """Query likelihood with Dirichlet (`mu`) or Jelinek-Mercer (`lam`) smoothing.

    `lucene` (the default) scores as Lucene's LMDirichletSimilarity and LMJelinekMercerSimilarity: only terms
    that the document holds count, and none below zero. A document in which none of them counts is not found,
    where Lucene puts it last with a score of zero. `exact` is the log-likelihood of the whole query, sum
    log((tf + mu P(t|C)) / (length + mu)).

    >>> terms = Terms(np.array([1.0]), np.array([1]), np.array([9]))
    >>> model = QueryLikelihood(mu=10)
    >>> score = model.contribution(np.array([2]), np.array([10]), terms, Collection(9, 99))[0]
    >>> f"{score:.4f}"  # log(1 + 2 / 1) - log 2
    '0.4055'
    """

    mu: float = 1000.0
    smoothing: Literal["dirichlet", "jelinek-mercer"] = "dirichlet"
    lam: float = 0.1
    variant: Literal["lucene", "exact"] = "lucene"

    def __post_init__(self) -> None:
        if self.smoothing not in ("dirichlet", "jelinek-mercer") or self.variant not in ("lucene", "exact"):
            raise InputError(
                f"query likelihood with smoothing={self.smoothing!r}, variant={self.variant!r}",
                remedy="use dirichlet or jelinek-mercer, and lucene or exact",
            )
        least = LEAST_SMOOTHING
        if not least <= self.mu <= LARGEST_MU or not least <= self.lam < 1:
            raise InputError(
                f"query likelihood with mu={self.mu}, lam={self.lam}",
                remedy=f"use {least:g} <= mu <= {LARGEST_MU:,} and {least:g} <= lam < 1",
            )

        other, default = ("lam", 0.1) if self.smoothing == "dirichlet" else ("mu", 1000.0)
        if getattr(self, other) != default:  # which would change nothing, in a grid of them neither
            raise InputError(
                f"query likelihood with {other}, which {self.smoothing} smoothing does not have",
                remedy="lam belongs to smoothing=jelinek-mercer, and mu to dirichlet",
            )

    @property
    def lengths(self) -> Lengths:
        return self.variant

    def _background(self, terms: Terms, collection: Collection) -> Array:
        plus = 1 if self.variant == "lucene" else 0  # Lucene adds one to both counts
        return (terms.cf + plus) / (collection.tokens + plus)

    def contribution(self, tf: Array, length: Array, terms: Terms, collection: Collection) -> Array:
        background = self._background(terms, collection)
        if self.smoothing == "jelinek-mercer":
            score = np.log(1 + (1 - self.lam) * tf / np.maximum(length, 1) / (self.lam * background))
        else:
            score = np.log(1 + tf / (self.mu * background))
            if self.variant == "lucene":
                score = np.maximum(score + np.log(self.mu / (length + self.mu)), 0)
            else:  # what the length does is in the prior
                score, _ = np.broadcast_arrays(score, length)
        return np.asarray(terms.weight * score, dtype=np.float32)

    def prior(self, length: Array, terms: Terms, collection: Collection) -> Array | None:
        if self.variant == "lucene":
            return None
        background = self._background(terms, collection)
        if self.smoothing == "jelinek-mercer":
            return np.full(
                length.shape, np.sum(terms.weight * np.log(self.lam * background)), dtype=np.float32
            )
        unseen = np.sum(terms.weight * np.log(background))
        return np.asarray(
            unseen + terms.weight.sum() * np.log(self.mu / (length + self.mu)), dtype=np.float32
        )
