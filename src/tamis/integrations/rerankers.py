"""For rerankers (AnswerDotAI's): a ranker with its interface."""

from __future__ import annotations

from typing import Any

from tamis.core.stage import Stage
from tamis.integrations import missing, reranker

try:
    from rerankers.models.ranker import BaseRanker
    from rerankers.results import RankedResults, Result
    from rerankers.utils import prep_docs
except ImportError as error:
    raise missing("rerankers", "rerankers") from error


class TamisReranker(BaseRanker):
    """What `rerankers.Reranker(...)` gives for its own models.

    >>> results = TamisReranker("mono").rank("what is a sieve", ["Soup of the day", "A tamis is a sieve."])
    >>> results.top_k(1)[0].doc_id
    1
    """

    def __init__(self, pipeline: str | Stage = "mono", verbose: int = 0) -> None:
        self.stage, self.verbose = reranker(pipeline), verbose

    def score(self, query: str, doc: str) -> float:
        """The score of one text."""
        (ranked,) = self.stage.rank(query, [doc])
        return ranked.score

    def rank(self, query: str, docs: Any, doc_ids: Any = None, metadata: Any = None) -> RankedResults:
        """The texts or documents in their new order."""
        ranked = self.stage.rank(query, prep_docs(docs, doc_ids, metadata))
        return RankedResults([Result(each.item, each.score, each.rank) for each in ranked], query, True)
