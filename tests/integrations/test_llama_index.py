from __future__ import annotations

import asyncio
import copy

import pytest

import tamis
from tamis.base.errors import InputError
from tests.integrations.conftest import QUERY, SMALL, TEXTS

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")

from llama_index.core import Settings
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from tamis.integrations.llama_index import TamisReranker


def nodes() -> list[NodeWithScore]:
    return [
        NodeWithScore(node=TextNode(text=text, id_=f"n{place}", metadata={"title": f"T{place}"}), score=0.5)
        for place, text in enumerate(TEXTS)
    ]


def test_a_postprocessor_reranks_nodes() -> None:
    reranker = TamisReranker(pipeline=SMALL, top_n=2)
    assert isinstance(reranker, BaseNodePostprocessor)
    given = nodes()
    before = copy.deepcopy(given)
    found = reranker.postprocess_nodes(given, query_str=QUERY)
    assert [each.node_id for each in found] == ["n2", "n1"]
    expected = tamis.Mono("mono-nano").rank(QUERY, TEXTS)
    assert [each.score for each in found] == [each.score for each in expected[:2]]
    assert given == before
    assert found[0].node is given[2].node
    assert reranker.postprocess_nodes(given, QueryBundle(QUERY)) == found
    assert asyncio.run(reranker.apostprocess_nodes(given, query_str=QUERY)) == found
    assert reranker.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(InputError, match="nodes without a query: give query_bundle or query_str"):
        reranker.postprocess_nodes(given)


def test_nodes_are_ranked_as_they_are() -> None:
    ranked = (tamis.Mono("mono-nano") % 2).rank(QUERY, nodes())
    assert [(each.id, each.text) for each in ranked] == [("n2", TEXTS[2]), ("n1", TEXTS[1])]
    bare = tamis.Mono("mono-nano").rank(QUERY, [each.node for each in nodes()])
    assert [each.id for each in bare[:2]] == ["n2", "n1"]


def test_it_can_be_saved_and_loaded() -> None:
    reranker = TamisReranker(pipeline=tamis.Mono("mono-nano") % 2, title="title")
    saved = reranker.to_dict()
    assert saved["pipeline"] == "mono(model=mono-nano) % 2" and saved["class_name"] == "TamisReranker"
    again = TamisReranker.from_dict(saved)
    found = again.postprocess_nodes(nodes(), query_str=QUERY)
    assert found == reranker.postprocess_nodes(nodes(), query_str=QUERY) and len(found) == 2
    assert found != TamisReranker(pipeline=SMALL, top_n=2).postprocess_nodes(nodes(), query_str=QUERY)


def test_in_a_query_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", MockLLM())

    class All(BaseRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return nodes()

    engine = RetrieverQueryEngine(
        All(),
        get_response_synthesizer(response_mode=ResponseMode.NO_TEXT),
        node_postprocessors=[TamisReranker(pipeline=SMALL, top_n=1)],
    )
    assert [each.node_id for each in engine.query(QUERY).source_nodes] == ["n2"]
