"""For Haystack: a component that reranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tamis.core.stage import Stage
from tamis.integrations import missing, reranker

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise missing("haystack-ai", "haystack") from error


@component
class TamisReranker:
    """Reranks documents; `title` names the title's field in their `meta`, if the model is to read it. A
    pipeline that is saved names its stages; on which device these run is up to the machine that loads it.

    >>> documents = [Document(content="Soup of the day"), Document(content="A tamis is a fine sieve.")]
    >>> TamisReranker(top_k=1).run("what is a sieve", documents)["documents"][0].content
    'A tamis is a fine sieve.'
    """

    def __init__(
        self, pipeline: str | Stage = "mono", top_k: int | None = None, title: str | None = None
    ) -> None:
        self.stage, self.top_k, self.title = reranker(pipeline), top_k, title

    def warm_up(self) -> None:
        """Load the models."""
        self.stage.prepare()

    def to_dict(self) -> dict[str, Any]:
        """As it is saved with a pipeline."""
        made: dict[str, Any] = default_to_dict(
            self, pipeline=str(self.stage), top_k=self.top_k, title=self.title
        )
        return made

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TamisReranker:
        """What `to_dict` has saved."""
        made: TamisReranker = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """The documents in their new order, as copies with new scores."""
        kept = self.top_k if top_k is None else top_k
        ranked = self.stage.rank(query, documents, kept, title=self.title)
        return {"documents": [replace(each.item, score=each.score) for each in ranked]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, Any]:
        """The same in a worker thread."""
        kept = self.top_k if top_k is None else top_k
        fields = {} if self.title is None else {"title": self.title}
        ranked = await self.stage.arank(query, documents, kept, **fields)
        return {"documents": [replace(each.item, score=each.score) for each in ranked]}
