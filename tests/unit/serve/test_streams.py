"""Streams at the border to the web server: clients that do not read, and errors on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tamis.base.errors import InputError
from tamis.serve.metrics import Metrics
from tamis.serve.service import Answer
from tamis.serve.streams import EventStream
from tamis.serve.work import Outcome

FIRST = Answer(b"{}", Outcome((), (), final=False))


class Client:
    """Reads so many pieces of what is sent, then no more; never leaves by itself."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.read = pieces, b""
        self.ended = False

    async def receive(self) -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            return
        self.ended = not message["more_body"]
        if self.ended:
            return
        if not self.pieces:
            await asyncio.Event().wait()
        self.pieces -= 1
        self.read += message["body"]


def streamed(client: Client, answers: AsyncGenerator[Answer], limit: float) -> Metrics:
    metrics = Metrics()

    async def run() -> None:
        await EventStream(FIRST, answers, limit, metrics)({}, client.receive, client.send)

    asyncio.run(run())
    return metrics


def test_a_stream_that_nobody_reads_has_an_end() -> None:
    closed = []

    async def answers() -> AsyncGenerator[Answer]:
        try:
            while True:
                yield FIRST
        finally:
            closed.append(True)

    client = Client(3)
    metrics = streamed(client, answers(), 0.2)
    assert client.ended
    assert closed == [True]
    assert client.read == b"event: ranking\ndata: {}\n\n" * 3
    assert 'tamis_streams_total{outcome="slow"} 1' in metrics.text()


def test_large_events_are_sent_in_pieces() -> None:
    async def answers() -> AsyncGenerator[Answer]:
        yield Answer(b"x" * 200_000, Outcome((), ()))

    client = Client(100)
    metrics = streamed(client, answers(), 60.0)
    assert 100 - client.pieces == 1 + 4  # of 65,536 bytes
    assert client.read.endswith(b"x" * 200_000 + b"\n\n")
    assert 'tamis_streams_total{outcome="complete"} 1' in metrics.text()


@pytest.mark.parametrize(
    ("error", "words"),
    [(InputError("no", remedy="yes"), b"no: yes"), (ZeroDivisionError("x"), b"internal error: see the log")],
)
def test_an_error_on_the_way_is_the_last_event(error: Exception, words: bytes) -> None:
    async def answers() -> AsyncGenerator[Answer]:
        raise error
        yield FIRST

    client = Client(100)
    if isinstance(error, InputError):
        metrics = streamed(client, answers(), 60.0)
        assert client.ended
        assert 'tamis_streams_total{outcome="error"} 1' in metrics.text()
    else:
        with pytest.raises(ZeroDivisionError):  # for the log
            streamed(client, answers(), 60.0)
    assert client.read.startswith(b"event: ranking\ndata: {}\n\nevent: error\ndata: ")
    assert words in client.read
