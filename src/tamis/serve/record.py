"""The record of the current request, for the log, the metrics and error responses."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

_SAFE = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


@dataclass(slots=True)
class Record:
    """One request. The routes fill in what they come to know."""

    id: str
    key: str | None = None  # its name
    pipeline: str | None = None
    query: str | None = None


_CURRENT: ContextVar[Record | None] = ContextVar("tamis_request", default=None)


def begin(record: Record) -> None:
    """Have this be the request of the present task, and of those that it starts."""
    _CURRENT.set(record)


def request_id() -> str | None:
    """The id of the request that is being answered, if any."""
    record = _CURRENT.get()
    return None if record is None else record.id


def remember(*, key: str | None = None, pipeline: str | None = None, query: str | None = None) -> None:
    """Record these for the log: the name of the key, and the pipeline in its printed form, not as it was
    sent."""
    if (record := _CURRENT.get()) is not None:
        record.key = key or record.key
        record.pipeline = pipeline or record.pipeline
        record.query = query or record.query


def valid_id(sent: list[str]) -> str:
    """The request id from the client or a proxy, if it is safe in a log; else a new one.

    >>> valid_id(["job-17.3"])
    'job-17.3'
    >>> [len(valid_id(sent)) for sent in ([], ["two\\nlines"], ["x" * 65], ["a", "b"])]
    [32, 32, 32, 32]
    """
    return sent[0] if len(sent) == 1 and _SAFE.fullmatch(sent[0]) else secrets.token_hex(16)
