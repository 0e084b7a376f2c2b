"""What stands before every route: who may ask (`Access`), the size of bodies, the headers of answers, the
counts and the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from tamis.serve.access import Access
from tamis.serve.headers import secure
from tamis.serve.keys import known_route
from tamis.serve.limits import SLOW_CLIENT
from tamis.serve.metrics import Metrics
from tamis.serve.problems import bug
from tamis.serve.record import Record, begin, valid_id

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("tamis.serve")


class Guard:
    """The outermost application."""

    def __init__(self, app: App, *, metrics: Metrics, body: int, access: Access | None = None) -> None:
        self.app, self.metrics, self.body = app, metrics, body
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

        async def answering(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                secure(answered, scope.get("scheme", "http"), headers.get("host", ""))
                answered["x-request-id"] = record.id
            elif method != "HEAD":
                sent += len(message.get("body", b""))
            await send(message)

        try:
            client = (scope.get("client") or ("",))[0]
            refusal = self.access.refusal(scope["path"], headers, client, record)
            await (refusal or self.app)(scope, self._bounded(receive), answering)
        except Exception:
            _LOG.error("request %s failed:", record.id)  # what failed is logged by the server, next
            if not status:  # answered here, so that the answer has the headers of all others
                await bug()(scope, receive, answering)
            raise
        finally:
            self._count(scope, record, method, status or 500, sent, time.monotonic() - started)

    def _count(
        self, scope: Message, record: Record, method: str, status: int, sent: int, seconds: float
    ) -> None:
        route = _route(scope)
        self.metrics.requests.add(1, route, str(status))
        self.metrics.latency.add(seconds, route)
        if self.access.keys is not None:
            self.metrics.by_key.add(1, record.key or "", str(status))
        if status == 429:
            self.metrics.limited.add(1)
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

    def _bounded(self, receive: Receive) -> Receive:
        """A body counted as it comes: what a client says about its length may be wrong, or missing."""
        left, until, ended = self.body, time.monotonic() + SLOW_CLIENT, False

        async def counted() -> Message:
            nonlocal left, ended
            if ended:  # and what comes now is that the client has left
                return await receive()
            message = await _by(until, receive)
            left -= len(message.get("body", b""))
            if left < 0:
                await self._read_on(receive, message, until)
                raise self._too_large()
            ended = not message.get("more_body")
            return message

        return counted

    async def _read_on(self, receive: Receive, message: Message, until: float) -> None:
        """Let a client that is not far above the limit finish: one that is cut off while it writes sees a
        broken connection and not our answer."""
        left = 4 * self.body
        while message.get("more_body") and left > 0:
            message = await _by(until, receive)
            left -= len(message.get("body", b""))

    def _too_large(self) -> HTTPException:
        # there may be more of it to come: the connection is of no further use
        words = f"the body is larger than {self.body:,} bytes: send fewer or shorter documents"
        return HTTPException(413, words, headers={"connection": "close"})


async def _by(until: float, receive: Receive) -> Message:
    try:
        return await asyncio.wait_for(receive(), until - time.monotonic())
    except TimeoutError:
        words = f"the body did not come within {SLOW_CLIENT:.0f} s: send it faster"
        raise HTTPException(408, words, headers={"connection": "close"}) from None


def _route(scope: Message) -> str:
    """The route as it is written in the code, so that paths do not become labels without end."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    return known_route(scope["path"]) or "other"  # it was refused before, or is none
