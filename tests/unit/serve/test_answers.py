"""Answers that would take long to write, or much memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tamis import Document, Index
from tamis.text.analyze import get_analyzer

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from tamis.serve.highlight import Marker  # noqa: E402 (its package needs them)
from tamis.serve.limits import ANSWER, SHOWN, Limits  # noqa: E402
from tamis.serve.service import Service  # noqa: E402

DOCUMENTS = 100


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    from tamis.serve.pipelines import Pipelines

    long = "sieve " * (SHOWN // 6 + 100)
    documents = [Document(f"d{number}", long, title=f"t{long}") for number in range(DOCUMENTS)]
    index = Index.build(documents, tmp_path_factory.mktemp("serve-answers") / "idx")
    return Service(Pipelines(index, "bm25", limits=Limits(deadline=60.0)))


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    from tamis.serve.app import create_app

    with testclient.TestClient(create_app(service)) as made:
        yield made


@pytest.mark.parametrize("k", [1, 25, 26, DOCUMENTS])
def test_texts_share_an_answer(client: Any, k: int) -> None:
    results = client.post("/search", json={"query": "sieve", "k": k}).json()["results"]
    each = min(SHOWN, ANSWER // k)
    assert [len(result["text"]) for result in results] == [each] * k
    assert [len(result["title"]) for result in results] == [each] * k
    assert all(result["cut"] for result in results)
    assert all(end <= each for result in results for _, end in result["highlights"])


def test_an_answer_whose_turn_does_not_come_is_a_503(client: Any, service: Service) -> None:
    free = threading.Event()
    giving_up = threading.Timer(20, free.set)
    giving_up.start()
    service._writer.submit(free.wait)  # as another answer does that takes long
    try:
        answer = client.post("/search", json={"query": "sieve", "deadline_ms": 300})
    finally:
        free.set()
        giving_up.cancel()
    words = "took longer to write than 300 ms: allow more time (deadline_ms), or try again later"
    assert (answer.status_code, answer.json()["error"]) == (503, f"others' answers {words}")
    assert answer.headers["retry-after"] == "1"
    assert client.post("/search", json={"query": "sieve"}).status_code == 200


def test_a_text_without_a_space_is_marked_in_one_pass() -> None:
    """By one copy of what was found for each word, these took a minute."""
    places = Marker(get_analyzer("english"), {"soup"}).places("soup," * 100_000)
    assert places == [(start, start + 4) for start in range(0, 500_000, 5)]
