"""Real clusters for the tests that are marked `opensearch`: see CONTRIBUTING.md."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tamis.index.opensearch.connection import Connection, connect
from tamis.index.opensearch.errors import ClusterError

OPENSSL = shutil.which("openssl")
VARIABLE = "TAMIS_OPENSEARCH"
_ROOT = Path(__file__).parents[2]
NODE = _ROOT / "tools" / "opensearch" / "node.py"
BUILT = _ROOT / "build" / "opensearch"  # by `make opensearch`
STARTS = 180  # seconds


@dataclass
class Cluster:
    """The nodes of a cluster; where we have started them, their processes."""

    hosts: list[str]
    home: Path | None = None  # what tools/opensearch/build.py has made
    process: subprocess.Popen[str] | None = None
    pids: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    settings: tuple[str, ...] = ()

    def address(self, name: str) -> str:
        return f"opensearch://{','.join(self.hosts)}/{name}"

    def connect(self, name: str = "any") -> Connection:
        return connect(self.address(name))

    def request(self, method: str, path: str, body: Any = None, **params: Any) -> Any:
        return self.connect().request(method, path, body, params=params, timeout=60)

    def delete(self, name: str) -> None:
        blocks = ("write", "read_only", "read_only_allow_delete")
        self._try("PUT", f"/{name}/_settings", {f"index.blocks.{block}": None for block in blocks})
        self._try("DELETE", f"/{name}")

    def _try(self, method: str, path: str, body: Any = None) -> None:
        try:
            self.request(method, path, body)
        except ClusterError as error:
            assert error.status == 404, error

    def kill(self, host: str) -> None:
        """What a power cut does to one node."""
        os.kill(self.pids[host], signal.SIGKILL)

    def start(self, *, keep: bool = False) -> None:
        """Start the nodes, and wait until they have joined."""
        assert self.home is not None
        ports = ",".join(host.rpartition(":")[2] for host in self.hosts)
        command = [sys.executable, str(NODE), str(self.home), "--ports", ports, *(["--keep"] if keep else [])]
        command += [part for each in self.settings for part in ("--set", each)]
        self.process = process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        timer = threading.Timer(STARTS, process.terminate)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            self.lines.append(line)
            match line.split():
                case ["node", host, "pid", pid]:
                    self.pids[host] = int(pid)
                case ["ready", *_]:
                    break
        else:
            pytest.fail(f"no cluster: {''.join(self.lines)}")
        timer.cancel()
        threading.Thread(target=self.lines.extend, args=(process.stdout,), daemon=True).start()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)
            self.process = None

    def wait_for(self, status: str, name: str) -> None:
        """Until the shards of an index are where they should be."""
        self.request("GET", f"/_cluster/health/{name}", wait_for_status=status, timeout="55s")


def _where() -> str:
    """The address of a node, or the folder of a cluster that can be started."""
    if place := os.environ.get(VARIABLE):
        return place
    if not (BUILT / "built.json").exists():
        pytest.skip(f"no OpenSearch: run `make opensearch`, or name a cluster by {VARIABLE}")
    return str(BUILT)


def _free_ports(number: int) -> list[int]:
    """Ports that are free, with the ports of the transport, 1,000 above."""
    found: list[int] = []
    while len(found) < number:
        port = 20_000 + secrets.randbelow(11_000)
        if port not in found and _is_free(port) and _is_free(port + 1000):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _started(nodes: int, *settings: str) -> Iterator[Cluster]:
    home = Path(_where())
    cluster = Cluster([f"127.0.0.1:{port}" for port in _free_ports(nodes)], home, settings=settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One node."""
    place = _where()
    if place.startswith("http://"):
        yield Cluster([place.removeprefix("http://").rstrip("/")])
    else:
        yield from _started(1)


def _of_its_own(nodes: int, *settings: str) -> Iterator[Cluster]:
    if _where().startswith("http"):
        pytest.skip(f"{VARIABLE} names a cluster that runs, and this test starts nodes of its own")
    yield from _started(nodes, *settings)


@pytest.fixture
def three_nodes() -> Iterator[Cluster]:
    """Three nodes that may be killed."""
    yield from _of_its_own(3)


@pytest.fixture
def small_node() -> Iterator[Cluster]:
    """A node that takes requests of 1 MB at most."""
    yield from _of_its_own(1, "http.max_content_length=1mb")


@pytest.fixture
def watched_disk() -> Iterator[Cluster]:
    """A node that looks every ten seconds how full its disk is."""
    disk = "cluster.routing.allocation.disk"
    single = f"{disk}.watermark.enable_for_single_data_node=true"
    yield from _of_its_own(1, f"{disk}.threshold_enabled=true", single, "cluster.info.update.interval=10s")


@pytest.fixture
def new_index(cluster: Cluster) -> Iterator[Callable[[], str]]:
    """Names of indexes, which are deleted afterwards."""
    names: list[str] = []

    def name() -> str:
        names.append(f"tamis-test-{secrets.token_hex(6)}")
        return names[-1]

    yield name
    for each in names:
        cluster.delete(each)


@pytest.fixture
def index_name(new_index: Callable[[], str]) -> str:
    return new_index()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 and its key in one file, and the certificate alone beside it
    (`.crt`)."""
    if OPENSSL is None:
        pytest.skip("openssl makes the certificate")
    path = tmp_path_factory.mktemp("tls") / "node.pem"
    command = (
        f"{OPENSSL} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout {path} -out {path}.crt"
    )
    extra = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), *extra], check=True, capture_output=True, timeout=60)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for what comes true by itself."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it has not come true"
        time.sleep(0.1)
