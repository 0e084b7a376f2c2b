"""Why a document stands where it does: its place in each stage, the query's terms, its best passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tamis.core.ranking import Hit, Ranking
from tamis.index.feedback import RM3
from tamis.index.index import TermContribution
from tamis.index.retriever import Retriever
from tamis.serve.answers import evidence
from tamis.serve.job import Done
from tamis.serve.pipelines import Built
from tamis.serve.work import Outcome


def explanation(built: Built, outcome: Outcome, doc_id: str) -> dict[str, Any]:
    """What `POST /explain` answers."""
    document = built.index.document(doc_id)
    last = outcome.ranking
    return {
        "id": doc_id,
        "query": last.query.text,
        "pipeline": built.expression,
        "complete": outcome.complete,
        "stages": [_place(done, doc_id) for done in outcome.done],
        "terms": [asdict(term) for term in terms(outcome.done, doc_id)],
        "evidence": evidence(last.evidence.get(doc_id, ()), document.text, len(document.text)),
    }


def _place(done: Done, doc_id: str) -> dict[str, Any]:
    hit = _find(done.ranking, doc_id)
    return {
        "stage": done.step.name,
        "expression": done.step.expression,
        "rank": hit and hit.rank,
        "score": hit and hit.score,
        "kind": str(done.ranking.kind),
    }


def _find(ranking: Ranking, doc_id: str) -> Hit | None:
    return next((hit for hit in ranking if hit.id == doc_id), None)


def terms(done: Sequence[Done], doc_id: str) -> list[TermContribution]:
    """What each term of the last search adds to the document's score; none where the search is not one of a
    weighted bag of words."""
    lines: list[TermContribution] = []
    for place, each in enumerate(done):
        stage = each.step.stage
        if isinstance(stage, Retriever):
            lines = stage.explain(each.ranking.query.text, doc_id)
        elif isinstance(stage, RM3) and place:
            before = done[place - 1].ranking
            if isinstance(before.origin, Retriever):
                index = before.origin.index
                lines = index.explain(stage.expand(index, before), before.origin.model, doc_id)
    return lines
