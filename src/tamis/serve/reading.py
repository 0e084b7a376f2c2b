"""A document for somebody who reads it: in parts, with the places of a query's words in all of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tamis.index.index import Index
from tamis.serve.answers import as_json
from tamis.serve.highlight import Marker
from tamis.serve.limits import MATCHED, MATCHES


class Part(NamedTuple):
    """Which characters of a document are wanted, and of which query the matches."""

    start: int = 0
    length: int | None = None
    query: str | None = None


WHOLE = Part()


def stored(index: Index, doc_id: str, part: Part = WHOLE) -> bytes:
    """The JSON of a document, or of a part of it.

    >>> from tamis import Document
    >>> index = Index.build([Document("d", "A sieve.")], getfixture("tmp_path") / "idx")
    >>> stored(index, "d", Part(2, 5, "sieves")).decode()
    '{"id":"d","title":"","text":"sieve","metadata":{},"start":2,"characters":8,"matches":[[2,7]]}'
    """
    found = index.document(doc_id)
    stop = None if part.length is None else part.start + part.length
    document: dict[str, Any] = {
        "id": found.id,
        "title": found.title,
        "text": found.text[part.start : stop],
        "metadata": dict(found.metadata),
        "start": part.start,
        "characters": len(found.text),
        "matches": _matches(index, found.text, part.query) if part.query else [],
    }
    return as_json(document)


def _matches(index: Index, text: str, query: str) -> list[tuple[int, int]]:
    return Marker(index.analyzer, index.weights(query)).places(text[:MATCHED])[:MATCHES]
