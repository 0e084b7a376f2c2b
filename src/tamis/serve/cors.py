"""Pages of other origins: which of them may read the answers (https://fetch.spec.whatwg.org/#http-cors-protocol).

Credentials, in the sense of cookies, are never allowed: a key is sent by the page's own script, in a header.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tamis.serve.problems import problem

ANY = "*"
_REMEMBERED = 600  # seconds for which a browser need not ask again
_SENT = ("Authorization", "Content-Type", "X-API-Key", "X-Request-ID")
_READ = ("Retry-After", "X-Request-ID")
_METHODS = ("GET", "HEAD", "POST")
_REMEDY = (
    f"allow the origin with --allow-origin, and use the methods {', '.join(_METHODS)} and no headers but "
    f"{', '.join(_SENT)}"
)


class Cors(CORSMiddleware):
    """The framework's, with errors as everywhere else, and `Vary: Origin` with every answer: a cache must not
    give one origin what was sent to another."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=_SENT,
            expose_headers=_READ,
            max_age=_REMEMBERED,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def varying(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if "origin" not in headers.get("vary", "").lower():
                    headers.add_vary_header("Origin")
            await send(message)

        await super().__call__(scope, receive, varying)

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return Response(status_code=204, headers=_without_content(answer))
        words = f"{bytes(answer.body).decode()}: {_REMEDY}"
        return problem(403, words, _without_content(answer))


def _without_content(answer: Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if not name.startswith("content-")}
