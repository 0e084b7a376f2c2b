"""For LangChain: a document compressor, which reranks, and a retriever over an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tamis.core.stage import Stage
from tamis.index.index import Index
from tamis.integrations import missing, reranker, searcher

try:
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict, PrivateAttr
except ImportError as error:
    raise missing("langchain-core", "langchain") from error


class TamisReranker(BaseDocumentCompressor):
    """Reranks documents, for a `ContextualCompressionRetriever` or by itself. The score is in the metadata,
    as `relevance_score`; `title` names the title's field there, if the model is to read it.

    >>> documents = [Document("Soup of the day"), Document("A tamis is a fine sieve.")]
    >>> TamisReranker(top_n=1).compress_documents(documents, "what is a sieve")[0].page_content
    'A tamis is a fine sieve.'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    pipeline: str | Stage = "mono"
    top_n: int | None = None
    title: str | None = None
    _stage: Any = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._stage = reranker(self.pipeline)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        """The documents in their new order, as copies."""
        ranked = self._stage.rank(query, documents, self.top_n, title=self.title)
        return [
            each.item.model_copy(update={"metadata": {**each.item.metadata, "relevance_score": each.score}})
            for each in ranked
        ]


class TamisRetriever(BaseRetriever):
    """Searches an index with a pipeline. The score is in the metadata, as `score`; `where` is a condition on
    the documents.

    >>> import tempfile, tamis
    >>> index = tamis.Index.build([tamis.Document("d1", "a sieve")], tempfile.mkdtemp() + "/idx")
    >>> TamisRetriever(index=index, pipeline="bm25").invoke("sieve")[0].id
    'd1'
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    index: Index | str | Path | None = None
    pipeline: str | Stage = "fast"
    k: int = 10
    where: str | None = None
    _stage: Any = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._stage = searcher(self.index, self.pipeline) % self.k

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        found = self._stage(query, where=self.where)
        pairs = zip(found, found.documents() if found.ids else [], strict=True)
        return [
            Document(
                each.text,
                id=each.id,
                metadata={
                    **each.metadata,
                    **({"title": each.title} if each.title else {}),
                    "score": hit.score,
                },
            )
            for hit, each in pairs
        ]
