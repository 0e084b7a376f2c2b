"""Rate limits: a token bucket per client."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

CLIENTS = 10_000  # most buckets kept: the least recently used is dropped first


@dataclass(frozen=True, slots=True)
class Rate:
    """Requests per second in the long run, and how many may come at once."""

    per_second: float
    burst: float

    @classmethod
    def of(cls, per_second: float, burst: float | None = None) -> Rate:
        """
        >>> Rate.of(5), Rate.of(0.1)
        (Rate(per_second=5, burst=10), Rate(per_second=0.1, burst=1.0))
        """
        return cls(per_second, max(1.0, 2 * per_second) if burst is None else burst)


class Buckets:
    """The buckets of the clients, at most `clients` of them.

    >>> now = 0.0
    >>> buckets = Buckets(clock=lambda: now)
    >>> [buckets.wait("a", Rate(2, 1)) for _ in range(2)]
    [0.0, 0.5]
    >>> now = 0.5
    >>> buckets.wait("a", Rate(2, 1))
    0.0
    """

    def __init__(self, clients: int = CLIENTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = clients, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were so

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, client: str, rate: Rate) -> float:
        """0 if a request is allowed now, which takes a token; else the seconds to wait."""
        now = self._clock()
        tokens, before = self._buckets.pop(client, (rate.burst, now))
        tokens = min(rate.burst, tokens + (now - before) * rate.per_second)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) / rate.per_second


def retry_after(wait: float) -> str:
    """Whole seconds for the header.

    >>> retry_after(0.2), retry_after(1.5)
    ('1', '2')
    """
    return str(max(1, math.ceil(wait)))


def address_key(address: str) -> str:
    """The key for a client address: for IPv6 the first 64 bits, since one client controls the rest.

    >>> address_key("203.0.113.7"), address_key("2001:db8::1") == address_key("2001:db8::2")
    ('203.0.113.7', True)
    >>> address_key("whatever a proxy was told")
    'unknown'
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
