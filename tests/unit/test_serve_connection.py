"""Slow clients, on real sockets; what is slow is made a fraction of a second."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

uvicorn = pytest.importorskip("uvicorn")

from tamis.serve import connection, guard  # noqa: E402 (they need it)
from tamis.serve.guard import Guard, Message, Receive, Send  # noqa: E402
from tamis.serve.metrics import Metrics  # noqa: E402

SLOW = 0.5
PATIENCE = 20  # seconds until a test is over, on a machine with much else to do
LARGE = bytes(30_000_000)  # more than the system holds for a connection
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answers_with_much(scope: Message, receive: Receive, send: Send) -> None:
    """Reads the body first, as the routes do."""
    while (await receive()).get("more_body"):
        pass
    body = LARGE if scope["path"] == "/large" else b"small"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def asked(client: Client) -> float:
    """How long a client was served; a connection that does not end would keep the server from ending."""

    async def run() -> float:
        app = Guard(answers_with_much, metrics=Metrics(), body=1000)
        config = uvicorn.Config(app, http=connection.Connection, log_level="critical", lifespan="off")
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
    monkeypatch.setattr(guard, "SLOW_CLIENT", SLOW)


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


def test_so_must_its_body_however_small_its_pieces() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n")
        await trickle(reader, writer, b"y" * 900)

    assert asked(client) > SLOW * 0.9


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
