"""The options of `tamis serve` for access and logging."""

from __future__ import annotations

import argparse
import math
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tamis.base.errors import InputError, TamisError
from tamis.cli.arguments import ArgumentParser
from tamis.cli.console import note, warn
from tamis.storage.files import read_text

if TYPE_CHECKING:
    from tamis.serve.access import Access
    from tamis.serve.tls import Certificate

KEY = "TAMIS_API_KEY"
_STDOUT = "-"


def access_arguments(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    keys = group.add_mutually_exclusive_group()
    keys.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help=f"the key that requests must have (or {KEY})"
    )
    keys.add_argument("--keys", type=Path, metavar="FILE", help="several keys, with their roles, as TOML")
    group.add_argument(
        "--hash-key", action=_HashKey, help="print the SHA-256 of a key from the standard input, and exit"
    )
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve https with this certificate, PEM")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the private key of --tls-cert, PEM")
    group.add_argument(
        "--rate",
        type=_positive,
        metavar="N",
        help="requests per second for each key, or for each address if there are no keys (no limit)",
    )
    group.add_argument(
        "--burst", type=_positive, metavar="N", help="requests allowed in a burst (twice --rate)"
    )
    group.add_argument(
        "--host-name",
        action="append",
        default=[],
        type=_checked("host_name"),
        metavar="NAME",
        help="a host name that requests may use, besides localhost and addresses; may be repeated",
    )
    group.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        type=_checked("web_origin"),
        metavar="ORIGIN",
        help="an origin whose pages may read the answers (CORS): https://app.example, or *; may be repeated",
    )
    group.add_argument(
        "--proxy",
        action="append",
        default=[],
        type=_checked("proxy_address"),
        metavar="ADDRESS",
        help="a proxy, or a network of them, whose X-Forwarded-For and -Proto are trusted; may be repeated",
    )
    group.add_argument(
        "--access-log",
        metavar="FILE",
        help="write a line of JSON per request to this file; - is the standard output",
    )
    group.add_argument("--log-queries", action="store_true", help="log the queries too")


def access_of(
    api_key_file: Path | None,
    keys: Path | None,
    rate: float | None,
    burst: float | None,
    host_name: list[str],
    allow_origin: list[str],
    access_log: str | None,
    log_queries: bool,
) -> Access:
    """The access settings; raises if they contradict each other."""
    from tamis.serve.access import Access
    from tamis.serve.access_log import AccessLog
    from tamis.serve.keys import read_keys, weakness
    from tamis.serve.rates import Rate

    if burst is not None and (rate is None or burst < 1):
        raise InputError("--burst needs --rate, and is 1 or more", remedy="give both, such as 5 and 20")
    if log_queries and access_log is None:
        raise InputError("--log-queries needs --access-log", remedy="give the file of the access log")
    if keys is not None:
        if os.environ.get(KEY) is not None:
            raise InputError(f"--keys and {KEY} are both set", remedy="use one of them")
        _warn_if_readable(keys)
        access = Access(read_keys(keys))
    else:
        key = _single_key(api_key_file)
        if key is not None and (problem := weakness(key)):
            warn(f"{problem}, and may be guessed")
        access = Access.single(key)
    access.rate = None if rate is None else Rate.of(rate, burst)
    access.names, access.origins = frozenset(host_name), frozenset(allow_origin)
    if "*" in allow_origin:
        guarded = "that has a key" if access.keys is not None else "that a visitor opens"
        warn(f"--allow-origin *: any page {guarded} can read what this server answers")
    if access_log is not None:
        access.log = AccessLog(access_log if access_log == _STDOUT else Path(access_log), queries=log_queries)
    return access


def certificate_of(cert: Path | None, key: Path | None) -> Certificate | None:
    """The certificate to serve with, if any."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InputError("--tls-cert and --tls-key belong together", remedy="give both")
    from tamis.serve.tls import Certificate

    made = Certificate(cert, key)
    _warn_if_readable(key)
    return made


def reloading(
    access: Access, keys: Path | None, certificate: Certificate | None
) -> Callable[[], None] | None:
    """The handler of SIGHUP: reopens the log and reloads keys and certificate. A file that cannot be read is
    reported, and its previous content stays in use. None if there are none of them: the signal then ends the
    server, as by default."""
    if access.log is None and keys is None and certificate is None:
        return None

    def reload() -> None:
        if access.log is not None:
            access.log.reopen()
        try:
            if keys is not None and access.keys is not None:
                from tamis.serve.keys import read_keys

                access.keys.replace(read_keys(keys))
            if certificate is not None:
                certificate.reload()
        except (TamisError, OSError) as error:
            note(f"not reloaded: {error}")

    return reload


def _single_key(path: Path | None) -> str | None:
    key = os.environ.get(KEY) if path is None else read_text(path)
    if key is None:
        return None
    where = KEY if path is None else str(path)
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(f"{where} contains no key", remedy="use one line of ASCII characters")
    if path is not None:
        _warn_if_readable(path)
    return key


def _warn_if_readable(path: Path) -> None:
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        warn(f"{path} can be read by other users: chmod 600 {path}")


class _HashKey(argparse.Action):
    """Ends the command, as --help does."""

    def __init__(self, option_strings: list[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, *_: object) -> NoReturn:
        from tamis.serve.keys import SHORTEST, digest_of, weakness

        # not an argument: those can be seen by everyone on the machine
        key = sys.stdin.readline().strip()
        if problem := weakness(key):
            raise InputError(problem, remedy=f"send {SHORTEST} or more printable characters, one line")
        sys.stdout.write(f'sha256 = "{digest_of(key).hex()}"\n')
        raise SystemExit(0)


def _positive(text: str) -> float:
    """
    >>> _positive("0.5")
    0.5
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _checked(name: str) -> Callable[[str], str]:
    """A function of tamis.serve.hosts, imported when it is needed."""

    def check(text: str) -> str:
        from tamis.serve import hosts

        checked: str = getattr(hosts, name)(text)
        return checked

    return check
