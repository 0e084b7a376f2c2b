"""`tamis index -o opensearch://...` as a user types it, on a real cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tamis.cli import main
from tamis.index.opensearch import mapping
from tests.conftest import DEMO_CORPUS
from tests.opensearch.conftest import Cluster

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """The status, the standard output and the standard error of `tamis index`."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["index", *map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def corpus(path: Path, documents: Sequence[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in documents))
    return path


def texts(cluster: Cluster, name: str) -> dict[str, str]:
    """All documents that a search finds."""
    body = {"query": {"match_all": {}}, "size": 10_000}
    hits = cluster.request("POST", f"/{name}/_search", body)["hits"]["hits"]
    return {hit["_source"]["id"]: hit["_source"]["text"] for hit in hits}


def settings(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.request("GET", f"/{name}/_settings")[name]["settings"]["index"]
    return found


@pytest.mark.opensearch
def test_the_demo_collection(cluster: Cluster, index_name: str, command: Command) -> None:
    address = cluster.address(index_name)
    status, out, err = command(DEMO_CORPUS, "-o", address, "--shards", "3", "--json", "--workers", "2")
    assert status == 0, err
    told = json.loads(out)
    assert (told["index"], told["documents"], told["read"]) == (address, 2000, 2000)
    assert (told["shards"], told["replicas"], told["there_already"], told["refused"]) == (3, 0, 0, 0)
    assert told["similarities"] == ["bm25(k1=0.9, b=0.4)", "ql(mu=1000.0)"]
    assert told["bytes"] > 500_000
    assert len(texts(cluster, index_name)) == 2000
    found = settings(cluster, index_name)
    assert (found["number_of_shards"], found["number_of_replicas"]) == ("3", "0")
    assert "refresh_interval" not in found
    segments = cluster.request("GET", f"/{index_name}/_segments")["indices"][index_name]["shards"]
    assert all(len(shard[0]["segments"]) == 1 for shard in segments.values())


@pytest.mark.opensearch
def test_an_index_is_not_overwritten_unasked(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    address = cluster.address(index_name)
    one, two = corpus(tmp_path / "1.jsonl", [("d1", "one")]), corpus(tmp_path / "2.jsonl", [("d2", "two")])
    assert command(two, "-o", address, "--add") == (
        2,
        "",
        f"error: there is no index at {address}: make it first: the same command without --add\n",
    )
    assert command(one, "-o", address)[0] == 0
    status, _, err = command(two, "-o", address)
    assert status == 2
    assert err == (
        f"error: {address} already holds an index: resume it (--resume), add to it (--add) or overwrite it "
        "(--overwrite)\n"
    )
    assert command(two, "-o", address, "--add")[0] == 0
    assert texts(cluster, index_name) == {"d1": "one", "d2": "two"}
    status, out, _ = command(two, "-o", address, "--overwrite", "--no-merge")
    assert status == 0
    assert out.startswith(f"{address}: 1 document, ")
    assert texts(cluster, index_name) == {"d2": "two"}


@pytest.mark.opensearch
def test_an_index_of_somebody_else_is_left_alone(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    cluster.request("PUT", f"/{index_name}", {"mappings": {"properties": {"text": {"type": "keyword"}}}})
    cluster.request("PUT", f"/{index_name}/_doc/1", {"text": "precious"}, refresh="true")
    one = corpus(tmp_path / "1.jsonl", [("d1", "one")])
    for option in ("--overwrite", "--add", "--resume", "--skip-bad"):
        status, out, err = command(one, "-o", cluster.address(index_name), option)
        assert (status, out) == (2, "")
        assert err == (
            f"error: the index {cluster.address(index_name)} was not made by tamis: make one with `tamis "
            "index`, under another name\n"
        )
    assert cluster.request("GET", f"/{index_name}/_count")["count"] == 1


@pytest.mark.opensearch
def test_an_overwritten_index_stays_until_the_new_one_is_right(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    address = cluster.address(index_name)
    one = corpus(tmp_path / "1.jsonl", [("d1", "one")])
    assert command(one, "-o", address)[0] == 0
    bad = tmp_path / "bad.jsonl"
    bad.write_text("no JSON\n")
    for source, option in ((bad, ()), (one, ("--analyzer", "french")), (one, ("--similarity", "ql"))):
        status, _, err = command(source, "-o", address, "--overwrite", *option)
        assert status == 2, err
        assert err.count("\n") == 1
    assert texts(cluster, index_name) == {"d1": "one"}


@pytest.mark.opensearch
@pytest.mark.parametrize(
    ("rule", "expected"),
    [("replace", {"a": "third", "b": "second"}), ("skip", {"a": "first", "b": "second"}), ("error", None)],
)
def test_ids_that_occur_twice(
    cluster: Cluster,
    index_name: str,
    command: Command,
    tmp_path: Path,
    rule: str,
    expected: dict[str, str] | None,
) -> None:
    address = cluster.address(index_name)
    path = corpus(tmp_path / "c.jsonl", [("a", "first"), ("b", "second"), ("a", "third")])
    status, out, err = command(path, "-o", address, "--on-duplicate", rule)
    if expected is None:
        assert status == 2
        assert (
            f"error: the document id 'a' occurs twice ({path}, line 1 and {path}, line 3): give each" in err
        )
        status, out, err = command(path, "-o", address, "--resume", "--on-duplicate", "replace")
        expected = {"a": "third", "b": "second"}
    assert status == 0, err
    assert out.startswith(f"{address}: 2 documents (3 read")
    assert texts(cluster, index_name) == expected


@pytest.mark.opensearch
def test_ids_that_the_index_holds(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    address = cluster.address(index_name)
    assert command(corpus(tmp_path / "1.jsonl", [("a", "one"), ("b", "one")]), "-o", address)[0] == 0
    more = corpus(tmp_path / "2.jsonl", [("c", "two"), ("a", "two")])
    status, _, err = command(more, "-o", address, "--add")
    assert status == 2
    assert "error: the index already holds a document 'a' (" in err
    assert ", line 2): continue with --resume and --on-duplicate replace or skip\n" in err
    assert command(more, "-o", address, "--add")[2].startswith(
        f"error: the command that last wrote to {address} was interrupted: finish it first"
    )
    status, out, err = command(more, "-o", address, "--resume", "--on-duplicate", "skip")
    assert (status, out.partition(", ")[0]) == (0, f"{address}: 3 documents (2 read")
    assert "2 there already" in out
    assert f"warning: 1 document has another text in {address}, such as a: the old text is kept" in err
    assert texts(cluster, index_name) == {"a": "one", "b": "one", "c": "two"}
    third = corpus(tmp_path / "3.jsonl", [("a", "three"), ("d", "three")])
    assert command(third, "-o", address, "--add", "--on-duplicate", "replace")[0] == 0
    assert texts(cluster, index_name) == {"a": "three", "b": "one", "c": "two", "d": "three"}
    fourth = corpus(tmp_path / "4.jsonl", [("a", "four"), ("e", "four")])
    assert command(fourth, "-o", address, "--add", "--on-duplicate", "skip")[0] == 0
    assert texts(cluster, index_name)["a"] == "three"
    assert mapping.read_meta(cluster.connect(index_name)).runs == 4


@pytest.mark.opensearch
def test_documents_of_other_clients_are_documents(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    address = cluster.address(index_name)
    assert command(corpus(tmp_path / "1.jsonl", [("a", "one")]), "-o", address)[0] == 0
    cluster.request("PUT", f"/{index_name}/_doc/b", {"id": "b", "text": "of another client"})
    more = corpus(tmp_path / "2.jsonl", [("b", "two"), ("c", "two")])
    status, _, err = command(more, "-o", address, "--add")
    assert status == 2
    assert "error: the index already holds a document 'b' (" in err
    cluster.request("POST", f"/{index_name}/_refresh")
    assert texts(cluster, index_name)["b"] == "of another client"
    assert command(more, "-o", address, "--resume", "--on-duplicate", "skip")[0] == 0
    assert texts(cluster, index_name) == {"a": "one", "b": "of another client", "c": "two"}
    assert command(more, "-o", address, "--add", "--on-duplicate", "replace")[0] == 0
    assert texts(cluster, index_name)["b"] == "two"


@pytest.mark.opensearch
def test_a_finished_index_is_resumed_without_harm(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    address = cluster.address(index_name)
    some = [(f"d{number}", f"text {number}") for number in range(50)]
    path = corpus(tmp_path / "c.jsonl", some)
    assert command(path, "-o", address, "--resume")[0] == 0  # there is nothing yet
    status, out, err = command(path, "-o", address, "--resume")
    assert (status, err) == (0, "")
    assert "50 documents (50 read, 50 there already)" in out
    path = corpus(tmp_path / "c.jsonl", [*some, ("new", "at the end")])  # which has grown meanwhile
    assert "51 documents (51 read, 50 there already)" in command(path, "-o", address, "--resume")[1]
    path = corpus(tmp_path / "c.jsonl", [("new", "at the beginning"), *some])
    status, _, err = command(path, "-o", address, "--resume")
    assert status == 2
    assert "occurs twice, or the corpus is not as it was when the command was interrupted" in err
    assert len(texts(cluster, index_name)) == 51
    other = corpus(tmp_path / "other.jsonl", [("x1", "x"), ("x2", "x")])
    err = command(other, "-o", address, "--resume")[2]
    assert "none of these documents is among the 51 documents" in err
    assert f"warning: {address} holds 51 documents that are not of this corpus" in err


@pytest.mark.opensearch
def test_an_index_that_is_not_complete_is_not_searched(
    cluster: Cluster,
    index_name: str,
    command: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    address = cluster.address(index_name)
    twice = corpus(tmp_path / "c.jsonl", [("a", "sieve"), ("b", "sieves"), ("a", "sieve")])
    assert command(twice, "-o", address)[0] == 2
    assert main(["search", address, "sieve"]) == 2
    assert capsys.readouterr().err == (
        f"error: {address} is not complete: `tamis index` still writes it, or was interrupted: wait, or "
        "continue it with --resume\n"
    )
    assert main(["doctor", address, "--json"]) == 2
    assert "not all documents are written" in capsys.readouterr().out
    assert command(twice, "-o", address, "--resume", "--on-duplicate", "skip")[0] == 0
    assert main(["search", address, "sieve", "--json"]) == 0
    assert {hit["id"] for hit in json.loads(capsys.readouterr().out)["results"]} == {"a", "b"}


@pytest.mark.opensearch
def test_an_index_keeps_its_settings(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    address = cluster.address(index_name)
    one, two = corpus(tmp_path / "1.jsonl", [("d1", "one")]), corpus(tmp_path / "2.jsonl", [("d2", "two")])
    assert command(one, "-o", address, "--shards", "2", "--similarity", "bm25(1, 0.5)")[0] == 0
    for option, value, have in (
        ("--shards", "3", "--shards 2"),
        ("--analyzer", "plain", "--analyzer english"),
        ("--similarity", "bm25", "--similarity 'bm25(k1=1.0, b=0.5)'"),
    ):
        status, _, err = command(two, "-o", address, "--add", option, value)
        assert (status, err) == (
            2,
            f"error: {address} was made with {have}: use the same, or --overwrite it\n",
        )
    status, _, err = command(
        two, "-o", address, "--add", "--similarity", "bm25(k1=1, b=0.5)", "--replicas", "1"
    )
    assert status == 0
    assert "warning: 1 replica on 1 node: " in err
    assert settings(cluster, index_name)["number_of_replicas"] == "1"


@pytest.mark.opensearch
def test_left_out_and_empty_documents_are_told(
    cluster: Cluster, index_name: str, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("sieves")
    (folder / "b.txt").write_text(" ")
    (folder / "c.png").write_bytes(b"\x89PNG")
    status, out, err = command(folder, "-o", cluster.address(index_name), "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["documents"], told["empty"]) == (2, 1)
    assert told["left_out"] == [{"kind": ".png", "files": 1, "reason": "tamis does not read this kind"}]
    assert "warning: left out: 1 .png, such as" in err
    assert "warning: 1 document has neither title nor text, such as b.txt" in err


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (("--positions",), "--positions does not apply to an index in a cluster: leave it out"),
        (("--commit-every", "9"), "--commit-every does not apply to an index in a cluster: leave it out"),
        (("--no-tokens",), "--no-tokens does not apply to an index in a cluster: leave it out"),
        (("--tokens",), "--tokens does not apply to an index in a cluster: leave it out"),
        (("--shards", "0"), "'0' is not a whole number of at least 1"),
        (("--replicas", "-1"), "'-1' is not a whole number"),
        (("--similarity", "bm52"), "'bm52' is not a similarity of OpenSearch"),
    ],
)
def test_options_that_do_not_apply(command: Command, option: Sequence[str], told: str) -> None:
    status, out, err = command(DEMO_CORPUS, "-o", "opensearch://127.0.0.1:1/x", *option)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize("option", [("--shards", "2"), ("--replicas", "0"), ("--similarity", "bm25")])
def test_options_that_an_index_on_disk_does_not_have(
    command: Command, tmp_path: Path, option: Sequence[str]
) -> None:
    status, _, err = command(DEMO_CORPUS, "-o", tmp_path / "idx", *option)
    assert status == 2
    assert err == (
        f"error: {option[0]} does not apply to an index on disk: leave it out, or give "
        "opensearch://HOST:9200/NAME\n"
    )
    assert not (tmp_path / "idx").exists()


def test_nothing_is_asked_of_a_cluster_before_the_corpus_is_right(command: Command, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert command(empty, "-o", "opensearch://127.0.0.1:1/x")[2].startswith("error: no document in ")
    assert "no connection to 127.0.0.1:1" in command(DEMO_CORPUS, "-o", "opensearch://127.0.0.1:1/x")[2]
