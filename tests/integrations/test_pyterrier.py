from __future__ import annotations

import pytest

import tamis
from tamis import Index
from tests.integrations.conftest import QUERY, SMALL, TEXTS

pytest.importorskip("pyterrier", reason="python-terrier is not installed")

import pandas as pd
import pyterrier as pt

from tamis.integrations.pyterrier import TamisReranker, TamisRetriever

TOPICS = pd.DataFrame({"qid": ["1", "2"], "query": [QUERY, "onions"], "lang": ["en", "en"]})


def results() -> pd.DataFrame:
    rows = [
        {"qid": qid, "query": query, "docno": f"d{place}", "text": text, "head": f"T{place}", "score": 1.0}
        for qid, query in zip(TOPICS["qid"], TOPICS["query"], strict=True)
        for place, text in enumerate(TEXTS)
    ]
    return pd.DataFrame(rows, index=[3] * len(rows))


def test_a_retriever_searches_an_index(index: Index) -> None:
    retriever = TamisRetriever(str(index.path), "bm25 % 10", text=True)
    found = retriever(TOPICS)
    assert found.columns.tolist() == ["qid", "query", "lang", "docno", "score", "text", "rank"]
    expected = {
        qid: (index.bm25() % 10)(query) for qid, query in zip(TOPICS.qid, TOPICS["query"], strict=True)
    }
    for qid, ranking in expected.items():
        own = found[found.qid == qid]
        assert own.docno.tolist() == list(ranking.ids)
        assert own.score.tolist() == pytest.approx(ranking.scores.tolist())
        assert own["rank"].tolist() == list(range(len(ranking)))
    assert found[found.docno == "d0"].text.tolist() == [TEXTS[0]]
    assert "text" not in TamisRetriever(index)(TOPICS).columns
    for none in (TOPICS.head(0), pd.DataFrame({"qid": ["9"], "query": ["zebra"], "lang": ["en"]})):
        assert retriever(none).columns.tolist() == found.columns.tolist()
        assert len(retriever(none)) == 0


def test_a_retriever_obeys_a_condition(index: Index) -> None:
    found = TamisRetriever(index, "bm25 % 10", where="id != d0")(TOPICS)
    every = TamisRetriever(index, "bm25 % 10")(TOPICS)
    assert found.docno.tolist() == [each for each in every.docno if each != "d0"] != every.docno.tolist()


def test_a_reranker_ranks_each_querys_rows() -> None:
    frame = results()
    before = frame.copy(deep=True)
    found = TamisReranker(SMALL)(frame)
    pd.testing.assert_frame_equal(frame, before)
    for qid, query in zip(TOPICS.qid, TOPICS["query"], strict=True):
        own, expected = found[found.qid == qid], tamis.Mono("mono-nano").rank(query, TEXTS)
        assert own.docno.tolist() == [f"d{each.position}" for each in expected]
        assert own.score.tolist() == [each.score for each in expected]
        assert own["rank"].tolist() == [0, 1, 2]
    assert found["head"].str[1:].tolist() == found["docno"].str[1:].tolist()
    empty = TamisReranker(SMALL)(frame.head(0))
    assert len(empty) == 0 and {"score", "rank", "docno"} <= set(empty.columns)


def test_other_columns_can_be_named() -> None:
    frame = results().rename(columns={"text": "body"})
    titled = TamisReranker(SMALL, text="body", title="head")(frame)
    documents = [tamis.Document(str(n), text, title=f"T{n}") for n, text in enumerate(TEXTS)]
    expected = tamis.Mono("mono-nano").rank(QUERY, documents)
    assert titled.score[:3].tolist() == [each.score for each in expected]
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        TamisReranker(SMALL)(frame)


def test_in_a_pipeline_and_an_experiment(index: Index) -> None:
    first = TamisRetriever(index, "bm25 % 3", text=True)
    pipeline = first >> TamisReranker(tamis.Mono("mono-nano")) % 2
    found = pipeline(TOPICS)
    assert found[found.qid == "1"].docno.tolist() == ["d2", "d1"]
    assert pipeline.search(QUERY).docno.tolist() == ["d2", "d1"]
    qrels = pd.DataFrame({"qid": ["1", "2"], "docno": ["d2", "d0"], "label": [1, 1]})
    table = pt.Experiment([first, pipeline], TOPICS, qrels, ["recip_rank"], names=["first", "both"])
    assert table["name"].tolist() == ["first", "both"]
    assert table["recip_rank"].tolist()[1] == 1.0
