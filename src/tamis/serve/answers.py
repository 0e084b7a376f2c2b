"""Answers as plain data, from what the stages made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tamis.base.documents import Document
from tamis.core.ranking import Hit, Ranking, Span
from tamis.index.index import Index
from tamis.rank.evidence import whole_sentences
from tamis.serve.highlight import Marker
from tamis.serve.job import Done
from tamis.serve.limits import ANSWER, SHOWN
from tamis.serve.pipelines import Built
from tamis.serve.work import Outcome


def answer(
    built: Built,
    outcome: Outcome,
    k: int | None,
    *,
    started: float,
    trace: bool,
    sent: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The answer to a search or a rerank; `sent` are the ids of the client's own documents in
    their order, where ours are places; `started` is when it came, by the monotonic clock."""
    ranking = outcome.ranking if k is None else outcome.ranking.head(k)
    return {
        "query": ranking.query.text,
        "pipeline": built.expression,
        "kind": str(ranking.kind),
        "results": results(ranking, built.index, sent),
        "complete": outcome.complete,
        "finished": outcome.done[-1].step.name,
        "ms": _ms(max(time.monotonic(), outcome.not_before) - started),
        "stages": [_stage(done, trace, sent) for done in outcome.done],
    }


def streamed(built: Built, outcome: Outcome, k: int | None, *, started: float, trace: bool) -> dict[str, Any]:
    """The answer after one of the stages of a search, for who has them as they come."""
    return {
        **answer(built, outcome, k, started=started, trace=trace),
        "after": len(outcome.done),
        "expected": outcome.expected,
        "planned": [step.name for step in outcome.planned],
        "final": outcome.final,
        "retry_after": outcome.retry_after,
    }


def as_json(value: Any) -> bytes:
    """In one line, without spaces.

    >>> as_json({"é": [1, 2]}).decode()
    '{"é":[1,2]}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def results(ranking: Ranking, index: Index, sent: Sequence[str] | None) -> list[dict[str, Any]]:
    """Rank, score and text of each candidate, with the places of the query's words."""
    marker = Marker(index.analyzer, index.weights(ranking.query.text))
    found = []
    shown = shown_of_each(len(ranking))
    for hit, document in zip(ranking, _documents(ranking), strict=True):
        text, title = document.text[:shown], document.title[:shown]
        found.append(
            {
                **_place(hit, sent),
                "title": title,
                "text": text,
                "cut": len(document.text) > shown,
                "highlights": marker.places(text),
                "title_highlights": marker.places(title),
                "evidence": evidence(ranking.evidence.get(hit.id, ()), document.text, len(text)),
            }
        )
    return found


def shown_of_each(results: int) -> int:
    """How many characters an answer shows of each document: a long answer is made of short texts.

    >>> shown_of_each(10), shown_of_each(100), shown_of_each(1000)
    (20000, 5000, 500)
    """
    return min(SHOWN, ANSWER // max(results, 1))


def _documents(ranking: Ranking) -> Iterator[Document]:
    """One at a time: all of them may be more than the memory holds."""
    if ranking.texts is None:
        yield from ranking.documents()  # which says what is missing
    else:
        yield from (ranking.texts.document(doc_id) for doc_id in ranking.ids)


def evidence(spans: Sequence[Span], text: str, shown: int) -> list[dict[str, Any]]:
    """Passages, in whole sentences, as places in the first `shown` characters of a text.

    >>> evidence([Span(2, 6, 0.5), Span(11, 14, 0.25)], "A sieve. A pan.", 5)
    [{'start': 0, 'end': 5, 'score': 0.5}]
    """
    return [
        {"start": span.start, "end": min(span.stop, shown), "score": span.score}
        for span in whole_sentences(text, spans)
        if span.start < shown
    ]


def _stage(done: Done, trace: bool, sent: Sequence[str] | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "stage": done.step.name,
        "expression": done.step.expression,
        "ms": _ms(done.seconds),
        "waited_ms": _ms(done.waited),
        "kept": len(done.ranking),
        "inferences": done.tally.inferences,
        "truncated": done.tally.truncation.texts_cut,
    }
    if trace:
        report["ranking"] = [_place(hit, sent) for hit in done.whole]
    return report


def _place(hit: Hit, sent: Sequence[str] | None) -> dict[str, Any]:
    """Where a document stands, and which it is: of those that a client sends, ids may be alike."""
    if sent is None:
        return {"rank": hit.rank, "id": hit.id, "score": hit.score}
    index = int(hit.id)
    return {"rank": hit.rank, "id": sent[index], "index": index, "score": hit.score}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
