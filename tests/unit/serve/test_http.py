"""What a client is told: which of its documents a result is, and what is wrong with a request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")


@pytest.fixture(scope="module")
def client(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tamis.serve.app import create_app
    from tamis.serve.limits import Limits
    from tamis.serve.pipelines import Pipelines
    from tamis.serve.service import Service

    folder = tmp_path_factory.mktemp("serve-http")
    model = tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    index = Index.build(
        [Document("d1", "a sieve"), Document("d2", "soup"), Document("d3", "soups")], folder / "idx"
    )
    limits = Limits(deadline=60.0)  # on a machine however busy
    service = Service(Pipelines(index, f'bm25 >> mono(model="{model}")', limits=limits))
    with testclient.TestClient(create_app(service)) as made:
        yield made


# -- which document a result is
# ------------------------------------------------------------------------------------------------------------

TEXTS = ["soup", "a tamis is a sieve", "flour", "bread"]
#: Ids that are alike, and ids that are the places of others.
SENT = [{"id": "1", "text": TEXTS[0]}, TEXTS[1], {"id": 0, "text": TEXTS[2]}, {"id": "0", "text": TEXTS[3]}]


def test_a_reranked_document_has_its_place_in_the_request(client: Any) -> None:
    body = {"query": "tamis", "documents": SENT, "trace": True, "texts": True}
    found = client.post("/rerank", json=body).json()
    results = found["results"]
    assert sorted(each["index"] for each in results) == [0, 1, 2, 3]
    assert [each["text"] for each in results] == [TEXTS[each["index"]] for each in results]
    assert [each["id"] for each in results] == ["1100"[each["index"]] for each in results]
    traced = found["stages"][-1]["ranking"]
    assert [each["index"] for each in traced] == [each["index"] for each in results]
    foreign = client.post("/v2/rerank", json={"query": "tamis", "documents": TEXTS}).json()
    assert [each["index"] for each in foreign["results"]] == [each["index"] for each in results]


def test_a_cut_keeps_the_places(client: Any) -> None:
    body = {"query": "tamis", "documents": SENT}
    whole, first = (client.post("/rerank", json=body | more).json()["results"] for more in ({}, {"k": 2}))
    assert first == whole[:2]


def test_a_search_has_ids_alone(client: Any) -> None:
    found = client.post("/search", json={"query": "sieve", "trace": True}).json()
    assert [each["id"] for each in found["results"]] == ["d1"]
    assert not any("index" in each for each in (*found["results"], *found["stages"][0]["ranking"]))


def test_a_search_suggests_another_query(client: Any) -> None:
    found = client.post("/search", json={"query": "a fine suop"}).json()
    assert found["suggestion"] == "a fine soup"
    assert (found["query"], found["results"]) == ("a fine suop", [])
    assert client.post("/search", json={"query": "soup"}).json()["suggestion"] is None
    events = client.post("/search", json={"query": "suop soup", "stream": True}).text.split("\n\n")
    data = [json.loads(event.partition("data: ")[2]) for event in events if event]
    assert [each["suggestion"] for each in data] == ["soup soup"] * 2
    assert "suggestion" not in client.post("/rerank", json={"query": "suop", "documents": TEXTS}).json()


def test_a_suggestion_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    from tamis.serve.suggestions import Suggestions

    index = Index.build([Document("d1", "a sieve"), Document("d2", "sieves")], tmp_path / "idx")

    async def ask(seconds: float) -> str | None:
        return await suggestions.begin(index, "seive", seconds).result()

    suggestions = Suggestions()
    assert asyncio.run(ask(0.0)) is None
    assert asyncio.run(ask(600.0)) == "sieve"
    begun, gate = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert gate.wait(60)

    suggestions.thread.submit(hold)
    assert begun.wait(60)
    assert asyncio.run(ask(0.1)) is None  # another one takes long
    gate.set()
    assert asyncio.run(ask(600.0)) == "sieve"
    suggestions.close()


def test_the_answers_are_as_the_schema_has_them(client: Any) -> None:
    """All fields, and no others: the answers are sent without being checked."""
    schema = client.get("/openapi.json").json()
    rerank = client.post("/rerank", json={"query": "tamis", "documents": SENT, "trace": True}).json()
    search = client.post("/search", json={"query": "sieve", "trace": True}).json()
    for path, found in (("/rerank", rerank), ("/search", search)):
        answer = _schema(schema, schema["paths"][path]["post"]["responses"]["200"]["content"])
        assert set(answer["properties"]) == set(found)
        result = _schema(schema, answer["properties"]["results"]["items"])
        texts = {"text", "cut", "highlights"}
        assert set(result["properties"]) - texts == set(result["required"]) == set(found["results"][0])
        stage = _schema(schema, answer["properties"]["stages"]["items"])
        assert set(stage["properties"]) == set(found["stages"][0])
        place = _schema(schema, stage["properties"]["ranking"]["anyOf"][0]["items"])
        assert set(place["properties"]) == set(place["required"]) == set(found["stages"][0]["ranking"][0])


def _schema(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    part = part["application/json"]["schema"] if "application/json" in part else part
    found: dict[str, Any] = whole["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return found


# -- what is wrong with a request
# ------------------------------------------------------------------------------------------------------------

NOT_WHOLE = "is not a whole number: send one, in digits and without quotes"
NOT_BOOLEAN = "is not true or false: send one of them, without quotes"
NOT_DOCUMENT = "give a text, or an object with a text: see /openapi.json"
NO_FIELD = "is not a known field: see /openapi.json"
HALF = "holds half a character (a lone surrogate): send whole ones, as UTF-8"
Y = ["y"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/search", {"pipeline": "bm25"}, "query is missing: send it (see /openapi.json)"),
        ("/search", {"query": 5}, "query is not a text: send one, in quotes"),
        ("/search", {"query": None}, "query is not a text: send one, in quotes"),
        ("/search", {"query": ""}, "query is empty: write something"),
        ("/search", {"query": " \n"}, "query is blank: write something"),
        ("/search", {"query": "x" * 2001}, "query is longer than 2,000 characters: shorten it"),
        ("/search", {"query": "x\ud800"}, f"query {HALF}"),
        ("/search", {"query": "x", "\ud800": 1}, f"the body {HALF}"),
        ("/search", {"query": "x", "k": 1e9}, f"k {NOT_WHOLE}"),
        ("/search", {"query": "x", "k": 1.5}, f"k {NOT_WHOLE}"),
        ("/search", {"query": "x", "k": "10"}, f"k {NOT_WHOLE}"),
        ("/search", {"query": "x", "k": True}, f"k {NOT_WHOLE}"),
        ("/search", {"query": "x", "k": None}, "k is null: send a whole number, or leave it out"),
        ("/search", {"query": "x", "k": 0}, "k is less than 1: use 1 or more"),
        ("/search", {"query": "x", "k": 10**9}, "k is more than 1,000: use 1,000 or less"),
        ("/search", {"query": "x", "k": 10**99}, "k is more than 1,000: use 1,000 or less"),
        (
            "/search",
            {"query": "x", "deadline_ms": 60_001},
            "deadline_ms is more than 60,000: use 60,000 or less",
        ),
        ("/search", {"query": "x", "pipeline": ""}, "pipeline is empty: write something"),
        ("/search", {"query": "x", "pipeline": Y}, "pipeline is not a text: send one, in quotes"),
        ("/search", {"query": "x", "trace": 1}, f"trace {NOT_BOOLEAN}"),
        ("/search", {"query": "x", "trace": None}, "trace is null: send true or false, or leave it out"),
        ("/search", {"query": "x", "body": "y"}, f"body {NO_FIELD}"),
        ("/search", {"query": "x", "": "y"}, f"the body {NO_FIELD}"),
        ("/search", {"query": "x", "y" * 1_000_000: 1}, f"{'y' * 97}... {NO_FIELD}"),
        ("/explain", {"query": "x"}, "id is missing: send it (see /openapi.json)"),
        ("/explain", {"query": "x", "id": ""}, "id is empty: write something"),
        ("/rerank", {"query": "x"}, "documents is missing: send it (see /openapi.json)"),
        (
            "/rerank",
            {"query": "x", "documents": "one text"},
            "documents is not a list: send one, in square brackets",
        ),
        ("/rerank", {"query": "x", "documents": []}, "documents has 0 items: send 1 or more"),
        (
            "/rerank",
            {"query": "x", "documents": [{"body": "no"}]},
            "documents.0.text is missing: send it (see /openapi.json)",
        ),
        (
            "/rerank",
            {"query": "x", "documents": ["y", {"text": "y", "body": ""}]},
            f"documents.1.body {NO_FIELD}",
        ),
        ("/rerank", {"query": "x", "documents": [5]}, f"documents.0: {NOT_DOCUMENT}"),
        (
            "/rerank",
            {"query": "x", "documents": [{"text": 5}]},
            "documents.0.text is not a text: send one, in quotes",
        ),
        (
            "/rerank",
            {"query": "x", "documents": [{"text": "y", "id": 1.5}]},
            "documents.0.id is not a text: send one, in quotes",
        ),
        (
            "/rerank",
            {"query": "x", "documents": ["y" * 200_001]},
            "documents.0.text is longer than 200,000 characters: shorten it",
        ),
        ("/v1/rerank", {"documents": Y}, "query is missing: send it (see /openapi.json)"),
        ("/v1/rerank", {"query": "x", "documents": [None]}, f"documents.0: {NOT_DOCUMENT}"),
        ("/v2/rerank", {"query": "x", "documents": Y, "top_n": "many"}, f"top_n {NOT_WHOLE}"),
        ("/v2/rerank", {"query": "x", "documents": Y, "top_n": "9" * 5000}, f"top_n {NOT_WHOLE}"),
        ("/v2/rerank", {"query": "x", "documents": Y, "top_n": 1.5}, f"top_n {NOT_WHOLE}"),
        ("/v2/rerank", {"query": "x", "documents": Y, "top_n": []}, f"top_n {NOT_WHOLE}"),
        (
            "/v2/rerank",
            {"query": "x", "documents": Y, "return_documents": "maybe"},
            f"return_documents {NOT_BOOLEAN}",
        ),
        (
            "/v2/rerank",
            {"query": "x", "documents": Y, "return_documents": []},
            f"return_documents {NOT_BOOLEAN}",
        ),
    ],
)
def test_a_value_that_is_wrong_is_told_with_a_remedy(
    client: Any, path: str, body: dict[str, Any], words: str
) -> None:
    # as ASCII: httpx would not encode half a character
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (422, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the body is missing: send a JSON object, with the header content-type: application/json"),
        (b"null", "the body is not a JSON object: send one, with the header content-type: application/json"),
        (b"[]", "the body is not a JSON object: send one, with the header content-type: application/json"),
        (b'"x"', "the body is not a JSON object: send one, with the header content-type: application/json"),
        (b'{"query": x}', "the body is not JSON (Expecting value): send a JSON object"),
    ],
)
def test_a_body_that_is_wrong_is_told_with_a_remedy(client: Any, content: bytes, words: str) -> None:
    answer = client.post("/search", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (422, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"query": "caf\xe9"}', "the body is not UTF-8 (byte 0xe9): send JSON as UTF-8"),
        (b'{"query": "\xff"}', "the body is not UTF-8 (byte 0xff): send JSON as UTF-8"),
        (
            b'{"query": "x", "k": ' + b"9" * 5000 + b"}",
            "the body holds a number of thousands of digits: send a shorter one",
        ),
        (
            b"[" * 100_000,
            "the body cannot be parsed: send a JSON object with less nesting",
        ),
    ],
    ids=["latin-1", "no character", "digits", "nested"],
)
def test_a_body_that_cannot_be_parsed_is_told_why(client: Any, content: bytes, words: str) -> None:
    answer = client.post("/search", content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]) == (400, words)


def test_the_time_that_was_too_short_is_the_one_that_was_asked_for(client: Any) -> None:
    """And not what was left of it: of 1 ms that would be 0."""
    body = {"query": "x", "documents": ["a sieve"] * 1000, "deadline_ms": 1}
    answer = client.post("/rerank", json=body)
    assert answer.status_code == 503
    assert "would not finish within 1 ms: " in answer.json()["error"]


def test_a_file_of_groupwise_that_a_client_names(client: Any, tmp_path: Path) -> None:
    """Whether it is there or not, the answer is the same."""
    (tmp_path / "there").write_text("{}")
    for path in (tmp_path / "there", tmp_path / "not"):
        stage = f'groupwise(model="{path}")'
        words = f"this server has no model '{path}': use a pipeline without groupwise"
        for where, body in (
            ("/search", {"pipeline": f"bm25 >> {stage}"}),
            ("/explain", {"pipeline": f"bm25 >> interpolate({stage})", "id": "d1"}),
            ("/rerank", {"pipeline": stage, "documents": Y}),
        ):
            answer = client.post(where, json={"query": "x", **body})
            assert (answer.status_code, answer.json()["error"]) == (422, words)


def test_a_kind_of_error_that_has_no_words_has_a_remedy_too() -> None:
    from tamis.serve.problems import in_words

    error = {"loc": ("body", "k"), "type": "multiple_of", "ctx": {"multiple_of": 2}, "msg": "No {multiple}"}
    assert in_words(error) == "k is not valid (No {multiple}): see /openapi.json"
