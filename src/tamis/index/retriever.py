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
        index.check_model(model)
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
        """Many queries are worth some preparation."""
        self.index.prepare(self.model, self.backend)

    def attach(self, ranking: Ranking) -> Ranking:
        return replace(ranking, texts=self.index, origin=self)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return self.search(rankings, [self.index.weights(ranking.query.text) for ranking in rankings], depth)

    def search(
        self, rankings: Sequence[Ranking], queries: Sequence[Mapping[str, float]], depth: int | None
    ) -> list[Ranking]:
        """Search for weighted bags of terms, each on behalf of a ranking's query."""
        found = self.index.search_all(
            queries,
            self.model,
            DEPTH if depth is None else depth,
            only=self.only,
            without=self.without,
            where=[ranking.query.where for ranking in rankings],
            backend=self.backend,
        )
        return [
            replace(
                ranking,
                ids=tuple(ids),
                scores=scores,
                kind=ScoreKind.RETRIEVAL,
                texts=self.index,
                origin=self,
                evidence={},
            )
            for ranking, (ids, scores) in zip(rankings, found, strict=True)
        ]

    def only_among(self, ids: Sequence[str]) -> Stage | None:
        return Retriever(self.index, self.model, only=tuple(ids), backend=self.backend)

    def explain(self, before: Ranking, after: Ranking, doc_id: str) -> list[TermContribution]:
        """What each query term adds to a document's score."""
        return self.index.explain(self.index.weights(before.query.text), self.model, doc_id)
