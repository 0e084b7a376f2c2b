"""`tamis serve` without an index, and what every server says to HEAD and to pages of other origins."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tamis.cli import main
from tests.end_to_end.served import Served, serving

pytest.importorskip("fastapi")

APP = "https://app.example"
BODY = {"query": "a sieve", "documents": ["soup", "a tamis is a sieve"]}


@pytest.fixture(scope="module")
def server(
    tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve-reranker")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    options = ["-p", "mono(model=m)", "--deadline", "60s", "--allow-origin", APP]
    with serving(folder, *options, index=None) as served:
        yield served


def test_it_is_ready_and_reranks(server: Served) -> None:
    assert server.get("/readyz").json() == {"status": "ready"}
    found = server.post("/rerank", **BODY).json()
    assert found["complete"]
    assert sorted(each["index"] for each in found["results"]) == [0, 1]
    none = server.post("/search", query="sieve")
    assert (none.status_code, none.json()["error"].split(":")[0]) == (
        404,
        "this server has no index, it reranks",
    )
    assert "This server reranks" in server.get("/").text


def test_the_answer_to_head_has_no_body(server: Served) -> None:
    """Or the next answer on the connection would begin with it."""
    address = urlsplit(server.url)
    asked = "".join(f"HEAD {path} HTTP/1.1\r\nhost: localhost\r\n\r\n" for path in ("/info", "/", "/nothing"))
    last = "HEAD /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall((asked + last).encode())
        answers = connection.makefile("rb").read().decode().split("\r\n\r\n")
    assert [each.partition("\r\n")[0][:12] for each in answers[:-1]] == ["HTTP/1.1 200"] * 2 + [
        "HTTP/1.1 404",
        "HTTP/1.1 200",
    ]
    assert answers[-1] == ""
    assert all("content-length: 0" not in each and "content-length:" in each for each in answers[:-1])


def test_a_page_of_an_allowed_origin_may_rerank(server: Served) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    before = server.client.options("/rerank", headers={"origin": APP, **asked})
    answer = server.client.post("/rerank", json=BODY, headers={"origin": APP})
    wrong = server.client.post("/rerank", json={}, headers={"origin": APP})
    other = server.client.post("/rerank", json=BODY, headers={"origin": "https://other.example"})
    assert [each.status_code for each in (before, answer, wrong, other)] == [204, 200, 422, 200]
    for each in (before, answer, wrong):
        assert each.headers["access-control-allow-origin"] == APP
    assert "access-control-allow-origin" not in other.headers


def test_a_pipeline_that_searches_needs_an_index(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "-p", "bm25 >> mono"]) == 2
    assert "bm25 searches, and there is no index: name an index" in capsys.readouterr().err
    assert main(["serve", "--examples", "queries.txt"]) == 2
    assert "--examples needs an index to search" in capsys.readouterr().err
