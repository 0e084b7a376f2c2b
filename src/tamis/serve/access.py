"""Access control: keys, host names, rates, and the access log."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response

from tamis.serve.access_log import AccessLog
from tamis.serve.hosts import is_local_name, is_trusted
from tamis.serve.keys import Key, Keys, digest_of, required_role
from tamis.serve.problems import problem
from tamis.serve.rates import Buckets, Rate, address_key, retry_after
from tamis.serve.record import remember

SINGLE = "api-key"  # the name of the key that comes alone
#: Routes without a key: the files of the page, and health checks.
OPEN = frozenset({"/", "/healthz", "/readyz"})


@dataclass(slots=True)
class Access:
    """Access settings of a server. `local`: it serves this machine only. `origins`: of pages from elsewhere
    that may read its answers."""

    keys: Keys | None = None
    local: bool = False
    names: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    rate: Rate | None = None
    log: AccessLog | None = None
    # apart, so that no number of addresses has a key's bucket forgotten
    by_key: Buckets = field(default_factory=Buckets)
    by_address: Buckets = field(default_factory=Buckets)

    @classmethod
    def single(cls, key: str | None, *, local: bool = False) -> Access:
        """One key for everything, or none."""
        return cls(None if key is None else Keys([Key(SINGLE, digest_of(key))]), local=local)

    def refusal(self, path: str, headers: Headers, client: str) -> Response | None:
        """Why a request is not answered, if it is not; its record learns the name of its key."""
        if (wrong := self._wrong_name(headers.get("host", ""))) is not None:
            return wrong
        if is_open(path):
            return None
        key = None if self.keys is None else self.keys.find(sent_key(headers))
        remember(key=None if key is None else key.name)
        if (early := self._too_early(key, client)) is not None:
            return early
        if self.keys is None:
            return None
        if key is None:
            return problem(
                401,
                "this server requires an API key: send the header Authorization: Bearer KEY",
                {"www-authenticate": "Bearer"},
            )
        if not key.may(role := required_role(path)):
            return problem(403, f"the key {key.name} does not have the role {role}: use one that does")
        return None

    def _wrong_name(self, host: str) -> Response | None:
        if self.names:
            if not is_trusted(host, self.names):
                return problem(403, "the Host header does not name this server: use one of its --host-name")
        # A page from elsewhere could have its own name resolve to 127.0.0.1 (DNS rebinding), and the browsers
        # of its visitors would let it read our answers. A key keeps it out; without one, its name does.
        elif self.keys is None and self.local and not is_local_name(host):
            return problem(
                403,
                "this server is asked for by a name that is not this machine's own: use localhost or an "
                "address, or start it with an API key or --host-name",
            )
        return None

    def _too_early(self, key: Key | None, client: str) -> Response | None:
        rate = self.rate if key is None or key.rate is None else key.rate
        if rate is None:
            return None
        # without a valid key, rates count by address, so that nobody can use up the share of another
        if key is None:
            wait = self.by_address.wait(address_key(client), rate)
        else:
            wait = self.by_key.wait(key.name, rate)
        if not wait:
            return None
        return problem(
            429,
            f"more than {rate.per_second:g} requests per second: retry after the seconds in Retry-After",
            {"retry-after": retry_after(wait)},
        )


def is_open(path: str) -> bool:
    """Whether a path needs no key, and is not counted.

    >>> is_open("/static/main.js"), is_open("/metrics")
    (True, False)
    """
    return path in OPEN or path.startswith("/static/")


def sent_key(headers: Headers) -> str:
    """The key of a request, from either of the headers that may have it.

    >>> sent_key(Headers({"authorization": "Bearer abc"})), sent_key(Headers({"x-api-key": "abc"}))
    ('abc', 'abc')
    """
    scheme, _, sent = headers.get("authorization", "").partition(" ")
    return (sent if scheme.lower() == "bearer" else headers.get("x-api-key", "")).strip()
