"""Why a document stands where it does: its place in each stage, the query's terms, its best passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tamis.base.conditions import satisfies
from tamis.core.ranking import Hit, Ranking
from tamis.core.stage import Role
from tamis.index.index import TermContribution
from tamis.rank.evidence import whole_sentences
from tamis.serve.answers import evidence, printed
from tamis.serve.job import Done
from tamis.serve.pipelines import Built
from tamis.serve.work import Outcome


def explanation(built: Built, outcome: Outcome, doc_id: str) -> dict[str, Any]:
    """What `POST /explain` answers."""
    document = built.index.document(doc_id)
    last = outcome.ranking
    where = last.query.where
    return {
        "id": doc_id,
        "query": last.query.text,
        "where": printed(where),
        "satisfied": None if where is None else satisfies(where, document, built.analyzer.places),
        "pipeline": built.expression,
        "complete": outcome.complete,
        "stages": [_place(done, doc_id) for done in outcome.done],
        "terms": [asdict(term) for term in terms(outcome.done, doc_id)],
        "evidence": evidence(whole_sentences(document.text, last.evidence.get(doc_id, ()))),
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


def terms(done: Sequence[Done], doc_id: str) -> Sequence[TermContribution]:
    """What each term of the last search adds to the document's score; none where the search is not one of a
    weighted bag of words."""
    lines: Sequence[TermContribution] = []
    for place, each in enumerate(done):
        before = done[place - 1].ranking if place else Ranking(each.ranking.query)
        stage = each.step.stage
        found = stage.explain(before, each.ranking, doc_id)
        if found is not None or stage.role is Role.FINDS:
            lines = found or []
    return lines
