"""Connections to clients that are too slow, too many, or do not speak HTTP.

Each connection is a file descriptor and some memory, and anyone who can reach the port can open one before a
key is required. So each state of a connection has a time limit: waiting for the head of a request, for its
body, for the answer, for the client to read it, and for the client to notice the close. uvicorn limits only
the time between two requests.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tamis.serve.headers import security_headers
from tamis.serve.limits import LONGEST_DEADLINE, SLOW_CLIENT
from tamis.serve.sockets import most_connections

_HEAD = 16_384  # bytes of a request's head
_READ = 16_384  # bytes taken from a socket at once: of the smallest chunks, a tenth of a second's work
_CHUNKS = 10_000  # that a body may come in: each is work, however small
_LINGER = 5.0  # seconds for a client to stop sending after an answer that did not wait for its body
_READ_ON = 16_000_000  # bytes that it may send meanwhile
_RATE = 50_000  # bytes a second that a client must read of its answer, in each SLOW_CLIENT seconds
_UNREAD = 64_000_000  # bytes of all answers that clients have still to read
_NEW = 1.0  # seconds for which a connection that waits is not closed in favour of another
_SPARE = 64  # connections above the limit that get a 503; further ones are closed without an answer

_WAITING = ("head", "body", "linger")  # states in which the client must act


class Connection(H11Protocol):
    """One client's connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Parser(h11.SERVER, _HEAD)
        self.state = ""
        self.since = 0.0
        self.writing_since: float | None = None
        self._read_on = _READ_ON
        self._limit: asyncio.TimerHandle | None = None
        self._write_limit: asyncio.TimerHandle | None = None

    # -- states

    def _enter(self, state: str) -> None:
        """Begin a state, or stay in it: its time is for the whole of it, however small the pieces."""
        if state == self.state:
            return
        self.state, self.since = state, self.loop.time()
        if self._limit is not None:
            self._limit.cancel()
        seconds = {
            "head": SLOW_CLIENT,
            "body": 1.5 * SLOW_CLIENT,  # `Incoming` answers before, if anybody waits for the body
            "work": LONGEST_DEADLINE + 2 * SLOW_CLIENT,  # until the last byte is handed over
            "linger": _LINGER,
        }[state]
        self._limit = self.loop.call_later(seconds, self._too_long)

    def _too_long(self) -> None:
        if self.state == "head":
            self._transport.close()  # once the previous answer is read, which has its own limit
        else:
            self._transport.abort()

    def _look(self) -> None:
        """Enter the state that the parser's is."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self._enter("head")
        else:
            self._enter("body" if self.conn.their_state is h11.SEND_BODY else "work")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if hasattr(transport, "max_size"):  # of asyncio's own, without TLS
            transport.max_size = _READ
        super().connection_made(cast(asyncio.Transport, _Closing(transport, self)))
        # so that any unread data triggers the callback; not 0, which TLS never reaches
        transport.set_write_buffer_limits(high=1, low=0)
        self._enter("head")
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._limit, self._write_limit):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.state == "linger":
            self._read_on -= len(data)
            if self._read_on < 0:
                self._transport.abort()
            return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # and nobody is going to read it
            self.transport.close()
        self._look()

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    # -- the end

    def close(self, *, sending: bool = False) -> None:
        """When all is written. Where the client may be `sending` still, its bytes are taken for a while: a
        socket that is closed before they are read breaks the connection, and the answer is lost with it."""
        if self.transport.is_closing():
            return
        if not sending and self.conn.their_state is not h11.SEND_BODY:
            self._transport.close()
            return
        self._enter("linger")
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
        except OSError:  # the client has left, without notice so far
            self._transport.abort()
        else:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "Bad Request", "not valid HTTP: send HTTP/1.1, with a shorter head")

    def _refuse(self, status: int, phrase: str, words: str) -> None:
        """Send an error as JSON, as everywhere else; nothing if an answer has begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = json.dumps({"error": words}).encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                **({"retry-after": "1"} if status == 503 else {}),
                **security_headers(self.scheme or "http", ""),
            }
            lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
            self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        if cycle is not None:  # cancel the work on the answer
            cycle.disconnected = True
            cycle.message_event.set()
        self.close(sending=True)

    # -- all together

    def _make_room(self) -> None:
        """Limit connections to the descriptors: close one that has been idle for some time, or refuse the new
        one with a 503."""
        excess = len(self.connections) - most_connections()
        if excess <= 0:
            return
        before = self.loop.time() - _NEW
        others = (each for each in self.connections if isinstance(each, Connection) and each is not self)
        waiting = [each for each in others if each.state in _WAITING and each.since < before]
        if waiting:
            min(waiting, key=lambda each: each.since)._transport.abort()
        elif excess <= _SPARE:
            self._refuse(503, "Service Unavailable", "too many connections are open: try again later")
        else:
            self._transport.abort()

    # -- answers that are not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writing_since = self.loop.time()
        self._watch_reading()
        self._bound_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.writing_since = None
        if self._write_limit is not None:
            self._write_limit.cancel()

    def _watch_reading(self) -> None:
        unread = self._transport.get_write_buffer_size()
        self._write_limit = self.loop.call_later(SLOW_CLIENT, self._check_reading, unread)

    def _check_reading(self, before: int) -> None:
        if before - self._transport.get_write_buffer_size() >= _RATE * SLOW_CLIENT:
            self._watch_reading()
        else:
            self._transport.abort()

    def _bound_unread(self) -> None:
        """Of all answers that are not read, those that have waited longest are given up first."""
        unread = [
            each
            for each in self.connections
            if isinstance(each, Connection) and each is not self and each.writing_since is not None
        ]
        unread.sort(key=lambda each: each.writing_since or 0.0, reverse=True)
        total = sum(each._transport.get_write_buffer_size() for each in (self, *unread))
        while total > _UNREAD and unread:
            slowest = unread.pop()
            total -= slowest._transport.get_write_buffer_size()
            slowest._transport.abort()


class _Closing:
    """The transport that uvicorn gets: it is closed by us."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._connection.close()

    def is_closing(self) -> bool:
        return self._connection.state == "linger" or self._transport.is_closing()


class _Parser(h11.Connection):
    """h11, stricter."""

    _chunks = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                # a proxy may go by the other one, and take what follows for a request (RFC 9112, 6.1)
                raise h11.RemoteProtocolError("both content-length and transfer-encoding")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            if self._chunks > _CHUNKS:
                raise h11.RemoteProtocolError("too many chunks")
        return event
