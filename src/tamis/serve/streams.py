"""Answers as server-sent events: one after each stage (https://html.spec.whatwg.org/#server-sent-events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from tamis.base.errors import TamisError
from tamis.serve.metrics import Metrics
from tamis.serve.problems import bug, problem_of
from tamis.serve.service import Answer

EVENTS = "text/event-stream"
_JSON = ("application/json", "application/*", "*/*")
_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # nginx would keep the events until the last
}
_PIECE = 65_536  # bytes sent at once: unread data waits here and not in the buffer of the socket

_END = {"type": "http.response.body", "body": b"", "more_body": False}

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def wants_events(accept: str) -> bool:
    """Whether an Accept header prefers events to JSON: by its q, and of equals the first.

    >>> [wants_events(each) for each in ("text/event-stream", "*/*", "application/json, text/event-stream")]
    [True, False, False]
    >>> wants_events("application/json;q=0.5, text/event-stream"), wants_events("text/event-stream;q=0")
    (True, False)
    """
    best, events = 0.0, False
    for each in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        q = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        weight = float(q) if q.replace(".", "", 1).isdecimal() and q.isascii() else 0.0
        if (kind == EVENTS or kind in _JSON) and weight > best:
            best, events = weight, kind == EVENTS
    return events


def event(name: str, data: bytes) -> bytes:
    """
    >>> event("error", b'{"error":"x"}')
    b'event: error\\ndata: {"error":"x"}\\n\\n'
    """
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def left(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """The answers of a search, of which the first is available. It ends after `limit` seconds at the latest;
    if the client leaves, the work is cancelled. One event at a time is held in memory."""

    def __init__(
        self, first: Answer, answers: AsyncGenerator[Answer], limit: float, metrics: Metrics
    ) -> None:
        super().__init__(None, media_type=EVENTS, headers=_HEADERS)
        del self.headers["content-length"]
        self._first, self._answers, self._limit, self._metrics = first, answers, limit, metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(left(receive))
        outcome = "left"
        try:
            done, _ = await asyncio.wait(
                {sending, leaving}, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED
            )
            if sending in done:
                outcome = "error"
                outcome = sending.result()
            elif not done:
                outcome = "slow"
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._answers.aclose()
            self._metrics.streams.labels(outcome).inc()
        if outcome == "slow":  # how long what was sent may wait to be read is for the connection to say
            await send(_END)

    async def _send(self, send: Send) -> str:
        """Send all there is; the outcome, in a word."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = self._first.outcome
        await self._send_event(send, "ranking", self._first.body)
        del self._first
        outcome = ""
        try:
            async for each in self._answers:
                last = each.outcome
                await self._send_event(send, "ranking", each.body)
        except TamisError as error:
            outcome = "error"
            await self._send_event(send, "error", bytes(problem_of(error).body))
        except Exception:
            await self._send_event(send, "error", bytes(bug().body))
            raise
        await send(_END)
        return outcome or ("complete" if last.complete else "partial")

    async def _send_event(self, send: Send, name: str, data: bytes) -> None:
        whole = memoryview(event(name, data))
        for start in range(0, len(whole), _PIECE):
            piece = bytes(whole[start : start + _PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
