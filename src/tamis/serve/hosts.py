"""The host names that a server answers to."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from tamis.base.errors import InputError

_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::(\d{1,5}))?", re.ASCII)
_PORTS = {"http": "80", "https": "443"}
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*", re.ASCII)


def bare_name(host: str) -> str:
    """The name of a Host header, without its port.

    >>> [bare_name(host) for host in ("Search.example:8000", "[::1]:8000", "localhost.", "::1")]
    ['search.example', '::1', 'localhost', '::1']
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    bare, _, port = host.rpartition(":")
    return (bare if port.isdigit() and ":" not in bare else host).lower().removesuffix(".")


def is_local_name(host: str) -> bool:
    """Whether a Host header is an address or localhost, which DNS rebinding cannot use.

    >>> [is_local_name(host) for host in ("127.0.0.1:8000", "[::1]:8000", "localhost", "evil.example:8000")]
    [True, True, True, False]
    """
    name = bare_name(host)
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_trusted(host: str, names: Collection[str]) -> bool:
    """Whether a Host header is one of the names, or a local one.

    >>> [is_trusted(host, {"search.example"}) for host in ("search.example:443", "127.0.0.1", "evil.example")]
    [True, True, False]
    """
    return bare_name(host) in names or is_local_name(host)


def host_name(text: str) -> str:
    """The name in a Host header, without its port.

    >>> host_name("Search.Example")
    'search.example'
    """
    name = text.lower().removesuffix(".")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise InputError(f"{text!r} is not a host name", remedy="give a name such as search.example, no port")
    return name


def web_origin(text: str) -> str:
    """The origin of a page as browsers send it, or `*` for any.

    >>> web_origin("https://App.Example:443"), web_origin("http://localhost:3000")
    ('https://app.example', 'http://localhost:3000')
    """
    match = _ORIGIN.fullmatch(text.lower())
    if text == "*":
        return text
    if match is None:
        raise InputError(
            f"{text!r} is not an origin", remedy="give one such as https://app.example, without a path, or *"
        )
    scheme, host, port = match.groups()
    return f"{scheme}://{host}" + (f":{port}" if port and port != _PORTS[scheme] else "")


def proxy_address(text: str) -> str:
    """An address or a network, of a proxy that may say for whom it asks.

    >>> proxy_address("10.0.0.0/8")
    '10.0.0.0/8'
    """
    try:
        return str(ipaddress.ip_network(text)) if "/" in text else str(ipaddress.ip_address(text))
    except ValueError:
        raise InputError(
            f"{text!r} is not an address or a network", remedy="give one such as 10.0.0.1 or 10.0.0.0/8"
        ) from None
