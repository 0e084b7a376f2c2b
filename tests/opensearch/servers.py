"""Servers that behave badly, on real sockets: alone, or between us and a cluster."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: What `GET /` of a cluster says.
CLUSTER = {"version": {"distribution": "opensearch", "number": "2.4.1"}}


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """`None` for a body closes the connection without an answer; `after` waits with it."""

    status: int = 200
    body: bytes | None = b"{}"
    kind: str = "application/json"
    after: threading.Event | None = None


def says(value: object, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


@dataclass
class Server:
    port: int
    requests: list[Request] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def address(self, name: str = "any", *, tls: bool = False) -> str:
        return f"opensearch{'s' if tls else ''}://{self.host}/{name}"


@contextmanager
def serving(answer: Callable[[Request], Answer], context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server that answers each request as it is told."""
    done = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            served.requests.append(request)
            found = answer(request)
            if found.after is not None:
                while not (found.after.wait(0.05) or done.is_set()):
                    pass
            if found.body is None:
                self.close_connection = True
                return
            self.send_response(found.status)
            self.send_header("content-type", found.kind)
            self.send_header("content-length", str(len(found.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:  # a client that gives up
            pass

    server = Quiet(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    served = Server(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        done.set()
        server.shutdown()
        server.server_close()


def forwarded(host: str, request: Request) -> Answer:
    """What the node at `host` answers."""
    connection = http.client.HTTPConnection(host, timeout=120)
    try:
        kept = {k: v for k, v in request.headers.items() if k in ("content-type", "authorization")}
        connection.request(request.method, request.path, request.body or None, kept)
        response = connection.getresponse()
        return Answer(response.status, response.read(), response.getheader("content-type") or "")
    finally:
        connection.close()


def between(
    host: str, disturb: Callable[[Request, Callable[[], Answer]], Answer]
) -> Callable[[Request], Answer]:
    """Answers of a node, which `disturb` may replace before or after they are asked for."""
    return lambda request: disturb(request, lambda: forwarded(host, request))
