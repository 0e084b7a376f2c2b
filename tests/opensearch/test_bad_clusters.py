"""Indexing into a cluster that refuses, loses answers or is full: nothing is lost, and one line tells why."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tamis.base.documents import Document
from tamis.base.errors import TamisError
from tamis.cli import main
from tamis.formats import read_corpus
from tamis.index.opensearch import bulk, mapping
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.writer import ClusterWriter, Wanted, build, writer
from tamis.index.writer import OnDuplicate
from tests.conftest import DEMO_CORPUS
from tests.opensearch.conftest import Cluster, eventually
from tests.opensearch.servers import Answer, Request, Server, between, says, serving

pytestmark = pytest.mark.opensearch


def demo() -> list[Document]:
    return list(read_corpus(DEMO_CORPUS))


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many requests for few documents, and short pauses between them."""
    monkeypatch.setattr(bulk, "_MOST", 25)
    monkeypatch.setattr(bulk, "pause", lambda tries: 0.02)


Fault = Callable[[Request, Callable[[], Answer]], Answer]


@contextmanager
def disturbed(cluster: Cluster, fault: Fault) -> Iterator[Server]:
    """A proxy before the node, for which `fault` answers the requests that write documents."""

    def answer(request: Request, ask: Callable[[], Answer]) -> Answer:
        return fault(request, ask) if "/_bulk" in request.path else ask()

    with serving(between(cluster.hosts[0], answer)) as server:
        yield server


def ids(cluster: Cluster, name: str) -> list[str]:
    body = {"query": {"match_all": {}}, "size": 10_000, "_source": False}
    return sorted(hit["_id"] for hit in cluster.request("POST", f"/{name}/_search", body)["hits"]["hits"])


@pytest.mark.usefixtures("small_requests")
def test_lost_answers_lose_and_repeat_nothing(cluster: Cluster, index_name: str) -> None:
    count = itertools.count()

    def fault(request: Request, ask: Callable[[], Answer]) -> Answer:
        match next(count) % 5:
            case 0:  # written, and nobody hears of it
                ask()
                return Answer(body=None)
            case 1:
                return Answer(503)
            case 2:
                ask()
                return Answer(504, b"<html>time-out</html>", "text/html")
            case 3:  # some of the items are refused for now
                return _some_busy(ask())
            case _:
                return ask()

    documents = demo()[:500]
    with disturbed(cluster, fault) as server, writer(server.address(index_name), workers=3) as made:
        for document in documents:
            made.add(document)
        done = made.finish()
    assert done.documents == 500
    assert made.outcome.created + made.outcome.confirmed == 500
    assert made.outcome.confirmed > 0
    assert ids(cluster, index_name) == sorted(each.id for each in documents)


def _some_busy(answer: Answer) -> Answer:
    assert answer.body is not None
    told = json.loads(answer.body)
    for item in told["items"][::2]:
        error = {"type": "rejected_execution_exception", "reason": "full queue"}
        item["index"] = {"status": 429, "error": error}
    return says(told)


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("rule", ["skip", "replace"])
def test_the_rule_for_duplicates_holds_in_any_order(
    cluster: Cluster, index_name: str, rule: OnDuplicate
) -> None:
    """Requests that arrive the wrong way round, and lost answers: the first, or the last, is kept."""
    count, arrived = itertools.count(), threading.Event()

    def fault(request: Request, ask: Callable[[], Answer]) -> Answer:
        if next(count):
            answer = ask()
            arrived.set()
            return answer
        arrived.wait(30)  # the first request is the last to arrive
        ask()
        return Answer(body=None)

    documents = [Document(f"d{each % 30}", f"text {each}") for each in range(100)]
    with disturbed(cluster, fault) as server:
        made = build(documents, server.address(index_name), on_duplicate=rule, workers=4)
    assert made.documents == 30
    found = cluster.request("POST", f"/{index_name}/_search", {"size": 100})["hits"]["hits"]
    expected = {each.id: each.text for each in (documents if rule == "replace" else documents[::-1])}
    assert {hit["_id"]: hit["_source"]["text"] for hit in found} == expected


@pytest.mark.usefixtures("small_requests")
def test_a_duplicate_is_an_error_in_any_order(cluster: Cluster, index_name: str) -> None:
    count, arrived = itertools.count(), threading.Event()

    def fault(request: Request, ask: Callable[[], Answer]) -> Answer:
        if next(count) == 0:
            arrived.wait(30)
        answer = ask()
        arrived.set()
        return answer

    documents = [Document(f"d{number % 30}", f"text {number}") for number in range(50)]
    with disturbed(cluster, fault) as server, pytest.raises(TamisError, match="occurs twice"):
        build(documents, server.address(index_name), workers=4)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "asks for a user and a password: set TAMIS_OPENSEARCH_USER"),
        (403, "does not permit it"),
        (407, "a proxy before"),
        (413, "the cluster refuses a document ('d0001'): "),
        (503, "cannot answer now (status 503)"),
    ],
)
def test_one_line_for_each_refusal(
    cluster: Cluster,
    index_name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    told: str,
) -> None:
    monkeypatch.setattr(bulk, "PATIENCE", 1.0)
    page = b"<html>no</html>"
    with disturbed(cluster, lambda request, ask: Answer(status, page, "text/html")) as server:
        address = server.address(index_name)
        assert main(["index", str(DEMO_CORPUS), "-o", address]) == 2
    out, err = capsys.readouterr()
    *notes, error = err.splitlines()
    assert out == ""
    assert error.startswith("error: ")
    assert told in error
    kept = f"{address} keeps what has arrived: the same command with --resume continues from there"
    assert notes == ([] if "--resume" in error else [kept])


def test_requests_that_are_never_answered(
    cluster: Cluster, index_name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PATIENCE", 1.5)
    monkeypatch.setattr(bulk, "_REPORT_AFTER", 0.0)
    with disturbed(cluster, lambda request, ask: Answer(after=threading.Event())) as server:
        monkeypatch.setenv("TAMIS_OPENSEARCH_TIMEOUT", "20")
        address = server.address(index_name)
        with writer(address, patience=1.5) as made:
            made.connection.timeout = 0.4
            with pytest.raises(ClusterError, match=r"has not answered within 0\.4 s"):
                made.add(Document("d1", "x"))
                made.finish()


def test_a_limit_of_a_proxy_is_found_by_halves(cluster: Cluster, index_name: str) -> None:
    sizes: list[int] = []

    def fault(request: Request, ask: Callable[[], Answer]) -> Answer:
        sizes.append(len(request.body))
        return Answer(413) if len(request.body) > 100_000 else ask()

    documents = demo()
    with disturbed(cluster, fault) as server:
        made = build(documents, server.address(index_name))
    assert made.documents == len(documents)
    assert max(sizes) > 500_000


def test_documents_larger_than_a_request(
    small_node: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = small_node.address("large")
    sizes = [10, 900_000, 10, 1_500_000, 600_000, 600_000, 10, 3_000_000]
    lines = [{"id": f"d{n}", "text": "word " * (size // 5)} for n, size in enumerate(sizes)]
    path = tmp_path / "large.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["index", str(path), "-o", address]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        "error: the cluster refuses a document ('d3'): it has 1.4 MiB, more than the 1 MiB of the " in error
    )
    assert "http.max_content_length: repair them, or leave them out by --skip-bad; then continue" in error
    assert main(["index", str(path), "-o", address, "--resume", "--skip-bad", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["documents"], json.loads(out)["refused"]) == (6, 2)
    assert "warning: the cluster refused 2 documents ('d3', 'd7'): it has 1.4 MiB" in err
    assert [each["id"] for each in json.loads(out)["refused_documents"]] == ["d3", "d7"]
    assert ids(small_node, "large") == ["d0", "d1", "d2", "d4", "d5", "d6"]


def test_documents_that_the_cluster_refuses_are_named(
    cluster: Cluster, index_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A mapping that somebody has changed: some metadata are no numbers."""
    meta = mapping.new_meta(index_name)
    body = mapping.body_of(meta)
    body["mappings"]["properties"]["metadata"] = {"properties": {"year": {"type": "integer"}}}
    cluster.request("PUT", f"/{index_name}", body)
    lines = [{"id": f"d{n}", "text": "x", "metadata": {"year": n if n % 4 else "old"}} for n in range(40)]
    path = tmp_path / "years.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    address = cluster.address(index_name)
    assert main(["index", str(path), "-o", address, "--resume"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(
        "error: the cluster refuses 10 documents ('d0', 'd4', 'd8', 'd12', 'd16' and 5 more): failed to "
        "parse field [metadata.year] of type [integer]"
    )
    assert error.endswith("repair them, or leave them out by --skip-bad; then continue with --resume")
    assert main(["index", str(path), "-o", address, "--resume", "--skip-bad"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{address}: 30 documents (40 read, 30 there already)")
    assert (
        "warning: the cluster refused 10 documents ('d0', 'd4', 'd8', 'd12', 'd16' and 5 more): failed to "
        "parse field"
    ) in err


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (
            "write",
            "is blocked by index.blocks.write: allow it again by setting index.blocks.write of",
        ),
        ("read_only", "is blocked by index.blocks.read_only: allow it again"),
        (
            "read_only_allow_delete",
            "is read-only because the cluster's disk is almost full: free disk space, then",
        ),
    ],
)
def test_an_index_that_takes_no_writes(
    cluster: Cluster, index_name: str, capsys: pytest.CaptureFixture[str], block: str, told: str
) -> None:
    address = cluster.address(index_name)
    build(demo()[:10], address)
    cluster.request("PUT", f"/{index_name}/_settings", {f"index.blocks.{block}": True})
    for option in ("--add", "--resume"):
        assert main(["index", str(DEMO_CORPUS), "-o", address, option]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {address} {told}")


def test_a_disk_that_is_full(watched_disk: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Its watermarks are raised to more space than there is."""
    old, new = (watched_disk.address(name) for name in ("old", "new"))
    build(demo()[:10], old)
    watermark = "cluster.routing.allocation.disk.watermark"
    marks = {f"{watermark}.{each}": "1000tb" for each in ("low", "high", "flood_stage")}
    watched_disk.request("PUT", "/_cluster/settings", {"persistent": marks})

    def is_blocked() -> bool:
        index = watched_disk.request("GET", "/old/_settings")["old"]["settings"]["index"]
        return "read_only_allow_delete" in index.get("blocks", {})

    eventually(is_blocked)
    for address, option, told in (
        (old, "--add", f"{old} is read-only because the cluster's disk is almost full: free disk space"),
        (new, "--overwrite", f"the cluster has no place for the shards of {new}: the node is above"),
        (new, "--resume", f"the cluster has no place for the shards of {new}: the node is above"),
    ):
        assert main(["index", str(DEMO_CORPUS), "-o", address, option]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: {told}")
        assert "free disk space" in error


def test_an_index_that_is_blocked_meanwhile(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_MOST", 25)
    documents = demo()[:200]
    address = cluster.address(index_name)

    def add(made: ClusterWriter) -> None:
        for number, document in enumerate(documents):
            made.add(document)
            if number == 100:
                made.send()
                block = {"index.blocks.read_only_allow_delete": True}
                cluster.request("PUT", f"/{index_name}/_settings", block)
        made.finish()

    with writer(address) as made, pytest.raises(ClusterError, match="disk is almost full"):
        add(made)
    cluster.request("PUT", f"/{index_name}/_settings", {"index.blocks.read_only_allow_delete": None})
    assert build(documents, address, how="resume").documents == 200


def test_no_thread_stays(cluster: Cluster, index_name: str) -> None:
    address = cluster.address(index_name)
    build(demo()[:10], address)
    with writer(address, how="add") as made, pytest.raises(TamisError, match="already holds"):
        made.add(demo()[0])
        made.finish()
    eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("bulk-")])


def test_an_index_that_is_deleted_meanwhile(cluster: Cluster, index_name: str) -> None:
    with writer(cluster.address(index_name)) as made:
        cluster.delete(index_name)
        made.add(Document("d1", "x"))
        with pytest.raises(TamisError, match="was deleted or replaced while it was written"):
            made.finish()


def test_what_was_deleted_a_moment_ago_is_written_again(cluster: Cluster, index_name: str) -> None:
    """A cluster remembers the versions of deleted documents for a minute, by default."""
    address = cluster.address(index_name)
    documents = demo()[:5]
    build(documents, address)
    cluster.request("PUT", f"/{index_name}/_settings", {"index.gc_deletes": "1s"})
    cluster.request("DELETE", f"/{index_name}/_doc/{documents[0].id}")
    assert build(documents[:1], address, how="add").documents == 5


def test_more_shards_than_a_cluster_takes(
    cluster: Cluster, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = cluster.address(index_name)
    assert main(["index", str(DEMO_CORPUS), "-o", address, "--shards", "2000"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "refuses the request (status 400, illegal_argument_exception)" in error
    assert "must be <= 1024" in error


def test_an_alias_of_several_indexes(cluster: Cluster, new_index: Callable[[], str]) -> None:
    names = [new_index(), new_index()]
    for name in names:
        build(demo()[:2], cluster.address(name), wanted=Wanted())
    actions = [{"add": {"index": name, "alias": "tamis-test-both"}} for name in names]
    cluster.request("POST", "/_aliases", {"actions": actions})
    with pytest.raises(TamisError, match="leads to 2 indexes: name one of them: tamis-test-"):
        build(demo()[:2], cluster.address("tamis-test-both"), how="add")
