"""The rerank API of Cohere's and Jina's clients, v1 and v2.

Such a client sends fields that have no meaning here: they are ignored. `model` is used if this server has a
model of that name; else the server's own pipeline answers, and the response says which one.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from tamis.base.arrays import Array
from tamis.core.ranking import Ranking, ScoreKind
from tamis.serve.limits import RESULTS, TEXT
from tamis.serve.schemas import QueryText, as_object
from tamis.serve.work import Outcome


class ForeignDocument(BaseModel):
    """A document as an object; v1 lets it have other fields."""

    model_config = ConfigDict(extra="ignore")

    text: str = Field(max_length=TEXT)


_SentDocument = Annotated[
    ForeignDocument, BeforeValidator(as_object, json_schema_input_type=str | ForeignDocument)
]


class ForeignRequest(BaseModel):
    """What their clients send."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={
            "examples": [
                {
                    "model": "mono",
                    "query": "a fine sieve",
                    "documents": ["A tamis is a drum sieve.", "Soup."],
                    "top_n": 1,
                }
            ]
        },
    )

    query: QueryText
    documents: list[_SentDocument] = Field(min_length=1, fail_fast=True)
    model: Annotated[str, StringConstraints(max_length=200)] | None = None
    top_n: Annotated[int, Field(ge=1, le=RESULTS)] | None = None
    return_documents: bool | None = None


class ForeignResult(BaseModel):
    """A document's place in the request, and its score."""

    index: int
    relevance_score: float = Field(ge=0, le=1)
    document: ForeignDocument | None = None


class ForeignAnswer(BaseModel):
    """Results, best first."""

    id: str
    results: list[ForeignResult]
    model: str
    meta: dict[str, Any]
    usage: dict[str, int]


def relevance(ranking: Ranking) -> Array:
    """Scores between 0 and 1 in the ranking's order: probabilities as they are; scores that mean something
    within one list only, by their place between its lowest and highest.

    >>> from tamis import Query
    >>> two = Ranking(Query("q", ""), ("a", "b"), np.array([3.0, 1.0]), ScoreKind.COMBINED)
    >>> relevance(two).tolist()
    [1.0, 0.0]
    """
    from tamis.rank.aggregate import probability

    scores = ranking.scores.astype(np.float64)
    if ranking.kind is ScoreKind.PROBABILITY:
        return scores
    if ranking.kind is ScoreKind.LOGIT:
        return probability(scores)
    if ranking.kind is ScoreKind.LOG_PROBABILITY:
        return np.exp(scores)
    low, high = scores.min(initial=np.inf), scores.max(initial=-np.inf)
    return (scores - low) / (high - low) if high > low else np.ones_like(scores)


def foreign_answer(request: ForeignRequest, outcome: Outcome, pipeline: str) -> dict[str, Any]:
    """The answer in their shape: ids are places in the request."""
    ranking = outcome.ranking
    scores = relevance(ranking)
    chosen = ranking.head(request.top_n or len(ranking))
    results = []
    for hit, score, document in zip(chosen, scores.tolist(), chosen.documents(), strict=False):
        result: dict[str, Any] = {"index": int(hit.id), "relevance_score": score}
        if request.return_documents:
            result["document"] = {"text": document.text}
        results.append(result)
    inferences = sum(done.tally.inferences for done in outcome.done)
    return {
        "id": str(uuid.uuid4()),
        "results": results,
        "model": pipeline,
        "meta": {"api_version": {"version": "1"}, "complete": outcome.complete},
        "usage": {"inferences": inferences},
    }
