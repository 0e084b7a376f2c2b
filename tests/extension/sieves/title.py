"""A retriever: the documents whose titles hold the words of the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from tamis import Index, Ranking, Role, Stage, stage


@stage("title", role=Role.FINDS)
class Title(Stage):
    """Finds documents by the share of the query's words in their titles; with `whole`, those alone that hold
    all of them."""

    def __init__(self, index: Index, whole: bool = False) -> None:
        self.index, self.whole = index, whole

    @cached_property
    def holders(self) -> dict[str, list[str]]:
        """By word, the documents whose titles hold it."""
        found: dict[str, list[str]] = {}
        for document in self.index:
            for word in set(self.index.analyzer.tokens(document.title)):
                found.setdefault(word, []).append(document.id)
        return found

    def prepare(self) -> None:
        _ = self.holders

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self._find(ranking, 1000 if depth is None else depth) for ranking in rankings]

    def _find(self, ranking: Ranking, k: int) -> Ranking:
        words = set(self.index.analyzer.tokens(ranking.query.text))
        held = Counter(doc_id for word in words for doc_id in self.holders.get(word, ()))
        ids = [doc_id for doc_id, count in held.items() if count == len(words) or not self.whole]
        scores = [held[doc_id] / len(words) for doc_id in ids]
        return ranking.found(ids, scores, self.index, self).head(k)
