"""Answers that would take long to write, or much memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tamis import Document, Index
from tamis.text.analyze import get_analyzer

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from tamis.serve.highlight import Marker  # noqa: E402 (its package needs them)
from tamis.serve.limits import ANSWER, BRIEF, SHOWN, Limits  # noqa: E402
from tamis.serve.service import Service  # noqa: E402

DOCUMENTS = 100


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    from tamis.serve.pipelines import Pipelines

    long = "sieve " * (SHOWN // 6 + 100)
    metadata = {"year": 2019, "html": long, "tags": ["a", "b"]}
    documents = [
        Document(f"d{number}", long, title=f"t{long}", metadata=metadata) for number in range(DOCUMENTS)
    ]
    index = Index.build(documents, tmp_path_factory.mktemp("serve-answers") / "idx")
    return Service(Pipelines(index, "bm25", limits=Limits(deadline=60.0)))


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    from tamis.serve.app import create_app

    with testclient.TestClient(create_app(service)) as made:
        yield made


@pytest.mark.parametrize("k", [1, 25, 26, DOCUMENTS])
def test_texts_share_an_answer(client: Any, k: int) -> None:
    results = client.post("/search", json={"query": "sieve", "k": k, "texts": True}).json()["results"]
    each = min(SHOWN, ANSWER // k)
    assert [len(result["text"]) for result in results] == [each] * k
    assert [len(result["title"]) for result in results] == [min(each, BRIEF)] * k
    assert all(result["cut"] for result in results)
    assert all(end <= each for result in results for _, end in result["highlights"])


def test_an_answer_has_snippets_and_texts_only_if_asked(client: Any) -> None:
    def asked(**more: Any) -> Any:
        return client.post("/search", json={"query": "sieve", **more})

    short, long = asked(), asked(texts=True)
    assert len(long.content) > 10 * SHOWN
    assert len(short.content) < len(long.content) / 5  # with titles of 2,000 characters, all marked
    names = {"text", "cut", "highlights"}
    for without, whole in zip(short.json()["results"], long.json()["results"], strict=True):
        assert set(whole) - set(without) == names
        assert without == {name: value for name, value in whole.items() if name not in names}
    for texts in (False, True):
        *_, last, _ = asked(texts=texts, stream=True).text.split("\n\n")
        result = json.loads(last.partition("data: ")[2])["results"][0]
        assert (names <= set(result)) == texts


def test_an_answer_has_the_metadata_that_fits(client: Any) -> None:
    for result in client.post("/search", json={"query": "sieve"}).json()["results"]:
        assert result["metadata"] == {"year": 2019, "tags": ["a", "b"]}
        assert result["metadata_cut"]  # the page, which GET /documents has


def test_reranked_texts_are_not_sent_back_unless_asked(client: Any) -> None:
    body = {"query": "sieve", "documents": ["a sieve", "soup"], "pipeline": "mono(model=mono-tiny)"}
    for more, expected in (({}, [None] * 2), ({"texts": True}, ["a sieve", "soup"])):
        results = client.post("/rerank", json=body | more).json()["results"]
        assert [each.get("text") for each in sorted(results, key=lambda each: each["index"])] == expected
        assert not any("metadata" in each for each in results)


def test_ids_and_titles_may_have_any_length(client: Any, service: Service) -> None:
    """So long as the body has room for them."""
    ids = [f"{number}{'x' * 300_000}" for number in range(3)]
    documents = [{"id": each, "title": "t" * 400_000, "text": "a sieve"} for each in ids]
    body = {"query": "sieve", "documents": documents, "pipeline": "mono(model=mono-tiny)"}
    answer = client.post("/rerank", json=body)
    assert answer.status_code == 200
    assert sorted(each["id"] for each in answer.json()["results"]) == ids
    words = client.post("/explain", json={"query": "sieve", "id": ids[0]}).json()["error"]
    assert len(words) < 300
    pipeline = " >> ".join(["mono(model=mono-tiny)"] * 6)
    repeated = client.post("/rerank", json=body | {"pipeline": pipeline, "trace": True})
    assert repeated.status_code == 422
    assert repeated.json()["error"] == (
        "the trace would repeat 5,400,018 characters of ids: send shorter ids, or leave out trace"
    )


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
