"""Documents into an index of a cluster: many in a request, several requests at once, each document once.

Which write of a document counts is decided by the cluster, from the document's version, which is its place in
the corpus. With `replace` later places have higher versions, otherwise lower ones, and the cluster keeps the
highest. So the result depends neither on the order in which requests arrive nor on how often one is sent:

- a request whose answer was lost is sent again, and its documents are there with the version that they have;
- a command that was killed is resumed: a document that is there with its own version needs no sending;
- a document whose id is there with another version is a duplicate.

A command that adds to an index has a higher number, and with it versions below (or above, with `replace`) all
those before it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Queue
from typing import Any

import numpy as np

from tamis.base.documents import Document
from tamis.base.errors import NAMED, InputError, TamisError, quoted
from tamis.base.interrupt import check, interruptible
from tamis.index.opensearch.connection import Connection, pause
from tamis.index.opensearch.errors import ClusterError, reason_of, refused
from tamis.index.opensearch.mapping import ID, LONGEST_ID, METADATA, TEXT, TITLE
from tamis.index.writer import OnDuplicate, Skipped
from tamis.storage.document_store import DuplicateIdError, encoded

REQUEST = 4 << 20  # bytes of documents in a request
_MOST = 5_000  # documents in one
_SHARD_WAIT = "10s"  # for which the cluster holds a request to a shard that is on its way to another node
PATIENCE = 300.0  # seconds in which a request must succeed, with all its repetitions
_REPORT_AFTER = 5.0  # seconds of retries of a request
_MIDDLE, _OF_ONE_COMMAND = 1 << 61, 1 << 40  # versions are positive and have 63 bits
_LARGEST_REQUEST = 100 << 20  # bytes that a cluster takes by default
_KEPT = 1_000  # refused documents whose ids and reasons are kept


def command_of(version: int) -> int:
    """Which command has written a document of this version.

    >>> command_of(version_of(3, 7, "skip")), command_of(version_of(3, 7, "replace"))
    (3, 3)
    """
    return abs(version - _MIDDLE) // _OF_ONE_COMMAND


def _arrived_first(there: int, version: int) -> bool:
    """Whether what is there is of the same command and has to give way."""
    return there < version and command_of(there) == command_of(version)


def version_of(command: int, place: int, on_duplicate: OnDuplicate) -> int:
    """The version of the document at a place of the corpus of the nth command that writes to an index.

    >>> version_of(1, 7, "error") > version_of(1, 8, "error") > version_of(2, 1, "skip")
    True
    >>> version_of(1, 7, "replace") < version_of(1, 8, "replace") < version_of(2, 1, "replace")
    True
    """
    offset = command * _OF_ONE_COMMAND + place
    return _MIDDLE + offset if on_duplicate == "replace" else _MIDDLE - offset


@dataclass(frozen=True, slots=True)
class Entry:
    """A document as it is sent: the two lines of a bulk request."""

    doc_id: str
    version: int
    lines: bytes
    title: str
    text: str

    @classmethod
    def of(cls, document: Document, version: int) -> Entry:
        """`InputError` for a document that no index can hold."""
        length = len(encoded(document)[0])  # which checks it too
        if length > LONGEST_ID:
            problem = f"the id {quoted(document.id)} has {length:,} bytes"
            raise InputError(problem, remedy=f"OpenSearch takes {LONGEST_ID} at most: give it a shorter one")
        action = {"index": {"_id": document.id, "version": version, "version_type": "external"}}
        source: dict[str, Any] = {ID: document.id, TEXT: document.text}
        if document.title:
            source[TITLE] = document.title
        if document.metadata:
            source[METADATA] = dict(document.metadata)
        lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (action, source))
        return cls(document.id, version, lines.encode(), document.title, document.text)


@dataclass(slots=True)
class Refused:
    """Documents that the cluster does not take: how many, and the first of them with the reasons.

    >>> refused = Refused()
    >>> refused.add("d1", "its year is no number")
    >>> refused.count, refused.names
    (1, "'d1'")
    """

    count: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, doc_id: str, reason: str) -> None:
        self.join(Refused(1, [(doc_id, reason)]))

    def join(self, other: Refused) -> None:
        self.count += other.count
        self.first += other.first[: _KEPT - len(self.first)]

    @property
    def names(self) -> str:
        """The first few ids, and how many more there are."""
        named = [quoted(doc_id) for doc_id, _ in self.first[:NAMED]]
        more = self.count - len(named)
        return ", ".join(named) + (f" and {more:,} more" if more else "")


@dataclass(slots=True)
class Outcome:
    """What came of documents."""

    created: int = 0
    confirmed: int = 0  # there when sent again, after an answer was lost
    there: int = 0  # from before this command was resumed
    replaced: int = 0  # one of two of an id gave way to the other, as `replace` says
    refused: Refused = field(default_factory=Refused)
    skipped: Skipped = field(default_factory=Skipped)  # duplicates, as `skip` says
    duplicate: DuplicateIdError | None = None  # the first of them, where the rule is `error`

    @property
    def documents(self) -> int:
        return (
            self.created
            + self.confirmed
            + self.there
            + self.replaced
            + self.skipped.count
            + self.refused.count
        )

    def add(self, other: Outcome) -> None:
        self.created += other.created
        self.confirmed += other.confirmed
        self.there += other.there
        self.replaced += other.replaced
        self.refused.join(other.refused)
        self.skipped.count += other.skipped.count
        self.skipped.changed += other.skipped.changed
        self.skipped.first_changed = self.skipped.first_changed or other.skipped.first_changed
        self.duplicate = self.duplicate or other.duplicate


class Sender:
    """Sends documents, and again where the cluster is busy or a node gone; threads may share it. `others`:
    the index may hold documents of other commands, or of other clients."""

    def __init__(
        self,
        connection: Connection,
        on_duplicate: OnDuplicate,
        *,
        resumed: bool = False,
        others: bool = False,
        skip_refused: bool = False,
        patience: float | None = None,
        on_retry: Callable[[TamisError], object] = lambda error: None,
    ) -> None:
        self._connection, self._rule = connection, on_duplicate
        self._resumed, self._looks_first = resumed, resumed or (others and on_duplicate != "replace")
        self._patience, self._on_retry = PATIENCE if patience is None else patience, on_retry
        self.skip_refused = skip_refused
        self.limit = _largest_request(connection)

    def send(self, entries: Sequence[Entry]) -> Outcome:
        """What came of these documents, once the cluster has taken or refused each."""
        outcome = Outcome()
        left, looked = list(entries), not self._looks_first
        started, tries = time.monotonic(), 0
        while left:
            tries += 1
            error: ClusterError | None = None
            try:
                if not looked:
                    left, looked = self._missing(left, outcome), True
                else:
                    left, error = self._once(left, outcome)
            except ClusterError as failure:
                if failure.status in (400, 413):
                    return self._divided(left, outcome, failure)
                if not failure.is_temporary and failure.status < 500:
                    raise
                error = failure
            if left and error is not None:
                seconds = pause(tries)
                if time.monotonic() + seconds - started > self._patience:
                    raise error
                if time.monotonic() - started >= _REPORT_AFTER:
                    self._on_retry(error)
                time.sleep(seconds)
        return outcome

    def _missing(self, entries: list[Entry], outcome: Outcome) -> list[Entry]:
        """Those that are not there, and those that have to take the place of one that is."""
        missing, conflicts = [], []
        for entry, found in zip(entries, self._found(entries), strict=True):
            version = found["_version"] if found.get("found") else None
            if version == entry.version:
                outcome.there += 1
            elif version is None or self._rule == "replace" or _arrived_first(version, entry.version):
                missing.append(entry)
            else:  # also a document of another client, whose versions are low
                conflicts.append(entry)
        return missing + self._resolve(conflicts, outcome)

    def _once(self, entries: list[Entry], outcome: Outcome) -> tuple[list[Entry], ClusterError | None]:
        """Send once; which have to be sent again, and why."""
        check()
        connection = self._connection
        answer = connection.request(
            "POST",
            f"/{connection.address.index}/_bulk",
            b"".join(each.lines for each in entries),
            params={"timeout": _SHARD_WAIT, "filter_path": "items.*.status,items.*.result,items.*.error"},
            patience=0.0,
        )
        again, conflicts = [], []
        trouble: ClusterError | None = None
        for entry, item in zip(entries, answer["items"], strict=True):
            result = item["index"]
            status = int(result["status"])
            if status == 201:
                outcome.created += 1
            elif status == 200:
                self._duplicate(entry, outcome, entry.version)
            elif status == 409:
                conflicts.append(entry)
            else:
                error = refused(status, result.get("error"), str(connection.address))
                if error.is_temporary or status >= 500:
                    again.append(entry)
                    trouble = error
                elif status in (401, 403, 429) or error.kind == "index_not_found_exception":
                    raise error
                else:
                    outcome.refused.add(entry.doc_id, reason_of(result.get("error"))[1])
        if deleted := self._resolve(conflicts, outcome):
            again += deleted
            busy = f"documents that were deleted a moment ago cannot be written to {connection.address} yet"
            trouble = trouble or ClusterError(busy, remedy="continue with --resume in a minute", status=429)
        return again, trouble

    def _resolve(self, conflicts: list[Entry], outcome: Outcome) -> list[Entry]:
        """Tell those that an earlier try has written from duplicates. The rest is not there: the cluster
        remembers the versions of deleted documents for a minute."""
        if not conflicts:
            return []
        texts = self._rule == "skip"
        every = self._found(conflicts, texts=texts)
        deleted = []
        for entry, found in zip(conflicts, every, strict=True):
            if not found.get("found"):
                deleted.append(entry)
            elif found["_version"] == entry.version:
                outcome.confirmed += 1
            else:
                self._duplicate(entry, outcome, found["_version"], found.get("_source"))
        return deleted

    def _duplicate(
        self, entry: Entry, outcome: Outcome, other: int, kept: dict[str, Any] | None = None
    ) -> None:
        """One of two documents with this id is there now: the one that the rule wants."""
        if self._rule == "replace":
            outcome.replaced += 1
        elif self._rule == "skip":
            same = kept or {TITLE: entry.title, TEXT: entry.text}
            old = Document(entry.doc_id, same.get(TEXT, ""), same.get(TITLE, ""))
            outcome.skipped.add(Document(entry.doc_id, entry.text, entry.title), old)
        elif command_of(other) == command_of(entry.version):
            outcome.duplicate = DuplicateIdError(
                entry.doc_id,
                f"the document id {quoted(entry.doc_id)} occurs twice{self._or_moved()}",
                remedy="give each its own and begin again with --overwrite, or continue with --resume and "
                "--on-duplicate replace or skip",
            )
        else:
            outcome.duplicate = DuplicateIdError(
                entry.doc_id,
                f"the index already holds a document {quoted(entry.doc_id)}",
                remedy="continue with --resume and --on-duplicate replace or skip",
            )

    def _or_moved(self) -> str:
        return ", or the corpus is not as it was when the command was interrupted" if self._resumed else ""

    def _found(self, entries: Sequence[Entry], *, texts: bool = False) -> list[dict[str, Any]]:
        connection = self._connection
        source = {"_source_includes": f"{TITLE},{TEXT}"} if texts else {"_source": "false"}
        path = f"/{connection.address.index}/_mget"
        body = {"ids": [each.doc_id for each in entries]}
        answer = connection.request("POST", path, body, params=source, patience=self._patience)
        every: list[dict[str, Any]] = answer["docs"]
        failed = next((each for each in every if "error" in each), None)
        if failed is not None:  # the index, or a shard of it, is gone
            gone = reason_of(failed)[0] == "index_not_found_exception"
            raise refused(404 if gone else 503, failed, str(connection.address))
        return every

    def _divided(self, entries: list[Entry], outcome: Outcome, error: ClusterError) -> Outcome:
        """A request that is refused as a whole is sent in halves, down to the document that is the reason."""
        if len(entries) == 1:
            outcome.refused.add(entries[0].doc_id, error.problem)
            return outcome
        middle = len(entries) // 2
        for half in (entries[:middle], entries[middle:]):
            outcome.add(self.send(half))
            if outcome.refused and not self.skip_refused:
                break  # which ends the command
        return outcome


def _largest_request(connection: Connection) -> int:
    """Bytes that every node of the cluster takes."""
    try:
        answer = connection.request("GET", "/_nodes/http")
    except ClusterError as error:
        if error.status not in (403, 404):  # one that tells this only to those who manage it
            raise
        return _LARGEST_REQUEST
    sizes = [node.get("http", {}).get("max_content_length_in_bytes") for node in answer["nodes"].values()]
    return min((int(each) for each in sizes if each), default=_LARGEST_REQUEST)


class Bulk:
    """Takes documents one by one and has threads send them; at most `workers` requests are under way, so that
    the memory does not depend on the number of documents."""

    def __init__(
        self,
        sender: Sender,
        workers: int,
        *,
        done: Callable[[int], object] = lambda documents: None,
    ) -> None:
        self._sender, self._workers, self._done = sender, workers, done
        self._entries: list[Entry] = []
        self._size = 0
        self._under_way = 0
        self._started = 0
        self._tasks: Queue[list[Entry] | None] = Queue()  # None: there are no more
        self._results: Queue[Outcome | BaseException] = Queue()
        self._stopped = threading.Event()
        self.outcome = Outcome()

    @property
    def skips_refused(self) -> bool:
        return self._sender.skip_refused

    def add(self, entry: Entry) -> None:
        """Raises what an earlier request has failed with, too."""
        size = len(entry.lines)
        if size > self._sender.limit:
            mega = 1 << 20
            limit = f"the {self._sender.limit / mega:.0f} MiB of the cluster's http.max_content_length"
            self.refuse(entry.doc_id, f"it has {size / mega:.1f} MiB, more than {limit}")
            return
        if self._entries and (
            self._size + size > min(REQUEST, self._sender.limit) or len(self._entries) >= _MOST
        ):
            self.flush()
        self._entries.append(entry)
        self._size += size

    def refuse(self, doc_id: str, reason: str) -> None:
        """Count a document that cannot be sent; an error, unless those are left out."""
        self._take(Outcome(refused=Refused(1, [(doc_id, reason)])))

    def flush(self) -> None:
        """Send what has gathered, once no more than the others are under way."""
        if not self._entries:
            return
        while self._under_way >= self._workers or not self._results.empty():
            self._wait()
        if self._started < self._workers:
            self._started += 1
            threading.Thread(target=self._work, daemon=True, name=f"bulk-{self._started}").start()
        self._under_way += 1
        self._tasks.put(self._entries)
        self._entries, self._size = [], 0

    def finish(self) -> None:
        """Send the rest, and wait until all has arrived."""
        self.flush()
        while self._under_way:
            self._wait()

    def stop(self) -> None:
        """Give up what has not been sent, and end the threads."""
        self._stopped.set()
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        with interruptible(self._go_on, np.ones(1, dtype=bool)):
            while (entries := self._tasks.get()) is not None:
                try:
                    self._results.put(self._sender.send(entries))
                except BaseException as error:  # raised where the result is taken
                    self._results.put(error)

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise TamisError("the indexing was stopped", remedy="continue with --resume")

    def _wait(self) -> None:
        result = self._results.get()
        self._under_way -= 1
        if isinstance(result, BaseException):
            raise result
        self._take(result)

    def _take(self, outcome: Outcome) -> None:
        self.outcome.add(outcome)
        self._done(outcome.documents)
        if self.outcome.duplicate is not None:
            raise self.outcome.duplicate
        if outcome.refused and not self.skips_refused:
            self._collect()
            raise self._refused()

    def _collect(self) -> None:
        """What else is under way belongs to the same message."""
        while self._under_way:
            result = self._results.get()
            self._under_way -= 1
            if isinstance(result, Outcome):
                self.outcome.add(result)

    def _refused(self) -> ClusterError:
        refused = self.outcome.refused
        documents = "a document" if refused.count == 1 else f"{refused.count:,} documents"
        return ClusterError(
            f"the cluster refuses {documents} ({refused.names}): {refused.first[0][1]}",
            remedy="repair them, or leave them out by --skip-bad; then continue with --resume",
            status=400,
        )
