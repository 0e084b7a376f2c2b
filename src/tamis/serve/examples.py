"""Queries that the page proposes."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from tamis.formats import read_queries
from tamis.index.index import Index
from tamis.serve.limits import QUERY

_SHOWN = 6
_OF_THE_DEMO = ("q009", "q032", "q088")


def example_queries(index: Index, path: Path | None = None) -> list[str]:
    """The first few queries of a file; by default of the bundled collection, if it is indexed."""
    if path is not None:
        return [query.text for query in read_queries(path) if len(query.text) <= QUERY][:_SHOWN]
    if not _is_demo(index):
        return []
    with as_file(files("tamis") / "demo_data" / "queries.jsonl") as bundled:
        queries = {query.id: query.text for query in read_queries(bundled)}
    return [queries[doc_id] for doc_id in _OF_THE_DEMO]


def _is_demo(index: Index) -> bool:
    with as_file(files("tamis") / "demo_data" / "qrels.txt") as qrels, qrels.open(encoding="utf-8") as lines:
        judged = {line.split()[2] for line in lines}
    return not index.missing(judged)
