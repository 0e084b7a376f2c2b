"""The writer of an index in a cluster: make it or continue it, send documents, and put it into service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from tamis.base.documents import Document
from tamis.base.errors import InputError, TamisError
from tamis.formats.records import Documents, documents_of
from tamis.index.opensearch import queries
from tamis.index.opensearch.bulk import Bulk, Entry, Outcome, Sender, version_of
from tamis.index.opensearch.cluster import Cluster
from tamis.index.opensearch.connection import Address, Connection, connect, pause
from tamis.index.opensearch.errors import ClusterError
from tamis.index.opensearch.mapping import (
    Meta,
    Similarity,
    body_of,
    check_analysis,
    expression,
    find_meta,
    named_fields,
    new_meta,
    write_meta,
)
from tamis.index.writer import OnDuplicate

How = Literal["new", "overwrite", "add", "resume"]
REQUESTS = 4  # at once, by default
_LONGEST = 3600.0  # seconds at most for merging the segments, and for copying the shards
_ANSWERS = 300.0  # seconds after which a request is taken for lost, and sent again
_ASSIGNED = 15.0  # seconds in which a cluster has begun to make copies, if it can


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user has said about an index; None and nothing leave it to the defaults, or as it is."""

    analyzer: str | None = None
    similarities: Sequence[Similarity] = ()
    shards: int | None = None
    replicas: int | None = None


def build(
    documents: Documents,
    address: str,
    *,
    how: How = "new",
    wanted: Wanted | None = None,
    on_duplicate: OnDuplicate = "error",
    workers: int = REQUESTS,
) -> Meta:
    """Index documents into a cluster, as `Index.build` does on disk."""
    with writer(address, how=how, wanted=wanted, on_duplicate=on_duplicate, workers=workers) as made:
        for document in documents_of(documents):
            made.add(document)
        return made.finish()


@contextmanager
def writer(
    address: str | Address,
    *,
    how: How = "new",
    wanted: Wanted | None = None,
    on_duplicate: OnDuplicate = "error",
    workers: int = REQUESTS,
    skip_refused: bool = False,
    patience: float | None = None,
    done: Callable[[int], object] = lambda documents: None,
    on_retry: Callable[[TamisError], object] = lambda error: None,
) -> Iterator[ClusterWriter]:
    """The writer of an index, which is made at once; `finish` puts it into service. `done` is called with the
    number of documents that have arrived, `on_retry` with the error of a request that is being repeated."""
    connection = connect(address)
    meta, before = prepare(connection, how, wanted or Wanted())
    sender = Sender(
        connection,
        on_duplicate,
        resumed=how == "resume",
        others=how == "add",
        skip_refused=skip_refused,
        patience=patience,
        on_retry=on_retry,
    )
    bulk = Bulk(sender, workers, done=done)
    try:
        yield ClusterWriter(connection, meta, before, on_duplicate, bulk)
    finally:
        bulk.stop()


@dataclass(slots=True)
class ClusterWriter:
    """Collects documents and sends them. What is acknowledged stays, whatever happens next."""

    connection: Connection
    meta: Meta
    before: int  # documents that were there when it was opened
    on_duplicate: OnDuplicate
    bulk: Bulk
    added: int = 0

    @property
    def outcome(self) -> Outcome:
        return self.bulk.outcome

    def add(self, document: Document) -> None:
        """Send the document, with others, sooner or later; its place in the corpus is its version."""
        self.added += 1
        version = version_of(self.meta.runs, self.added, self.on_duplicate)
        try:
            entry = Entry.of(document, version)
        except InputError as error:
            if not self.bulk.skips_refused:
                raise
            self.bulk.refuse(document.id, error.problem)
            return
        self.bulk.add(entry)

    def send(self) -> None:
        """Send the rest, and wait until all has arrived."""
        self.bulk.finish()

    def finish(self, *, merge: bool = True) -> Meta:
        """Check that all is there, and make it searchable, merged and replicated."""
        self.send()
        return finish(self.connection, self.meta, self.outcome, self.on_duplicate, merge=merge)


# -- before the first document
# ------------------------------------------------------------------------------------------------------------


def prepare(connection: Connection, how: How, wanted: Wanted) -> tuple[Meta, int]:
    """Make the index, or check that it is the one to continue; and how many documents it holds."""
    address = connection.address
    there = find_meta(connection)
    if there is not None and there.index != address.index:
        remedy = f"write to that index, {replace(address, index=there.index)}"
        raise InputError(f"{address} is an alias of the index {there.index}", remedy=remedy)
    if there is None and how != "add":
        return _made(connection, wanted), 0
    if there is None:
        remedy = "make it first: the same command without --add"
        raise InputError(f"there is no index at {address}", remedy=remedy)
    if how == "overwrite":
        _new(connection, wanted)  # what is wrong with the new one is found out while the old one is there
        connection.request("DELETE", f"/{address.index}", patience=120)
        return _made(connection, wanted), 0
    if how == "new":
        remedy = "resume it (--resume), add to it (--add) or overwrite it (--overwrite)"
        raise InputError(f"{address} already holds an index", remedy=remedy)
    _check_same(there, wanted, address)
    _check_allocation(connection)
    if wanted.replicas is not None:
        there = replace(there, replicas=wanted.replicas)
    if how == "resume":
        return there, count(connection)
    if there.documents is None:
        problem = f"the command that last wrote to {address} was interrupted"
        remedy = "finish it first, by the same command with --resume; or --overwrite the index"
        raise InputError(problem, remedy=remedy)
    begun = replace(there, runs=there.runs + 1, documents=None, before=count(connection))
    write_meta(connection, begun)
    return begun, begun.before


def _new(connection: Connection, wanted: Wanted) -> Meta:
    replicas = wanted.replicas
    if replicas is None:
        replicas = 1 if data_nodes(connection) > 1 else 0
    return new_meta(
        connection.address.index,
        analyzer=wanted.analyzer or "english",
        similarities=wanted.similarities,
        shards=wanted.shards or 1,
        replicas=replicas,
    )


def _made(connection: Connection, wanted: Wanted) -> Meta:
    """A new index, without a copy and not refreshed until all documents are there."""
    meta, index = _new(connection, wanted), connection.address.index
    try:
        answer = connection.request("PUT", f"/{index}", body_of(meta), timeout=90, patience=120)
        if not answer["shards_acknowledged"]:  # within half a minute
            _check_allocation(connection)
    except ClusterError as error:
        there = find_meta(connection) if error.kind == "resource_already_exists_exception" else None
        if there is None or there.identity != meta.identity:  # else the answer to our first try was lost
            raise
    check_analysis(connection, meta.analyzer)
    return meta


def _check_allocation(connection: Connection) -> None:
    """Raise if the cluster has no place for a shard, and not only no time yet."""
    body = {"index": connection.address.index, "shard": 0, "primary": True}
    try:
        answer = connection.request("POST", "/_cluster/allocation/explain", body)
    except ClusterError:  # the shard has its place by now, or only those who manage the cluster may ask
        return
    nodes = answer.get("node_allocation_decisions", ())
    reasons = [each["explanation"] for node in nodes for each in node.get("deciders", ())]
    if answer.get("can_allocate") == "no":
        why = reasons[0] if reasons else answer.get("allocate_explanation", "")
        problem = f"the cluster has no place for the shards of {connection.address}: {why}"
        remedy = "free disk space or change the setting, then continue with --resume"
        raise ClusterError(problem, remedy=remedy, status=503)


def _check_same(there: Meta, wanted: Wanted, address: Address) -> None:
    """An index keeps the settings that it was made with."""
    differing = {
        "--analyzer": (wanted.analyzer, there.analyzer),
        "--shards": (wanted.shards, there.shards),
        "--similarity": (
            [expression(each) for each in named_fields(wanted.similarities)] or None,
            there.expressions,
        ),
    }
    for option, (new, old) in differing.items():
        if new not in (None, old):
            have = (
                " ".join(f"{option} {each!r}" for each in old) if isinstance(old, list) else f"{option} {old}"
            )
            raise InputError(f"{address} was made with {have}", remedy="use the same, or --overwrite it")


def data_nodes(connection: Connection) -> int:
    """How many nodes hold shards."""
    try:
        answer = connection.request("GET", "/_cluster/health")
    except ClusterError as error:
        if error.status != 403:
            raise
        return 1
    return int(answer["number_of_data_nodes"])


def count(connection: Connection) -> int:
    """How many documents the index holds, counting all that have been acknowledged."""
    connection.request("POST", f"/{connection.address.index}/_refresh", timeout=_ANSWERS, patience=120)
    (answer,) = Cluster(connection).search([queries.number_of_documents()], "hits.total")
    return int(answer["hits"]["total"]["value"])


# -- after the last document
# ------------------------------------------------------------------------------------------------------------


def finish(
    connection: Connection, meta: Meta, outcome: Outcome, on_duplicate: OnDuplicate, *, merge: bool
) -> Meta:
    """Check that what was acknowledged is there, and put the index into service."""
    index = connection.address.index
    _check_there(connection, meta)
    documents = count(connection)
    _check_count(documents, meta, outcome, on_duplicate, connection.address)
    if merge:
        _merge(connection)
    settings: dict[str, Any] = {"number_of_replicas": meta.replicas}
    if meta.runs == 1:  # later commands have left it as it is
        settings["refresh_interval"] = None
    connection.request("PUT", f"/{index}/_settings", {"index": settings}, timeout=90, patience=120)
    connection.request("POST", f"/{index}/_flush", timeout=_ANSWERS, patience=120)  # for a faster start
    done = replace(meta, documents=documents)
    write_meta(connection, done)
    _wait_for_copies(connection, meta.replicas)
    return done


def _check_there(connection: Connection, meta: Meta) -> None:
    """A cluster makes an index of what is sent to one that is not there, but not with our mapping."""
    try:
        there = find_meta(connection)
    except InputError:
        there = None
    if there is None or there.identity != meta.identity:
        problem = f"{connection.address} was deleted or replaced while it was written"
        raise ClusterError(problem, remedy="delete what is there now, and begin again")


def _check_count(
    documents: int, meta: Meta, outcome: Outcome, on_duplicate: OnDuplicate, address: Address
) -> None:
    """What was acknowledged is there. Whether a document whose answer was lost took the place of another is
    not known; where that is an error, a count that does not fit is the one sign of it."""
    sure = meta.before + outcome.created
    if on_duplicate != "replace":
        sure += outcome.there
    if on_duplicate == "error":
        sure += outcome.confirmed
    if documents < sure:
        problem = f"{address} has acknowledged {sure:,} documents and holds {documents:,}"
        remedy = "check that no id occurs twice, that no node was lost and that nothing deletes documents"
        raise ClusterError(problem, remedy=f"{remedy}, then continue with --resume")


def _merge(connection: Connection) -> None:
    """Make one segment of each shard, which takes long. Sent again, the request waits for the merge that is
    under way."""
    connection.request(
        "POST",
        f"/{connection.address.index}/_forcemerge",
        params={"max_num_segments": 1},
        timeout=_ANSWERS,
        patience=_LONGEST,
    )


def _wait_for_copies(connection: Connection, replicas: int) -> None:
    """Return when a node may be lost, or when the cluster makes no copies."""
    if not replicas or data_nodes(connection) <= replicas:
        return
    started, tries = time.monotonic(), 0
    while (waited := time.monotonic() - started) < _LONGEST:
        health = connection.request("GET", f"/_cluster/health/{connection.address.index}")
        if health["status"] == "green" or (waited > _ASSIGNED and not health["initializing_shards"]):
            return
        tries += 1
        time.sleep(pause(tries))
