"""H0 as a stage: a model over an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from tamis.base.errors import InputError
from tamis.core.language import Call
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Stage
from tamis.index.compiled import numba_installed
from tamis.index.score import Model
from tamis.index.search import Backend

if TYPE_CHECKING:
    from tamis.index.index import Index, TermContribution

DEPTH = 1000  # the papers' k0, where the pipeline does not say


def options_of(value: Any) -> tuple[tuple[str, Any], ...]:
    """A dataclass's fields that differ from their defaults, for printing: 1, 1.0 and np.float64(1) alike.

    >>> from tamis.index.score import BM25
    >>> options_of(BM25(k1=1))
    (('k1', 1.0),)
    """
    defaults: dict[str, Any] = {f.name: f.default for f in fields(value)}
    given = {name: type(default)(getattr(value, name)) for name, default in defaults.items()}
    return tuple((name, own) for name, own in given.items() if own != defaults[name])


def listed(ids: Iterable[str]) -> list[str]:
    """A string is an iterable of strings too: "12" would mean the documents "1" and "2".

    >>> listed({"12": "a title"})
    ['12']
    """
    if isinstance(ids, str):
        raise InputError(f"{ids!r} is one id where several are wanted", remedy=f"give a list: [{ids!r}]")
    return list(ids)


class Retriever(Stage):
    """Finds the best documents of an index by a model; what candidates it is given, it ignores.

    `only` and `without` restrict the search to some ids, or keep some out.
    """

    def __init__(
        self,
        index: Index,
        model: Model,
        *,
        only: Iterable[str] | None = None,
        without: Iterable[str] | None = None,
        backend: Backend = "auto",
    ) -> None:
        self.index, self.model, self.backend = index, model, backend
        self.only = None if only is None else tuple(listed(only))
        self.without = None if without is None else tuple(listed(without))

    @property
    def expression(self) -> Call:
        return Call(self.model.name, (), options_of(self.model))

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

    def explain(self, query: str, doc_id: str) -> list[TermContribution]:
        """What each query term adds to a document's score."""
        return self.index.explain(self.index.weights(query), self.model, doc_id)
