"""For LlamaIndex: a node postprocessor, which reranks."""

from __future__ import annotations

from typing import Any

from tamis.base.errors import InputError
from tamis.core.stage import Stage
from tamis.integrations import missing, reranker

try:
    from llama_index.core.bridge.pydantic import Field, PrivateAttr, field_serializer
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore, QueryBundle
except ImportError as error:
    raise missing("llama-index-core", "llama-index") from error


class TamisReranker(BaseNodePostprocessor):
    """Reranks nodes; `title` names the title's field in their metadata, if the model is to read it.

    >>> from llama_index.core.schema import TextNode
    >>> texts = "Soup of the day", "A tamis is a fine sieve."
    >>> nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
    >>> TamisReranker(top_n=1).postprocess_nodes(nodes, query_str="what is a sieve")[0].text
    'A tamis is a fine sieve.'
    """

    pipeline: str | Stage = Field(default="mono")
    top_n: int | None = Field(default=None)
    title: str | None = Field(default=None)
    _stage: Any = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._stage = reranker(self.pipeline)

    @field_serializer("pipeline")
    def _text(self, pipeline: str | Stage) -> str:
        return str(pipeline)

    @classmethod
    def class_name(cls) -> str:
        return "TamisReranker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("nodes without a query", remedy="give query_bundle or query_str")
        ranked = self._stage.rank(query_bundle.query_str, nodes, self.top_n, title=self.title)
        return [NodeWithScore(node=each.item.node, score=each.score) for each in ranked]
