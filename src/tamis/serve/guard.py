"""What stands before every route: the name that is asked for, the API key, the size of bodies, the headers of
answers, and the counts."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tamis.serve.limits import SLOW_CLIENT
from tamis.serve.metrics import Metrics
from tamis.serve.problems import problem

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
    """The outermost application. `local`: it is meant for this machine alone."""

    def __init__(
        self, app: App, *, metrics: Metrics, body: int, api_key: str | None = None, local: bool = False
    ) -> None:
        self.app, self.metrics, self.body = app, metrics, body
        self.key = None if api_key is None else api_key.encode()
        self.local = local

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # what watches a server asks so; of the answer, only the head is sent
            scope = {**scope, "method": "GET"}
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
            refusal = self._refusal(scope["path"], Headers(scope=scope))
            await (refusal or self.app)(scope, self._bounded(receive), answering)
        finally:
            route = _route(scope)
            self.metrics.requests.add(1, route, str(status))
            self.metrics.latency.add(time.monotonic() - started, route)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        # A page from elsewhere could have its own name resolve to 127.0.0.1 (DNS rebinding), and the browsers
        # of its visitors would let it read our answers. A key keeps it out; without one, its name does.
        if self.key is None:
            if self.local and not is_local_name(headers.get("host", "")):
                return problem(
                    403,
                    "this server is asked for by a name that is not this machine's own: use localhost or an "
                    "address, or start it with an API key",
                )
        elif path not in _OPEN and not path.startswith("/static/") and not _has_key(headers, self.key):
            return problem(
                401,
                "this server wants its API key: send the header Authorization: Bearer KEY",
                {"www-authenticate": "Bearer"},
            )
        return None

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


def _has_key(headers: Headers, key: bytes) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    # in constant time: how long it takes says nothing about the key
    return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), key)


def is_local_name(host: str) -> bool:
    """Whether a Host header is an address or localhost, which are nobody's to rename.

    >>> [is_local_name(host) for host in ("127.0.0.1:8000", "[::1]:8000", "localhost", "evil.example:8000")]
    [True, True, True, False]
    """
    bare, _, port = host.rpartition(":")
    name = (bare if port.isdigit() else host).strip("[]").lower()
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _route(scope: Message) -> str:
    """The route as it is written in the code, so that paths do not become labels without end."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    return "/static" if scope["path"].startswith("/static/") else "other"
