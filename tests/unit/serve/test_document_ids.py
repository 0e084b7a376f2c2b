"""Documents are found by their id, exactly, whatever characters it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tamis import Document, Index

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

IDS = [
    "d1",
    "d2\n",
    "a\nb",
    "x/../y",
    "..",
    ".",
    "/",
    "a//b/",
    "100%",
    "%0a",
    "a b+c&id=d1",
    "é🙂",
    "?x#y",
    "\\",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tamis.serve.app import create_app
    from tamis.serve.pipelines import Pipelines
    from tamis.serve.service import Service

    documents = [Document(identity, "a sieve") for identity in IDS]
    index = Index.build(documents, tmp_path_factory.mktemp("serve-ids") / "idx")
    with testclient.TestClient(create_app(Service(Pipelines(index, "bm25")))) as made:
        yield made


@pytest.mark.parametrize("identity", IDS)
def test_every_id_is_found_by_the_query_string(client: Any, identity: str) -> None:
    """As the page asks."""
    answer = client.get(f"/documents?id={quote(identity, safe='')}")
    assert (answer.status_code, answer.json()["id"]) == (200, identity)


# the test's client unquotes twice, and follows dots
@pytest.mark.parametrize("identity", [each for each in IDS if each not in ("..", ".", "%0a")])
def test_every_id_is_found_by_the_path(client: Any, identity: str) -> None:
    answer = client.get(f"/documents/{quote(identity, safe='')}")
    assert (answer.status_code, answer.json()["id"]) == (200, identity)


@pytest.mark.parametrize("identity", ["d1\n", "d2", "d1/", "D1", " d1", "", "a\n", "x" * 10_000])
def test_no_other_id_is(client: Any, identity: str) -> None:
    for path in ("/documents?id=", "/documents/"):
        answer = client.get(path + quote(identity, safe=""))
        assert answer.status_code == 404
        assert answer.json()["error"].startswith("the index holds no document ")
        assert len(answer.json()["error"]) < 200


def test_the_id_is_asked_for(client: Any) -> None:
    answer = client.get("/documents")
    assert (answer.status_code, answer.json()["error"]) == (422, "id is missing: send it (see /openapi.json)")
