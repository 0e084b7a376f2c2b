"""RM3: expand the query from the documents ranked first, and search again (Abdul-Jaleel et al. 2004, as
Anserini computes it)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated

import numpy as np

from tamis.base.errors import InputError, TamisError
from tamis.base.interrupt import check
from tamis.core.options import AtMost
from tamis.core.ranking import Ranking
from tamis.core.stage import Role, Stage, stage
from tamis.index.retriever import Retriever

if TYPE_CHECKING:
    from tamis.index.index import Index, TermContribution

_GOOD = re.compile(r"[a-z0-9]{2,20}")
_COMMON = np.float32(0.1)  # a term in more than a tenth of the documents is not specific to these
#: For a client of a server: terms that a query is expanded with, and documents that these are taken from,
#: which are analysed for it.
MOST_TERMS = MOST_DOCS = 100
#: Of a document's terms so many times those that are wanted are looked up together: few of them are common.
_LOOKED_UP = 4
f32 = np.float32


def strongest(
    vector: Mapping[str, float], n: int, wanted: Callable[[str], bool] = lambda term: True
) -> dict[str, float]:
    """The n largest entries of wanted terms, equal ones in the order of their terms.

    >>> strongest({"b": 1, "a": 1, "c": 2}, 2)
    {'c': 2, 'a': 1}
    """
    descending = sorted(vector.items(), key=lambda item: (-item[1], item[0]))
    return dict(islice((item for item in descending if wanted(item[0])), n))


def unit(vector: Mapping[str, float]) -> dict[str, float]:
    """The vector with its entries summing to one."""
    total = sum(map(float, vector.values()))
    return {term: float(f32(weight / total)) for term, weight in vector.items()} if total else dict(vector)


def document_weights(scores: Sequence[float]) -> list[float]:
    """How much each document counts: its score, as in Anserini; where these are log-likelihoods, hence below
    zero, the likelihoods, the best being one.

    >>> document_weights([3.0, 1.0]), document_weights([-2.0, -2.0])
    ([3.0, 1.0], [1.0, 1.0])
    """
    if min(scores, default=0.0) >= 0:
        return list(scores)
    best = max(scores)
    return [math.exp(score - best) for score in scores]


def relevance_model(
    vectors: Sequence[Mapping[str, float]], scores: Sequence[float], terms: int
) -> dict[str, float]:
    """P(t|R): each document's term distribution, weighted by `scores`; the `terms` strongest, summing to one.

    >>> relevance_model([{"a": 3, "b": 1}, {"b": 1}], [2.0, 1.0], 10)
    {'a': 0.5, 'b': 0.5}
    """
    model: dict[str, np.float32] = {}
    for vector, score in zip(vectors, scores, strict=True):
        norm = f32(sum(vector.values()))
        for term, tf in vector.items():
            model[term] = model.get(term, f32(0)) + f32(tf) / norm * f32(score)
    return unit(strongest({term: float(weight) for term, weight in model.items()}, terms))


def interpolate(query: Mapping[str, float], model: Mapping[str, float], weight: float) -> dict[str, float]:
    """weight * P(t|q) + (1 - weight) * P(t|R).

    >>> interpolate({"a": 1.0}, {"a": 0.5, "b": 0.5}, 0.5)
    {'a': 0.75, 'b': 0.25}
    """
    terms = [*query, *(term for term in model if term not in query)]
    own = float(f32(weight))
    return {
        term: float(f32(float(f32(own * query.get(term, 0.0))) + (1 - own) * model.get(term, 0.0)))
        for term in terms
    }


@stage("rm3", role=Role.FINDS)
class RM3(Stage):
    """Expands from the ranking it receives and searches again with the retriever that found it: `bm25 >> rm3
    % 1000`."""

    searches_again = True

    def __init__(
        self,
        terms: Annotated[int, AtMost(MOST_TERMS)] = 10,
        docs: Annotated[int, AtMost(MOST_DOCS)] = 10,
        weight: float = 0.5,
    ) -> None:
        if terms < 1 or docs < 1 or not 0 <= weight <= 1:
            raise InputError(
                f"rm3 with terms={terms}, docs={docs}, weight={weight}",
                remedy="use terms and docs of at least 1 and a weight between 0 and 1",
            )
        self.terms, self.docs, self.weight = terms, docs, weight

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        made: list[Ranking] = []
        # those that one retriever has found are searched for together
        for _, together in groupby(rankings, key=lambda ranking: id(ranking.origin)):
            some = list(together)
            retriever = some[0].origin
            if not isinstance(retriever, Retriever):
                raise TamisError(
                    "rm3 has no retriever to search again", remedy="put one before it, as in `bm25 >> rm3`"
                )
            index = retriever.index
            expanded = [
                query
                for start in range(0, len(some), index.queries_at_once)
                for query in self.expand_all(index, some[start : start + index.queries_at_once])
            ]
            made += retriever.search(some, expanded, depth)
        return made

    def explain(self, before: Ranking, after: Ranking, doc_id: str) -> list[TermContribution] | None:
        """What each term of the expanded query adds to a document's score."""
        if not isinstance(before.origin, Retriever):
            return None
        index = before.origin.index
        return index.explain(self.expand(index, before), before.origin.model, doc_id)

    def expand(self, index: Index, ranking: Ranking) -> dict[str, float]:
        """The expanded query: terms and their weights."""
        return self.expand_all(index, [ranking])[0]

    def expand_all(self, index: Index, rankings: Sequence[Ranking]) -> list[dict[str, float]]:
        """Several queries, of which the documents are looked at together."""
        firsts = [ranking.head(self.docs) for ranking in rankings]
        wanted = dict.fromkeys(doc_id for first in firsts for doc_id in first.ids)
        known = dict(zip(wanted, index.terms_of(list(wanted)), strict=True))
        many = _LOOKED_UP * self.terms
        index.look_up(term for terms in known.values() for term in strongest(terms, many, _is_word))
        return [self._expanded(index, first, known) for first in firsts]

    def _expanded(
        self, index: Index, first: Ranking, known: Mapping[str, Mapping[str, int]]
    ) -> dict[str, float]:
        vectors, scores = [], []
        for doc_id, score in zip(first.ids, first.scores.tolist(), strict=True):
            check()
            vector = strongest(known[doc_id], self.terms, lambda term: _useful(index, term))
            if vector:
                vectors.append(vector)
                scores.append(score)
        query = unit(index.weights(first.query.text))
        model = relevance_model(vectors, document_weights(scores), self.terms)
        return interpolate(query, model, self.weight)


def _is_word(term: str) -> bool:
    return bool(_GOOD.fullmatch(term))


def _useful(index: Index, term: str) -> bool:
    return bool(_is_word(term) and f32(index.df(term) / index.collection.documents) <= _COMMON)
