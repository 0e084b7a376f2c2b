"""Answers as plain data, from what the stages made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tamis.base.conditions import Condition
from tamis.base.documents import Document
from tamis.core.ranking import Hit, Ranking, Span, each_document
from tamis.rank.evidence import whole_sentences
from tamis.serve.highlight import Marker
from tamis.serve.job import Done
from tamis.serve.limits import ANSWER, BRIEF, SHOWN
from tamis.serve.pipelines import Built
from tamis.serve.reach import Reach, reach
from tamis.serve.snippets import snippet
from tamis.serve.work import Outcome
from tamis.text.analyze import Analyzer


def answer(
    built: Built,
    outcome: Outcome,
    k: int | None,
    *,
    started: float,
    trace: bool,
    texts: bool = False,
    sent: Sequence[str] | None = None,
    suggestion: str | None = None,
) -> dict[str, Any]:
    """The answer to a search or a rerank, with the documents' snippets or their `texts` too; `sent` are the
    ids of the client's own documents in their order, where ours are places; `started` is when it came, by the
    monotonic clock; `suggestion` is of a search alone."""
    ranking = outcome.ranking if k is None else outcome.ranking.head(k)
    return {
        "query": ranking.query.text,
        **({"where": printed(ranking.query.where)} if sent is None else {}),
        "pipeline": built.expression,
        "kind": str(ranking.kind),
        "results": results(ranking, built.analyzer, sent, texts=texts, reached=reach(outcome)),
        "note": note(ranking, built.analyzer),
        "complete": outcome.complete,
        "finished": outcome.done[-1].step.name,
        "ms": _ms(max(time.monotonic(), outcome.not_before) - started),
        "stages": [_stage(done, trace, sent) for done in outcome.done],
        **({"suggestion": suggestion} if sent is None else {}),
    }


def streamed(
    built: Built,
    outcome: Outcome,
    k: int | None,
    *,
    started: float,
    trace: bool,
    texts: bool,
    suggestion: str | None,
) -> dict[str, Any]:
    """The answer after one of the stages of a search, for streams."""
    return {
        **answer(built, outcome, k, started=started, trace=trace, texts=texts, suggestion=suggestion),
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


def note(ranking: Ranking, analyzer: Analyzer) -> str | None:
    """Why nothing was found, where the query can find nothing; as the command line says it."""
    if len(ranking):
        return None
    if not analyzer.tokens(ranking.query.text):
        return f"the query has no terms: the analyzer {analyzer.name!r} drops every word of it"
    if ranking.query.where is not None:
        return "no document that satisfies the condition has a word of the query"
    return None


def printed(condition: Condition | None) -> str | None:
    """As it can be sent again."""
    return None if condition is None else str(condition)


def results(
    ranking: Ranking,
    analyzer: Analyzer,
    sent: Sequence[str] | None,
    *,
    texts: bool = False,
    reached: Reach | None = None,
) -> list[dict[str, Any]]:
    """Rank, score and snippet of each candidate, with the places of the query's words, and its text if asked
    for; of documents of the index the metadata too."""
    marker = Marker(analyzer, analyzer.tokens(ranking.query.text))
    found = []
    shown = shown_of_each(len(ranking))
    brief = min(BRIEF, shown)
    searched = ANSWER // max(len(ranking), 1)
    for hit, document in zip(ranking, _documents(ranking), strict=True):
        title = document.title[:brief]
        passages = whole_sentences(document.text, ranking.evidence.get(hit.id, ()))
        read = reached.of(document, hit.id) if reached and not passages else None
        part = snippet(document.text, marker, passages=passages, read=read, searched=searched)
        result: dict[str, Any] = {
            **_place(hit, sent),
            "title": title,
            "title_highlights": marker.places(title),
            "snippet": part.plain(),
            "characters": len(document.text),
            "read": None if reached is None or read is None else {"stage": reached.stage, "characters": read},
            "evidence": evidence(passages),
        }
        if sent is None:
            kept = fitting(document.metadata, brief)
            result |= {"metadata": kept, "metadata_cut": len(kept) < len(document.metadata)}
        if texts:
            text = document.text[:shown]
            cut = len(document.text) > len(text)
            result |= {"text": text, "cut": cut, "highlights": marker.places(text)}
        found.append(result)
    return found


def fitting(metadata: Mapping[str, Any], room: int) -> dict[str, Any]:
    """The fields that fit into so many characters of JSON, each if there is room for it after those before.

    >>> fitting({"year": 2019, "html": "<p>" * 1000, "lang": "en"}, room=100)
    {'year': 2019, 'lang': 'en'}
    """
    kept = {}
    for name, value in metadata.items():
        length = len(json.dumps({name: value}, ensure_ascii=False))
        if length <= room:
            kept[name], room = value, room - length
    return kept


def shown_of_each(results: int) -> int:
    """How many characters an answer shows of each document: a long answer is made of short texts.

    >>> shown_of_each(10), shown_of_each(100), shown_of_each(1000)
    (20000, 5000, 500)
    """
    return min(SHOWN, ANSWER // max(results, 1))


def _documents(ranking: Ranking) -> Iterator[Document]:
    """A few at a time: all of them may be more than the memory holds."""
    if ranking.texts is None:
        yield from ranking.documents()  # which says what is missing
    else:
        yield from each_document(ranking.texts, ranking.ids)


def evidence(passages: Sequence[Span]) -> list[dict[str, Any]]:
    """Passages as places in the whole text.

    >>> evidence([Span(2, 6, 0.5)])
    [{'start': 2, 'end': 6, 'score': 0.5}]
    """
    return [{"start": start, "end": stop, "score": score} for start, stop, score in passages]


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
    """The rank and position of a document: ids sent by a client may repeat."""
    if sent is None:
        return {"rank": hit.rank, "id": hit.id, "score": hit.score}
    index = int(hit.id)
    return {"rank": hit.rank, "id": sent[index], "index": index, "score": hit.score}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
