"""H0 from another system: candidates that it found, as the first stage of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import xxhash

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError, quoted
from tamis.core.cost import Step, around
from tamis.core.language import Call
from tamis.core.ranking import Ranking, Run, Texts
from tamis.core.stage import Role, Stage, stage


class Corpus(Texts, Protocol):
    """Texts that can tell when they have changed: an index, or documents in memory."""

    @property
    def fingerprint(self) -> str: ...


class Documents:
    """The requested documents of a corpus, in memory.

    >>> documents = Documents([Document("d1", "a sieve"), Document("d2", "soup")], only={"d1"})
    >>> documents.document("d1").text, "d2" in documents
    ('a sieve', False)
    """

    def __init__(self, documents: Iterable[Document], *, only: Iterable[str]) -> None:
        wanted = frozenset(only)
        self._documents: dict[str, Document] = {}
        for document in documents:
            if document.id in wanted and self._documents.setdefault(document.id, document) is not document:
                raise InputError(
                    f"the document id {quoted(document.id)} occurs twice",
                    remedy="give every document its own",
                )

    def __contains__(self, doc_id: str) -> bool:
        return doc_id in self._documents

    def __len__(self) -> int:
        return len(self._documents)

    def document(self, doc_id: str) -> Document:
        """The document with this id."""
        try:
            return self._documents[doc_id]
        except KeyError:
            raise UnknownDocumentError(
                f"the corpus holds no document {quoted(doc_id)}",
                remedy="check the id, or give the whole corpus",
            ) from None

    @cached_property
    def fingerprint(self) -> str:
        """A fingerprint that changes with any text."""
        seen = xxhash.xxh3_128()
        for doc_id, document in sorted(self._documents.items()):
            _add(seen, doc_id)
            _add(seen, document.contents)
        return str(seen.hexdigest())


@stage("given", role=Role.FINDS)
class GivenRun(Stage):
    """Looks up each query's candidates in a run; `texts` is where their texts come from.

    >>> import numpy as np
    >>> from tamis import Query
    >>> run = Run([Ranking(Query("q1", "sieve"), ("d7", "d3"), np.array([2.0, 1.0]))])
    >>> GivenRun(run, Documents([], only=[])).apply([Ranking(Query("q1", "sieve"))])[0].ids
    ('d7', 'd3')
    """

    counts = "exact"
    found_before = True

    def __init__(self, run: Run, texts: Corpus) -> None:
        self.given, self.texts = run, texts

    @property
    def expression(self) -> Call:
        return Call(self.name)  # its run and texts are in its resources

    @cached_property
    def resources(self) -> str:
        seen = xxhash.xxh3_128()
        for qid, ranking in self.given.items():
            for doc_id in (qid, *ranking.ids):
                _add(seen, doc_id)
            seen.update(ranking.scores.tobytes())
        return f"{seen.hexdigest()} {self.texts.fingerprint}"

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        return around(self, enter, [])  # a query is counted with the candidates that this stage returns

    def attach(self, ranking: Ranking) -> Ranking:
        return replace(ranking, texts=self.texts)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self._candidates(ranking) for ranking in rankings]

    def _candidates(self, ranking: Ranking) -> Ranking:
        found = self.given.get(ranking.query.id)
        if found is None:
            raise InputError(
                f"the run has no candidates for query {quoted(ranking.query.id)}",
                remedy="rank its own queries",
            )
        return replace(
            ranking, ids=found.ids, scores=found.scores, kind=found.kind, texts=self.texts, evidence={}
        ).satisfying()


def _add(seen: xxhash.xxh3_128, text: str) -> None:
    """Add a text with its length, so that "ab", "c" and "a", "bc" differ."""
    data = text.encode("utf-8", "surrogatepass")
    seen.update(len(data).to_bytes(8, "little"))
    seen.update(data)
