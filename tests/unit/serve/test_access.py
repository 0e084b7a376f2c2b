"""Who is answered, with which headers, and what is written down: the application itself, without a socket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tamis import Document, Index
from tamis.serve.access import Access, is_open
from tamis.serve.access_log import AccessLog
from tamis.serve.app import create_app
from tamis.serve.headers import SECURITY_HEADERS
from tamis.serve.keys import ROUTES, Key, Keys, digest_of
from tamis.serve.limits import Limits
from tamis.serve.pipelines import Pipelines
from tamis.serve.rates import Rate
from tamis.serve.service import Service

TEXT = "a sieve of horsehair, zyzzyva"
LIMITS = Limits(deadline=60.0)  # on a machine however busy
WORDS = "horsehair zyzzyva sieve"
KEYS = {role: f"{role}-0123456789" for role in ("search", "rerank", "metrics", "all")}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("serve-access") / "idx"
    return Index.build([Document("d1", TEXT), Document("secret-id", "soup")], folder)


@pytest.fixture
def client(index: Index) -> Iterator[Callable[..., Any]]:
    """A client of an application with such an access."""
    with contextmanager(_clients)(index) as make:
        yield make


def _clients(index: Index) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def make(access: Access | None = None, base_url: str = "http://localhost") -> Any:
        app = create_app(Service(Pipelines(index, "bm25", limits=LIMITS)), access)
        app.add_api_route("/bug", _bug)
        one = TestClient(app, base_url=base_url, raise_server_exceptions=False)
        made.append(one.__enter__())
        return made[-1]

    yield make
    for one in made:
        one.__exit__(None, None, None)


def _bug() -> None:
    raise RuntimeError("nobody thought of it")


def with_roles(**more: Any) -> Access:
    return Access(Keys(Key(r, digest_of(k), frozenset({r})) for r, k in KEYS.items()), **more)


def bearer(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[role]}"}


# -- keys and roles
# ------------------------------------------------------------------------------------------------------------


def test_a_key_opens_what_its_roles_say(client: Callable[..., Any]) -> None:
    server = client(with_roles())
    asked = {
        ("search", lambda h: server.post("/search", json={"query": "sieve"}, headers=h)),
        ("search", lambda h: server.post("/explain", json={"query": "sieve", "id": "d1"}, headers=h)),
        ("search", lambda h: server.get("/documents/d1", headers=h)),
        ("rerank", lambda h: server.post("/rerank", json={"query": "x", "documents": []}, headers=h)),
        ("rerank", lambda h: server.post("/v1/rerank", json={"query": "x", "documents": []}, headers=h)),
        ("rerank", lambda h: server.post("/v2/rerank", json={"query": "x", "documents": []}, headers=h)),
        ("metrics", lambda h: server.get("/metrics", headers=h)),
    }
    for needed, ask in asked:
        for role in KEYS:
            answer = ask(bearer(role))
            if role in (needed, "all"):
                assert answer.status_code in (200, 422)  # no documents are sent: a model takes time
            else:
                assert answer.status_code == 403
                assert answer.json()["error"].startswith(f"the key {role} does not have the role {needed}: ")
        for headers in ({}, {"x-api-key": "search-012345678"}, {"authorization": KEYS["all"]}):
            answer = ask(headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    for path in ("/info", "/openapi.json"):
        assert {server.get(path, headers=bearer(role)).status_code for role in KEYS} == {200}
        assert server.get(path).status_code == 401
    assert server.get("/nothing").status_code == 401  # what there is, is not told either
    for path in ("/", "/healthz", "/static/main.js"):
        assert server.get(path).status_code == 200


def test_the_single_key_has_all_roles(client: Callable[..., Any]) -> None:
    server = client(Access.single("s3cret"))
    assert server.get("/metrics", headers={"x-api-key": "s3cret"}).status_code == 200
    assert server.get("/documents/d1", headers={"x-api-key": "s3cret"}).status_code == 200
    assert server.get("/metrics").status_code == 401


def test_metrics_have_the_names_of_keys_and_not_the_keys(client: Callable[..., Any]) -> None:
    server = client(with_roles())
    server.get("/documents/d1", headers=bearer("search"))
    server.get("/documents/d1", headers=bearer("metrics"))
    server.get("/documents/d1", headers={"x-api-key": "not-a-key-of-ours"})
    text = server.get("/metrics", headers=bearer("metrics")).text
    assert 'tamis_key_requests_total{key="search",status="200"} 1' in text
    assert 'tamis_key_requests_total{key="metrics",status="403"} 1' in text
    assert 'tamis_key_requests_total{key="",status="401"} 1' in text
    assert not any(key in text for key in (*KEYS.values(), "not-a-key-of-ours"))


def test_every_route_is_known_to_the_roles(client: Callable[..., Any]) -> None:
    """A route that is added must be given a role, or be said to need none."""
    app = client().app
    routes = {route.path for route in app.routes} - {"/bug"}
    assert routes == set(ROUTES)


def test_the_openapi_document_says_which_key_is_needed(client: Callable[..., Any]) -> None:
    document = client(with_roles()).get("/openapi.json", headers=bearer("all")).json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert bool(operation["security"]) == (not is_open(path))
            assert {"401", "403", "429"} <= set(operation["responses"])
    assert document["paths"]["/search"]["post"]["x-required-role"] == "search"
    assert document["paths"]["/documents/{doc_id}"]["get"]["x-required-role"] == "search"
    plain = client().get("/openapi.json").json()
    assert (
        "securitySchemes" not in plain["components"] and "security" not in plain["paths"]["/search"]["post"]
    )


# -- rates
# ------------------------------------------------------------------------------------------------------------


def test_a_key_has_a_rate_of_its_own(client: Callable[..., Any]) -> None:
    keys = [
        Key("slow", digest_of("slow"), rate=Rate(0.001, 2)),
        Key("other", digest_of("other")),
        Key("third", digest_of("third")),
    ]
    server = client(Access(Keys(keys), rate=Rate(0.01, 3)))

    def statuses(key: str, count: int) -> list[int]:
        return [server.get("/info", headers={"x-api-key": key}).status_code for _ in range(count)]

    assert statuses("slow", 3) == [200, 200, 429]
    assert statuses("other", 4) == [200, 200, 200, 429]
    assert statuses("third", 1) == [200]
    assert statuses("wrong", 4) == [401, 401, 401, 429]  # by address: keys cannot be tried without end
    refused = server.get("/info", headers={"x-api-key": "slow"})
    assert 900 < int(refused.headers["retry-after"]) <= 1000
    assert refused.json()["error"].startswith("more than 0.001 requests per second: ")
    assert {server.get(path).status_code for path in ("/", "/healthz", "/static/main.js")} == {200}


def test_without_keys_an_address_has_the_rate(index: Index) -> None:
    access = Access(rate=Rate(0.01, 1))
    app = create_app(Service(Pipelines(index, "bm25", limits=LIMITS)), access)
    for number in range(3):
        server = TestClient(app, client=(f"192.0.2.{number}", 1))
        assert [server.get("/info").status_code for _ in range(2)] == [200, 429]
    assert len(access.by_address) == 3 and len(access.by_key) == 0


# -- names
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "host", "status"),
    [
        (Access(), "evil.example", 200),
        (Access(local=True), "evil.example", 403),
        (Access(local=True), "127.0.0.1:8000", 200),
        (Access(local=True), "localhost", 200),
        (Access(local=True, names=frozenset({"search.example"})), "search.example:8000", 200),
        (Access(names=frozenset({"search.example"})), "SEARCH.example.", 200),
        (Access(names=frozenset({"search.example"})), "127.0.0.1", 200),
        (Access(names=frozenset({"search.example"})), "evil.example", 403),
        (Access(names=frozenset({"search.example"})), "search.example.evil.example", 403),
        (Access(names=frozenset({"search.example"})), "x.search.example", 403),
        (Access(names=frozenset({"search.example"})), "", 403),
        (Access(names=frozenset({"search.example"})), "search.example@evil.example", 403),
    ],
)
def test_the_names_a_server_answers_to(
    client: Callable[..., Any], access: Access, host: str, status: int
) -> None:
    for path in ("/healthz", "/", "/info"):
        assert client(access).get(path, headers={"host": host}).status_code == status


def test_a_name_is_asked_for_beside_a_key(client: Callable[..., Any]) -> None:
    server = client(with_roles(names=frozenset({"search.example"})))
    headers = bearer("all")
    assert server.get("/info", headers={**headers, "host": "search.example"}).status_code == 200
    assert server.get("/info", headers={**headers, "host": "evil.example"}).status_code == 403


# -- headers
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", None, 200),
        ("HEAD", "/", None, 200),
        ("GET", "/static/main.js", None, 200),
        ("GET", "/static/none.js", None, 404),
        ("GET", "/docs", None, 404),
        ("GET", "/openapi.json", None, 200),
        ("GET", "/metrics", None, 200),
        ("GET", "/readyz", None, None),
        ("GET", "/search", None, 405),
        ("OPTIONS", "/search", None, 405),
        ("POST", "/search", {"query": "sieve"}, 200),
        ("POST", "/search", {"query": "sieve", "stream": True}, 200),
        ("POST", "/search", {}, 422),
        ("GET", "/documents/none", None, 404),
        ("GET", "/bug", None, 500),
    ],
)
def test_every_answer_has_the_headers(
    client: Callable[..., Any], method: str, path: str, body: Any, status: int | None
) -> None:
    answer = client().request(method, path, json=body)
    assert status in (None, answer.status_code)
    for name, value in SECURITY_HEADERS.items():
        assert answer.headers.get_list(name) == [value]
    assert answer.headers["cache-control"] in ("no-cache", "no-store")
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert "strict-transport-security" not in answer.headers
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_refusals_have_the_headers_too(client: Callable[..., Any]) -> None:
    server = client(with_roles(names=frozenset({"a.example"}), rate=Rate(0.001, 3)))
    name = {"host": "a.example"}
    answers = [
        server.get("/info", headers={"host": "b.example"}),
        server.get("/metrics", headers={**name, **bearer("search")}),
        *(server.get("/info", headers=name) for _ in range(4)),
    ]
    assert [answer.status_code for answer in answers] == [403, 403, 401, 401, 401, 429]
    for answer in answers:
        assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_https_is_kept_to_except_on_localhost(client: Callable[..., Any]) -> None:
    for host, expected in (("search.example", "max-age=31536000"), ("localhost:8000", None)):
        answer = client(base_url=f"https://{host}").get("/healthz")
        assert answer.headers.get("strict-transport-security") == expected


def test_a_fault_is_logged_by_the_id_of_its_request(
    client: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    answer = client().get("/bug", headers={"x-request-id": "r-7"})
    assert (answer.status_code, answer.json()["request_id"]) == (500, "r-7")
    assert "request r-7 failed:" in [record.getMessage() for record in caplog.records]


# -- request ids and the log
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["job-17.3_x", "a" * 64])
def test_the_id_of_a_request_is_given_back(client: Callable[..., Any], sent: str) -> None:
    answer = client().get("/documents/none", headers={"x-request-id": sent})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == sent


@pytest.mark.parametrize("sent", ["", "a" * 65, "a b", "x\ty", "é", '"}{', "a,b"])
def test_an_id_that_cannot_be_used_is_replaced(client: Callable[..., Any], sent: str) -> None:
    answer = client().get("/healthz", headers=[(b"x-request-id", sent.encode())])
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def log_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]


def ask_everything(server: Any) -> None:
    headers = {**bearer("all"), "x-request-id": "r1"}
    server.post("/search", json={"query": WORDS}, headers=headers)
    server.post(
        "/search", json={"query": WORDS, "stream": True, "pipeline": "bm25(k1=1.2)%5"}, headers=headers
    )
    server.post("/explain", json={"query": WORDS, "id": "d1"}, headers=headers)
    server.post("/rerank", json={"query": WORDS, "documents": [TEXT], "pipeline": "bm25"}, headers=headers)
    server.get("/documents/secret-id?q=zyzzyva", headers=headers)
    server.get("/zyzzyva%0Ahorsehair", headers=headers)
    server.request("BREW", "/search", content=WORDS, headers=headers)
    server.get("/bug", headers=headers)
    server.get("/info", headers={"x-api-key": WORDS})


def test_the_log_has_a_line_for_each_request_and_no_text(client: Callable[..., Any], tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl")
    ask_everything(client(with_roles(log=log)))
    log.close()
    lines = log_of(tmp_path / "access.jsonl")
    assert [(line["method"], line["route"], line["status"]) for line in lines] == [
        ("POST", "/search", 200),
        ("POST", "/search", 200),
        ("POST", "/explain", 200),
        ("POST", "/rerank", 422),
        ("GET", "/documents/{doc_id:exactly}", 200),
        ("GET", "other", 404),
        ("BREW", "/search", 405),
        ("GET", "/bug", 500),
        ("GET", "/info", 401),
    ]
    assert [line["id"] for line in lines[:-1]] == ["r1"] * 8
    assert [line["key"] for line in lines] == ["all"] * 8 + [None]
    assert [line["pipeline"] for line in lines[:3]] == ["bm25", "bm25(k1=1.2) % 5", "bm25"]
    for line in lines:
        assert list(line) == ["time", "id", "method", "route", "status", "ms", "bytes", "key", "pipeline"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line["time"])
        assert line["ms"] >= 0 and line["bytes"] > 0
    whole = (tmp_path / "access.jsonl").read_text()
    assert not any(word in whole for word in (*WORDS.split(), "secret-id", *KEYS.values()))


def test_queries_are_logged_where_that_is_wanted(client: Callable[..., Any], tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl", queries=True)
    server = client(Access(log=log))
    hostile = 'sieve\n{"status": 200}\r\u2028\x85\x1b[31m'
    for path, more in (
        ("/search", {}),
        ("/search", {"stream": True}),
        ("/explain", {"id": "d1"}),
    ):
        assert server.post(path, json={"query": hostile, **more}).status_code == 200
    server.get("/info")
    log.close()
    content = (tmp_path / "access.jsonl").read_bytes()
    assert content.count(b"\n") == 4 and not set(content) & {0x0D, 0x1B, 0x85, 0xE2}
    assert [line["query"] for line in log_of(tmp_path / "access.jsonl")] == [hostile] * 3 + [None]


def test_the_bytes_are_those_of_the_body(client: Callable[..., Any], tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.jsonl")
    server = client(Access(log=log))
    sizes = [len(server.get("/openapi.json").content), 0]
    server.head("/openapi.json")
    log.close()
    assert [line["bytes"] for line in log_of(tmp_path / "access.jsonl")] == sizes


def test_a_log_that_was_moved_away_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    log = AccessLog(path)
    log.write({"n": 1})
    while not path.read_bytes():
        pass
    path.rename(tmp_path / "old")
    log.reopen()
    log.write({"n": 2})
    log.close()
    assert (log_of(tmp_path / "old"), log_of(path)) == ([{"n": 1}], [{"n": 2}])


def test_a_log_that_nobody_reads_keeps_nobody_waiting(tmp_path: Path) -> None:
    import os

    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(tmp_path / "pipe", waiting=10)
    for _ in range(300):
        log.write({"text": "x" * 4000})
    assert log.dropped
    os.close(reader)  # what the thread still writes is an error, which ends its waiting
    log.close()
