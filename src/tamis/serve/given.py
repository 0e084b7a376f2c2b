"""Candidates that a client sends with its query, as a ranking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tamis.documents import Document, Query
from tamis.errors import InputError
from tamis.ranking import Ranking


class Sent:
    """The client's documents by their places: its own ids may occur twice."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def document(self, identity: str) -> Document:
        return self._documents[int(identity)]


def given(query: str, documents: Sequence[Document], most: int) -> Ranking:
    """A ranking in the order that the documents came in, with their places as ids. Places of one length sort
    as numbers do, so documents that tie keep their order.

    >>> given("sieve", [Document("x", "a"), Document("x", "b")], 10).ids
    ('0000', '0001')
    """
    if len(documents) > most:
        raise InputError(f"{len(documents):,} documents", remedy=f"send at most {most:,} with a query")
    width = max(4, len(str(len(documents))))
    places = tuple(f"{place:0{width}d}" for place in range(len(documents)))
    return Ranking(
        Query("0", query), places, -np.arange(len(places), dtype=np.float64), texts=Sent(documents)
    )
