"""`tamis serve` and clients that mean it no good, or do not know better: bytes on real sockets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tamis as package
from tamis import Document, Index
from tamis.formats import read_corpus

pytest.importorskip("fastapi")

DEMO = Path(package.__file__).parent / "demo_data"
QUEUE = 8


@dataclass
class Server:
    port: int

    def send(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(data)
        return connection

    def answer(self, data: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body; the request must have the connection closed."""
        with self.send(data) as connection, connection.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), head, body

    def get(self, path: str, host: str = "localhost") -> tuple[int, bytes, bytes]:
        return self.answer(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())

    def post(self, path: str, **body: Any) -> tuple[int, bytes, bytes]:
        return self.answer(request(path, **body))


def request(path: str, **body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json"
    return f"{head}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve-hostile")
    tiny_checkpoint(folder / "slow", layers=4, hidden=128, positions=128, seed=1)
    documents = [*islice(read_corpus(DEMO / "corpus.jsonl.gz"), 300), Document("x/../y", "dots")]
    Index.build(documents, folder / "idx")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")  # who opens it waits
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as server:
        yield server


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "tamis", "serve", "idx", "--port", "0", "--workers", "1"]
    command += ["-p", "bm25 % 5", "--model", "slow", "--queue", str(QUEUE)]
    command += ["--deadline", "60s"]  # on a machine however busy
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield Server(int(process.stderr.readline().rstrip("/\n").rpartition(":")[2]))
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""  # nothing that a client sends is worth a line
    finally:
        process.kill()
        process.wait()


def error(body: bytes) -> str:
    message = json.loads(body)["error"]
    assert isinstance(message, str) and "\n" not in message
    return message


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x16\x03\x01 no http\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET /info HTTP/1.1\r\n\r\n",
        b"GET /info HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n{}",
        b"POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /search HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http(server: Server, data: bytes) -> None:
    status, _, body = server.answer(data)
    assert status == 400
    assert "HTTP/1.1" in error(body)


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/info", "/search", "/nothing"])
def test_a_head_is_that_of_a_get(server: Server, path: str) -> None:
    status, _, whole = server.get(path)
    asked = f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    found, head, body = server.answer(asked.encode())
    assert (found, body) == (status, b"")
    assert f"content-length: {len(whole)}\r\n" in f"{head.decode()}\r\n".lower()


def test_an_upgrade_is_not_made(server: Server) -> None:
    key = "upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    head = f"GET /search HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, close\r\n{key}\r\n"
    assert server.answer(head.encode())[0] == 405


@pytest.mark.parametrize(
    "path",
    ["%2e%2e/app.py", "..%2fapp.py", "../app.py", "/etc/passwd", "%00", "..%5capp.py", "", "%2e"],
)
def test_no_file_but_those_of_the_page(server: Server, path: str) -> None:
    status, _, body = server.get(f"/static/{path}")
    assert status == 404
    assert "Not Found" in error(body)


def test_an_id_is_no_path(server: Server) -> None:
    for path in ("x/../y", "x%2F..%2Fy", "x%2f%2e%2e%2fy"):
        assert json.loads(server.get(f"/documents/{path}")[2])["id"] == "x/../y"
    for path in ("..", "x/../y%0a", "a%00b", "%ff", "a" * 10_000):
        status, _, body = server.get(f"/documents/{path}")
        assert status == 404
        assert "holds no document" in error(body)


@pytest.mark.parametrize("host", ["localhost:80", "127.0.0.1", "[::1]:8000", "10.0.0.1:8000"])
def test_names_of_this_machine(server: Server, host: str) -> None:
    assert server.get("/info", host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.x", ""]
)
def test_a_name_that_was_rebound_to_this_machine(server: Server, host: str) -> None:
    for path in ("/", "/info", "/documents/x/../y"):
        status, _, body = server.get(path, host)
        assert status == 403
        assert "use localhost" in error(body)


def test_no_other_origin_may_read(server: Server) -> None:
    head = (
        b"OPTIONS /search HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\norigin: http://evil.example\r\n"
    )
    status, answered, _ = server.answer(head + b"access-control-request-method: POST\r\n\r\n")
    assert status == 405
    assert b"access-control" not in answered.lower()


def test_no_answer_leads_elsewhere(server: Server) -> None:
    for path in ("/search/", "/info/", "/static", "//evil.example/info"):
        status, head, _ = server.get(path)
        assert status == 404
        assert b"location:" not in head.lower()


@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        (" >> ".join(["bm25"] * 10_000), "longer than 1,000 characters: "),
        ("(" * 400 + "bm25" + ")" * 400, "too many parentheses"),
        ('bm25 >> maxp(mono(model="../slow"))', "this server has no model '../slow'"),
        ('fuse(bm25, bm25 >> mono(model="./slow"))', "this server has no model './slow'"),
        ('bm25 >> interpolate(mono(model="org/name"))', "this server has no model 'org/name'"),
        ('bm25 >> mono(model="\\u0000")', "this server has no model"),
        ('bm25 >> groupwise(model="/etc/shadow")', "this server has no model '/etc/shadow'"),
        ('bm25 >> groupwise(model="/dev/zero")', "this server has no model '/dev/zero'"),
        ("bm25 >> interpolate(groupwise(model=pipe))", "this server has no model 'pipe'"),
        ("bm25 >> groupwise", "this server has no model 'groupwise.json'"),
        (
            "bm25 >> maxp(mono(model=slow), passages=none)",
            "any number of passages: set a limit, as in passages=30",
        ),
        ("bm25 >> birch(mono(model=slow))", "any number of passages"),
    ],
)
def test_pipelines_that_ask_for_too_much(server: Server, pipeline: str, reason: str) -> None:
    status, _, body = server.post("/search", query="sieve", pipeline=pipeline)
    assert status == 422
    assert reason in error(body)


@pytest.mark.parametrize("query", ["the of and", "🙂", "\x00", "\u200b", "x" * 2000, '") % 1'])
def test_queries_that_find_nothing_or_little(server: Server, query: str) -> None:
    status, _, body = server.post("/search", query=query, pipeline="bm25 % 5 >> mono(model=slow)")
    assert status == 200
    assert json.loads(body)["query"] == query


def test_documents_without_a_word(server: Server) -> None:
    documents = ["", " ", {"text": "", "title": "t" * 100_000}]
    for pipeline in ("mono(model=slow)", "maxp(mono(model=slow))"):
        status, _, body = server.post("/rerank", query="x", documents=documents, pipeline=pipeline)
        assert (status, len(json.loads(body)["results"])) == (200, 3)


def test_clients_that_leave_give_their_places_back(folder: Path) -> None:
    """Their work takes seconds, and all places are taken. By a server of its own, that knows nothing of
    what its models take yet: on a busy machine it might rightly refuse the work."""
    documents = [" ".join(f"w{number}" for number in range(100))] * 1000
    work = request("/rerank", query="x", documents=documents, pipeline="mono(model=slow)")
    with serving(folder) as server:
        clients = [server.send(work) for _ in range(QUEUE)]
        until = time.monotonic() + 60
        while f"tamis_in_work {QUEUE}.0\n".encode() not in server.get("/metrics")[2]:
            assert time.monotonic() < until
        assert server.post("/search", query="x")[0] == 503
        for client in clients:
            client.close()
        while f'route="/rerank",status="499"}} {QUEUE}.0\n'.encode() not in server.get("/metrics")[2]:
            assert time.monotonic() < until
        assert server.post("/search", query="x")[0] == 200
        status, _, body = server.post("/rerank", query="x", documents=["y"], pipeline="mono(model=slow)")
        assert (status, json.loads(body)["complete"]) == (200, True)  # the model is free too
