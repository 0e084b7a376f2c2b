"""The sequential dependence model (Metzler & Croft 2005): terms, ordered bigrams, and bigrams in a window,
each a Dirichlet-smoothed log-probability f. Needs an index with positions.

    score = terms * sum of f(term) + ordered * sum of f(bigram) + unordered * sum of f(bigram in the window)

The sums are not divided by how many terms and bigrams there are: so it is in the paper and in Anserini, while
Indri's #combine takes means. Every two adjacent tokens of the query are a bigram, equal ones too, as in both;
in a document it takes two places, where theirs let one place stand for both in a window. A term or bigram
that is nowhere in the collection counts for nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tamis.columns import Array
from tamis.errors import InputError, TamisError
from tamis.expression import Call
from tamis.ranking import Ranking, ScoreKind, best_first
from tamis.retrieve.retriever import DEPTH, listed, options_of
from tamis.retrieve.score import LARGEST_MU, LARGEST_WEIGHT, LEAST_SMOOTHING
from tamis.retrieve.segment import Segment
from tamis.stage import Stage

if TYPE_CHECKING:
    from tamis.retrieve.index import Index


@dataclass(frozen=True, slots=True)
class Dependence:
    """The model's parameters: `window` is the unordered bigram's, in tokens."""

    terms: float = 0.85
    ordered: float = 0.10
    unordered: float = 0.05
    window: int = 8
    mu: float = 1000.0

    def __post_init__(self) -> None:
        weights = (self.terms, self.ordered, self.unordered)
        possible = all(0 <= weight <= LARGEST_WEIGHT for weight in weights)
        if self.window < 2 or not LEAST_SMOOTHING <= self.mu <= LARGEST_MU or not possible:
            raise InputError(
                f"sdm with window={self.window}, mu={self.mu} and the weights {', '.join(map(str, weights))}",
                remedy=f"use a window of at least 2, {LEAST_SMOOTHING:g} <= mu <= {LARGEST_MU:,} and weights "
                f"between 0 and {LARGEST_WEIGHT:g}",
            )


def count_ordered(left: Array, right: Array) -> Array:
    """The places (document << 32 | position) of `left` directly followed by `right`.

    >>> count_ordered(np.array([3, 9]), np.array([4, 8])).tolist()
    [3]
    """
    return left[np.isin(left + 1, right)]


def count_unordered(left: Array, right: Array, window: int) -> Array:
    """The places of `left` with a `right` on either side so near that both fit into the window. Where both
    are one term, a place needs another.

    >>> count_unordered(np.array([3, 90]), np.array([1, 4, 60]), 8).tolist()
    [3]
    """
    after = np.searchsorted(right, left, side="right")
    before = np.searchsorted(right, left, side="left") - 1
    near_after = (after < len(right)) & (right[np.minimum(after, len(right) - 1)] - left < window)
    near_before = (before >= 0) & (left - right[np.maximum(before, 0)] < window)
    return left[near_after | near_before]


class SDM(Stage):
    """Scores every document that holds a query term; `only` restricts the search to some ids."""

    def __init__(
        self, index: Index, parameters: Dependence | None = None, *, only: Iterable[str] | None = None
    ) -> None:
        if not index.manifest.positions:
            raise TamisError("sdm needs positions", remedy="build the index with positions (--positions)")
        self.index, self.parameters = index, parameters or Dependence()
        self.only = None if only is None else tuple(listed(only))

    @property
    def expression(self) -> Call:
        return Call("sdm", (), options_of(self.parameters))

    @property
    def resources(self) -> str:
        return f"{self.index.fingerprint} only={self.only}"

    def attach(self, ranking: Ranking) -> Ranking:
        return replace(ranking, texts=self.index, origin=self)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self._search(ranking, DEPTH if depth is None else depth) for ranking in rankings]

    def _search(self, ranking: Ranking, k: int) -> Ranking:
        p = self.parameters
        tokens = self.index.analyzer.tokens(ranking.query.text)
        # a weight, and the places of a feature's matches in each segment
        features: list[tuple[float, list[Array]]] = []
        for token in tokens:
            features.append((p.terms, [_places(s, token) for s in self.index.segments]))
        for a, b in itertools.pairwise(tokens):
            both = [(_places(s, a), _places(s, b)) for s in self.index.segments]
            features.append((p.ordered, [count_ordered(x, y) for x, y in both]))
            unordered = [count_unordered(x, y, p.window) if len(x) and len(y) else x[:0] for x, y in both]
            features.append((p.unordered, unordered))
        features = [(weight, places) for weight, places in features if weight and sum(map(len, places))]
        ids: list[str] = []
        parts: list[Array] = []
        for number, segment in enumerate(self.index.segments):
            found, scores = self._score(segment, number, features)
            ids += segment.store.ids(found)
            parts.append(scores)
        all_scores = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        order = best_first(all_scores, ids)[:k]
        return replace(
            ranking,
            ids=tuple(ids[i] for i in order.tolist()),
            scores=all_scores[order],
            kind=ScoreKind.RETRIEVAL,
            texts=self.index,
            origin=self,
            evidence={},
        )

    def _score(
        self, segment: Segment, number: int, features: Sequence[tuple[float, Sequence[Array]]]
    ) -> tuple[Array, Array]:
        """Documents that match a feature, and sum of weight * log((tf + mu P) / (length + mu))."""
        mu = self.parameters.mu
        scores = np.zeros(len(segment))
        matched = np.zeros(len(segment), dtype=bool)
        for weight, places in features:
            background = sum(map(len, places)) / self.index.collection.tokens
            tf = np.bincount(places[number] >> 32, minlength=len(segment))
            scores += weight * np.log((tf + mu * background) / (segment.lengths + mu))
            matched |= tf > 0
        if self.only is not None:
            numbers = segment.store.numbers(self.only)
            allowed = np.zeros(len(segment), dtype=bool)
            allowed[numbers[numbers >= 0]] = True
            matched &= allowed
        found = np.flatnonzero(matched)
        return found, scores[found].astype(np.float32)


def _places(segment: Segment, term: str) -> Array:
    """Where a term stands in a segment's live documents: document << 32 | position, ascending."""
    segment.check_sizes()
    entry = segment.term(term)
    if entry is None:
        return np.zeros(0, np.int64)
    documents, tfs = segment.decode(entry)
    places = np.repeat(documents, tfs) << 32 | segment.positions(entry)
    return places if segment.deleted is None else places[~segment.deleted[places >> 32]]
