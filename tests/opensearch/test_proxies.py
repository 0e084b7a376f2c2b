"""A cluster behind a proxy that speaks TLS and asks for a password."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.cli import main
from tests.conftest import DEMO_CORPUS
from tests.opensearch.conftest import Cluster
from tests.opensearch.servers import Answer, Request, Server, between, serving

pytestmark = pytest.mark.opensearch

SECRET = "s3cret-Pass:word"
BASIC = base64.b64encode(f"mary:{SECRET}".encode()).decode()
DOCUMENTS = [Document("d1", "a fine sieve"), Document("d2", "soup of the day"), Document("d3", "two sieves")]


@pytest.fixture
def proxy(cluster: Cluster, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A proxy before the node, with a certificate of its own; the environment says how to pass it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def admit(request: Request, ask: Callable[[], Answer]) -> Answer:
        return ask() if request.headers.get("authorization") == f"Basic {BASIC}" else Answer(401)

    monkeypatch.setenv("TAMIS_OPENSEARCH_CA", f"{certificate}.crt")
    monkeypatch.setenv("TAMIS_OPENSEARCH_USER", "mary")
    monkeypatch.setenv("TAMIS_OPENSEARCH_PASSWORD", SECRET)
    with serving(between(cluster.hosts[0], admit), context) as server:
        yield server


def test_commands_leave_no_trace_of_a_password(
    proxy: Server, index_name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = proxy.address(index_name, tls=True)
    corpus, queries, run = (tmp_path / name for name in ("c.tsv", "q.tsv", "r.run"))
    corpus.write_text("".join(f"{each.id}\t{each.text}\n" for each in DOCUMENTS))
    queries.write_text("q1\tsieve\nq2\tsoup\n")
    for command in (
        ["index", str(corpus), "-o", address],
        ["search", address, "sieve", "-p", "bm25 >> rm3", "--explain"],
        ["run", address, str(queries), "-o", str(run), "--cache", str(tmp_path / "cache")],
        ["rerank", str(run), "--corpus", address, "--queries", str(queries), "-o", str(tmp_path / "2.run")],
        ["doctor", address],
    ):
        assert main(command) == 0, capfd.readouterr().err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    out, err = capfd.readouterr()
    assert b"d3" in written
    for secret in (SECRET, BASIC, "mary"):
        assert secret not in out + err
        assert secret.encode() not in written


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("PASSWORD", "wrong", "does not accept the credentials: check TAMIS_OPENSEARCH_USER"),
        ("CA", "", "is not trusted (self-signed certificate): set TAMIS_OPENSEARCH_CA"),
    ],
)
def test_who_is_not_let_in_or_not_trusted(
    proxy: Server,
    index_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    told: str,
) -> None:
    address = proxy.address(index_name, tls=True)
    Index.build(DOCUMENTS, address)
    monkeypatch.setenv(f"TAMIS_OPENSEARCH_{variable}", value)
    for command in (["search", address, "sieve"], ["index", str(DEMO_CORPUS), "-o", address, "--add"]):
        assert main(command) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ")
        assert told in error
