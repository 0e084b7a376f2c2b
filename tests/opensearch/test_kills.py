"""Processes and nodes that die in the middle of indexing: in the end every document is there, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.base.documents import Document
from tamis.formats import read_corpus
from tamis.index.opensearch.bulk import REQUEST
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.writer import Wanted, build
from tests.conftest import DEMO_CORPUS
from tests.opensearch.conftest import Cluster, eventually

pytestmark = pytest.mark.opensearch

#: The command, with requests of few documents, that dies when so many requests have been answered.
_COMMAND = """
import os, signal, sys
from tamis.cli import main
from tamis.index.opensearch import bulk

at, when = int(sys.argv.pop(1)), sys.argv.pop(1)
bulk._MOST, calls, once = 50, 0, bulk.Sender._once

def lethal(self, entries, outcome):
    global calls
    calls += 1
    mine = calls
    if mine == at and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = once(self, entries, outcome)
    if mine == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

bulk.Sender._once = lethal
sys.exit(main())
"""


def demo() -> list[Document]:
    return list(read_corpus(DEMO_CORPUS))


def check_all(cluster: Cluster, name: str) -> None:
    """Every document of the demo collection is found, once and as it is."""
    cluster.request("POST", f"/{name}/_refresh")
    hits = cluster.request("POST", f"/{name}/_search", {"size": 10_000})["hits"]["hits"]
    found = sorted((hit["_source"]["id"], hit["_source"]["text"]) for hit in hits)
    assert found == sorted((each.id, each.text) for each in demo())
    assert all(hit["_id"] == hit["_source"]["id"] for hit in hits)


def killed(address: str, at: int, when: str, *options: str) -> None:
    command = [
        sys.executable,
        "-c",
        _COMMAND,
        str(at),
        when,
        "index",
        str(DEMO_CORPUS),
        "-o",
        address,
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def resumed(address: str) -> int:
    """How many documents were there already."""
    command = [sys.executable, "-m", "tamis", "index", str(DEMO_CORPUS), "-o", address, "--resume", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["documents"], told["read"]) == (2000, 2000)
    return int(told["there_already"])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("workers", ["1", "4"])
def test_a_killed_command_is_resumed(cluster: Cluster, index_name: str, when: str, workers: str) -> None:
    address = cluster.address(index_name)
    killed(address, 1, when, "--workers", workers)
    killed(address, 12, when, "--workers", workers, "--resume")
    there = resumed(address)
    assert 0 < there < 2000
    check_all(cluster, index_name)
    assert resumed(address) == 2000


def test_a_killed_addition_is_resumed(cluster: Cluster, index_name: str) -> None:
    address = cluster.address(index_name)
    build([Document("mine", "stays")], address)
    killed(address, 7, "after", "--add")
    command = [sys.executable, "-m", "tamis", "index", str(DEMO_CORPUS), "-o", address, "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2,001 documents (2,000 read, " in done.stdout
    cluster.request("DELETE", f"/{index_name}/_doc/mine")
    check_all(cluster, index_name)


def test_an_interrupted_command_says_how_to_continue(
    cluster: Cluster, index_name: str, tmp_path: Path
) -> None:
    """Ctrl-C, while the corpus is a pipe that gives nothing more."""
    pipe = tmp_path / "corpus.jsonl"
    os.mkfifo(pipe)
    address = cluster.address(index_name)
    command = [sys.executable, "-m", "tamis", "index", str(pipe), "-o", address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pipe.open("w") as file:
        for number in range(REQUEST // 100_000 + 2):  # enough for one to be sent
            file.write(json.dumps({"id": f"d{number}", "text": "word " * 20_000}) + "\n")
        file.flush()
        eventually(lambda: _some_are_there(cluster, index_name, 1))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines() == [
        f"{address} keeps what has arrived: the same command with --resume continues from there",
        "interrupted",
    ]


def _indexing(cluster: Cluster, name: str, *options: str) -> subprocess.Popen[str]:
    code = _COMMAND.replace("bulk._MOST, calls", "bulk.PATIENCE, bulk._MOST, calls").replace(
        "= 50,", "= 240.0, 10,"
    )
    command = [
        sys.executable,
        "-c",
        code,
        "-1",
        "after",
        "index",
        str(DEMO_CORPUS),
        "-o",
        cluster.address(name),
    ]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _some_are_there(cluster: Cluster, name: str, least: int) -> bool:
    try:
        cluster.request("POST", f"/{name}/_refresh")
        return int(cluster.request("GET", f"/{name}/_count")["count"]) >= least
    except ClusterError:
        return False


def test_a_node_that_is_lost_while_its_parts_have_no_copy(three_nodes: Cluster) -> None:
    """The command waits; stopped, it is resumed when the node is back."""
    process = _indexing(three_nodes, "books", "--shards", "3", "--replicas", "1")
    eventually(lambda: _some_are_there(three_nodes, "books", 200))
    three_nodes.kill(three_nodes.hosts[2])
    process.send_signal(signal.SIGSTOP)
    three_nodes.stop()
    three_nodes.start(keep=True)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    check_all(three_nodes, "books")
    three_nodes.wait_for("green", "books")
    assert resumed(three_nodes.address("books")) == 2000


def test_a_node_that_is_lost_while_its_parts_have_copies(three_nodes: Cluster) -> None:
    """Nothing is lost, and nobody has to do anything."""
    documents = demo()
    address = three_nodes.address("books")
    build(documents[:20], address, wanted=Wanted(shards=3, replicas=1))
    three_nodes.wait_for("green", "books")
    process = _indexing(three_nodes, "books", "--add", "--on-duplicate", "replace")
    eventually(lambda: _some_are_there(three_nodes, "books", 200))
    three_nodes.kill(three_nodes.hosts[1])
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    assert f"{address}: 2,000 documents (2,000 read" in out or f"{address}: 2,000 documents," in out
    check_all(three_nodes, "books")


def test_a_killed_command_and_a_lost_node(three_nodes: Cluster) -> None:
    address = three_nodes.address("books")
    build(demo()[:1], address, wanted=Wanted(shards=3, replicas=1))
    three_nodes.wait_for("green", "books")
    killed(address, 15, "after", "--add", "--on-duplicate", "replace")
    three_nodes.kill(three_nodes.hosts[0])
    command = [sys.executable, "-m", "tamis", "index", str(DEMO_CORPUS), "-o", address]
    command += ["--resume", "--on-duplicate", "replace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    check_all(three_nodes, "books")
