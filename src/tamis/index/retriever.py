"""H0 as a stage: a model over an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tamis.base.errors import InputError
from tamis.core.cost import DEPTH
from tamis.core.language import Call
from tamis.core.options import call_of
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Role, Stage
from tamis.index.compiled import numba_installed
from tamis.index.score import Model
from tamis.index.search import Backend

if TYPE_CHECKING:
    from tamis.index.index import Index, TermContribution


def listed(ids: Iterable[str]) -> list[str]:
    """A string is an iterable of strings too: "12" would mean the documents "1" and "2".

    >>> listed({"12": "a title"})
    ['12']
    """
    if isinstance(ids, str):
        raise InputError(f"{ids!r} is a single id, and a list is expected", remedy=f"give a list: [{ids!r}]")
    return list(ids)


class Retriever(Stage):
    """Finds the best documents of an index by a model; what candidates it is given, it ignores.

    `only` and `without` restrict the search to some ids, or keep some out.
    """

    role = Role.FINDS

    def __init__(
        self,
        index: Index,
        model: Model,
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        backend: Backend = "auto",
    ) -> None:
        self.index, self.model, self.backend, self.name = index, model, backend, model.name
        self.only = None if only is None else tuple(listed(only))
        self.without = None if without is None else tuple(listed(without))

    @property
    def expression(self) -> Call:
        return call_of(self.model)

    @property
    def resources(self) -> str:
        return f"{self.index.fingerprint} only={self.only} without={self.without}"

    def prepare(self) -> None:
        """Compile the search kernel, or load it compiled: many queries are worth it."""
        if self.backend != "numpy" and numba_installed():
            from tamis.index.warm import warm

            warm(self.model.lengths)

    def attach(self, ranking: Ranking) -> Ranking:
        return replace(ranking, texts=self.index, origin=self)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self.search(ranking, self.index.weights(ranking.query.text), depth) for ranking in rankings]

    def search(self, ranking: Ranking, weights: Mapping[str, float], depth: int | None) -> Ranking:
        """Search for a weighted bag of terms on behalf of a ranking's query."""
        ids, scores = self.index.search(
            weights,
            self.model,
            DEPTH if depth is None else depth,
            only=self.only,
            without=self.without,
            where=ranking.query.where,
            backend=self.backend,
        )
        return replace(
            ranking,
            ids=tuple(ids),
            scores=scores,
            kind=ScoreKind.RETRIEVAL,
            texts=self.index,
            origin=self,
            evidence={},
        )

    def only_among(self, ids: Sequence[str]) -> Stage | None:
        return Retriever(self.index, self.model, only=tuple(ids), backend=self.backend)

    def explain(self, before: Ranking, after: Ranking, doc_id: str) -> list[TermContribution]:
        """What each query term adds to a document's score."""
        return self.index.explain(self.index.weights(before.query.text), self.model, doc_id)
