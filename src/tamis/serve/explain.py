"""Why a document stands where it does: its place in each stage, the query's terms, its best passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tamis.ranking import Hit, Ranking
from tamis.retrieve.feedback import RM3
from tamis.retrieve.index import TermContribution
from tamis.retrieve.retriever import Retriever
from tamis.serve.answers import evidence
from tamis.serve.job import Done
from tamis.serve.pipelines import Built
from tamis.serve.work import Outcome


def explanation(built: Built, outcome: Outcome, identity: str) -> dict[str, Any]:
    """What `POST /explain` answers."""
    document = built.index.document(identity)
    last = outcome.ranking
    return {
        "id": identity,
        "query": last.query.text,
        "pipeline": built.expression,
        "complete": outcome.complete,
        "stages": [_place(done, identity) for done in outcome.done],
        "terms": [asdict(term) for term in terms(outcome.done, identity)],
        "evidence": evidence(last.evidence.get(identity, ()), document.text, len(document.text)),
    }


def _place(done: Done, identity: str) -> dict[str, Any]:
    hit = _find(done.ranking, identity)
    return {
        "stage": done.step.name,
        "expression": done.step.expression,
        "rank": hit and hit.rank,
        "score": hit and hit.score,
        "kind": str(done.ranking.kind),
    }


def _find(ranking: Ranking, identity: str) -> Hit | None:
    return next((hit for hit in ranking if hit.id == identity), None)


def terms(done: Sequence[Done], identity: str) -> list[TermContribution]:
    """What each term of the last search adds to the document's score; none where the search is not one of a
    weighted bag of words."""
    lines: list[TermContribution] = []
    for place, each in enumerate(done):
        stage = each.step.stage
        if isinstance(stage, Retriever):
            lines = stage.explain(each.ranking.query.text, identity)
        elif isinstance(stage, RM3) and place:
            before = done[place - 1].ranking
            if isinstance(before.origin, Retriever):
                index = before.origin.index
                lines = index.explain(stage.expand(index, before), before.origin.model, identity)
    return lines
