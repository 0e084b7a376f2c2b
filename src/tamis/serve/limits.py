"""Limits of a server: everything that a client can make large has a bound here."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.base.where import LONGEST
from tamis.index.dependence import MOST_TERMS as SDM_TERMS
from tamis.index.feedback import MOST_DOCS as RM3_DOCS
from tamis.index.feedback import MOST_TERMS as RM3_TERMS
from tamis.rank.groupwise import MOST_ROUNDS as ROUNDS

QUERY = 2_000  # characters of a query,
QUERY_TERMS = 512  # and terms: the words that are left after analysis
WHERE = LONGEST  # characters of a condition,
WHERE_FIELDS = 16  # and fields in it: each is read from all documents once
PIPELINE = 1_000  # characters of a pipeline
SEARCHES = 10  # stages of a pipeline that search, or look up terms for candidates
RESULTS = 1_000  # results of one answer
TEXT = 200_000  # characters of a document that a client sends
SHOWN = 20_000  # characters of a document in an answer; GET /documents gives it whole
BRIEF = 2_000  # characters of a title in an answer, and of the metadata, as JSON
MATCHED = 5_000_000  # characters of a document in which GET /documents finds the words of a query,
MATCHES = 10_000  # and how many of them it gives
ANSWER = 500_000  # characters of all documents in an answer, shared alike
VALUES = 100_000  # in a body: numbers, texts, lists, objects
FIELDS = 100  # of an object in a body
LONGEST_DEADLINE = 60.0  # seconds that a client may ask for
SLOW_CLIENT = 30.0  # seconds for the head of a request, for its body, and until a client reads on


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits set on the command line.

    >>> Limits(candidates=200).shown()["candidates"]
    200
    """

    deadline: float = 2.0  # seconds, for requests that do not say
    queue: int = 64  # requests in progress; the next gets a 503
    candidates: int = 1_000  # that a stage may keep, or a client send
    inferences: int = 30_000  # of one request: duo over k candidates takes k(k - 1)
    body: int = 4_000_000  # bytes

    def shown(self) -> dict[str, int]:
        """For clients: `deadline_ms` is what holds for requests that do not say."""
        return {
            "query": QUERY,
            "query_terms": QUERY_TERMS,
            "where": WHERE,
            "where_fields": WHERE_FIELDS,
            "sdm_terms": SDM_TERMS,
            "pipeline": PIPELINE,
            "searches": SEARCHES,
            "rm3_terms": RM3_TERMS,
            "rm3_docs": RM3_DOCS,
            "rounds": ROUNDS,
            "results": RESULTS,
            "candidates": self.candidates,
            "inferences": self.inferences,
            "text": TEXT,
            "shown": SHOWN,
            "title": BRIEF,
            "metadata": BRIEF,
            "answer": ANSWER,
            "body": self.body,
            "queue": self.queue,
            "deadline_ms": round(self.deadline * 1000),
        }
