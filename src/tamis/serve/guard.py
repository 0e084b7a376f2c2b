"""What stands before every route: the API key, the size of bodies, the headers of answers, and the counts."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from tamis.serve.limits import SLOW_CLIENT
from tamis.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

#: The page and its parts come from here alone, and nothing else may show it in a frame.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
#: What a browser needs before it can be asked for a key, and what a supervisor asks.
_OPEN = frozenset({"/", "/healthz", "/readyz"})


class Guard:
    """The outermost application."""

    def __init__(self, app: App, *, metrics: Metrics, body: int, api_key: str | None = None) -> None:
        self.app, self.metrics, self.body = app, metrics, body
        self.key = None if api_key is None else api_key.encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def answering(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            if self._allowed(scope):
                await self.app(scope, self._bounded(scope, receive), answering)
            else:
                await _refuse(answering)
        finally:
            route = _route(scope)
            self.metrics.requests.add(1, route, str(status))
            self.metrics.latency.add(time.monotonic() - started, route)

    def _allowed(self, scope: Message) -> bool:
        path = scope["path"]
        if self.key is None or path in _OPEN or path.startswith("/static/"):
            return True
        headers = Headers(scope=scope)
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        # in constant time: how long it takes says nothing about the key
        return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self.key)

    def _bounded(self, scope: Message, receive: Receive) -> Receive:
        """Counted as it comes: what a client says about its length may be wrong, or missing."""
        left = self.body

        async def counted() -> Message:
            nonlocal left
            message = await _next(receive)
            left -= len(message.get("body", b""))
            if left < 0:
                await self._read_on(receive, message)
                raise self._too_large()
            return message

        return counted

    async def _read_on(self, receive: Receive, message: Message) -> None:
        """Let a client that is not far above the limit finish: one that is cut off while it writes sees a
        broken connection and not our answer."""
        left = 4 * self.body
        while message.get("more_body") and left > 0:
            message = await _next(receive)
            left -= len(message.get("body", b""))

    def _too_large(self) -> HTTPException:
        # there may be more of it to come: the connection is of no further use
        problem = f"the body is larger than {self.body:,} bytes: send fewer or shorter documents"
        return HTTPException(413, problem, headers={"connection": "close"})


async def _next(receive: Receive) -> Message:
    try:
        return await asyncio.wait_for(receive(), SLOW_CLIENT)
    except TimeoutError:
        problem = f"the body did not come within {SLOW_CLIENT:.0f} s: send it faster"
        raise HTTPException(408, problem) from None


async def _refuse(send: Send) -> None:
    problem = "this server wants its API key: send the header Authorization: Bearer KEY"
    body = json.dumps({"error": problem}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _route(scope: Message) -> str:
    """The route as it is written in the code, so that paths do not become labels without end."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    return "/static" if scope["path"].startswith("/static/") else "other"
