"""A connection to an OpenSearch cluster: its address, the credentials, and requests with time-outs.

A request is repeated with back-off when the cluster is busy or a node is gone. All requests that tamis sends
are idempotent.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import re
import ssl
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.base.errors import InputError, MissingDependencyError, quoted
from tamis.base.extras import install
from tamis.base.interrupt import check, remaining
from tamis.index.opensearch.errors import AUTHORITY, ClusterError, UnreachableError, refused, unanswered

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

PLAIN, TLS = "opensearch://", "opensearchs://"
PORT = 9200
SUPPORTED = (2, 3)  # major versions of OpenSearch
_AT_ONCE = 32  # connections that are kept open to each node
_CONNECTS = 10.0  # seconds
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 10.0  # seconds between two tries
_USER, _PASSWORD = "TAMIS_OPENSEARCH_USER", "TAMIS_OPENSEARCH_PASSWORD"
_API_KEY, _TOKEN = "TAMIS_OPENSEARCH_API_KEY", "TAMIS_OPENSEARCH_TOKEN"
_TIMEOUT = "TAMIS_OPENSEARCH_TIMEOUT"
_FORM = "write it like opensearch://host:9200/name"
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>\d{1,5}))?")
_NAME = re.compile(r"(?![-_+.])[^\\/*?\"<>| ,#:A-Z\x00-\x20]{1,255}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where an index is: the nodes that may be asked, and the index's name.

    >>> Address.parse("opensearch://localhost/docs")
    Address(hosts=(('localhost', 9200),), index='docs', tls=False)
    >>> str(Address.parse("opensearchs://a:9201,b:9202/docs"))
    'opensearchs://a:9201,b:9202/docs'
    >>> Address.parse("opensearch://me:secret@localhost/docs")
    Traceback (most recent call last):
    tamis.base.errors.InputError: an address with a user or a password would be printed and stored: leave them
    out, and set TAMIS_OPENSEARCH_USER and TAMIS_OPENSEARCH_PASSWORD
    """

    hosts: tuple[tuple[str, int], ...]
    index: str
    tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that a text stands for; `InputError` if it is none."""
        scheme = next((each for each in (PLAIN, TLS) if text.startswith(each)), None)
        if scheme is None:
            raise InputError(f"{quoted(text)} is not the address of an index", remedy=_FORM)
        if "@" in text:
            problem = "an address with a user or a password would be printed and stored"
            raise InputError(problem, remedy=f"leave them out, and set {_USER} and {_PASSWORD}")
        hosts, _, index = text.removeprefix(scheme).partition("/")
        index = index.removesuffix("/")
        if not index:
            raise InputError(f"{quoted(text)} does not name an index", remedy=_FORM)
        if not _NAME.fullmatch(index) or len(index.encode(errors="replace")) > 255:
            remedy = "use small letters, digits, - and _, and begin with a letter"
            raise InputError(f"{quoted(index)} cannot be the name of an index of OpenSearch", remedy=remedy)
        return cls(tuple(_host(each, text) for each in hosts.split(",")), index, scheme == TLS)

    @property
    def nodes(self) -> str:
        """The hosts and their ports."""
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def __str__(self) -> str:
        return f"{TLS if self.tls else PLAIN}{self.nodes}/{self.index}"


def _host(text: str, address: str) -> tuple[str, int]:
    match = _HOST.fullmatch(text)
    port = int(match["port"] or PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise InputError(f"{quoted(text)} in {quoted(address)} is not HOST:PORT", remedy=_FORM)
    return match["name"], port


class Connection:
    """A cluster, and the index of it that is meant. Threads may share it; another process connects anew."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._authorization = _authorization()
        self._client = _client(address, self._authorization)
        self.timeout = _timeout()
        self.version: tuple[int, ...] = _version(self.request("GET", "/", patience=0.0), address)

    def __reduce__(self) -> tuple[object, tuple[Address]]:
        return Connection, (self.address,)

    def __repr__(self) -> str:
        return f"<Connection to {self.address}>"

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Iterable[Mapping[str, Any]] | bytes | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        patience: float = 30.0,
    ) -> Any:
        """The parsed answer. A body may be one object, several (a line each), or lines as bytes.

        `timeout` is for one try, in seconds (`TAMIS_OPENSEARCH_TIMEOUT`, or 60). A node that is gone and a
        cluster that is busy are asked again, with growing pauses, while less than `patience` seconds have
        passed, and at least once; other nodes at once. A `patience` of zero means one try of each node.
        Nothing lasts beyond the deadline of the search that it is for."""
        timeout = self.timeout if timeout is None else timeout
        data = _encoded(body)
        lines = body is not None and not isinstance(body, Mapping)
        started, tries = time.monotonic(), 0
        while True:
            check()
            rest, began = remaining(), time.monotonic()
            try:
                limit = timeout if rest is None else min(timeout, max(rest, 0.001))
                return self._once(method, path, data, lines, params, limit)
            except ClusterError as error:
                tries += 1
                others = isinstance(error, UnreachableError) and tries < len(self.address.hosts)
                seconds = 0.0 if others else pause(tries)
                then = time.monotonic() + seconds
                again = others or (patience and tries == 1) or then <= started + patience
                if not (error.is_temporary and again and (rest is None or then <= began + rest)):
                    raise
                time.sleep(seconds)

    def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        lines: bool,
        params: Mapping[str, Any] | None,
        timeout: float,
    ) -> Any:
        from opensearchpy import exceptions as client
        from urllib3 import Timeout

        limit: Any = Timeout(connect=min(timeout, _CONNECTS), read=timeout)
        headers = {"content-type": "application/x-ndjson"} if lines else None
        try:
            return self._client.transport.perform_request(
                method, path, params=dict(params or {}), body=data, timeout=limit, headers=headers
            )
        except client.ConnectionError as error:
            if isinstance(error.info, UnicodeDecodeError):
                raise _not_opensearch(self.address) from None
            raise unanswered(error, self.address.nodes, timeout) from None
        except client.TransportError as error:
            answer = error.info if error.info is not None else error.error
            known = bool(self._authorization)
            raise refused(int(error.status_code), answer, str(self.address), known=known) from None
        except client.SerializationError:
            raise _not_opensearch(self.address) from None


def connect(address: str | Address) -> Connection:
    """A connection to the cluster at an address, which is asked whether it is OpenSearch."""
    return Connection(Address.parse(address) if isinstance(address, str) else address)


def pause(tries: int) -> float:
    """Seconds before the next try: longer each time, and not the same for all who wait."""
    return min(_FIRST_DELAY * 2.0 ** (tries - 1), _LONGEST_DELAY) * random.uniform(0.5, 1.0)


def _encoded(body: Mapping[str, Any] | Iterable[Mapping[str, Any]] | bytes | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, Mapping):
        return _json(body)
    return b"".join(_json(each) + b"\n" for each in body)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _client(address: Address, authorization: str) -> OpenSearch:
    try:
        from opensearchpy import OpenSearch, OpenSearchWarning
    except ImportError:
        problem = "opensearch-py is not installed, which searches and writes indexes of OpenSearch"
        raise MissingDependencyError(problem, remedy=install("opensearch-py")) from None
    # what fails is an error of ours, and is not logged beside it
    logging.getLogger("opensearch").addHandler(logging.NullHandler())
    warnings.simplefilter("ignore", OpenSearchWarning, append=True)
    return OpenSearch(
        hosts=[
            {"host": host.strip("[]"), "port": port, "use_ssl": address.tls} for host, port in address.hosts
        ],
        headers={"authorization": authorization} if authorization else {},
        ssl_context=_trusted() if address.tls else None,
        pool_maxsize=_AT_ONCE,
        max_retries=0,
        retry_on_timeout=True,  # that a node is left alone for a while, not that it is asked again
    )


def _trusted() -> ssl.SSLContext:
    """The authorities whose certificates are trusted: the system's, and one of the user's choice."""
    path = os.environ.get(AUTHORITY)
    context = ssl.create_default_context()
    if path:
        try:
            context.load_verify_locations(Path(path))
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "strerror", None) or "no certificate in it"
            remedy = "give a file of certificates (PEM)"
            raise InputError(f"{AUTHORITY} names {quoted(path)} ({why})", remedy=remedy) from None
    return context


def _authorization() -> str:
    """The `Authorization` header, from the environment alone; empty without credentials."""
    user, password = os.environ.get(_USER), os.environ.get(_PASSWORD)
    tokens = {"ApiKey": os.environ.get(_API_KEY), "Bearer": os.environ.get(_TOKEN)}
    set_ones = [f"{scheme} {token.strip()}" for scheme, token in tokens.items() if token]
    if user or password:
        if not user or not password:
            missing = _PASSWORD if user else _USER
            raise InputError(f"{missing} is not set", remedy=f"set {_USER} and {_PASSWORD}, or neither")
        set_ones.append("Basic " + base64.b64encode(f"{user}:{password}".encode(errors="replace")).decode())
    if len(set_ones) > 1:
        problem = f"more than one of {_USER}, {_API_KEY} and {_TOKEN} is set"
        raise InputError(problem, remedy="set the one that the cluster knows")
    header = "".join(set_ones)
    if not header.isascii() or not header.isprintable():
        problem = f"{_API_KEY if tokens['ApiKey'] else _TOKEN} holds characters that no header can have"
        raise InputError(problem, remedy="copy it again, without line breaks")
    return header


def _timeout() -> float:
    """Seconds in which a request must be answered, unless its caller knows better."""
    text = os.environ.get(_TIMEOUT, "60")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"{_TIMEOUT} is {quoted(text)}", remedy="set it to a number of seconds")
    return seconds


def _version(answer: Any, address: Address) -> tuple[int, ...]:
    """The version in the answer to `GET /`, if it is one of OpenSearch that we know."""
    version = answer.get("version") if isinstance(answer, Mapping) else None
    number = version.get("number") if isinstance(version, Mapping) else None
    if not isinstance(version, Mapping) or not isinstance(number, str):
        raise _not_opensearch(address)
    known = " and ".join(map(str, SUPPORTED))
    remedy = f"use OpenSearch {known}"
    if version.get("distribution") != "opensearch":
        raise ClusterError(f"{address.nodes} is Elasticsearch {quoted(number)}", remedy=remedy)
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", number)
    if match is None or int(match[1]) not in SUPPORTED:
        problem = f"{address.nodes} is OpenSearch {quoted(number)}, which tamis does not know"
        raise ClusterError(problem, remedy=remedy)
    return tuple(int(part or 0) for part in match.groups())


def _not_opensearch(address: Address) -> ClusterError:
    return ClusterError(f"what answers at {address.nodes} is not OpenSearch", remedy="check the address")
