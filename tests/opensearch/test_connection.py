"""Addresses, credentials and everything that a connection can meet: one line each. No cluster is needed."""

from __future__ import annotations

import base64
import logging
import pickle
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis.base.errors import InputError, TamisError
from tamis.cli import main
from tamis.index.opensearch.connection import Address, connect
from tamis.index.opensearch.errors import AccessError, ClusterError, UnreachableError, refused
from tests.opensearch.servers import CLUSTER, Answer, Request, says, serving

pytest.importorskip("opensearchpy")
SECRET = "s3cret-Pass:word"
CREDENTIALS = ("USER", "PASSWORD", "API_KEY", "TOKEN", "CA", "TIMEOUT")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(f"TAMIS_OPENSEARCH_{name}", raising=False)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert SECRET not in text
    return text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://host:9200/x", "not the address of an index"),
        ("opensearch://host:9200", "does not name an index"),
        ("opensearch://host:9200/", "does not name an index"),
        ("opensearch:///x", "is not HOST:PORT"),
        ("opensearch://host:99999/x", "is not HOST:PORT"),
        ("opensearch://host:port/x", "is not HOST:PORT"),
        ("opensearch://a,,b/x", "is not HOST:PORT"),
        ("opensearch://host/a/b", "cannot be the name of an index"),
        ("opensearch://host/Books", "cannot be the name of an index"),
        ("opensearch://host/a*", "cannot be the name of an index"),
        ("opensearch://host/a,b", "cannot be the name of an index"),
        ("opensearch://host/_all", "cannot be the name of an index"),
        ("opensearch://host/..", "cannot be the name of an index"),
        ("opensearch://host/" + "a" * 256, "cannot be the name of an index"),
        (f"opensearch://me:{SECRET}@host/x", "TAMIS_OPENSEARCH_USER"),
    ],
)
def test_what_is_no_address(text: str, told: str) -> None:
    with pytest.raises(InputError) as refusal:
        Address.parse(text)
    assert told in one_line(refusal.value)


def test_addresses_print_as_they_are_read() -> None:
    for text in ("opensearch://a:9201/x", "opensearchs://a:1,b:2/x-1_y", "opensearch://[::1]:9200/ü"):
        assert str(Address.parse(text)) == text
    assert Address.parse("opensearch://a/x").hosts == (("a", 9200),)


def _sent(monkeypatch: pytest.MonkeyPatch, **values: str) -> str | None:
    for name, value in values.items():
        monkeypatch.setenv(f"TAMIS_OPENSEARCH_{name}", value)
    with serving(lambda request: says(CLUSTER)) as server:
        connect(server.address())
    return server.requests[0].headers.get("authorization")


def test_credentials_of_the_environment_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _sent(monkeypatch) is None
    basic = _sent(monkeypatch, USER="märy", PASSWORD=SECRET)
    assert basic is not None
    assert base64.b64decode(basic.removeprefix("Basic ")).decode() == f"märy:{SECRET}"
    for name in ("USER", "PASSWORD"):
        monkeypatch.delenv(f"TAMIS_OPENSEARCH_{name}")
    assert _sent(monkeypatch, API_KEY=f"{SECRET}\n") == f"ApiKey {SECRET}"
    monkeypatch.delenv("TAMIS_OPENSEARCH_API_KEY")
    assert _sent(monkeypatch, TOKEN=SECRET) == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"USER": "me"}, "TAMIS_OPENSEARCH_PASSWORD is not set"),
        ({"PASSWORD": SECRET}, "TAMIS_OPENSEARCH_USER is not set"),
        ({"USER": "me", "PASSWORD": SECRET, "TOKEN": SECRET}, "more than one of"),
        ({"API_KEY": f"{SECRET}\r\nx-other: 1"}, "holds characters that no header can have"),
        ({"TOKEN": f"{SECRET}ü"}, "TAMIS_OPENSEARCH_TOKEN holds characters"),
        ({"TIMEOUT": "soon"}, "TAMIS_OPENSEARCH_TIMEOUT is 'soon'"),
        ({"TIMEOUT": "nan"}, "TAMIS_OPENSEARCH_TIMEOUT is 'nan'"),
    ],
)
def test_an_environment_that_cannot_be_meant(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], told: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(f"TAMIS_OPENSEARCH_{name}", value)
    with pytest.raises(InputError) as refusal:
        connect("opensearch://127.0.0.1:1/x")
    assert told in one_line(refusal.value)


def _error(answer: Callable[[Request], Answer]) -> TamisError:
    with serving(answer) as server, pytest.raises(TamisError) as failure:
        connect(server.address())
    one_line(failure.value)
    return failure.value


def _status(status: int, body: bytes = b"<html>no</html>", kind: str = "text/html") -> TamisError:
    return _error(lambda request: Answer(status, body, kind))


def test_refusals_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    error = _status(401)
    assert isinstance(error, AccessError)
    assert "asks for a user and a password: set TAMIS_OPENSEARCH_USER" in str(error)
    assert "a proxy before" in str(_status(407))
    assert "does not permit it" in str(_status(403))
    monkeypatch.setenv("TAMIS_OPENSEARCH_USER", "mary")
    monkeypatch.setenv("TAMIS_OPENSEARCH_PASSWORD", SECRET)
    error = _status(401)
    assert "does not accept the credentials: check TAMIS_OPENSEARCH_USER" in str(error)
    assert "mary" not in str(error)


def test_what_the_security_plugin_says_is_quoted() -> None:
    reason = "no permissions for [indices:data/write/bulk] and User [name=mary]"
    answer = {"error": {"type": "security_exception", "reason": reason}, "status": 403}
    error = refused(403, answer, "opensearch://host:9200/x")
    assert isinstance(error, AccessError)
    assert str(error).endswith(f"{reason}: ask whoever runs the cluster for that permission")


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"", b"[]", b'{"version": "1"}', b"\xff\xfe", b"{"])
@pytest.mark.parametrize("kind", ["text/html", "application/json", "", "image/png"])
def test_what_is_not_opensearch(body: bytes, kind: str) -> None:
    assert "is not OpenSearch: check the address" in str(_error(lambda request: Answer(200, body, kind)))


@pytest.mark.parametrize("number", ["1.3.20", "4.0.0", "12.1.0", "next", ""])
def test_versions_that_are_not_known(number: str) -> None:
    version = {"version": {"distribution": "opensearch", "number": number}}
    error = _error(lambda request: says(version))
    assert f"is OpenSearch {number!r}, which tamis does not know: use OpenSearch 2 and 3" in str(error)


def test_elasticsearch_is_named() -> None:
    error = _error(lambda request: says({"version": {"number": "8.11.0"}, "tagline": "You Know, for Search"}))
    assert "is Elasticsearch '8.11.0': use OpenSearch 2 and 3" in str(error)


def test_an_answer_that_never_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAMIS_OPENSEARCH_TIMEOUT", "0.3")
    with serving(lambda request: Answer(after=threading.Event())) as server:
        with pytest.raises(UnreachableError, match=r"has not answered within 0\.3 s: check that the cluster"):
            connect(server.address())
        assert main(["search", server.address(), "x"]) == 2
    assert "has not answered within" in capsys.readouterr().err


def test_a_connection_that_is_closed_or_refused() -> None:
    error = _error(lambda request: Answer(body=None))
    assert "closed the connection without an answer" in str(error)
    assert "opensearchs://" in str(error)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        with pytest.raises(UnreachableError, match=r"no connection to .*Connection refused.*is running"):
            connect(f"opensearch://127.0.0.1:{port}/x")
    with pytest.raises(UnreachableError, match=r"the host of nowhere\.invalid:9200 is not known"):
        connect("opensearch://nowhere.invalid/x")


def test_a_server_that_speaks_something_else() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()

        def speak() -> None:
            other, _ = server.accept()
            with other:
                other.recv(1000)
                other.sendall(b"220 mail.example ESMTP\r\n")

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(UnreachableError, match="does not speak HTTP: check the port"):
            connect(f"opensearch://127.0.0.1:{server.getsockname()[1]}/x")


def test_tls_where_there_is_none() -> None:
    told = "does not speak TLS: write opensearch:// instead"
    with serving(lambda request: says(CLUSTER)) as server, pytest.raises(UnreachableError, match=told):
        connect(server.address(tls=True))


def test_certificates_are_verified(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(lambda request: says(CLUSTER), context) as server:
        address = server.address(tls=True)
        with pytest.raises(UnreachableError) as distrust:
            connect(address)
        assert "is not trusted (self-signed certificate): set TAMIS_OPENSEARCH_CA" in one_line(distrust.value)
        assert not distrust.value.is_temporary
        monkeypatch.setenv("TAMIS_OPENSEARCH_CA", f"{certificate}.crt")
        assert connect(address).version == (2, 4, 1)
        with pytest.raises(UnreachableError, match=r"IP address mismatch|not valid for|Hostname mismatch"):
            connect(address.replace("127.0.0.1", "localhost"))
    for name in ("missing.pem", "empty.pem"):
        path = certificate.with_name(name)
        if name == "empty.pem":
            path.write_text("nothing")
        monkeypatch.setenv("TAMIS_OPENSEARCH_CA", str(path))
        with pytest.raises(InputError, match=r"TAMIS_OPENSEARCH_CA names .*: give a file of certificates"):
            connect(address)


def test_what_is_busy_is_asked_again_until_patience_ends() -> None:
    statuses = [503, 429, 502, 504]

    def answer(request: Request) -> Answer:
        if request.path == "/":
            return says(CLUSTER)
        return Answer(statuses.pop(0)) if statuses else says({"done": True})

    with serving(answer) as server:
        connection = connect(server.address())
        assert connection.request("GET", "/x") == {"done": True}
        statuses += [503]
        with pytest.raises(ClusterError, match="cannot answer now"):
            connection.request("GET", "/x", patience=0.0)
        assert connection.request("GET", "/x", patience=0.0) == {"done": True}


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    """Even where one time-out takes all the time that there is."""
    answers = iter([Answer(after=threading.Event()), says({"done": True})])
    with serving(lambda request: says(CLUSTER) if request.path == "/" else next(answers)) as server:
        connection = connect(server.address())
        assert connection.request("GET", "/x", timeout=0.3, patience=0.1) == {"done": True}


def test_other_nodes_are_asked_at_once() -> None:
    with serving(lambda request: says(CLUSTER)) as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(5):  # whichever is asked first
            connect(f"opensearch://{gone},{server.host}/x").request("GET", "/y", patience=0.0)


def test_a_connection_is_made_again_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_OPENSEARCH_TOKEN", SECRET)
    with serving(lambda request: says(CLUSTER)) as server:
        data = pickle.dumps(connect(server.address("books")))
        assert SECRET.encode() not in data
        assert pickle.loads(data).address.index == "books"


def test_nothing_is_logged_beside_the_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TAMIS_OPENSEARCH_TOKEN", SECRET)
    with caplog.at_level(logging.DEBUG), serving(lambda request: Answer(403)) as server:
        assert main(["search", server.address(), "x"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert SECRET not in err + caplog.text
