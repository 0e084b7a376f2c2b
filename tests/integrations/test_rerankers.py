from __future__ import annotations

import asyncio

import pytest

import tamis
from tests.integrations.conftest import QUERY, SMALL, TEXTS

pytest.importorskip("rerankers", reason="rerankers is not installed")

from rerankers.documents import Document
from rerankers.models.ranker import BaseRanker

from tamis.integrations.rerankers import TamisReranker


def test_a_ranker_ranks_texts_and_documents() -> None:
    ranker = TamisReranker(SMALL)
    assert isinstance(ranker, BaseRanker)
    expected = tamis.Mono("mono-nano").rank(QUERY, TEXTS)
    results = ranker.rank(QUERY, TEXTS, doc_ids=["a", "b", "c"], metadata=[{"n": n} for n in range(3)])
    assert [each.doc_id for each in results] == ["abc"[each.position] for each in expected]
    assert [each.score for each in results] == [each.score for each in expected]
    assert [each.rank for each in results] == [1, 2, 3] and results.has_scores
    assert (results.top_k(1)[0].text, results.top_k(1)[0].metadata) == (TEXTS[2], {"n": 2})
    documents = [Document(text, doc_id=f"x{place}") for place, text in enumerate(TEXTS)]
    assert ranker.rank(QUERY, documents).top_k(1)[0].document is documents[2]
    assert ranker.score(QUERY, TEXTS[2]) == pytest.approx(expected[0].score, abs=1e-4)
    again = asyncio.run(ranker.rank_async(QUERY, TEXTS))
    assert [each.score for each in again] == [each.score for each in expected]
