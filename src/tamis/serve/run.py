"""Listening: the socket, the signals, the end."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn

from tamis.base.errors import InputError
from tamis.serve.access import Access
from tamis.serve.app import create_app
from tamis.serve.connection import Connection
from tamis.serve.limits import LONGEST_DEADLINE, SLOW_CLIENT
from tamis.serve.service import Service
from tamis.serve.sockets import on_loop_error
from tamis.serve.tls import Certificate

#: Seconds that a thread may keep the interpreter while others wait. A model comes back to it after each
#: batch, and by Python's default would wait 5 ms every time behind the threads that answer.
_SWITCH = 0.0005
_BACKLOG = 2048  # connections that the system holds while we are busy
_ACCEPTED = 32  # of them, at once: asyncio tries as often even when no descriptor is left


class _Server(uvicorn.Server):
    """Notifies the service before it stops, and the caller when it listens."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._started = service, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(on_loop_error())
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_BACKLOG)  # uvicorn has set it to what is accepted at once
        if self.started:
            self._started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.stopping = True
        super().handle_exit(sig, frame)


def serve(
    service: Service,
    host: str,
    port: int,
    *,
    access: Access | None = None,
    certificate: Certificate | None = None,
    proxies: Sequence[str] = (),
    reload: Callable[[], None] | None = None,
    started: Callable[[str, bool], None] = lambda url, local: None,
) -> None:
    """Serve until SIGTERM or SIGINT: then it accepts no more connections, and finishes the accepted requests.
    `started` receives the address, and whether only this machine can reach it. `reload` is called on SIGHUP.
    Headers about the client are trusted from `proxies` only."""
    access = access or Access()
    sys.setswitchinterval(_SWITCH)
    listening = _listen(host, port)
    address, actual_port, *_ = listening.getsockname()
    local = access.local = ipaddress.ip_address(address).is_loopback
    scheme = "http" if certificate is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{actual_port}/"
    config = uvicorn.Config(
        create_app(service, access),
        http=Connection,
        ws="none",
        log_level=logging.ERROR,  # errors of clients are reported to them only
        access_log=False,
        backlog=_ACCEPTED,
        lifespan="on",
        timeout_graceful_shutdown=round(LONGEST_DEADLINE + SLOW_CLIENT),
        server_header=False,
        proxy_headers=bool(proxies),  # otherwise anyone could claim another address
        forwarded_allow_ips=list(proxies),
    )
    if (log := access.log) is not None:
        about = "Lines of the access log that could not be written."
        service.metrics.gauge("access_log_dropped", about, lambda: log.dropped)
    if certificate is not None:
        config.load()
        config.ssl = certificate.context
    # uvicorn raises the signal again when it is done: a requested end is a success
    handlers = {signal.SIGTERM: lambda sig, frame: None}
    if reload is not None and hasattr(signal, "SIGHUP"):
        handlers[signal.SIGHUP] = lambda sig, frame: reload()
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    try:
        _Server(config, service, lambda: started(url, local)).run([listening])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # by its full name: asyncio sends small answers without delay on sockets that say they are TCP
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (socket.gaierror, UnicodeError):
        raise InputError(f"{host!r} is not an address to listen on", remedy="choose a --host") from None
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port} ({error.strerror})", remedy="choose another with --port"
        ) from error
    listening.listen(_BACKLOG)
    return listening
