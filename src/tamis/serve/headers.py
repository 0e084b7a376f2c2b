"""The headers of every response."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders

from tamis.serve.hosts import bare_name

#: The page loads only from this server, and no other page may frame it.
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",  # for browsers that do not know frame-ancestors
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
#: For a year, browsers ask for this name by https only (RFC 6797).
STRICT_TRANSPORT = {"strict-transport-security": "max-age=31536000"}


def security_headers(scheme: str, host: str) -> Mapping[str, str]:
    """What goes with every answer to a request by this scheme, for this name.

    >>> "strict-transport-security" in security_headers("https", "search.example")
    True
    """
    # a browser would ask every other server on localhost by https too, whatever its port
    secure = scheme == "https" and bare_name(host) != "localhost"
    return SECURITY_HEADERS | STRICT_TRANSPORT if secure else SECURITY_HEADERS


def secure(headers: MutableHeaders, scheme: str, host: str) -> None:
    """Add them to an answer. What does not say how long it may be kept is not kept: it may be secret."""
    for name, value in security_headers(scheme, host).items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")
