"""Middleware around every route: the size of bodies, the headers of responses, the counters and the log; and,
further in, so that what is refused has all of that too, access control (`Access`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders

from tamis.serve.access import Access
from tamis.serve.bodies import Bodies, Message, Receive
from tamis.serve.headers import secure
from tamis.serve.keys import known_route
from tamis.serve.metrics import Metrics
from tamis.serve.problems import bug
from tamis.serve.record import Record, begin, valid_id

Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("tamis.serve")


class Guard:
    """The outermost application."""

    def __init__(self, app: App, *, metrics: Metrics, bodies: Bodies, access: Access | None = None) -> None:
        self.app, self.metrics, self.bodies = app, metrics, bodies
        self.access = access or Access()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # what watches a server asks so; of the answer, only the head is sent
            scope = {**scope, "method": "GET"}
        started, status, sent = time.monotonic(), 0, 0
        headers = Headers(scope=scope)
        record = Record(valid_id(headers.getlist("x-request-id")))
        begin(record)
        incoming = self.bodies.incoming(receive, _length(headers))

        async def answering(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                secure(answered, scope.get("scheme", "http"), headers.get("host", ""))
                answered["x-request-id"] = record.id
                if incoming.more:  # nobody is going to read it
                    answered["connection"] = "close"
            elif method != "HEAD":
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, incoming, answering)
        except Exception:
            _LOG.error("request %s failed:", record.id)  # what failed is logged by the server, next
            raise
        finally:
            incoming.release()
            self._count(scope, record, method, status or 500, sent, time.monotonic() - started)

    def _count(
        self, scope: Message, record: Record, method: str, status: int, sent: int, seconds: float
    ) -> None:
        route = _route(scope)
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.latency.labels(route).observe(seconds)
        if self.access.keys is not None:
            self.metrics.by_key.labels(record.key or "", str(status)).inc()
        if status == 429:
            self.metrics.limited.inc()
        if (log := self.access.log) is None:
            return
        entry = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": record.id,
            "method": method[:16],  # as the client sent it
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "bytes": sent,
            "key": record.key,
            "pipeline": record.pipeline,
        }
        log.write(entry | {"query": record.query} if log.queries else entry)


class Gate:
    """Lets those requests through that may be answered. What fails unexpectedly is answered here, so that it
    has all headers too."""

    def __init__(self, app: App, *, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        client = (scope.get("client") or ("",))[0]
        refusal = self.access.refusal(scope["path"], Headers(scope=scope), client)
        try:
            await (refusal or self.app)(scope, receive, sending)
        except Exception:
            if not begun:
                await bug()(scope, receive, send)
            raise


def _length(headers: Headers) -> int | None:
    """What a request says that its body is long; None where it comes in chunks."""
    if "transfer-encoding" in headers:
        return None
    return int(headers.get("content-length", "0"))  # digits: the connection has looked


def _route(scope: Message) -> str:
    """The route as it is written in the code, so that paths do not become labels without end."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    return known_route(scope["path"]) or "other"  # it was refused before, or is none
