"""Bodies of requests: what is too much is refused before it is parsed or validated, with one error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tamis import Document, Index

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from starlette.exceptions import HTTPException  # noqa: E402 (comes with it)

from tamis.serve import bodies  # noqa: E402
from tamis.serve.bodies import Bodies, Message, Receive, too_many  # noqa: E402
from tamis.serve.limits import VALUES, Limits  # noqa: E402

JSON = {"content-type": "application/json"}
MANY = f"the body has more than {VALUES:,} values: send fewer documents"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tamis.serve.app import create_app
    from tamis.serve.pipelines import Pipelines
    from tamis.serve.service import Service

    index = Index.build([Document("d1", "a sieve")], tmp_path_factory.mktemp("serve-bodies") / "idx")
    service = Service(Pipelines(index, "bm25", limits=Limits(deadline=60.0)))
    with testclient.TestClient(create_app(service)) as made:
        yield made


ROUTES = ["/search", "/rerank", "/v1/rerank", "/v2/rerank", "/explain"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("item", ["0", '""', "{}", "[]", '{"text":""}', '{"":0}'])
def test_too_many_values_are_one_error(client: Any, path: str, item: str) -> None:
    items = ",".join([item] * (VALUES + 1))
    for body in (f'{{"query":"x","documents":[{items}]}}', f'{{"query":[{items}]}}', f"[{items}]"):
        answer = client.post(path, content=body, headers=JSON)
        assert (answer.status_code, answer.json()["error"]) == (422, MANY)


@pytest.mark.parametrize("path", ROUTES)
def test_too_many_documents_are_one_error(client: Any, path: str) -> None:
    for item in (0, "", {}, {"text": 0}):
        answer = client.post(path, json={"query": "x", "documents": [item] * 1001})
        words = "1,001 documents: send at most 1,000 with a query"
        assert (answer.status_code, answer.json()["error"]) == (422, words)


@pytest.mark.parametrize("path", ROUTES)
def test_too_many_fields_are_one_error(client: Any, path: str) -> None:
    fields = {f"f{number}": 0 for number in range(101)}
    remedy = "send at most 100 (see /openapi.json)"
    answer = client.post(path, json=fields)
    assert answer.json()["error"] == f"the body has 101 fields: {remedy}"
    answer = client.post(path, json={"query": "x", "documents": ["y", fields]})
    assert answer.json()["error"] == f"documents.1 has 101 fields: {remedy}"


def test_validation_ends_at_the_first_wrong_document() -> None:
    from pydantic import ValidationError

    from tamis.serve.rerank_api import ForeignRequest
    from tamis.serve.schemas import RerankRequest

    for model in (RerankRequest, ForeignRequest):
        with pytest.raises(ValidationError) as caught:
            model.model_validate({"query": "x", "documents": [0] * 1000})
        assert caught.value.error_count() == 1


def test_texts_full_of_commas_are_no_values(client: Any) -> None:
    body = {"query": "x", "documents": [', [{:"\\' * 20_000, {"text": "a,b", "id": "1"}]}
    data = json.dumps(body).encode()
    assert (too_many(data, 5), too_many(data, 6)) == (True, False)
    assert client.post("/rerank", json=body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 500_000,
        b'"\\"' * 300_000,
        b'"' * 1_000_000,
        b'["' + b"\\" * 1_000_001,
        b",[{" * 300_000,
    ],
    ids=["never ends", "ends at once", "quotes", "backslashes", "brackets"],
)
def test_counting_takes_what_is_no_json(client: Any, body: bytes) -> None:
    """In one pass: a second look at each quote would take hours."""
    assert client.post("/search", content=body, headers=JSON).status_code in (400, 422)


def test_only_utf_8_is_read(client: Any) -> None:
    body = json.dumps({"query": "sieve"})
    assert client.post("/search", content=body.encode("utf-8-sig"), headers=JSON).status_code == 200
    for other in ("utf-16", "utf-32"):
        assert client.post("/search", content=body.encode(other), headers=JSON).status_code in (400, 422)


# -- all bodies together
# ------------------------------------------------------------------------------------------------------------


def sending(*pieces: bytes) -> Receive:
    left = list(pieces)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


def test_large_bodies_share_the_memory() -> None:
    size = 1_000_000
    held = Bodies(Limits(body=size))
    small = bodies._SMALL

    async def run() -> None:
        fitting = [held.incoming(sending(bytes(size)), size) for _ in range(8)]
        for each in fitting:
            await each()
        assert held.held == 8 * (size - small)
        for each in [held.incoming(sending(bytes(small)), small) for _ in range(100)]:
            await each()  # these are free
        one_more = held.incoming(sending(bytes(size // 2), bytes(size // 2)), None)
        await one_more()
        with pytest.raises(HTTPException, match="try again later") as caught:
            await one_more()
        assert caught.value.status_code == 503
        for each in (*fitting, one_more):
            each.release()
            each.release()
        assert held.held == 0

    asyncio.run(run())
    held.close()


def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    held = Bodies(Limits(body=1000))

    async def never() -> Message:
        raise AssertionError("it was read")

    async def run() -> None:
        with pytest.raises(HTTPException, match="larger than 1,000 bytes") as caught:
            await held.incoming(never, 1001)()
        assert caught.value.status_code == 413

    asyncio.run(run())
    held.close()
