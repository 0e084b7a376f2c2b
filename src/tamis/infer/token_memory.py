"""Texts in memory that are tokenised only once, for candidates that are ranked repeatedly."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.base.documents import Document
from tamis.core.ranking import Texts, each_document
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import Tokenizer


class TokenMemory:
    """The texts of `ids`, from `texts`, and their tokens, which are computed when first needed.

    >>> from tamis.models.bundled import bundled_tokenizer
    >>> from tamis.rank.given_run import Documents
    >>> texts = Documents([Document("d1", "a sieve"), Document("d2", "soup")], only={"d1", "d2"})
    >>> TokenMemory(texts, ["d1", "d2"]).tokens(["d2"], bundled_tokenizer(), 512).ids.tolist()
    [11350]
    """

    def __init__(self, texts: Texts, ids: Sequence[str]) -> None:
        self._texts = texts
        self._places = {doc_id: place for place, doc_id in enumerate(dict.fromkeys(ids))}
        self._known: dict[tuple[str, int], Tokenised] = {}

    def document(self, doc_id: str) -> Document:
        return self._texts.document(doc_id)

    def documents(self, ids: Sequence[str]) -> list[Document]:
        return list(each_document(self._texts, ids))

    def tokens(self, ids: Sequence[str], tokenizer: Tokenizer, limit: int) -> Tokenised:
        """The first `limit` tokens of each of these texts."""
        key = tokenizer.fingerprint, limit
        if key not in self._known:
            every = each_document(self._texts, list(self._places))
            texts = [document.contents for document in every]
            self._known[key] = tokenizer.encode(texts, limit=limit)
        return self._known[key].take([self._places[doc_id] for doc_id in ids])
