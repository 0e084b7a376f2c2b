"""HEAD wherever GET is answered, and 405 with Allow for all other methods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tamis import Document, Index

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from tamis.serve.app import create_app  # noqa: E402 (its package needs them)
from tamis.serve.pipelines import Pipelines  # noqa: E402
from tamis.serve.service import Service  # noqa: E402

GET = [
    *("/", "/static/main.js", "/info", "/healthz", "/readyz", "/metrics", "/openapi.json"),
    *("/documents?id=d1", "/documents/d1", "/documents/none", "/nothing", "/static/nothing.js"),
]
POST = ["/search", "/rerank", "/v1/rerank", "/v2/rerank", "/explain"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    index = Index.build([Document("d1", "a sieve")], tmp_path_factory.mktemp("serve-methods") / "idx")
    with testclient.TestClient(create_app(Service(Pipelines(index, "bm25")))) as made:
        while made.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield made


@pytest.mark.parametrize("path", GET)
def test_head_is_the_head_of_get(client: Any, path: str) -> None:
    got, asked = client.get(path), client.head(path)
    assert asked.status_code == got.status_code
    # of its own in every answer; and what is counted has changed meanwhile
    ignored = {"x-request-id"} | ({"content-length"} if path == "/metrics" else set())
    heads = [{k: v for k, v in each.headers.items() if k not in ignored} for each in (got, asked)]
    assert heads[0] == heads[1]


@pytest.mark.parametrize(
    ("paths", "allowed", "methods"),
    [
        (GET[:9], "GET, HEAD", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"]),
        (POST, "POST", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"]),
    ],
)
def test_any_other_method_is_told_which_are_allowed(
    client: Any, paths: list[str], allowed: str, methods: list[str]
) -> None:
    for path in paths:
        for method in methods:
            answer = client.request(method, path)
            assert (answer.status_code, answer.headers.get("allow")) == (405, allowed), (method, path)
            if method != "HEAD":
                assert answer.json()["error"].endswith("see /openapi.json for the right method")
