"""Requests that mean a server harm, as bytes on sockets: for the tests, and for `bench/attack.py`.

Each is played against 127.0.0.1 alone, and has ended when the server has answered it or closed the
connection.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MILLION = 1_000_000
PATIENCE = 60.0  # seconds until an attack is given up: then the server has neither answered nor closed


@dataclass(frozen=True)
class Hostile:
    """`play` gets the port, and gives what came of it. `slow`: the server has to wait for its time limits."""

    name: str
    play: Callable[[int], str]
    slow: bool = False


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def head(path: str, length: int | str, *more: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json", *more]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def chunked(path: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "transfer-encoding: chunked", "", ""]
    return "\r\n".join(lines).encode()


def ended(sock: socket.socket) -> str:
    """Wait for an answer or the end: the status, or `closed`."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            if not (more := sock.recv(65_536)):
                return f"{data.split()[1].decode()} cut off" if data else "closed"
            data += more
        start, _, body = data.partition(b"\r\n\r\n")
        status = start.split()[1].decode()
        names = dict(line.lower().split(b": ", 1) for line in start.split(b"\r\n")[1:])
        left = int(names.get(b"content-length", b"0")) - len(body)
        while left > 0 and (more := sock.recv(MILLION)):
            left -= len(more)
        return status if left <= 0 else f"{status} cut off"
    except ConnectionError:
        return "closed"


def sending(data: bytes) -> Callable[[int], str]:
    """All of it, as fast as the server takes it."""

    def play(port: int) -> str:
        with connected(port) as sock:
            with suppress(ConnectionError):  # what it has answered may be there all the same
                sock.sendall(data)
            return ended(sock)

    return play


def post(path: str, body: bytes) -> Callable[[int], str]:
    return sending(head(path, len(body)) + body)


def rerank(documents: str, **more: Any) -> Callable[[int], str]:
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
    return post("/rerank", f'{{"query":"x","documents":[{documents}]{rest}}}'.encode())


def search(**body: Any) -> Callable[[int], str]:
    return post("/search", json.dumps({"query": "the sieve", **body}).encode())


def times(item: str, size: int) -> str:
    """A list's inside of so many bytes."""
    return ",".join([item] * (size // (len(item) + 1)))


def then_silent(*parts: bytes) -> Callable[[int], str]:
    """The parts after each answer; then nothing: ended when the connection is closed."""

    def play(port: int) -> str:
        with connected(port) as sock:
            first = ""
            for part in parts:
                try:
                    sock.sendall(part)
                except ConnectionError:
                    return f"{first} closed"
                first = first or ended(sock)
            try:
                while sock.recv(65_536):
                    pass
                while True:  # that no more comes is not that the descriptor is free
                    sock.send(b" ")
                    time.sleep(0.2)
            except ConnectionError:
                return f"{first} closed"

    return play


def dropped(data: bytes, read: int = 0, *, reset: bool = False) -> Callable[[int], str]:
    """Leave after so many bytes of the answer, with a reset where told."""

    def play(port: int) -> str:
        with connected(port) as sock:
            sock.sendall(data)
            if read:
                sock.recv(read)
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "left"

    return play


def trickling(before: bytes, byte: bytes) -> Callable[[int], str]:
    """A byte now and then, until the server has had enough."""

    def play(port: int) -> str:
        with connected(port) as sock:
            sock.sendall(before)
            sock.settimeout(1.0)
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                try:
                    sock.sendall(byte)
                    data = sock.recv(65_536)
                    return data.split()[1].decode() if data else "closed"
                except TimeoutError:
                    pass
                except ConnectionError:
                    return "closed"
            raise TimeoutError("neither answered nor closed")

    return play


def reading(data: bytes, size: int, pause: float) -> Callable[[int], str]:
    """Read so many bytes at a time: ended when the server gives up writing. What the system holds of the
    answer may be read long after that, so the end is looked for by writing."""

    def play(port: int) -> str:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(PATIENCE)
            sock.connect(("127.0.0.1", port))
            sock.sendall(data)
            until = time.monotonic() + 2 * PATIENCE
            try:
                while time.monotonic() < until:
                    if size and not sock.recv(size):
                        return "closed"
                    time.sleep(pause)
                    sock.sendall(b"\r\n")  # no request: it is ignored, unless nobody is there
            except ConnectionError:
                return "closed"
            raise TimeoutError("neither answered nor closed")

    return play


def half_closed(data: bytes) -> Callable[[int], str]:
    def play(port: int) -> str:
        with connected(port) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return ended(sock)

    return play


def crowd(count: int, data: bytes) -> Callable[[int], str]:
    """Many connections at once that send this, and wait a second."""

    def play(port: int) -> str:
        socks = []
        try:
            for _ in range(count):
                try:
                    socks.append(connected(port))
                    socks[-1].sendall(data)
                except ConnectionError:
                    pass
            time.sleep(1.0)
        finally:
            for sock in socks:
                sock.close()
        return "left"

    return play


ORDINARY = json.dumps({"query": "a sieve", "k": 1000, "pipeline": "bm25 % 1000"}).encode()
_ASK = head("/search", len(ORDINARY)) + ORDINARY
_FIELDS = "{" + ",".join(f'"f{number}":0' for number in range(100)) + "}"
_DISTINCT = " ".join(f"w{number}x{number % 7}" for number in range(20_000))

BODIES = [
    Hostile("4 MB of zeros", rerank(times("0", 3_900_000))),
    Hostile("4 MB of empty texts", rerank(times('""', 3_900_000))),
    Hostile("4 MB of empty objects", rerank(times("{}", 3_900_000))),
    Hostile("4 MB of small objects", rerank(times('{"":0}', 3_900_000))),
    Hostile(
        "the same to /v2/rerank", post("/v2/rerank", f'{{"documents":[{times("0", 3_900_000)}]}}'.encode())
    ),
    Hostile("the same to /search", post("/search", f'{{"query":[{times("0", 3_900_000)}]}}'.encode())),
    Hostile("90,000 documents", rerank(times("0", 180_000))),
    Hostile("1,000 documents of 100 wrong fields", rerank(",".join([_FIELDS] * 900))),
    Hostile("1,000 empty documents", rerank(times('""', 3000))),
    Hostile("lists in lists", post("/search", b"[" * 2 * MILLION)),
    Hostile("objects in objects", post("/search", b'{"a":' * (MILLION // 2))),
    Hostile("quotes", post("/search", b'"' * 3 * MILLION)),
    Hostile("a text that never ends", post("/search", b'{"query":"' + b'\\"' * MILLION)),
    Hostile("a number of a million digits", post("/search", b'{"k":' + b"9" * MILLION + b"}")),
    Hostile("a fraction of 4 million digits", post("/search", b'{"k":0.' + b"1" * 3_900_000 + b"}")),
    Hostile("a name of a million letters", post("/search", b'{"' + b"x" * MILLION + b'":0}')),
    Hostile("half characters", post("/search", b'{"query":"' + b"\\ud800" * 600_000 + b'"}')),
    Hostile("bytes that are no text", post("/search", b'{"query":"' + b"\xff" * 3_900_000 + b'"}')),
    Hostile("20 documents without a word twice", rerank(",".join([json.dumps(_DISTINCT)] * 20))),
    Hostile("a body larger than the limit", post("/rerank", b" " * 6 * MILLION)),
]
HEADS = [
    Hostile("two lengths", sending(head("/search", 5, "transfer-encoding: chunked") + b"0\r\n\r\n")),
    Hostile("a length below zero", sending(head("/search", -1))),
    Hostile("a length of 5,000 digits", sending(head("/search", "9" * 5000))),
    Hostile("a header of 1 MB", sending(head("/info", 0, "x: " + "y" * MILLION, method="GET"))),
    Hostile("headers without end", sending(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200_000)),
    Hostile("two hosts", sending(head("/info", 0, "host: x", method="GET"))),
    Hostile("TLS", sending(b"\x16\x03\x01\x02\x00\x01\x00" + bytes(500))),
    Hostile("a chunk that is none", sending(chunked("/search") + b"zz\r\n")),
    Hostile("a million chunks", sending(chunked("/search") + b"1\r\n \r\n" * MILLION + b"0\r\n\r\n")),
    Hostile("a wish for 100-continue", sending(head("/search", 10**12, "expect: 100-continue"))),
    Hostile("1,000 requests at once", sending(head("/healthz", 0, method="GET") * 1000)),
]
SILENT = [
    Hostile("a long body, then silence", then_silent(head("/rerank", 10**12), b"x")),
    Hostile("a long body for /healthz", then_silent(head("/healthz", 10**12, method="GET"), b"x")),
    Hostile("chunks for /healthz", then_silent(chunked("/healthz", "GET"), b"1\r\nx\r\n")),
    Hostile("a chunk that is none, after the answer", then_silent(chunked("/healthz", "GET"), b"zz\r\n")),
]
LEAVING = [
    Hostile("left at once", dropped(b"")),
    Hostile("left in the head", dropped(b"POST /search HT")),
    Hostile("left in the body", dropped(head("/rerank", MILLION) + b"x" * 100_000, reset=True)),
    Hostile("left before the answer", dropped(_ASK, reset=True)),
    Hostile("left in the answer", dropped(_ASK, 1000, reset=True)),
    Hostile("closed for writing", half_closed(_ASK)),
    Hostile("200 connections that say nothing", crowd(200, b"")),
    Hostile("200 that begin a body", crowd(200, head("/rerank", 3 * MILLION) + b"x" * 60_000)),
]
SLOW = [
    Hostile("silence", trickling(b"", b""), slow=True),
    Hostile("a head byte by byte", trickling(b"GET / HTTP/1.1\r\nx: ", b"y"), slow=True),
    Hostile("a body byte by byte", trickling(head("/search", 1000), b" "), slow=True),
    Hostile("a chunk without an end", sending(chunked("/search") + b"ffffffffffffffffffff\r\nx"), slow=True),
    Hostile("an answer that nobody reads", reading(_ASK, 0, 1.0), slow=True),
    Hostile("an answer of which 2 kB are read every 3 s", reading(_ASK, 2000, 3.0), slow=True),
]
_RM3 = ", ".join(["bm25 % 1000 >> rm3"] * 40)
PIPELINES = [
    Hostile("1,000 results with their stages", search(k=1000, pipeline="bm25 % 1000", trace=True)),
    Hostile("60 searches", search(k=1000, pipeline=" >> ".join(["bm25 % 1000"] * 60), trace=True)),
    Hostile("sdm of 500 words", search(query=" ".join(f"w{n}" for n in range(330)), pipeline="sdm")),
    Hostile("sdm of 500 common words", search(query="the of and a in " * 100, pipeline="sdm")),
    Hostile("fuse of 40 rm3", search(pipeline=f"fuse({_RM3})")),
    Hostile("rm3 of 1,000 documents", search(pipeline="bm25 % 1000 >> rm3(docs=1000, terms=1000)")),
    Hostile("parentheses", search(pipeline="(" * 450 + "bm25" + ")" * 450)),
]
QUICK = [*BODIES, *HEADS, *SILENT, *LEAVING]
EVERYTHING = [*QUICK, *PIPELINES, *SLOW]


# -- what happens meanwhile
# ------------------------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@dataclass
class Watch:
    """What others see of a server that is attacked."""

    latencies: list[float] = field(default_factory=list)  # of /healthz, in seconds
    peak: int = 0  # bytes of memory
    served: int = 0
    lost: list[str] = field(default_factory=list)

    def slowest(self) -> float:
        """Since it was asked last."""
        latencies, self.latencies = self.latencies, []
        return max(latencies, default=0.0)


@contextmanager
def watching(port: int, pid: int, clients: int = 8) -> Iterator[Watch]:
    """Ask for /healthz all the time, and let ordinary clients search."""
    watch, over = Watch(), threading.Event()

    def probe() -> None:
        while not over.wait(0.02):
            started = time.monotonic()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE) as answer:
                    assert answer.status == 200
            except OSError as error:
                watch.lost.append(f"/healthz: {error}")
            watch.latencies.append(time.monotonic() - started)
            watch.peak = max(watch.peak, resident(pid))

    def ask() -> None:
        body = json.dumps({"query": "a fine sieve", "pipeline": "bm25 % 10", "deadline_ms": 60_000}).encode()
        url, headers = f"http://127.0.0.1:{port}/search", {"content-type": "application/json"}
        while not over.wait(0.05):
            request = urllib.request.Request(url, body, headers)
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    complete = json.load(answer)["complete"]
                watch.served += 1
                if not complete:
                    watch.lost.append("not complete")
            except OSError as error:
                watch.lost.append(f"/search: {error}")

    threads = [threading.Thread(target=probe), *(threading.Thread(target=ask) for _ in range(clients))]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        over.set()
        for thread in threads:
            thread.join()
