"""Requests with whatever in their paths and headers, made by hypothesis: none gets past the key or the name,
none is a fault of the server, and each is one line of the log. Longer with TAMIS_ATTACK=long."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis import Document, Index
from tamis.serve.access import Access, is_open
from tamis.serve.access_log import AccessLog
from tamis.serve.app import create_app
from tamis.serve.keys import Key, Keys, digest_of
from tamis.serve.pipelines import Pipelines
from tamis.serve.rates import Buckets, Rate
from tamis.serve.service import Service

EXAMPLES = 20_000 if os.environ.get("TAMIS_ATTACK") == "long" else 150
SECRET = "correct-horse-battery"
TEXT = "zyzzyva in the document"
CLIENTS = 20
NAME = (b"host", b"search.example")

_PIECES = ["/", "//", "..", ".", "static", "documents", "d1", "metrics", "search", "info", "openapi.json"]
_PIECES += ["healthz", "readyz", "%2e%2e", "%2f", "%00", "%0a", "%ff", ";", "?", "#", "*", "http://x", "x.js"]
paths = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=8).map(lambda pieces: "/" + "".join(pieces)),
    st.lists(st.sampled_from(_PIECES), max_size=4).map(lambda pieces: "/static/" + "".join(pieces)),
    st.sampled_from(["/", "/healthz", "/metrics", "/documents/d1", "/search", "/static/main.js"]),
)
values = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"Bearer ", b"bearer " + SECRET[:-1].encode(), SECRET.encode() + b"x", b"Basic eDp5"]),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "replace")),
)
names = st.sampled_from(
    [b"authorization", b"x-api-key", b"x-request-id", b"host", b"x-forwarded-for", b"accept"]
)
requests = st.tuples(
    st.sampled_from(["GET", "HEAD", "POST", "OPTIONS", "PUT", "X\u00e9"]),
    paths,
    st.builds(
        lambda first, more: [*first, *more],
        st.sampled_from([[NAME], [NAME], [NAME], []]),
        st.lists(st.tuples(names, values), max_size=4),
    ),
    st.text(max_size=30),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    index = Index.build([Document("d1", TEXT)], tmp_path_factory.mktemp("attack") / "idx")
    return Service(Pipelines(index, "bm25"))


async def ask(app: Any, request: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    """As uvicorn would ask, once the bytes are HTTP."""
    method, path, headers, client = request
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": (client, 1),
        "server": ("127.0.0.1", 8000),
    }
    sent: list[Any] = []
    read = False

    async def receive() -> dict[str, Any]:
        nonlocal read
        if read:
            await asyncio.Event().wait()
        read = True
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


def test_no_request_gets_past(service: Service, tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl", waiting=1_000_000)
    keys = Keys([Key("one", digest_of(SECRET))])
    names = frozenset({"search.example"})
    access = Access(keys, names=names, rate=Rate(1e6, 1e6), log=log, by_address=Buckets(CLIENTS))
    app = create_app(service, access)
    asked = 0

    @given(requests)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=EXAMPLES < 1000,
        suppress_health_check=list(HealthCheck),
    )
    def attack(request: Any) -> None:
        nonlocal asked
        asked += 1
        status, headers, body = asyncio.run(ask(app, request))
        assert status < 500 or unquote(request[1]) == "/readyz"
        assert TEXT.encode() not in body and b"tamis_requests_total" not in body
        if not is_open(unquote(request[1])):
            assert status in (401, 403)
        assert b"content-security-policy" in headers
        assert len(access.by_address) <= CLIENTS and len(access.by_key) == 0

    attack()
    log.close()
    lines = (tmp_path / "access.jsonl").read_bytes().splitlines()
    assert len(lines) == asked
    assert all(set(json.loads(line)) >= {"id", "route", "status"} for line in lines)
    assert {200, 401, 403, 404} <= {json.loads(line)["status"] for line in lines}  # they came so far
    routes = {json.loads(line)["route"] for line in lines}
    assert len(routes) < 20  # paths do not become routes
    assert all(json.loads(line)["key"] is None for line in lines)
