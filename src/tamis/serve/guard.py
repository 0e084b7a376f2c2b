"""What stands before every route: the name that is asked for, the API key, the size of bodies, the headers of
answers, and the counts."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from tamis.serve.bodies import Bodies, Message, Receive
from tamis.serve.metrics import Metrics
from tamis.serve.problems import problem

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
        self, app: App, *, metrics: Metrics, bodies: Bodies, api_key: str | None = None, local: bool = False
    ) -> None:
        self.app, self.metrics, self.bodies = app, metrics, bodies
        self.key = None if api_key is None else api_key.encode()
        self.local = local

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # what watches a server asks so; of the answer, only the head is sent
            scope = {**scope, "method": "GET"}
        started, status = time.monotonic(), 500
        headers = Headers(scope=scope)
        incoming = self.bodies.incoming(receive, _length(headers))

        async def answering(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    answered[name] = value
                if incoming.more:  # nobody is going to read it
                    answered["connection"] = "close"
            await send(message)

        try:
            refusal = self._refusal(scope["path"], headers)
            await (refusal or self.app)(scope, incoming, answering)
        finally:
            incoming.release()
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


def _length(headers: Headers) -> int | None:
    """What a request says that its body is long; None where it comes in chunks."""
    if "transfer-encoding" in headers:
        return None
    return int(headers.get("content-length", "0"))  # digits: the connection has looked


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
