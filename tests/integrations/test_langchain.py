from __future__ import annotations

import asyncio
import copy

import pytest

import tamis
from tamis import Index
from tests.integrations.conftest import QUERY, SMALL, TEXTS

pytest.importorskip("langchain_core", reason="langchain-core is not installed")

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from tamis.integrations.langchain import TamisReranker, TamisRetriever


def documents() -> list[Document]:
    return [
        Document(page_content=text, id=f"d{place}", metadata={"source": place, "title": f"T{place}"})
        for place, text in enumerate(TEXTS)
    ]


def test_a_compressor_reranks_copies() -> None:
    compressor = TamisReranker(pipeline=SMALL, top_n=2)
    assert isinstance(compressor, BaseDocumentCompressor)
    given = documents()
    before = copy.deepcopy(given)
    found = compressor.compress_documents(given, QUERY)
    assert [each.id for each in found] == ["d2", "d1"]
    expected = tamis.Mono("mono-nano").rank(QUERY, TEXTS)
    assert [each.metadata["relevance_score"] for each in found] == [each.score for each in expected[:2]]
    assert found[0].metadata["source"] == 2
    assert given == before
    assert asyncio.run(compressor.acompress_documents(given, QUERY)) == found


def test_documents_are_ranked_as_they_are() -> None:
    stage = tamis.Mono("mono-nano")
    ranked = stage.rank(QUERY, documents())
    assert [(each.id, each.text) for each in ranked] == [
        (f"d{each.position}", TEXTS[each.position]) for each in stage.rank(QUERY, TEXTS)
    ]


def test_stages_can_be_given_and_a_title_read() -> None:
    stage = tamis.Mono("mono-nano") % 2
    plain = TamisReranker(pipeline=stage).compress_documents(documents(), QUERY)
    titled = TamisReranker(pipeline=stage, title="title").compress_documents(documents(), QUERY)
    assert len(plain) == len(titled) == 2
    with_titles = [tamis.Document(str(n), text, title=f"T{n}") for n, text in enumerate(TEXTS)]
    scores = [each.score for each in stage.rank(QUERY, with_titles)]
    assert [each.metadata["relevance_score"] for each in titled] == scores


@pytest.mark.parametrize("opened", [True, False])
def test_a_retriever_searches_an_index(index: Index, opened: bool) -> None:
    retriever = TamisRetriever(
        index=index if opened else str(index.path), pipeline=f"bm25 % 3 >> {SMALL}", k=2
    )
    assert isinstance(retriever, BaseRetriever)
    found = retriever.invoke(QUERY)
    best = index.pipeline(f"bm25 % 3 >> {SMALL}")(QUERY)[0]
    assert [each.id for each in found] == ["d2", "d1"]
    assert (found[0].page_content, found[0].metadata) == (
        TEXTS[2],
        {"year": 2002, "title": "T2", "score": best.score},
    )
    assert asyncio.run(retriever.ainvoke(QUERY)) == found
    assert retriever.batch([QUERY, "onions"])[1][0].id == "d0"
    assert retriever.invoke("zebra") == []


def test_a_retriever_obeys_a_condition(index: Index) -> None:
    every = [each.id for each in TamisRetriever(index=index, pipeline="bm25").invoke(QUERY)]
    found = TamisRetriever(index=index, pipeline="bm25", where=f"id != {every[0]}").invoke(QUERY)
    assert [each.id for each in found] == every[1:]


def test_both_in_a_chain(index: Index) -> None:
    reranker = TamisReranker(pipeline=SMALL, top_n=1)
    retriever = TamisRetriever(index=index, pipeline="bm25")
    chain = retriever | RunnableLambda(lambda found: reranker.compress_documents(found, QUERY))
    assert [each.id for each in chain.invoke(QUERY)] == ["d2"]
