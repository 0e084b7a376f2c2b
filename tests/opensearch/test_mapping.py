"""An index in a cluster is one that ranks as ours: the same terms, similarities, and nothing lost."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tamis.base.documents import Document
from tamis.base.errors import InputError, TamisError
from tamis.index.opensearch import mapping
from tamis.index.opensearch.connection import connect
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.writer import Wanted, build
from tamis.index.score import BM25, QueryLikelihood
from tamis.text.analyze import get_analyzer
from tests.conftest import DEMO_CORPUS
from tests.opensearch.conftest import Cluster
from tests.opensearch.servers import CLUSTER, Request, says, serving

ASSETS = Path(__file__).parents[1] / "assets" / "lucene_analysis"


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def _texts() -> list[str]:
    """Real and hostile ones; what is no valid Unicode cannot be sent."""
    texts = [json.loads(line)["text"] for line in _lines(ASSETS / "texts.jsonl.gz")]
    texts += [" ".join(line.split("\t")[0] for line in _lines(ASSETS / "stems.tsv.gz"))]
    texts += [json.loads(line)["text"] for line in _lines(DEMO_CORPUS)[:300]]
    letters = ("a", "é", "\U0001d4d0", "日", "ก", "ア", "a\u0301", "😀", "👨‍👩‍👧", "1", "ab'")
    texts += [f"x {letter * number} y" for letter in letters for number in (100, 127, 128, 255, 256, 700)]
    points = [f"a{chr(each)}b" for each in range(0x20, 0x110000, 7) if not 0xD800 <= each < 0xE000]
    texts += [" ".join(points[at : at + 2000]) for at in range(0, len(points), 2000)]
    return [text for text in texts if text.isascii() or not any("\ud800" <= c < "\ue000" for c in text)]


@pytest.mark.opensearch
@pytest.mark.parametrize("analyzer", ["english", "plain"])
def test_the_cluster_makes_the_same_terms(cluster: Cluster, index_name: str, analyzer: str) -> None:
    body = mapping.body_of(mapping.new_meta(index_name, analyzer=analyzer))
    body["settings"]["analyze.max_token_count"] = 1_000_000
    cluster.request("PUT", f"/{index_name}", body)
    ours = get_analyzer(analyzer)
    for text in _texts():
        asked = {"analyzer": "tamis", "text": text}
        answer = cluster.request("POST", f"/{index_name}/_analyze", asked) if text else {"tokens": []}
        assert [each["token"] for each in answer["tokens"]] == ours.tokens(text)


def test_a_cluster_that_analyses_otherwise_is_refused() -> None:
    def answer(request: Request) -> Any:
        return says(CLUSTER if request.path == "/" else {"tokens": [{"token": "cook"}, {"token": "sieves"}]})

    with serving(answer) as server, pytest.raises(ClusterError) as refusal:
        mapping.check_analysis(connect(server.address()), "english")
    assert "makes other terms of a text: 'sieves', not 'siev'" in str(refusal.value)


@pytest.mark.opensearch
def test_every_similarity_scores_by_itself(cluster: Cluster, index_name: str) -> None:
    similarities = (
        BM25(1.2, 0.75),
        QueryLikelihood(500.0),
        BM25(0.5, 0.0),
        QueryLikelihood(smoothing="jelinek-mercer"),
    )
    documents = [Document("d1", "a sieve of horsehair"), Document("d2", "sieves and sieves", title="Sieve")]
    made = build(documents, cluster.address(index_name), wanted=Wanted(similarities=similarities))
    assert tuple(made.fields) == similarities
    assert len(set(made.fields.values())) == 4
    scores = set()
    for field in made.fields.values():
        found = cluster.request("POST", f"/{index_name}/_search", {"query": {"term": {field: "siev"}}})
        hits = found["hits"]["hits"]
        assert {hit["_id"] for hit in hits} == {"d1", "d2"}
        scores.add(hits[0]["_score"])
    assert len(scores) == 4


@pytest.mark.opensearch
def test_what_is_written_down_is_read_again(cluster: Cluster, index_name: str) -> None:
    wanted = Wanted("plain", (BM25(1.5, 0.6),), shards=2)
    made = build([Document("d1", "sieves")], cluster.address(index_name), wanted=wanted)
    read = mapping.read_meta(cluster.connect(index_name))
    assert read == made
    assert (read.analyzer, read.shards, read.documents, read.expressions) == (
        "plain",
        2,
        1,
        ["bm25(k1=1.5, b=0.6)"],
    )
    cluster.request(
        "POST", "/_aliases", {"actions": [{"add": {"index": index_name, "alias": f"{index_name}-a"}}]}
    )
    assert mapping.read_meta(cluster.connect(f"{index_name}-a")) == made
    with pytest.raises(InputError, match=f"is an alias of the index {index_name}: write to that index"):
        build([Document("d2", "x")], cluster.address(f"{index_name}-a"), how="add")


@pytest.mark.opensearch
def test_metadata_of_any_type_loses_no_document(cluster: Cluster, index_name: str) -> None:
    every: list[dict[str, Any]] = [
        {"year": 1950},
        {"year": "unknown"},
        {"year": {"from": 1, "to": None}},
        {"year": [1, "x", {"y": []}]},
        {"": 1, "a.b.": 2, "a": {"b": True}, ".": None},
        {f"key{number}": number for number in range(3000)},
        {"large": 10**30, "small": 1e-300, "deep": json.loads("[" * 90 + "]" * 90)},
        {"_id": "other", "_source": 1, "id": "other", "text": "other"},
    ]
    documents = [Document(f"d{number}", "text", metadata=each) for number, each in enumerate(every)]
    build(documents, cluster.address(index_name))
    for document in documents:
        source = cluster.request("GET", f"/{index_name}/_doc/{document.id}")["_source"]
        assert source["metadata"] == document.metadata
        assert (source["id"], source["text"]) == (document.id, "text")


@pytest.mark.opensearch
def test_ids_of_all_kinds(cluster: Cluster, index_name: str) -> None:
    ids = ["a b", "ü/é?x=1&y#z", "..", "_x", '"q"\\', "\u2028", "x" * 512, "é" * 256, "0", "😀\n"]
    build([Document(doc_id, "sieve") for doc_id in ids], cluster.address(index_name))
    body = {"query": {"match_all": {}}, "sort": ["id"], "size": 100}
    hits = cluster.request("POST", f"/{index_name}/_search", body)["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == sorted(ids, key=str.encode)
    assert [hit["_source"]["id"] for hit in hits] == sorted(ids, key=str.encode)
    with pytest.raises(InputError, match=r"the id 'x+\.\.\. has 513 bytes: OpenSearch takes 512 at most"):
        build([Document("x" * 513, "sieve")], cluster.address(index_name), how="add")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tfidf", "is not a similarity of OpenSearch"),
        ("bm25 % 10", "is not a similarity of OpenSearch"),
        ("bm25(variant=atire)", "is not a similarity of OpenSearch"),
        ("bm25(1, 2, 3, 4)", "too many values"),
        ("bm25(1, k1=2)", "too many values"),
        ("bm25(k2=1)", "bm25 has no option 'k2'"),
        ("bm25(x, 1)", "k1 of bm25 cannot be x"),
        ("bm25(true)", "k1 of bm25 cannot be True"),
        ("bm25(-1)", "use 0 <= k1"),
        ("ql(0)", "use 1e-09 <= mu"),
        ("ql(mono)", "mu of ql cannot be mono"),
        ("bm25(", "column 6 of the pipeline"),
    ],
)
def test_what_is_no_similarity(text: str, told: str) -> None:
    with pytest.raises(TamisError) as refusal:
        mapping.similarity(text)
    assert told in str(refusal.value)


def test_a_bm25_is_needed() -> None:
    with pytest.raises(InputError, match=r"no bm25 among the similarities \(ql\(mu=9\.0\)\): add one"):
        mapping.new_meta("x", similarities=(QueryLikelihood(9.0),))
