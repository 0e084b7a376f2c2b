"""Hostile requests against a real server: each is answered or closed, and nobody else is kept waiting.

The bounds here are generous: `bench/attack.py` measures the exact ones. With `TAMIS_ATTACK=long`, clients
that are as slow as the time limits allow are played too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

import tamis
from tamis import Document, Index
from tamis.formats import read_corpus

pytest.importorskip("fastapi")

from tests.attack.hostile import PIPELINES, QUICK, SLOW, Hostile, connected, head, resident, watching
from tests.end_to_end.served import Served, serving

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc for the memory")

LONG = os.environ.get("TAMIS_ATTACK") == "long"
DEMO = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
GROWTH = 300_000_000  # bytes
ANSWERED = 30.0  # seconds, on a machine however busy: of a server that stands still, /healthz took as long


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attack")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    long = [Document(f"l{number}", f"a sieve {number} " * 1500) for number in range(100)]
    Index.build([*islice(read_corpus(DEMO), 300), *long], folder / "idx", positions=True)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with serving(folder, "-p", 'bm25 % 10 >> mono(model="m")') as served:
        yield served


def port_of(server: Served) -> int:
    return int(server.url.rstrip("/").rpartition(":")[2])


def test_hostile_requests(server: Served) -> None:
    """Four at a time, while eight clients search."""
    attacks = [*QUICK, *(PIPELINES + SLOW if LONG else [])]
    assert len(attacks) >= 25
    port, pid = port_of(server), server.process.pid
    before = resident(pid)

    def play(attack: Hostile) -> str:
        return attack.play(port)  # raises where it is neither answered nor closed

    with watching(port, pid) as watch, ThreadPoolExecutor(16 if LONG else 4) as players:
        endings = dict(zip((attack.name for attack in attacks), players.map(play, attacks), strict=True))
    assert watch.lost == []
    assert watch.served > 0
    assert watch.slowest() < ANSWERED
    assert watch.peak - before < GROWTH
    assert not [name for name, ending in endings.items() if ending.startswith("5") and "503" not in ending]
    assert server.post("/search", query="sieve").status_code == 200


def test_more_connections_than_descriptors(folder: Path) -> None:
    """Refused clients that stay: nobody who comes later is kept out."""
    most = 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))  # as the server is going to have it
    with serving(folder, "-p", "bm25") as served:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        port, pid = port_of(served), served.process.pid
        staying = []
        try:
            with watching(port, pid, clients=2) as watch:
                for _ in range(2 * most):
                    staying.append(connected(port))
                    staying[-1].sendall(head("/healthz", 10**12, method="GET"))
                    time.sleep(0.012)  # so that less than all that may be open come within a second
                until = time.monotonic() + 60
                while watch.served < 100 and time.monotonic() < until:
                    time.sleep(0.05)
        finally:
            for each in staying:
                each.close()
        assert watch.served >= 100
        assert watch.lost == []


def asked(port: int, path: str) -> bytes:
    with connected(port) as sock:
        sock.sendall(head(path, 0, method="GET"))
        return sock.recv(1000)


def test_no_descriptor_is_left(folder: Path) -> None:
    """For a while, as when other parts of the process hold them: one line in the log, and it goes on."""
    command = [sys.executable, "-m", "tamis", "serve", "idx", "--port", "0", "-p", "bm25", "--no-tokens"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rstrip("/\n").rpartition(":")[2])
        while b"200 OK" not in asked(port, "/readyz"):
            time.sleep(0.05)
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        reading.start()
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        highest = max(int(each.name) for each in Path(f"/proc/{process.pid}/fd").iterdir())
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (highest + 1, hard))
        waiting = [connected(port) for _ in range(20)]
        until = time.monotonic() + 60
        while not lines and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(2.5)  # it has tried again meanwhile
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        for each in waiting:
            each.sendall(head("/healthz", 0, method="GET"))
            assert each.recv(1000).startswith(b"HTTP/1.1 200")
            each.close()
        process.terminate()
        assert process.wait(60) == 0
        reading.join()
        assert len(lines) == 1
        assert "allow more open files (ulimit -n)" in lines[0]
    finally:
        process.kill()
        process.wait()
