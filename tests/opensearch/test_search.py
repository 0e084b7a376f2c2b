"""An index in a cluster ranks as the one on disk does, and is asked in few requests."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
import secrets
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking
from tamis.base.errors import InputError, TamisError, UnknownDocumentError
from tamis.cli import main
from tamis.core.stage import Stage
from tamis.evaluate.measures import evaluate
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.index.feedback import RM3
from tamis.index.index import TermContribution
from tamis.index.opensearch import queries as asked
from tamis.index.opensearch import writer
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.index import OpenSearchIndex
from tamis.index.opensearch.mapping import Similarity
from tamis.index.score import BM25, QueryLikelihood
from tests.opensearch.conftest import Cluster

pytestmark = pytest.mark.opensearch

DEMO = files("tamis") / "demo_data"
SIMILARITIES: tuple[Similarity, ...] = (BM25(0.9, 0.4), BM25(1.2, 0.75), QueryLikelihood(1000.0))
PIPELINES = ("bm25 % 100", "bm25(k1=1.2, b=0.75) % 100", "ql % 100", "bm25 >> rm3 % 100", "ql >> rm3 % 100")


def build(address: str, documents: list[Document], shards: int = 3) -> OpenSearchIndex:
    wanted = writer.Wanted(similarities=SIMILARITIES, shards=shards, replicas=0)
    writer.build(documents, address, wanted=wanted)
    return OpenSearchIndex.open(address)


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    return read_queries(str(DEMO / "queries.jsonl"))


@pytest.fixture(scope="module")
def pair(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Index, OpenSearchIndex]]:
    """The bundled collection on disk and in the cluster."""
    documents = list(read_corpus(str(DEMO / "corpus.jsonl.gz")))
    name = f"tamis-test-{secrets.token_hex(6)}"
    disk = Index.build(documents, tmp_path_factory.mktemp("disk") / "idx")
    yield disk, build(cluster.address(name), documents)
    cluster.delete(name)


@pytest.fixture
def requests(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the cluster has been asked since the last call."""
    caplog.set_level(logging.INFO, "opensearch")

    def made() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "opensearch"]
        caplog.clear()
        return [line.split()[1].rpartition("/")[2].partition("?")[0] for line in lines if line[0] in "GP"]

    return made


# -- the same rankings
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", PIPELINES)
def test_rankings_are_those_of_the_index_on_disk(
    pair: tuple[Index, OpenSearchIndex], queries: list[Query], expression: str
) -> None:
    disk, cluster = (index.pipeline(expression).run(queries) for index in pair)
    qrels = read_qrels(str(DEMO / "qrels.txt"))
    one, other = (evaluate(qrels, run, ["nDCG@10", "AP"]).mean for run in (disk, cluster))
    assert one == pytest.approx(other, abs=0.001)
    for qid, ranking in disk.items():
        scores = dict(zip(cluster[qid].ids, cluster[qid].scores.tolist(), strict=True))
        assert len(scores) == len(ranking)
        for mine, theirs in zip(ranking, cluster[qid], strict=True):
            assert theirs.score == pytest.approx(mine.score, rel=1e-6)
            assert theirs.id == mine.id or scores.get(mine.id) == pytest.approx(theirs.score, rel=1e-6)


@pytest.mark.parametrize("model", SIMILARITIES)
def test_scores_without_weights_are_equal_to_the_last_bit(
    pair: tuple[Index, OpenSearchIndex], queries: list[Query], model: Similarity
) -> None:
    for query in queries[:20]:
        (ids, scores), (others, theirs) = (
            index.search(index.weights(query.text), model, 50) for index in pair
        )
        assert ids == others
        np.testing.assert_array_equal(scores, theirs)


def test_the_statistics_are_those_of_the_index_on_disk(pair: tuple[Index, OpenSearchIndex]) -> None:
    disk, cluster = pair
    assert cluster.collection == disk.collection
    assert len(cluster) == len(disk)
    weights = disk.weights("the director of the film film zzzz")
    for model in (BM25(), QueryLikelihood()):
        mine, theirs = disk.statistics(weights, model), cluster.statistics(weights, model)
        assert mine.df.tolist() == theirs.df.tolist()
        assert mine.weight.tolist() == theirs.weight.tolist()
    assert mine.cf.tolist() == theirs.cf.tolist()
    ids = disk.bm25()("film director").ids[:20]
    for mine_, theirs_ in zip(
        disk.matches(ids, ["film", "zzzz"]), cluster.matches(ids, ["film", "zzzz"]), strict=True
    ):
        np.testing.assert_array_equal(mine_, theirs_)
    assert [cluster.document_terms(each) for each in ids] == [disk.document_terms(each) for each in ids]


def test_equal_scores_are_sorted_by_id_at_the_cut_too(cluster: Cluster, new_index: Callable[[], str]) -> None:
    ids = [f"{prefix}{number}" for prefix in ("é", "z", "Z", "a", "𝔸", "～") for number in range(8)]
    index = build(cluster.address(new_index()), [Document(each, "a sieve") for each in ids])
    for k in (1, 7, 33, 100):
        assert (
            list(index.bm25().search([Ranking(Query("q", ""))], [{"siev": 1.0}], k)[0].ids) == sorted(ids)[:k]
        )


def test_a_search_deeper_than_one_page(cluster: Cluster, new_index: Callable[[], str]) -> None:
    documents = [
        Document(f"d{number:05}", "sieve " * (1 + number % 3)) for number in range(asked.DEEPEST + 300)
    ]
    index = build(cluster.address(new_index()), documents)
    ids, scores = index.search({"siev": 1.0}, BM25(), 20_000)
    assert len(ids) == len(documents) == len(set(ids))
    by_score = sorted(zip((-scores).tolist(), ids, strict=True))
    assert ids == [doc_id for _, doc_id in by_score]
    assert index.search({"siev": 1.0}, BM25(), asked.DEEPEST + 7)[0] == ids[: asked.DEEPEST + 7]
    assert list(index.ids()) == [document.id for document in documents]
    assert [document.id for document in index] == [document.id for document in documents]


def test_filters_by_id(pair: tuple[Index, OpenSearchIndex]) -> None:
    disk, cluster = pair
    found = disk.bm25()("film director").ids
    for only, without in (
        (found[5:90:3], None),
        (None, found[:7]),
        (found[:9], found[3:5]),
        ([], None),
        (["?"], None),
    ):
        mine, theirs = (each.bm25(only=only, without=without)("film director") for each in (disk, cluster))
        assert mine == theirs
    with pytest.raises(InputError, match="a list is expected"):
        cluster.bm25(only="d1")


def test_nothing_to_find(pair: tuple[Index, OpenSearchIndex]) -> None:
    _, cluster = pair
    assert cluster.search({}, BM25(), 10)[0] == []
    assert cluster.search({"film": 1.0}, BM25(), 0)[0] == []
    assert cluster.search({"film": 0.0, "zzzzzz": 1.0}, BM25(), 10)[0] == []
    assert cluster.search_all([], BM25(), 10) == []
    with pytest.raises(InputError, match="no weights below zero"):
        cluster.search({"film": -1.0}, BM25(), 10)
    with pytest.raises(InputError, match="cannot find -1 documents"):
        cluster.search({"film": 1.0}, BM25(), -1)


def test_explanations_add_up(pair: tuple[Index, OpenSearchIndex]) -> None:
    disk, cluster = pair

    def explained(index: Index, stage: Stage, searched: Ranking) -> tuple[float, list[TermContribution]]:
        (after,) = stage.apply([searched], 10)
        return after[3].score, list(stage.explain(searched, after, after[3].id) or ())

    for first in ("bm25(k1=1.2, b=0.75)", "ql"):
        for again in (False, True):
            found = []
            for index in pair:
                stage, before = index.pipeline(first), Ranking(Query("q", "film director"))
                if again:
                    stage, before = RM3(), stage("film director")
                found.append(explained(index, stage, before))
            (_, mine), (score, theirs) = found
            assert len(theirs) > 1
            for one, other in zip(mine, theirs, strict=True):
                assert (other.term, other.tf, other.df) == (one.term, one.tf, one.df)
                assert other.weight == pytest.approx(one.weight, rel=1e-6)
                assert other.contribution == pytest.approx(one.contribution, rel=1e-6)
            assert sum(line.contribution for line in theirs) == pytest.approx(score, rel=1e-6)
    with pytest.raises(UnknownDocumentError, match="holds no document 'nope'"):
        cluster.explain({"film": 1.0}, BM25(), "nope")
    far = next(each for each in disk.ids() if "film" not in disk.document_terms(each))
    assert cluster.explain({"film": 1.0}, BM25(), far) == []


def test_a_query_of_very_many_terms(pair: tuple[Index, OpenSearchIndex]) -> None:
    disk, cluster = pair
    many = {f"word{number}": 1.0 for number in range(2000)}
    with pytest.raises(TamisError, match="more terms than the cluster takes: ask in fewer words"):
        cluster.search(many, BM25(), 10)
    text = " ".join(document.text for document in list(disk)[:20])
    weights = dict(list(disk.weights(text).items())[:1000])
    (ids, scores), (others, theirs) = (index.search(weights, BM25(), 50) for index in pair)
    assert ids == others
    np.testing.assert_allclose(scores, theirs, rtol=1e-6)


# -- what it does not do
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (
            "bm25(k1=2.0)",
            r"cannot be searched by bm25\(k1=2.0\): use bm25\(k1=0.9, b=0.4\), bm25\(k1=1.2, b=0.75\), "
            r"ql\(mu=1000.0\), or index it again with this similarity too",
        ),
        ("bm25(variant=atire)", r"cannot be searched by bm25\(variant=atire\): use .*ql\(mu=1000.0\)$"),
        ("tfidf", r"cannot be searched by tfidf: use .*ql\(mu=1000.0\)$"),
        ("sdm", "sdm searches only an index on disk: use bm25 or ql"),
    ],
)
def test_what_it_was_not_made_for_is_an_error_before_any_search(
    pair: tuple[Index, OpenSearchIndex], expression: str, said: str
) -> None:
    with pytest.raises(TamisError, match=said):
        pair[1].pipeline(f"{expression} % 10 >> rm3")


# -- its state
# ------------------------------------------------------------------------------------------------------------


def test_the_fingerprint_changes_with_the_documents(cluster: Cluster, new_index: Callable[[], str]) -> None:
    address = cluster.address(new_index())
    index = Index.build([Document("d1", "a sieve"), Document("d2", "soup")], address)
    other, before = copy.copy(index), index.fingerprint
    assert not index.refresh()
    assert Index.open(address).fingerprint == before
    assert (index.df("siev"), index.collection.documents) == (1, 2)
    index.add([Document("d3", "two sieves")])
    assert (index.fingerprint != before, len(index), index.df("siev")) == (True, 3, 2)
    assert index.collection.documents == 3
    assert (other.fingerprint, other.refresh(), other.fingerprint) == (before, True, index.fingerprint)
    with pytest.raises(InputError, match="already holds an index"):
        Index.build([Document("d1", "a sieve")], address)
    last = index.fingerprint
    Index.build([Document("d1", "a sieve"), Document("d2", "soup")], address, overwrite=True)
    assert index.refresh()
    assert index.fingerprint not in (before, last)
    again = pickle.loads(pickle.dumps(index))
    assert (again.fingerprint, len(again)) == (index.fingerprint, 2)


def test_documents_come_back_whole(cluster: Cluster, new_index: Callable[[], str]) -> None:
    documents = [
        Document("d 1/%é", "a sieve\nof two lines ", title=" Tamis "),
        Document("d2", "", metadata={"year": 1900, "deep": {"list": [1, "two", None]}}),
        Document("d3", ""),
    ]
    index = Index.build(documents, cluster.address(new_index()))
    assert sorted(index, key=lambda each: each.id) == sorted(documents, key=lambda each: each.id)
    assert index.documents(["d2", "d 1/%é", "d2"]) == [documents[1], documents[0], documents[1]]
    assert ("d3" in index, "d4" in index, index.missing(["x", "d2", "y"])) == (True, False, ["x", "y"])
    with pytest.raises(UnknownDocumentError, match="the index holds no document 'd4'"):
        index.documents(["d3", "d4"])
    assert index.collection.documents == 1  # with any term


def test_an_index_without_documents_or_terms(cluster: Cluster, new_index: Callable[[], str]) -> None:
    index = Index.build([Document("d1", "")], cluster.address(new_index()))
    assert index.bm25()("sieve").ids == ()
    assert (index.collection.documents, index.collection.tokens) == (0, 0)
    assert (index.bm25() >> RM3())("sieve").ids == ()


def test_a_document_without_an_id_is_an_error(cluster: Cluster, new_index: Callable[[], str]) -> None:
    name = new_index()
    index = Index.build([Document("d1", "a sieve")], cluster.address(name))
    cluster.request("PUT", f"/{name}/_doc/d2", {"text": "a sieve of another client"}, refresh="true")
    with pytest.raises(ClusterError, match="holds documents without the field `id`"):
        index.bm25()("sieve")
    assert set(index.ids()) == {"d1", "d2"}


def test_many_documents_without_terms_hide_no_statistics(
    cluster: Cluster, new_index: Callable[[], str], tmp_path: Path
) -> None:
    documents = [Document(f"d{number:03}", "the of") for number in range(150)] + [Document("x", "a sieve")]
    disk = Index.build(documents, tmp_path / "idx")
    index = Index.build(documents, cluster.address(new_index()))
    assert index.collection == disk.collection
    assert (index.bm25() >> RM3())("sieve").ids == (disk.bm25() >> RM3())("sieve").ids == ("x",)


def test_an_alias_is_as_good_as_a_name(cluster: Cluster, new_index: Callable[[], str]) -> None:
    name = new_index()
    Index.build([Document("d1", "a sieve")], cluster.address(name))
    cluster.request("POST", "/_aliases", {"actions": [{"add": {"index": name, "alias": f"{name}-alias"}}]})
    index = Index.open(cluster.address(f"{name}-alias"))
    assert (index.bm25()("sieves").ids, index.document("d1").text) == (("d1",), "a sieve")
    assert index.fingerprint == Index.open(cluster.address(name)).fingerprint


# -- how often the cluster is asked
# ------------------------------------------------------------------------------------------------------------


def test_texts_for_a_reranker_come_in_one_request(
    pair: tuple[Index, OpenSearchIndex], requests: Callable[[], list[str]]
) -> None:
    ranking = (pair[1].bm25() % 100)("film director")
    assert len(ranking) == 100
    requests()
    assert [document.id for document in ranking.documents()] == list(ranking.ids)
    assert requests() == ["_mget"]


def test_many_queries_are_asked_together(
    pair: tuple[Index, OpenSearchIndex], queries: list[Query], requests: Callable[[], list[str]]
) -> None:
    index = OpenSearchIndex.open(pair[1].place)
    some = queries[:64]
    _ = index.collection
    requests()
    (index.bm25() % 10).run(some)
    assert requests() == ["_msearch"]
    (index.bm25() % 10 >> RM3() % 10).run(some)
    first, terms = requests(), len(index._state.df)
    assert first.count("_mget") == 7  # of the documents of 10 queries each
    assert terms > 1000 and first.count("_msearch") < 20  # and the counts of that many terms
    (index.bm25() % 10 >> RM3() % 10).run(some)
    again = requests()
    assert (again.count("_mget"), again.count("_msearch")) == (7, 2)  # the counts are known


# -- the commands
# ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def command(*arguments: object, status: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        assert main([str(each) for each in arguments]) == status
        said = capsys.readouterr()
        return said.out, said.err

    return command


def test_commands_take_the_address_where_they_take_a_folder(
    pair: tuple[Index, OpenSearchIndex], run: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    disk, cluster = pair
    topics, qrels = str(DEMO / "queries.jsonl"), str(DEMO / "qrels.txt")

    def both(*command: Any, after: tuple[Any, ...] = ()) -> list[Any]:
        return [json.loads(run(*command, index.place, *after, "--json")[0]) for index in pair]

    mine, theirs = both("search", after=("film director", "-p", "bm25 % 20 >> mono % 5", "--explain"))
    assert [hit["id"] for hit in mine["results"]] == [hit["id"] for hit in theirs["results"]]
    assert mine["results"][0]["text"] == theirs["results"][0]["text"]
    mine, theirs = both("show", after=(theirs["results"][0]["id"],))
    assert mine == theirs
    assert "film" in run("search", cluster.place, "film", "director", "-p", "bm25", "--explain")[0]

    for index, name in ((disk, "disk.run"), (cluster, "cluster.run")):
        run("run", index.place, topics, "-o", tmp_path / name, "-k", 20, "-p", "bm25 >> rm3")
    lines = [
        [line.split() for line in (tmp_path / name).read_text().splitlines()]
        for name in ("disk.run", "cluster.run")
    ]
    assert [line[:4] for line in lines[0]] == [line[:4] for line in lines[1]]
    about = json.loads((tmp_path / "cluster.run.json").read_text())
    assert (about["index"], about["index_commit"]) == (cluster.place, cluster.fingerprint)

    given = ("--queries", topics, "-p", "mono(model=mono-nano) % 3", "-o", tmp_path / "again.run")
    run("run", cluster.place, topics, "-o", tmp_path / "few.run", "-k", 5)
    run("rerank", tmp_path / "few.run", "--corpus", cluster.place, *given)
    assert (tmp_path / "again.run").exists()

    tuning = (
        "-p",
        "bm25(k1={k1}, b=0.4) % 10",
        "--grid",
        "k1=0.9",
        "--folds",
        2,
        "-o",
        tmp_path / "tuned.run",
    )
    assert (
        json.loads(run("tune", cluster.place, topics, qrels, *tuning, "--json")[0])["index"] == cluster.place
    )
    tried = ("-p", "bm25 % {k}", "--grid", "k=5,10", "--timed", 2, "--json")
    assert json.loads(run("tradeoff", cluster.place, topics, qrels, *tried)[0])["index"] == cluster.place
    about = json.loads(run("doctor", cluster.place, "--json")[0])["index"]
    assert (about["documents"], about["shards"], about["problems"]) == (len(disk), 3, [])
    assert "can be searched by bm25(k1=0.9," in " ".join(run("doctor", cluster.place)[0].split())


def test_a_run_is_resumed_only_over_the_same_documents(
    cluster: Cluster, new_index: Callable[[], str], run: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    address = cluster.address(new_index())
    index = Index.build([Document("d1", "a sieve"), Document("d2", "soup")], address)
    (tmp_path / "q.tsv").write_text("q1\tsieve\nq2\tsoup\n")
    journal = tmp_path / "r.run.journal"
    pipeline = index.pipeline("bm25 % 10")
    pipeline.run(read_queries(str(tmp_path / "q.tsv")), journal=journal)
    command = ("run", address, tmp_path / "q.tsv", "-o", tmp_path / "r.run", "-k", 10, "--resume")
    index.add([Document("d3", "sieves")])
    _, error = run(*command, status=2)
    assert re.search("journal", error)


# -- training and passages
# ------------------------------------------------------------------------------------------------------------


def test_passages_are_chosen_with_the_statistics_of_the_index(pair: tuple[Index, OpenSearchIndex]) -> None:
    for choose in ("bm25", "ql"):
        expression = (
            f"bm25 % 10 >> maxp(mono(model=mono-nano), choose={choose}, passages=1, window=30, stride=15)"
        )
        mine, theirs = (each.pipeline(expression)("film director") for each in pair)
        assert mine.ids == theirs.ids
        assert mine.evidence == theirs.evidence


def test_training_takes_it_as_a_corpus(pair: tuple[Index, OpenSearchIndex], queries: list[Query]) -> None:
    from tamis.models.bundled import bundled_tokenizer
    from tamis.train.build import training_set

    some = {query.id: read_qrels(str(DEMO / "qrels.txt"))[query.id] for query in queries[:8]}
    sets = [training_set(queries[:8], some, each, bundled_tokenizer(), depth=5) for each in pair]
    assert sets[0].document_ids == sets[1].document_ids
    np.testing.assert_array_equal(sets[0].documents.ids, sets[1].documents.ids)
