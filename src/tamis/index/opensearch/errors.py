"""Errors of a cluster, in one line each: what is wrong, and the remedy.

No message quotes a password, a key or a header that was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.base.errors import TamisError, quoted

CREDENTIALS = "TAMIS_OPENSEARCH_USER and TAMIS_OPENSEARCH_PASSWORD, or TAMIS_OPENSEARCH_API_KEY"
AUTHORITY = "TAMIS_OPENSEARCH_CA"
_REASON = 300  # characters that are quoted of the cluster's own reason
_BUSY = frozenset({429, 502, 503, 504})
_NO_SHARD = ("unavailable_shards_exception", "no_shard_available_action_exception")
_SPEAKS_TLS = "for a cluster that speaks TLS write opensearchs://"


class ClusterError(TamisError):
    """A cluster that refuses a request or fails. `status` is that of HTTP, 0 if there was no answer; `kind`
    is what OpenSearch calls the error.

    >>> ClusterError("the cluster is busy", remedy="try again later", status=429).status
    429
    """

    def __init__(self, problem: str, *, remedy: str = "", status: int = 0, kind: str = "") -> None:
        self.status, self.kind = status, kind
        super().__init__(problem, remedy=remedy)

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in _BUSY and not _is_full(self)


class UnreachableError(ClusterError):
    """No answer: no connection, an untrusted certificate, or a time-out."""

    @property
    def is_temporary(self) -> bool:
        return self.kind not in ("certificate", "tls")


class AccessError(ClusterError):
    """The cluster, or a proxy before it, refuses access."""


def reason_of(answer: Any) -> tuple[str, str]:
    """The kind of an error and its reason, from a response or from an item of a bulk response.

    >>> reason_of({"error": {"type": "mapper_parsing", "reason": "bad", "caused_by": {"reason": "x"}}})
    ('mapper_parsing', 'bad (x)')
    >>> reason_of("<html>\\n<h1>Bad Gateway</h1>")
    ('', '')
    """
    error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    if not isinstance(error, Mapping):
        plain = isinstance(error, str) and not error.lstrip().startswith("<")
        return "", _line(error) if plain else ""
    reason = _line(error.get("reason") or "")
    cause = error.get("caused_by")
    while isinstance(cause, Mapping) and isinstance(cause.get("caused_by"), Mapping):
        cause = cause["caused_by"]
    why = _line(cause.get("reason") or "") if isinstance(cause, Mapping) else ""
    return str(error.get("type") or ""), f"{reason} ({why})" if why and why not in reason else reason


def refused(status: int, answer: Any, place: str, *, known: bool = False) -> ClusterError:
    """The error for a response of this status from `place`; `known` if credentials were sent.

    >>> str(refused(401, "Unauthorized", "opensearch://host:9200/docs"))
    'opensearch://host:9200/docs asks for a user and a password: set TAMIS_OPENSEARCH_USER and
    TAMIS_OPENSEARCH_PASSWORD, or TAMIS_OPENSEARCH_API_KEY'
    """
    kind, reason = reason_of(answer)
    if status in (401, 407):
        return _not_admitted(status, place, known)
    if kind == "cluster_block_exception":
        return _blocked(status, kind, reason, place)
    if status == 403:
        remedy = "ask whoever runs the cluster for that permission"
        if "permissions" not in reason:
            remedy = f"check the user and the address; credentials are {CREDENTIALS}"
        problem = f"{place} does not permit it{_because(reason)}"
        return AccessError(problem, remedy=remedy, status=status, kind=kind)
    if kind == "index_not_found_exception":
        problem, remedy = f"there is no index at {place}", "check its name, or make it with `tamis index`"
    elif status == 413:
        problem = f"{place} refuses a request of this size"
        remedy = "raise http.max_content_length of the cluster, or the limit of the proxy before it"
    elif kind in _NO_SHARD:
        problem = f"a part of {place} is on no node that is up"
        remedy = (
            "bring the node back (`GET _cluster/allocation/explain` says which), then continue with --resume"
        )
    elif status in _BUSY:
        problem = f"{place} cannot answer now (status {status}){_because(reason)}"
        remedy = "try again when the cluster is less busy; `GET _cluster/health` says how it is"
    else:
        problem = f"{place} refuses the request (status {status}{f', {kind}' if kind else ''})"
        problem += _because(reason)
        remedy = "" if kind else "check that the address is that of OpenSearch"
    return ClusterError(problem, remedy=remedy, status=status, kind=kind)


def _not_admitted(status: int, place: str, known: bool) -> AccessError:
    if status == 407:
        problem = f"a proxy before {place} asks for a password of its own"
        return AccessError(problem, remedy="use an address that reaches the cluster directly", status=status)
    if known:
        problem, remedy = f"{place} does not accept the credentials", f"check {CREDENTIALS}"
    else:
        problem, remedy = f"{place} asks for a user and a password", f"set {CREDENTIALS}"
    return AccessError(problem, remedy=remedy, status=status)


def _blocked(status: int, kind: str, reason: str, place: str) -> ClusterError:
    """An index or a cluster that takes no writes; the codes are those of OpenSearch's blocks."""
    unblock = "allow it again by setting {} of the index to null (PUT NAME/_settings)"
    if "/12/" in reason:
        problem = f"{place} is read-only because the cluster's disk is almost full"
        remedy = "free disk space, then " + unblock.format("index.blocks.read_only_allow_delete")
    elif "/8/" in reason or "/5/" in reason or "/7/" in reason:
        block = {"/8/": "write", "/5/": "read_only", "/7/": "read"}
        name = next(f"index.blocks.{name}" for code, name in block.items() if code in reason)
        problem, remedy = f"{place} is blocked by {name}", unblock.format(name)
    else:
        problem = f"{place} is blocked{_because(reason)}"
        remedy = "try again once the cluster has started and has elected a manager"
    return ClusterError(problem, remedy=remedy, status=status, kind=kind)


def _is_full(error: ClusterError) -> bool:
    return error.kind == "cluster_block_exception" and error.status == 429


def unanswered(cause: BaseException, host: str, seconds: float) -> UnreachableError:
    """The error for a request that came to nothing; `cause` is what the client or the system says.

    >>> str(unanswered(ConnectionRefusedError(111, "Connection refused"), "host:9200", 30))
    'no connection to host:9200 (Connection refused): check the address, and that the cluster is running'
    """
    texts = [f"{type(each).__name__}: {each}" for each in _causes(cause)]
    text = " ".join(texts)
    if "CERTIFICATE_VERIFY_FAILED" in text or "SSLCertVerificationError" in text:
        why = text.rpartition("certificate verify failed: ")[2].partition(" (_ssl")[0]
        return UnreachableError(
            f"the certificate of {host} is not trusted ({_line(why)})",
            remedy=f"set {AUTHORITY} to the file with the certificate of its authority",
            kind="certificate",
        )
    if "SSL" in text and ("WRONG_VERSION" in text or "RECORD_LAYER" in text.upper().replace(" ", "_")):
        return UnreachableError(
            f"{host} does not speak TLS", remedy="write opensearch:// instead of opensearchs://", kind="tls"
        )
    if "SSL" in text and "Cannot" not in text:
        return UnreachableError(
            f"no TLS connection to {host} ({_line(texts[-1])})", remedy="check its TLS settings", kind="tls"
        )
    if "NameResolution" in text or "gaierror" in text:
        return UnreachableError(f"the host of {host} is not known", remedy="check the address", kind="name")
    if "ReadTimeout" in text or "timed out" in text:
        return UnreachableError(
            f"{host} has not answered within {seconds:g} s",
            remedy="check that the cluster is healthy (`GET _cluster/health`), and the address",
            kind="timeout",
        )
    if "RemoteDisconnected" in text or "ConnectionReset" in text or "Broken pipe" in text:
        return UnreachableError(
            f"{host} closed the connection without an answer",
            remedy=f"see the log of the cluster; {_SPEAKS_TLS}",
            kind="closed",
        )
    if "BadStatusLine" in text:
        problem = f"{host} does not speak HTTP"
        return UnreachableError(problem, remedy="check the port: 9200 is usual", kind="tls")
    system = next(
        (each.strerror for each in _causes(cause) if isinstance(each, OSError) and each.strerror), ""
    )
    return UnreachableError(
        f"no connection to {host} ({system or _line(texts[-1])})",
        remedy="check the address, and that the cluster is running",
        kind="connection",
    )


def _causes(error: BaseException) -> list[BaseException]:
    """An exception and what it wraps, whichever way the client wraps it."""
    every: list[BaseException] = []
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each in every:
            continue
        every.append(each)
        inside = (each.__cause__, each.__context__, getattr(each, "info", None), *each.args)
        waiting += [one for one in inside if isinstance(one, BaseException)]
    return every


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _line(text: object) -> str:
    """Somebody else's text, on one line and of bounded length.

    >>> _line("two\\n lines")
    'two lines'
    """
    line = " ".join(str(text).split())
    return line if len(line) <= _REASON else quoted(line, _REASON)
