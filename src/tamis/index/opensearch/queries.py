"""The bodies of requests to a cluster, and the values in its answers: no request is made here.

A query is a bag of analysed terms, so each is a `term` clause of its own with its weight as the boost, which
the cluster does not analyse. Equal scores are sorted by id in the same order as here: by code points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError, quoted
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.mapping import ID, METADATA, TEXT, TITLE

DEEPEST = 10_000  # hits of one request (index.max_result_window)
_MOST_IDS = 50_000  # of one clause (index.max_terms_count is 65,536)
_WEIGHT = re.compile(r"weight\([^:]*:(?P<term>.*) in \d+\)", re.DOTALL)

#: What is read of the statistics of an index.
STATE = ",".join(
    f"indices.*.{each}"
    for each in (
        "uuid",
        "primaries.docs.count",
        "shards.*.routing.primary",
        "shards.*.seq_no.max_seq_no",
    )
)
Body = dict[str, Any]


def clauses(field: str, weights: Mapping[str, float], factor: float) -> list[Body]:
    """A clause for each term, for scores that are `factor` times too large.

    >>> clauses("contents", {"siev": 2.0, "of": 0.0}, 1.0)
    [{'term': {'contents': {'value': 'siev', 'boost': 2.0}}}]
    """
    negative = next((term for term, weight in weights.items() if weight < 0), None)
    if negative is not None:
        problem = f"the weight of {quoted(negative)} is {weights[negative]}"
        raise InputError(problem, remedy="OpenSearch takes no weights below zero: use an index on disk")
    return [
        {"term": {field: {"value": term, "boost": weight / factor}}}
        for term, weight in weights.items()
        if weight
    ]


def query(terms: Sequence[Body], only: Sequence[str] | None, without: Sequence[str] | None) -> Body:
    """Documents that hold any of the terms, within a filter by id."""
    asked: Body = {"should": list(terms), "minimum_should_match": 1}
    if only is not None:
        asked["filter"] = [{"bool": {"should": _among(only), "minimum_should_match": 1}}]
    if without:
        asked["must_not"] = _among(without)
    return {"bool": asked}


def _among(ids: Sequence[str]) -> list[Body]:
    """
    >>> _among(["d1", "d2"])
    [{'terms': {'id': ['d1', 'd2']}}]
    """
    parts = [ids[start : start + _MOST_IDS] for start in range(0, len(ids), _MOST_IDS)]
    return [{"terms": {ID: list(part)}} for part in parts or [[]]]


def best(asked: Body, k: int, after: Sequence[Sequence[Any]] = ()) -> Body:
    """The k best documents in our one order, or after the last of a page before."""
    body = {
        "size": min(k, DEEPEST),
        "query": asked,
        "sort": [{"_score": "desc"}, {ID: "asc"}],
        "track_total_hits": False,
        "_source": False,
        "stored_fields": "_none_",  # the values that are sorted by say it all
    }
    return body | {"search_after": after[-1]} if after else body


def number_of_documents() -> Body:
    """How many documents there are."""
    return {"size": 0, "track_total_hits": True, "query": {"match_all": {}}}


def all_documents(size: int, *, texts: bool, after: Sequence[Any] | None = None) -> Body:
    """A page of all documents, in the order of their ids."""
    body = {
        "size": size,
        "query": {"match_all": {}},
        "sort": [{ID: "asc"}],
        "track_total_hits": False,
        "_source": [ID, TITLE, TEXT, METADATA] if texts else False,
    }
    return body if after is None else body | {"search_after": list(after)}


def holding(field: str, term: str) -> Body:
    """How many documents hold a term."""
    return {"size": 0, "track_total_hits": True, "query": {"term": {field: {"value": term}}}}


def explained(asked: Body) -> Body:
    """The best document of a query, with the reasons for its score."""
    return {"size": 1, "explain": True, "query": asked, "track_total_hits": False, "_source": False}


def copies(weights: Mapping[str, float]) -> str:
    """Which copies of the shards answer a query: always the same ones, as long as they are up, because copies
    may count deleted documents differently; other queries go to others."""
    seen = xxhash.xxh3_64()
    for term in sorted(weights):
        seen.update(f"{term} ".encode("utf-8", "surrogatepass"))
    return str(seen.hexdigest())


# -- answers
# ------------------------------------------------------------------------------------------------------------


def hits(answer: Mapping[str, Any]) -> list[Any]:
    """The hits of a search. Where there are none, nothing of them may be in the answer."""
    found: list[Any] = answer.get("hits", {}).get("hits", [])
    return found


def ids_and_scores(values: Sequence[Sequence[Any]]) -> tuple[list[str], Array]:
    """From the values that hits are sorted by. Lucene puts documents last in which no term counts, with a
    score of zero: to us they are not found.

    >>> ids_and_scores([[2.5, "d1"], [0.0, "d2"]])
    (['d1'], array([2.5], dtype=float32))
    """
    scores = np.array([score for score, _ in values], np.float32)
    count = int((scores > 0).sum())
    ids = [doc_id for _, doc_id in values[:count]]
    if None in ids:
        raise without_id()
    return ids, scores[:count]


def without_id() -> ClusterError:
    """The error for a document that cannot be named, nor sorted among equal ones."""
    problem = f"the index in the cluster holds documents without the field `{ID}`, written by another client"
    return ClusterError(problem, remedy=f"write them again with the value of `_id` in `{ID}`")


def document_of(hit: Mapping[str, Any]) -> Document:
    """A document as it was indexed.

    >>> document_of({"_id": "d1", "_source": {"text": "a sieve"}})
    Document(id='d1', text='a sieve', title='', metadata={})
    """
    source = hit.get("_source", {})
    return Document(hit["_id"], source.get(TEXT) or "", source.get(TITLE) or "", source.get(METADATA) or {})


def last_operations(about: Mapping[str, Any]) -> dict[int, int]:
    """The number of the last operation on each shard, by the primaries that are there."""
    return {
        int(shard): copy["seq_no"]["max_seq_no"]
        for shard, copies in about.get("shards", {}).items()
        for copy in copies
        if copy["routing"]["primary"] and "seq_no" in copy
    }


def explanation_in(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the first hit; an empty one where there is none."""
    return next((hit["_explanation"] for hit in hits(answer)), {})


def terms_explained(explanation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The part of an explanation for each term."""
    found = {}
    for node in _walk(explanation):
        if (match := _WEIGHT.match(node["description"])) is not None:
            found[match["term"]] = node
    return found


def value_of(explanation: Mapping[str, Any], beginning: str) -> float | None:
    """The value of the first part of an explanation whose description begins so.

    >>> value_of({"value": 1.9, "description": "boost", "details": []}, "boost")
    1.9
    """
    nodes = (node for node in _walk(explanation) if node["description"].startswith(beginning))
    return next((float(node["value"]) for node in nodes), None)


def _walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if node:
        yield node
    for each in node.get("details", ()):
        yield from _walk(each)
