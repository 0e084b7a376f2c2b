"""A server without an index: it reranks, and says so of everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis.base.errors import InputError

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from tamis.serve.app import create_app  # noqa: E402 (its package needs them)
from tamis.serve.limits import Limits  # noqa: E402
from tamis.serve.pipelines import Pipelines  # noqa: E402
from tamis.serve.service import Service  # noqa: E402

DOCUMENTS = ["soup", "a tamis is a sieve", {"id": "b", "title": "Bread", "text": "flour, sieved"}]
NONE = "this server has no index, it reranks: send candidates to /rerank"


@pytest.fixture(scope="module")
def client(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    model = tiny_checkpoint(tmp_path_factory.mktemp("no-index") / "m", layers=1, positions=48, seed=1)
    pipelines = Pipelines(None, f'mono(model="{model}")', limits=Limits(deadline=60.0))
    with testclient.TestClient(create_app(Service(pipelines))) as made:
        yield made


def test_it_reranks(client: Any) -> None:
    found = client.post("/rerank", json={"query": "a sieve", "documents": DOCUMENTS}).json()
    assert sorted(each["index"] for each in found["results"]) == [0, 1, 2]
    assert found["complete"]
    sieve = next(each for each in found["results"] if each["index"] == 1)
    words = [sieve["snippet"]["text"][start:stop] for start, stop in sieve["snippet"]["highlights"]]
    assert words == ["sieve"]
    foreign = client.post("/v2/rerank", json={"query": "a sieve", "documents": ["soup", "a sieve"]})
    assert len(foreign.json()["results"]) == 2


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/search"),
        ("GET", "/search"),
        ("POST", "/explain"),
        ("GET", "/documents"),
        ("GET", "/documents?id=d1"),
        ("GET", "/documents/d1"),
    ],
)
def test_what_needs_an_index_is_a_clear_error(client: Any, method: str, path: str) -> None:
    answer = client.request(method, path, json={"query": "sieve", "id": "d1"} if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]) == (404, NONE)
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_its_pipelines_are_those_that_do_not_search(client: Any) -> None:
    body = {"query": "x", "documents": ["y"], "pipeline": "bm25 >> mono"}
    answer = client.post("/rerank", json=body)
    assert (answer.status_code, "bm25 searches" in answer.json()["error"]) == (422, True)
    words = "bm25 searches, and there is no index: name an index, or leave it out of the pipeline"
    with pytest.raises(InputError, match=words):
        Pipelines(None, "bm25 % 10 >> mono")


def test_the_description_has_only_what_is_there(client: Any) -> None:
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        *("/rerank", "/v1/rerank", "/v2/rerank"),
        *("/info", "/healthz", "/readyz", "/metrics"),
    }
    assert not {"SearchRequest", "StoredDocument", "Explanation"} & set(schema["components"]["schemas"])
    assert "search" not in schema["info"]["description"]


def test_its_state(client: Any) -> None:
    info = client.get("/info").json()
    assert (info["documents"], info["named"], info["examples"]) == (None, {}, [])
    assert "mono" in {stage["name"] for stage in info["stages"]}
    assert "bm25" not in {stage["name"] for stage in info["stages"]}
    assert "mono" in info["models"].values()
    assert client.get("/healthz").status_code == 200
    metrics = client.get("/metrics").text
    assert "tamis_documents" not in metrics
    assert "tamis_ready" in metrics


def test_its_page_says_what_there_is(client: Any) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "POST /rerank" in page.text
    assert "main.js" not in page.text
