"""Pages of other origins: none may read the answers, unless their origin is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from tamis.base.errors import InputError  # noqa: E402 (its package needs them)
from tamis.serve.access import Access  # noqa: E402
from tamis.serve.app import create_app  # noqa: E402
from tamis.serve.headers import SECURITY_HEADERS  # noqa: E402
from tamis.serve.hosts import web_origin  # noqa: E402
from tamis.serve.keys import Key, Keys, digest_of  # noqa: E402
from tamis.serve.limits import Limits  # noqa: E402
from tamis.serve.pipelines import Pipelines  # noqa: E402
from tamis.serve.rates import Rate  # noqa: E402
from tamis.serve.service import Service  # noqa: E402

APP, OTHER = "https://app.example", "https://other.example"
KEY = "0123456789abcdef"
ALLOWED = frozenset({APP})


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Access], Any]]:
    index = Index.build([Document("d1", "a sieve")], tmp_path_factory.mktemp("serve-cors") / "idx")
    with ExitStack() as stack:

        def client(access: Access) -> Any:
            app = create_app(Service(Pipelines(index, "bm25", limits=Limits(deadline=60.0))), access)
            app.add_api_route("/bug", _bug)
            made = testclient.TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
            return stack.enter_context(made)

        yield client


def _bug() -> None:
    raise RuntimeError("a bug")


def cors(answer: Any) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


def preflight(client: Any, origin: str = APP, method: str = "POST", headers: str = "content-type") -> Any:
    asked = {"access-control-request-method": method, "access-control-request-headers": headers}
    return client.options("/search", headers={"origin": origin, **asked})


def test_by_default_no_page_from_elsewhere_is_answered(make: Callable[[Access], Any]) -> None:
    client = make(Access())
    answer = client.post("/search", json={"query": "sieve"}, headers={"origin": APP})
    assert (answer.status_code, cors(answer)) == (200, {})
    assert (preflight(client).status_code, cors(preflight(client))) == (405, {})


def test_an_allowed_origin_may_ask_and_read(make: Callable[[Access], Any]) -> None:
    client = make(Access(origins=ALLOWED))
    asked = preflight(client, headers="authorization, content-type, x-api-key, x-request-id")
    assert (asked.status_code, asked.content) == (204, b"")
    assert asked.headers["access-control-allow-origin"] == APP
    assert asked.headers["access-control-allow-methods"] == "GET, HEAD, POST"
    assert int(asked.headers["access-control-max-age"]) > 0
    answer = client.post("/search", json={"query": "sieve"}, headers={"origin": APP})
    assert cors(answer) == {
        "access-control-allow-origin": APP,
        "access-control-expose-headers": "Retry-After, X-Request-ID",
    }
    for each in (asked, answer):
        assert "Origin" in each.headers["vary"]
        assert SECURITY_HEADERS.items() <= dict(each.headers).items()
        assert each.headers["x-request-id"]


def test_a_stream_and_every_error_have_the_headers_too(make: Callable[[Access], Any]) -> None:
    keys = Keys([Key("web", digest_of(KEY), rate=Rate(0.001, 5))])
    client = make(Access(keys, origins=ALLOWED))
    own = {"origin": APP, "x-api-key": KEY}
    asked = [
        client.post("/search", json={"query": "sieve", "stream": True}, headers=own),
        client.post("/search", json={"query": ""}, headers=own),
        client.get("/nothing", headers=own),
        client.get("/search", headers=own),
        client.get("/bug", headers=own),
        client.get("/info", headers=own),  # one more than its rate allows
        client.get("/info", headers={"origin": APP}),
    ]
    assert [answer.status_code for answer in asked] == [200, 422, 404, 405, 500, 429, 401]
    assert asked[0].headers["content-type"].startswith("text/event-stream")
    assert {answer.headers["access-control-allow-origin"] for answer in asked} == {APP}
    assert all("Origin" in answer.headers["vary"] for answer in asked)
    assert preflight(client).status_code == 204  # browsers send no key with it


def test_another_origin_is_told_nothing(make: Callable[[Access], Any]) -> None:
    client = make(Access(origins=ALLOWED))
    for origin in (OTHER, "null", "http://app.example", f"{APP}.evil.example"):
        answer = client.post("/search", json={"query": "sieve"}, headers={"origin": origin})
        assert "access-control-allow-origin" not in cors(answer)
        assert answer.headers["vary"] == "Origin"
        refused = preflight(client, origin)
        assert (refused.status_code, "access-control-allow-origin" in cors(refused)) == (403, False)
        assert "--allow-origin" in refused.json()["error"]
    assert preflight(client, method="DELETE").status_code == 403
    assert preflight(client, headers="x-other").status_code == 403
    assert client.get("/info").headers["vary"] == "Origin"  # without one: a cache may give it to a page


def test_any_origin_is_never_allowed_credentials(make: Callable[[Access], Any]) -> None:
    client = make(Access(origins=frozenset({"*"})))
    own = {"origin": OTHER, "cookie": "a=b"}
    for answer in (preflight(client, OTHER), client.get("/info", headers=own)):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in cors(answer)


@pytest.mark.parametrize(
    "text", ["app.example", f"{APP}/", f"{APP}/app", "null", "https://", "file:///x", f"{APP}:x"]
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not an origin: give one such as "):
        web_origin(text)


def test_the_command_warns_of_any_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tamis.cli.access import access_of

    access = access_of(None, None, None, None, [], ["*"], None, False)
    assert access.origins == {"*"}
    words = "--allow-origin *: any page that a visitor opens can read what this server answers"
    assert words in capsys.readouterr().err
