"""Connections to clients that are too slow, or do not speak HTTP.

uvicorn waits for ever for the rest of a request's head, and for a client to read its answer. Each such
connection is a file descriptor, and the second kind holds its answer in memory; so here both have an end. How
long a body may take is for `Guard` to say.
"""

from __future__ import annotations

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tamis.serve.headers import security_headers
from tamis.serve.limits import SLOW_CLIENT


class Connection(H11Protocol):
    """One client's connection."""

    _head: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._head, self._reading):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        elif self._head is not None:
            self._head.cancel()
            self._head = None

    def _wait_for_head(self) -> None:
        if self._head is None:  # one timer for the whole of it, however small its pieces
            self._head = self.loop.call_later(SLOW_CLIENT, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def _watch_reading(self, unread: int) -> None:
        self._reading = self.loop.call_later(SLOW_CLIENT, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread < before:  # it is slow, but it reads
            self._watch_reading(unread)
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What is wrong here as everywhere else: as JSON."""
        body = json.dumps({"error": "no HTTP that can be read: send HTTP/1.1, with a shorter head"}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            *security_headers(self.scheme or "http", "").items(),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason="Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
