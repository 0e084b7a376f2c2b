"""API keys: their names, roles and rates."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError
from tamis.serve.rates import Rate
from tamis.storage.files import read_text

SHORTEST = 16  # characters of a key
MOST = 1_000  # most keys of a file: every request is compared with all of them
ROLES = ("search", "rerank", "metrics")
ALL = "all"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FIELDS = ("name", "key", "sha256", "roles", "rate", "burst")
#: Every route, and the role that it needs; none where any key will do, or none is needed.
ROUTES: dict[str, str | None] = {
    "/": None,
    "/healthz": None,
    "/readyz": None,
    "/info": None,
    "/openapi.json": None,
    "/static": None,
    "/documents": "search",
    "/documents/{doc_id:exactly}": "search",
    "/search": "search",
    "/explain": "search",
    "/rerank": "rerank",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/metrics": "metrics",
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key by its SHA-256, so that it is nowhere in memory as it is sent."""

    name: str
    digest: bytes
    roles: frozenset[str] = frozenset({ALL})
    rate: Rate | None = None  # the server's, if none

    def may(self, role: str | None) -> bool:
        return role is None or ALL in self.roles or role in self.roles


def required_role(path: str) -> str | None:
    """The role that a path needs; none if any key will do.

    >>> required_role("/v2/rerank"), required_role("/documents/d1"), required_role("/info")
    ('rerank', 'search', None)
    """
    return ROUTES.get(known_route(path) or "")


def known_route(path: str) -> str | None:
    """The route of a path, as it is written in the code.

    >>> known_route("/documents/d1"), known_route("/static/main.js"), known_route("/etc/passwd")
    ('/documents/{doc_id:exactly}', '/static', None)
    """
    if path.startswith("/documents/"):
        return "/documents/{doc_id:exactly}"
    if path.startswith("/static/"):
        return "/static"
    return path if path in ROUTES else None


def digest_of(key: str) -> bytes:
    """
    >>> digest_of("correct horse battery staple").hex()[:16]
    'c4bbcb1fbec99d65'
    """
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Keys:
    """All keys of a server.

    >>> keys = Keys([Key("web", digest_of("0123456789abcdef"), frozenset({"search"}))])
    >>> keys.find("0123456789abcdef").name, keys.find("0123456789abcdee")
    ('web', None)
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = tuple(keys)

    def find(self, sent: str) -> Key | None:
        """In constant time: every key is compared, whole, whether one was equal before or not."""
        digest, match = digest_of(sent), None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match

    def replace(self, other: Keys) -> None:
        """Take the keys of another, for the requests that come from now on."""
        self._keys = other._keys


def read_keys(path: Path) -> Keys:
    """The keys of a TOML file: a table `[[key]]` for each, with `name`, `sha256` (or `key`), `roles` and,
    optionally, its own `rate` and `burst`."""
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"not TOML ({error})", path=path, remedy="write a table [[key]] for each key"
        ) from error
    tables = content.pop("key", None)
    if content or not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise InputError("not a list of keys", path=path, remedy="write a table [[key]] for each key")
    if len(tables) > MOST:
        raise InputError(f"{len(tables):,} keys", path=path, remedy=f"use {MOST:,} at most")
    keys = [_key(path, number, table) for number, table in enumerate(tables, 1)]
    for what, values in (("name", [key.name for key in keys]), ("key", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise InputError(f"two keys have the same {what}", path=path, remedy="give each its own")
    return Keys(keys)


def _key(path: Path, number: int, table: dict[str, Any]) -> Key:
    def wrong(problem: str, remedy: str) -> InputError:
        return InputError(f"key {number}: {problem}", path=path, remedy=remedy)  # never what the key is

    if unknown := sorted(set(table) - set(_FIELDS)):
        raise wrong(f"{unknown[0]!r} is not a field", f"use {', '.join(_FIELDS)}")
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong("not a valid name", "use 1 to 64 of A-Z a-z 0-9 . _ -")
    if ("key" in table) == ("sha256" in table):
        raise wrong(
            "neither or both of key and sha256",
            "give one of them, best the sha256 (see tamis serve --hash-key)",
        )
    if "sha256" in table:
        digest = table["sha256"]
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
            raise wrong("sha256 is not 64 hexadecimal digits", "make it with tamis serve --hash-key")
        secret = bytes.fromhex(digest)
    else:
        if problem := weakness(table["key"]):
            raise wrong(problem, f"use {SHORTEST} or more printable ASCII characters")
        secret = digest_of(table["key"])
    roles = table.get("roles")
    if not isinstance(roles, list) or not roles or not all(role in (*ROLES, ALL) for role in roles):
        raise wrong("not a valid list of roles", f"give a list of {', '.join(ROLES)} or {ALL}")
    return Key(name, secret, frozenset(roles), _rate(table, wrong))


def _rate(table: dict[str, Any], wrong: Any) -> Rate | None:
    values = {field: table[field] for field in ("rate", "burst") if field in table}
    for field, value in values.items():
        # bool is an int to Python
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise wrong(f"{field} is not a number above 0", "give requests per second, such as 5")
    if "burst" in values and ("rate" not in values or values["burst"] < 1):
        raise wrong("burst needs a rate, and is 1 or more", "give both, such as rate = 5 and burst = 20")
    return Rate.of(values["rate"], values.get("burst")) if values else None


def weakness(key: object) -> str:
    """The problem with a key, or None.

    >>> weakness("0123456789abcdef"), weakness("s3cret")
    ('', 'the key is shorter than 16 characters')
    """
    if not isinstance(key, str) or not key.isascii() or not key.isprintable() or key != key.strip():
        return "the key is not printable ASCII"
    return "" if len(key) >= SHORTEST else f"the key is shorter than {SHORTEST} characters"
