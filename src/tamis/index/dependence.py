"""The sequential dependence model (Metzler & Croft 2005): terms, ordered bigrams, and bigrams in a window,
each a Dirichlet-smoothed log-probability f. Needs an index with positions.

    score = terms * sum of f(term) + ordered * sum of f(bigram) + unordered * sum of f(bigram in the window)

The sums are not divided by the number of terms and bigrams, as in the paper and in Anserini, while Indri's
#combine takes means. Every two adjacent tokens of the query are a bigram, equal ones too, as in both; in a
document it takes two positions, while theirs let one position count as both in a window. A term or bigram
that does not occur in the collection contributes nothing.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError
from tamis.base.interrupt import check
from tamis.core.cost import DEPTH
from tamis.core.language import Call
from tamis.core.options import call_of
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Role, Stage, stage
from tamis.index.conditions import allowed as allowed_by
from tamis.index.embedded import EmbeddedIndex
from tamis.index.places import AT_ONCE, Places, count_ordered, count_unordered
from tamis.index.retriever import listed
from tamis.index.score import LARGEST_MU, LARGEST_WEIGHT, LEAST_SMOOTHING
from tamis.index.search import Found, best_of, ids_of, merged
from tamis.index.segment import Segment

if TYPE_CHECKING:
    from tamis.index.index import Index


MOST_TERMS = 100  # of a query of a server's client: each two neighbours are counted twice
_KEPT = 1 << 24  # counts that are kept for when a feature comes again: four bytes each


@stage("sdm", role=Role.FINDS)
@dataclass(frozen=True, slots=True)
class Dependence:
    """The sequential dependence model over an index with positions. `window` is the unordered bigram's, in
    tokens."""

    terms: float = 0.85
    ordered: float = 0.10
    unordered: float = 0.05
    window: int = 8
    mu: float = 1000.0
    name: ClassVar[str]
    searches_again: ClassVar[bool] = False

    def over(self, index: Index) -> SDM:
        """The stage that searches an index by it."""
        return SDM(index, self)

    def __post_init__(self) -> None:
        weights = (self.terms, self.ordered, self.unordered)
        possible = all(0 <= weight <= LARGEST_WEIGHT for weight in weights)
        if self.window < 2 or not LEAST_SMOOTHING <= self.mu <= LARGEST_MU or not possible:
            raise InputError(
                f"sdm with window={self.window}, mu={self.mu} and the weights {', '.join(map(str, weights))}",
                remedy=f"use a window of at least 2, {LEAST_SMOOTHING:g} <= mu <= {LARGEST_MU:,} and weights "
                f"between 0 and {LARGEST_WEIGHT:g}",
            )


class SDM(Stage):
    """Scores every document that holds a query term; `only` restricts the search to some ids."""

    name, role = "sdm", Role.FINDS
    query_terms = MOST_TERMS

    def __init__(
        self, index: Index, parameters: Dependence | None = None, *, only: Iterable[str] | None = None
    ) -> None:
        if not isinstance(index, EmbeddedIndex):
            raise InputError(
                "sdm searches only an index on disk",
                remedy="use bm25 or ql, or an index on disk with positions",
            )
        if not index.manifest.positions:
            raise TamisError("sdm needs positions", remedy="build the index with positions (--positions)")
        self.index, self.parameters = index, parameters or Dependence()
        self.only = None if only is None else tuple(listed(only))

    @property
    def expression(self) -> Call:
        return call_of(self.parameters)

    @property
    def resources(self) -> str:
        return f"{self.index.fingerprint} only={self.only}"

    def attach(self, ranking: Ranking) -> Ranking:
        return replace(ranking, texts=self.index, origin=self)

    def only_among(self, ids: Sequence[str]) -> Stage | None:
        return SDM(self.index, self.parameters, only=ids)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self._search(ranking, DEPTH if depth is None else depth) for ranking in rankings]

    def _search(self, ranking: Ranking, k: int) -> Ranking:
        segments = self.index.segments
        scores, matched = self._scored(segments, self.index.analyzer.tokens(ranking.query.text))
        parts, where = [], ranking.query.where
        satisfying = None if where is None else allowed_by(segments, where, self.index.analyzer)
        for number, segment in enumerate(segments):
            if satisfying is not None:
                matched[number] &= satisfying[number]
            if self.only is not None:
                numbers = segment.store.numbers(self.only)
                allowed = np.zeros(len(segment), dtype=bool)
                allowed[numbers[numbers >= 0]] = True
                matched[number] &= allowed
            check()
            hits = np.flatnonzero(matched[number])
            documents, best = best_of(segment, hits, scores[number][hits], None, k)
            parts.append(Found(np.full(len(documents), number), documents, best))
        found = merged(segments, parts, k)
        return replace(
            ranking,
            ids=tuple(ids_of(segments, found)),
            scores=found.scores,
            kind=ScoreKind.RETRIEVAL,
            texts=self.index,
            origin=self,
            evidence={},
        )

    def _scored(self, segments: Sequence[Segment], tokens: Sequence[str]) -> tuple[list[Array], list[Array]]:
        """For each segment the sum of weight * log((tf + mu P) / (length + mu)) over the features, and which
        documents match one. Feature after feature, so that memory does not grow with the query."""
        mu = self.parameters.mu
        scores = [np.zeros(len(segment)) for segment in segments]
        matched = [np.zeros(len(segment), dtype=bool) for segment in segments]
        counts = _Counts(segments)
        for weight, feature in self._features(tokens):
            tfs = counts.of(feature)
            occurrences = sum(int(tf.sum(dtype=np.int64)) for tf in tfs)
            if not occurrences:
                continue
            background = occurrences / self.index.collection.tokens
            for segment, tf, own, hits in zip(segments, tfs, scores, matched, strict=True):
                check()
                own += weight * np.log((tf + mu * background) / (segment.lengths + mu))
                hits |= tf > 0
        return scores, matched

    def _features(self, tokens: Sequence[str]) -> Iterator[tuple[float, _Feature]]:
        """The features of a query that count, and their weights."""
        p = self.parameters
        if p.terms:
            yield from ((p.terms, _Feature(token)) for token in tokens)
        for a, b in itertools.pairwise(tokens):
            if p.ordered:
                yield p.ordered, _Feature(a, b)
            if p.unordered:
                yield p.unordered, _Feature(a, b, p.window)


class _Feature(NamedTuple):
    """A term; or two, the second directly after the first, or near it where there is a window."""

    first: str
    second: str | None = None
    window: int | None = None


class _Counts:
    """How often documents have features. A word may occur many times in a query, so the latest counts are
    cached, as far as memory allows."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._tfs = _Recent[_Feature, list[Array]](max(_KEPT // (sum(map(len, segments)) or 1), 1))
        self._places = _Recent[tuple[int, str], Places](2 * len(segments))  # of the terms of a pair

    def of(self, feature: _Feature) -> list[Array]:
        """For each segment how often each document has it; 0 for deleted ones."""
        return self._tfs.get(feature, partial(self._count, feature))

    def _count(self, feature: _Feature) -> list[Array]:
        return [self._in_segment(number, feature) for number in range(len(self._segments))]

    def _in_segment(self, number: int, feature: _Feature) -> Array:
        check()
        segment = self._segments[number]
        segment.check_sizes()
        tf = np.zeros(len(segment), np.uint32)
        first = segment.term(feature.first)
        second = first if feature.second is None else segment.term(feature.second)
        if first is None or second is None:
            return tf
        if feature.second is None:
            documents, tfs = segment.decode(first)
            tf[documents] = tfs
        else:
            left = self._places.get((number, feature.first), partial(Places.of, segment, first))
            right = self._places.get((number, feature.second), partial(Places.of, segment, second))
            for start in range(0, len(segment), AT_ONCE):
                check()
                stop = min(start + AT_ONCE, len(segment))
                a, b = left.between(start, stop), right.between(start, stop)
                if len(a) and len(b):
                    found = count_unordered(a, b, feature.window) if feature.window else count_ordered(a, b)
                    tf[start:stop] = np.bincount((found >> 32) - start, minlength=stop - start)
        if segment.deleted is not None:
            tf[segment.deleted] = 0
        return tf


_K = TypeVar("_K")
_V = TypeVar("_V")


class _Recent(Generic[_K, _V]):
    """The values that were used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        if key not in self._values:
            while len(self._values) >= self._most:
                self._values.popitem(last=False)
            self._values[key] = make()
        self._values.move_to_end(key)
        return self._values[key]
