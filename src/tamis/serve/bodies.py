"""The bodies of requests: read, counted and parsed before any other work. A client may send 4 MB of
`[0,0,...]`: two million values, each of which would be checked, and be an error of its own. So a body is
counted before it is parsed, and its lists before they are validated. A long body is parsed in a thread, one
at a time, so that the other requests do not wait for it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from starlette.exceptions import HTTPException

from tamis.serve.limits import FIELDS, SLOW_CLIENT, VALUES, Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_SMALL = 65_536  # bytes: parsed at once, and free; of larger bodies, all together must fit in the memory
_AT_A_TIME = 8  # bodies of the largest size
#: A string of JSON, or what would be one if it ended: no beginning is looked at twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_CLOSE = {"connection": "close"}


class Bodies:
    """Reads the bodies of all requests: together they take no more than a few of the largest size."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0  # bytes of the large ones
        self._parser = ThreadPoolExecutor(1, "tamis-bodies")

    def incoming(self, receive: Receive, length: int | None) -> Incoming:
        """The body of a request that says it has this `length`."""
        return Incoming(self, receive, length)

    async def parse(self, body: bytes) -> Any:
        """The plain data of a body of JSON, without more in it than a request may have."""
        if len(body) <= _SMALL:
            return parse(body, self.limits.candidates)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._parser, parse, body, self.limits.candidates)

    def close(self) -> None:
        self._parser.shutdown()


class Incoming:
    """The body of one request, counted as it comes: what a client says about its length may be wrong, or
    missing. `more`: some of it may be to come. `release` it when the request is over."""

    def __init__(self, bodies: Bodies, receive: Receive, length: int | None) -> None:
        self._bodies, self._receive, self._length = bodies, receive, length
        self._until = time.monotonic() + SLOW_CLIENT
        self._count = self._held = 0
        self.more = length != 0

    async def __call__(self) -> Message:
        if not self.more:  # and what comes now is that the client has left
            return await self._receive()
        most = self._bodies.limits.body
        if self._length is not None and self._length > most:
            raise self._too_large()  # before it is sent
        message = await self._by_then()
        self._count += len(message.get("body", b""))
        if self._count > most:
            raise self._too_large()
        self._hold()
        self.more = bool(message.get("more_body"))
        return message

    def release(self) -> None:
        self._bodies.held -= self._held
        self._held = 0

    async def _by_then(self) -> Message:
        try:
            return await asyncio.wait_for(self._receive(), self._until - time.monotonic())
        except TimeoutError:
            words = f"the body did not come within {SLOW_CLIENT:.0f} s: send it faster"
            raise HTTPException(408, words, headers=_CLOSE) from None

    def _hold(self) -> None:
        more = max(0, self._count - _SMALL) - self._held
        if more and self._bodies.held + more > _AT_A_TIME * self._bodies.limits.body:
            words = "the bodies of other requests fill the memory for them: try again later"
            raise HTTPException(503, words, headers={"retry-after": "1", **_CLOSE})
        self._bodies.held += more
        self._held += more

    def _too_large(self) -> HTTPException:
        # there may be more of it to come: the connection is of no further use
        most = self._bodies.limits.body
        words = f"the body is larger than {most:,} bytes: send fewer or shorter documents"
        return HTTPException(413, words, headers=_CLOSE)


def parse(body: bytes, candidates: int) -> Any:
    """Plain data. JSON as the standard has it: Python would take NaN, Infinity and UTF-16 too.

    >>> parse(b'{"query": "sieve"}', candidates=10)
    {'query': 'sieve'}
    """
    if too_many(body, VALUES):
        raise _too_much(f"the body has more than {VALUES:,} values: send fewer documents")
    sent = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse)
    _check_counts(sent, candidates)
    return sent


def too_many(body: bytes, most: int) -> bool:
    """Whether JSON has more than `most` values, counted by the separators outside strings; it is not parsed,
    and need not be valid.

    >>> too_many(b'[0,0,0]', 3), too_many(b'["a,b,c",{"d":"e"}]', 4), too_many(b'["","","",""]', 3)
    (False, False, True)
    """
    if _between(body, 0, len(body)) <= most:
        return False
    count = end = 0
    for strings, string in enumerate(_STRING.finditer(body)):
        count += _between(body, end, string.start())
        end = string.end()
        if count > most or strings > 2 * most:  # values and names
            return True
    return count + _between(body, end, len(body)) > most


def _between(body: bytes, start: int, end: int) -> int:
    # a value comes after one of these, but for the outermost
    return body.count(b",", start, end) + body.count(b"[", start, end) + body.count(b"{", start, end)


def _check_counts(sent: Any, candidates: int) -> None:
    """As far as the shapes of requests have objects and lists: each wrong item would be an error to write."""
    if not isinstance(sent, dict):
        return
    _check_fields("the body", sent)
    documents = sent.get("documents")
    if not isinstance(documents, list):
        return
    if len(documents) > candidates:
        raise _too_much(f"{len(documents):,} documents: send at most {candidates:,} with a query")
    for place, document in enumerate(documents):
        if isinstance(document, dict):
            _check_fields(f"documents.{place}", document)


def _check_fields(where: str, sent: dict[str, Any]) -> None:
    if len(sent) > FIELDS:
        raise _too_much(f"{where} has {len(sent):,} fields: send at most {FIELDS} (see /openapi.json)")


def _too_much(words: str) -> HTTPException:
    return HTTPException(422, words)


def _refuse(constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not JSON", constant, 0)
