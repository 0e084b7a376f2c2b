"""Slow clients, on real sockets; what is slow is made a fraction of a second."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import pytest

uvicorn = pytest.importorskip("uvicorn")

from starlette.middleware.exceptions import ExceptionMiddleware  # noqa: E402

from tamis.serve import bodies, connection  # noqa: E402 (they need it)
from tamis.serve.bodies import Bodies  # noqa: E402
from tamis.serve.guard import Guard, Message, Receive, Send  # noqa: E402
from tamis.serve.limits import Limits  # noqa: E402
from tamis.serve.metrics import Metrics  # noqa: E402

SLOW = 0.5
PATIENCE = 20  # seconds until a test is over, on a machine with much else to do
LARGE = bytes(30_000_000)  # more than the system holds for a connection
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


#: Clients that the application cuts off between the head of its answer and the end.
LEAVING: list[socket.socket] = []


async def answers_with_much(scope: Message, receive: Receive, send: Send) -> None:
    """Reads the body first, as the routes do."""
    while scope["path"] != "/at-once" and (await receive()).get("more_body"):
        pass
    body = LARGE if scope["path"] == "/large" else b"small"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while LEAVING:
        leaving = LEAVING.pop()
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        leaving.close()
    await send({"type": "http.response.body", "body": body})


def asked(client: Client) -> float:
    """How long a client was served; a connection that does not end would keep the server from ending."""

    async def run() -> float:
        app = Guard(
            ExceptionMiddleware(answers_with_much), metrics=Metrics(), bodies=Bodies(Limits(body=1000))
        )
        config = uvicorn.Config(
            app, http=connection.Connection, log_level="error", log_config=None, lifespan="off"
        )
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve([listening]))
            started = time.monotonic()
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await asyncio.wait_for(client(reader, writer), PATIENCE)
            took = time.monotonic() - started
            writer.transport.abort()
            server.should_exit = True
            await serving
        return took

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOW_CLIENT", SLOW)
    monkeypatch.setattr(connection, "_LINGER", SLOW / 3)
    monkeypatch.setattr(bodies, "SLOW_CLIENT", SLOW)


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    """Send a byte now and then, until the server has had enough; what it answered."""
    try:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(SLOW / 10)  # so that all of it would take longer than our patience
            if reader.at_eof():
                break
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["first", "second"])
def test_the_head_of_a_request_must_come(before: bytes) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if before:
            writer.write(before)
            await reader.readuntil(b"small")
        assert await trickle(reader, writer, b"GET / HTTP/1.1\r\nx: " + b"y" * 1000) == b""

    assert asked(client) > SLOW * 0.9


@pytest.mark.parametrize(
    "framing", [b"content-length: 900\r\n\r\n", b"transfer-encoding: chunked\r\n\r\nffff\r\n"]
)
def test_so_must_its_body_however_small_its_pieces(framing: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n" + framing)
        await trickle(reader, writer, b"y" * 900)

    assert asked(client) > SLOW * 0.9
    assert caplog.records == []


def test_an_answer_that_is_not_read_is_dropped() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        for _ in range(
            40
        ):  # in steps, so that a machine that stands still for a moment does not use up the server's time
            await asyncio.sleep(SLOW / 10)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(LARGE))

    asked(client)


def test_one_that_is_read_slowly_is_not() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        left = len(LARGE)
        await reader.readuntil(b"\r\n\r\n")
        while left > 0:
            left -= len(await reader.readexactly(min(left, 3_000_000)))
            await asyncio.sleep(SLOW / 5)

    assert asked(client) > 1.5 * SLOW


def test_but_one_that_is_read_a_little_at_a_time_is() -> None:
    """However long it goes on reading."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        while connections():  # the system holds enough to go on reading after that
            await reader.readexactly(1000)
            await asyncio.sleep(SLOW / 10)

    asked(client)


EARLY = {
    "refused": b"POST /x HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 900\r\n\r\n",
    "long": b"POST /at-once HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n",
    "chunked": b"POST /at-once HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n",
    "too large": b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n",
    "get": b"GET /at-once HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
    "both lengths": b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
    "no http": b"\x16\x03\x01\r\n\r\n",
}


@pytest.mark.parametrize("head", EARLY.values(), ids=EARLY.keys())
@pytest.mark.parametrize("more", [b"", b"zz\r\n"])
def test_an_answer_that_does_not_wait_for_the_body_is_the_last(
    head: bytes, more: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The client reads it, sends a little more, and is silent: the connection is closed for it."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        answered = await reader.readuntil(b"\r\n\r\n")
        assert b"\r\nconnection: close\r\n" in answered
        writer.write(more)
        await reader.read()
        # told at once that no more comes; the server's descriptor is free a little later
        while connections():
            await asyncio.sleep(SLOW / 10)

    asked(client)
    assert caplog.records == []


def connections() -> int:
    """How many the server has: it runs in this process."""
    return sum(
        each.transport is not None and each in each.connections
        for each in gc.get_objects()
        if isinstance(each, connection.Connection)
    )


def test_a_client_that_leaves_as_it_is_answered_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leaving = socket.create_connection(writer.get_extra_info("peername"))
        LEAVING.append(leaving)
        leaving.sendall(b"HEAD /at-once HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n")
        writer.close()
        while LEAVING or connections():
            await asyncio.sleep(SLOW / 10)

    asked(client)
    assert caplog.records == []


@pytest.mark.parametrize("path", [b"/x", b"/at-once", b"/large"])
def test_a_chunk_that_is_none_is_not_worth_a_line(path: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n" % path
        )
        await asyncio.sleep(SLOW / 5)
        writer.write(b"zz\r\nwhat?")
        answered = await reader.read()
        assert answered.startswith(b"HTTP/1.1 200" if path == b"/at-once" else b"HTTP/1.1 400")

    asked(client)
    assert caplog.records == []


def test_a_body_in_very_many_chunks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_CHUNKS", 100)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\ny\r\n" * 100 + b"0\r\n\r\n")
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(head + b"1\r\ny\r\n" * 101)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")

    asked(client)


# -- many connections
# ------------------------------------------------------------------------------------------------------------

ASK = b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n"


async def another(writer: asyncio.StreamWriter) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*writer.get_extra_info("peername"))


def test_one_too_many_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 2)
    monkeypatch.setattr(connection, "_NEW", 60.0)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        second = await another(writer)
        for stream in ((reader, writer), second):
            stream[1].write(ASK)
            await stream[0].readuntil(b"small")
        third = await another(writer)
        third[1].write(ASK)
        answered = await third[0].read()
        assert answered.startswith(b"HTTP/1.1 503") and b"retry-after: 1\r\n" in answered
        assert b"too many connections are open: try again later" in answered
        for each in (second, third):
            each[1].transport.abort()

    monkeypatch.setattr(connection, "SLOW_CLIENT", PATIENCE)
    asked(client)


def test_those_that_have_said_nothing_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 2)
    monkeypatch.setattr(connection, "_NEW", 0.0)
    monkeypatch.setattr(connection, "SLOW_CLIENT", PATIENCE)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        second = await another(writer)
        second[1].write(ASK)
        await second[0].readuntil(b"small")
        third = await another(writer)
        third[1].write(ASK)
        await third[0].readuntil(b"small")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        for each in (second, third):
            each[1].transport.abort()

    asked(client)


def test_the_answers_that_are_not_read_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has waited longest goes first; the newest is served, however large."""
    monkeypatch.setattr(connection, "_UNREAD", len(LARGE))
    monkeypatch.setattr(connection, "SLOW_CLIENT", PATIENCE)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        writer.write(request)
        await reader.readuntil(b"\r\n\r\n")
        second = await another(writer)
        second[1].write(request)
        assert len(await second[0].read()) > len(LARGE)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(len(LARGE))

    asked(client)
