from __future__ import annotations

import asyncio
import copy

import pytest

import tamis
from tests.integrations.conftest import QUERY, SMALL, TEXTS

pytest.importorskip("haystack", reason="haystack-ai is not installed")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.document_stores.in_memory import InMemoryDocumentStore

from tamis.integrations.haystack import TamisReranker


def documents() -> list[Document]:
    return [
        Document(id=f"d{place}", content=text, meta={"title": f"T{place}"}, score=0.5)
        for place, text in enumerate(TEXTS)
    ]


def test_a_component_reranks_copies() -> None:
    component = TamisReranker(SMALL, top_k=2)
    component.warm_up()
    given = documents()
    before = copy.deepcopy(given)
    found = component.run(QUERY, given)["documents"]
    assert [each.id for each in found] == ["d2", "d1"]
    expected = tamis.Mono("mono-nano").rank(QUERY, TEXTS)
    assert [each.score for each in found] == [each.score for each in expected[:2]]
    assert given == before
    assert [each.id for each in component.run(QUERY, given, top_k=1)["documents"]] == ["d2"]
    assert asyncio.run(component.run_async(QUERY, given))["documents"] == found
    assert component.run(QUERY, []) == {"documents": []}


def test_documents_are_ranked_as_they_are() -> None:
    ranked = (tamis.Mono("mono-nano") % 2).rank(QUERY, documents())
    assert [(each.id, each.text) for each in ranked] == [("d2", TEXTS[2]), ("d1", TEXTS[1])]


def test_in_a_pipeline_that_is_saved_and_loaded() -> None:
    store = InMemoryDocumentStore()
    store.write_documents([Document(id=each.id, content=each.content) for each in documents()])
    pipeline = Pipeline()
    pipeline.add_component("retriever", InMemoryBM25Retriever(document_store=store))
    pipeline.add_component("reranker", TamisReranker(tamis.Mono("mono-nano") % 2, title="title"))
    pipeline.connect("retriever.documents", "reranker.documents")
    asked = {"retriever": {"query": QUERY}, "reranker": {"query": QUERY}}
    found = pipeline.run(asked)["reranker"]["documents"]
    assert [each.id for each in found] == ["d2", "d1"]
    saved = pipeline.to_dict()["components"]["reranker"]
    assert saved == {
        "type": "tamis.integrations.haystack.TamisReranker",
        "init_parameters": {"pipeline": "mono(model=mono-nano) % 2", "top_k": None, "title": "title"},
    }
    assert TamisReranker.from_dict(saved).run(QUERY, documents()) == TamisReranker(
        "mono(model=mono-nano) % 2", title="title"
    ).run(QUERY, documents())
    # which modules a file may name is for whoever loads it to say
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["tamis.integrations.haystack"])
    assert isinstance(again.get_component("reranker"), TamisReranker)
