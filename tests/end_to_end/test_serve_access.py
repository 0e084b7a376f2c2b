"""Keys, TLS, proxies and the access log of a real `tamis serve`."""

from __future__ import annotations

import io
import json
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tamis import Document, Index
from tamis.cli import main
from tests.end_to_end.served import serving

SECRET = "correct-horse-battery"
OTHER = "another-horse-battery"
PATIENT = ["-p", "bm25", "--deadline", "60s"]  # on a machine however busy
OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")
KEYS = f'[[key]]\nname = "web"\nkey = "{SECRET}"\nroles = ["search"]\nrate = 1000\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve-tls")
    Index.build([Document("d1", "a sieve of horsehair"), Document("d2", "soup")], folder / "idx")
    if OPENSSL is not None:
        for name in ("a", "b"):
            _certify(folder, name)
        _openssl(folder, "pkey -in a.key -aes256 -passout pass:1234 -out encrypted.key")
    return folder


def _openssl(folder: Path, arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments.split()], cwd=folder, check=True, capture_output=True)


def _certify(folder: Path, name: str) -> None:
    """A certificate for localhost that signs itself."""
    _openssl(
        folder,
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN={name}.example "
        f"-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {name}.key -out {name}.pem",
    )
    (folder / f"{name}.key").chmod(0o600)


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


# -- TLS
# ------------------------------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_https_from_tls_1_2_on(folder: Path) -> None:
    options = [*PATIENT, "--tls-cert", "a.pem", "--tls-key", "a.key", "--host-name", "search.example"]
    with serving(folder, *options, ready=False) as served:
        assert served.url.startswith("https://127.0.0.1:")
        context = trusting(folder / "a.pem")
        with httpx.Client(base_url=served.url, verify=context, timeout=60) as client:
            assert client.post("/search", json={"query": "sieve"}).json()["results"][0]["id"] == "d1"
            with client.stream("POST", "/search", json={"query": "sieve", "stream": True}) as stream:
                assert '"final":true' in "".join(stream.iter_text())
            named = client.get("/healthz", headers={"host": "search.example"})
            assert named.headers["strict-transport-security"] == "max-age=31536000"
        port = httpx.URL(served.url).port
        assert port is not None
        with pytest.raises(httpx.HTTPError):  # it does not speak plain HTTP there
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60)
        for version, spoken in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)):
            assert _speaks(port, folder / "a.pem", version) == spoken


def _speaks(port: int, certificate: Path, version: ssl.TLSVersion) -> bool:
    context = trusting(certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")  # so that it is the server that refuses
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = version
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost"),
        ):
            return True
    except (ssl.SSLError, ConnectionError):
        return False


@needs_openssl
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no such signal here")
def test_hangup_takes_up_what_was_renewed(folder: Path, tmp_path: Path) -> None:
    """The certificate, the keys and the log; what it has is kept where the new cannot be read."""
    for name in ("a.pem", "a.key"):
        shutil.copy(folder / name, tmp_path / name)
    keys, log = tmp_path / "keys.toml", tmp_path / "access.jsonl"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    files = {"--tls-cert": "a.pem", "--tls-key": "a.key", "--keys": "keys.toml", "--access-log": log.name}
    options = [word for option, name in files.items() for word in (option, str(tmp_path / name))]
    with serving(folder, "-p", "bm25", *options, ready=False) as served:

        def status(key: str, certificate: str) -> int:
            try:
                headers = {"x-api-key": key}
                return httpx.get(
                    f"{served.url}info", headers=headers, verify=trusting(folder / certificate), timeout=60
                ).status_code
            except httpx.ConnectError:  # another certificate
                return 0

        assert (status(SECRET, "a.pem"), status(OTHER, "a.pem")) == (200, 401)
        served.wait(lambda: log.read_text().count("\n") == 2)
        for name in ("pem", "key"):
            shutil.copy(folder / f"b.{name}", tmp_path / f"a.{name}")
        keys.write_text(KEYS.replace(SECRET, OTHER))
        log.rename(tmp_path / "old.jsonl")
        served.process.send_signal(signal.SIGHUP)
        served.wait(lambda: status(OTHER, "b.pem") == 200)
        assert status(SECRET, "b.pem") == 401
        served.wait(log.exists)
        keys.write_text("[[key]]")
        served.process.send_signal(signal.SIGHUP)
        assert served.process.stderr is not None
        assert "not reloaded: " in served.process.stderr.readline()
        assert status(OTHER, "b.pem") == 200
    old, new = ((tmp_path / name).read_text().splitlines() for name in ("old.jsonl", log.name))
    assert [json.loads(line)["status"] for line in old][:2] == [200, 401]
    assert {json.loads(line)["status"] for line in new} >= {200, 401}


@needs_openssl
@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("a.pem", None, "--tls-cert and --tls-key belong together: give both"),
        (None, "a.key", "--tls-cert and --tls-key belong together: give both"),
        ("none.pem", "a.key", "none.pem: the certificate cannot be read (No such file or directory): "),
        ("a.pem", "none.key", "none.key: the private key cannot be read (No such file or directory): "),
        ("idx", "a.key", "idx: the certificate cannot be read (Is a directory): "),
        ("a.pem", "b.key", "b.key: the private key is not that of a.pem: give the key of this certificate"),
        ("a.pem", "encrypted.key", "encrypted.key: the private key is encrypted: decrypt it with openssl"),
        ("a.key", "a.key", "a.key: a.key and this file are not a PEM certificate and its PEM private key: "),
        ("a.pem", "a.pem", "a.pem: a.pem and this file are not a PEM certificate and its PEM private key: "),
    ],
)
def test_a_certificate_that_cannot_be_used(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cert: str | None,
    key: str | None,
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    options = [word for o, name in (("cert", cert), ("key", key)) if name for word in (f"--tls-{o}", name)]
    assert main(["serve", "idx", "-p", "bm25", "--port", "0", *options]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: {words}") and printed.count("\n") == 1


# -- keys, names, proxies
# ------------------------------------------------------------------------------------------------------------


def test_several_keys(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS + f'[[key]]\nname = "all"\nkey = "{OTHER}"\nroles = ["all"]\n')
    keys.chmod(0o600)
    with serving(folder, "-p", "bm25", "--keys", str(keys), "--rate", "0.01", "--burst", "2") as served:
        statuses = {
            key: [served.client.get(path, headers={"x-api-key": key}).status_code for path in paths]
            for key, paths in {
                SECRET: ["documents/d1", "metrics"],
                OTHER: ["documents/d1", "metrics", "info"],
            }.items()
        }
        assert statuses == {SECRET: [200, 403], OTHER: [200, 200, 429]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--keys", "none.toml"], "none.toml"),
        (["--keys", "k", "--api-key-file", "k"], "not allowed with argument"),
        (["--burst", "3"], "--burst needs --rate"),
        (["--rate", "0"], "'0' is not a number above 0"),
        (["--log-queries"], "--log-queries needs --access-log"),
        (["--access-log", "."], "cannot write the access log (Is a directory)"),
        (["--examples", "q.tsv", "--access-log", "q.tsv"], "q.tsv is an input and would be overwritten"),
        (["--host-name", "a.example:80"], "'a.example:80' is not a host name"),
        (["--proxy", "everyone"], "'everyone' is not an address or a network"),
    ],
)
def test_options_that_cannot_be(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    Path("q.tsv").write_text("q1\tsieve\n")
    assert main(["serve", "idx", "-p", "bm25", "--port", "0", *options]) == 2
    assert Path("q.tsv").read_text() == "q1\tsieve\n"
    printed = capsys.readouterr().err
    assert words in printed and printed.startswith("error: ") and printed.count("\n") == 1


def test_a_file_of_keys_that_others_can_read(folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o644)
    command = [sys.executable, "-m", "tamis", "serve", "idx", "-p", "bm25", "--keys", str(keys)]
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends by itself
        port = str(taken.getsockname()[1])
        ended = subprocess.run([*command, "--port", port], cwd=folder, capture_output=True, text=True)
    assert f"warning: {keys} can be read by other users: chmod 600 {keys}\n" in ended.stderr
    assert SECRET not in ended.stderr


def test_the_hash_of_a_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tamis.serve.keys import digest_of

    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
    assert main(["serve", "--hash-key"]) == 0
    assert capsys.readouterr().out == f'sha256 = "{digest_of(SECRET).hex()}"\n'
    monkeypatch.setattr(sys, "stdin", io.StringIO("s3cret\n"))
    assert main(["serve", "--hash-key"]) == 2
    assert "s3cret" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("proxy", "statuses"), [([], [200, 429, 429]), (["--proxy", "127.0.0.0/8"], [200, 200, 429])]
)
def test_forwarded_headers_are_a_proxys_alone(folder: Path, proxy: list[str], statuses: list[int]) -> None:
    """Who is not one cannot have a new address for each request."""
    with serving(folder, "-p", "bm25", "--rate", "0.01", "--burst", "1", *proxy) as served:
        found = [
            served.client.get("/info", headers={"x-forwarded-for": address}).status_code
            for address in ("192.0.2.1", "192.0.2.2", "192.0.2.2")
        ]
        assert found == statuses


# -- the log
# ------------------------------------------------------------------------------------------------------------


def test_the_log_on_the_standard_output(folder: Path) -> None:
    command = [sys.executable, "-m", "tamis", "serve", "idx", *PATIENT, "--port", "0", "--no-tokens"]
    process = subprocess.Popen(
        [*command, "--access-log", "-"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None and process.stdout is not None
        url = process.stderr.readline().rpartition(" ")[2].strip()
        answer = httpx.post(
            f"{url}search", json={"query": "horsehair"}, headers={"x-request-id": "r-1"}, timeout=60
        )
        line: dict[str, Any] = json.loads(process.stdout.readline())
        assert answer.headers["x-request-id"] == line["id"] == "r-1"
        assert (line["route"], line["status"], line["pipeline"]) == ("/search", 200, "bm25")
        assert line["bytes"] == len(answer.content)
        httpx.get(f"{url}documents/none", timeout=60)
        process.terminate()
        rest, errors = process.communicate(timeout=60)
        assert json.loads(rest)["status"] == 404  # what is waiting is written before the end
        assert "horsehair" not in rest + errors
    finally:
        process.kill()
        process.wait()


def test_what_is_not_http_has_the_headers_and_is_no_line(folder: Path, tmp_path: Path) -> None:
    from tamis.serve.headers import SECURITY_HEADERS

    log = tmp_path / "access.jsonl"
    with serving(folder, "-p", "bm25", "--access-log", str(log), ready=False) as served:
        port = httpx.URL(served.url).port
        assert port is not None
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"no http\r\n\r\n")
            head = connection.makefile("rb").read().partition(b"\r\n\r\n")[0].decode()
        lines = {name.lower(): value for name, _, value in (x.partition(": ") for x in head.split("\r\n"))}
        assert head.startswith("HTTP/1.1 400 ") and SECURITY_HEADERS.items() <= lines.items()
        # line ends within the values of headers are not HTTP either
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b'GET /x HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\n{"status":1}\r\n\r\n')
            assert connection.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 404")
    for line in log.read_text().splitlines():
        assert json.loads(line)["route"] == "other"


def test_requests_at_once_are_lines_of_their_own(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "access.jsonl"
    with serving(folder, "-p", "bm25", "--access-log", str(log)) as served:

        def ask(number: int) -> None:
            with httpx.Client(base_url=served.url, timeout=60) as client:
                for each in range(20):
                    client.get("/documents/d1", headers={"x-request-id": f"{number}-{each}"})

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [json.loads(line)["id"] for line in log.read_text().splitlines()]
    assert {f"{a}-{b}" for a in range(4) for b in range(20)} <= set(found)
    assert len(set(found)) == len(found)
