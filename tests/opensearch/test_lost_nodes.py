"""What a search comes to when nodes are lost, or answer nothing: all of it, or an error."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Query
from tamis.base.interrupt import interruptible
from tamis.formats import read_corpus, read_queries
from tamis.index.opensearch import cluster as asking
from tamis.index.opensearch import writer
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.index import OpenSearchIndex
from tests.opensearch.conftest import Cluster

pytestmark = pytest.mark.opensearch

DEMO = files("tamis") / "demo_data"


class Missed(Exception):
    """The deadline has passed."""


@pytest.fixture
def nodes(three_nodes: Cluster) -> Iterator[Cluster]:
    yield three_nodes
    for pid in three_nodes.pids.values():  # those that were stopped cannot end
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def build(nodes: Cluster, name: str, documents: list[Document], replicas: int) -> OpenSearchIndex:
    address = nodes.address(name)
    writer.build(documents, address, wanted=writer.Wanted(shards=3, replicas=replicas))
    nodes.wait_for("green", name)
    return OpenSearchIndex.open(address)


def test_a_run_is_the_same_though_a_node_is_killed_in_the_middle(nodes: Cluster, tmp_path: Path) -> None:
    index = build(nodes, "replicated", list(read_corpus(str(DEMO / "corpus.jsonl.gz"))), replicas=1)
    texts = [query.text for query in read_queries(str(DEMO / "queries.jsonl"))]
    queries = [Query(f"q{number}", texts[number % len(texts)]) for number in range(500)]
    pipeline = index.pipeline("bm25 % 50 >> rm3 % 100")
    undisturbed = pipeline.run(queries)
    done: list[int] = []

    def progress(more: int) -> None:
        done.append(more)
        if len(done) == 3:
            nodes.kill(nodes.hosts[0])  # which is asked first, and may be the elected manager

    disturbed = pipeline.run(queries, progress=progress, journal=tmp_path / "journal")
    assert len(done) > 4, "the node was lost before the last batch"
    assert list(disturbed) == list(undisturbed)
    assert all(disturbed[qid] == undisturbed[qid] for qid in undisturbed)
    assert not index.refresh(), "the documents are the same"


def test_a_part_is_never_taken_for_the_whole(nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [Document(f"d{number}", "a sieve") for number in range(60)]
    index = build(nodes, "alone", documents, replicas=0)
    assert len(index.bm25()("sieve")) == 60
    monkeypatch.setattr(asking, "_PATIENCE", 3.0)
    nodes.kill(nodes.hosts[1])
    said = r"shards of opensearch://.*/alone have answered.*: check the cluster"
    with pytest.raises(ClusterError, match=said):
        index.bm25()("sieve")
    with pytest.raises(ClusterError, match="alone"):
        index.missing([document.id for document in documents])
    with pytest.raises(ClusterError, match="alone"):
        index.refresh()
    with pytest.raises(ClusterError, match="alone"):
        writer.count(nodes.connect("alone"))


def test_an_index_has_its_copies_when_it_is_made(nodes: Cluster) -> None:
    documents = [Document(f"d{number}", "a sieve") for number in range(60)]
    address = nodes.address("copied")
    writer.build(documents, address, wanted=writer.Wanted(shards=3, replicas=1))
    nodes.kill(nodes.hosts[1])
    assert len(OpenSearchIndex.open(address).bm25()("sieve")) == 60


def test_a_search_is_given_up_at_its_deadline(nodes: Cluster) -> None:
    index = build(nodes, "silent", [Document("d1", "a sieve")], replicas=1)
    assert index.bm25()("sieve").ids == ("d1",)
    for pid in nodes.pids.values():
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 1.0

    def check() -> None:
        if time.monotonic() >= until:
            raise Missed

    with pytest.raises(Missed), interruptible(check, np.ones(1, dtype=bool), until):
        index.bm25()("sieve")
    assert time.monotonic() < until + 10, "and not after the time-out of a request"
    for pid in nodes.pids.values():
        os.kill(pid, signal.SIGCONT)
    assert index.bm25()("sieve").ids == ("d1",)
