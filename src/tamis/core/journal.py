"""The journal of a run: what is ranked is written down at once, so a job that is killed goes on from there.

    tamis journal 1 CHECKSUM {"pipeline": ..., "queries": ..., ...}    a line: which queries, ranked by what
    LENGTH CHECKSUM {"query": ..., "ids": ..., ...} SCORES             a record a query, in the queries' order

Each checksum has the one before it for a seed, so a record counts only behind those that it was written
behind. A kill tears the last record and a power cut can leave rubbish: from the first record on that does not
verify, everything is cut off and ranked again, which is slower and never wrong.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from tamis.base.documents import Query
from tamis.base.errors import CorruptError, InputError
from tamis.core.ranking import Ranking, ScoreKind, Span
from tamis.storage.files import storage_errors, sync_folder
from tamis.storage.locks import is_there, lock

FORMAT = 1
SYNC_EVERY = 5.0  # seconds of work that a power cut may cost; a kill costs the batch it interrupts
_MAGIC = b"tamis journal "
_FRAME = struct.Struct("<IQ")  # length and checksum of a record
_LONGEST_HEADER = 1 << 24  # bytes; so that a file of something else is not searched for the end of its line
_START_OVER = "give another file name, or delete it to start again"


@dataclass(frozen=True, slots=True)
class Job:
    """Which queries are ranked, and by what."""

    pipeline: str
    fingerprint: str
    stages: tuple[tuple[str, str], ...]  # each with its fingerprint, to name the one that has changed
    queries: str  # a digest
    count: int

    def difference(self, now: Job) -> str:
        """Why the journal of this job cannot serve the one to be done now.

        >>> job = Job("bm25", "a1", (("bm25", "a1"),), "17", 140)
        >>> job.difference(Job("bm25", "b2", (("bm25", "b2"),), "17", 140))
        'the index, run or model behind bm25 has changed since the journal was begun'
        """
        if self.pipeline != now.pipeline:
            return f"the journal belongs to the pipeline {self.pipeline}, not to {now.pipeline}"
        if self.queries != now.queries:
            return f"the journal belongs to {self.count:,} other queries, not to these {now.count:,}"
        changed = [then[0] for then, this in zip(self.stages, now.stages, strict=False) if then != this]
        what = " and ".join(changed) or self.pipeline
        return f"the index, run or model behind {what} has changed since the journal was begun"


def digest(queries: Iterable[Query]) -> str:
    """Changes with anything of a query that a stage can see, and with their order.

    >>> digest([Query("q1", "sieve")]) == digest([Query("q1", "sieve", {"desc": "for flour"})])
    False
    """
    seen = xxhash.xxh3_128()
    for query in queries:
        plain = _plain(query)
        seen.update(_line(plain if query.where is None else [*plain, str(query.where)]))
    return str(seen.hexdigest())


class Record:
    """What is done of a run, of which nothing is written down.

    `done` are the rankings that there were at the beginning, `seconds` is the time that all of it took.
    `at_once` queries go through the pipeline together.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.done: list[Ranking] = []
        self.seconds = 0.0

    def append(self, rankings: Sequence[Ranking], seconds: float) -> None:
        """A batch is done, and took so long."""
        self.seconds += seconds

    def close(self) -> None:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Journal(Record):
    """What is done of a run, written down: a batch that is appended survives a kill.

    Rankings come back as they were, scores bit for bit, but for `texts` and `origin`: these are not data, and
    the stage attaches its own (`Stage.attach`); nor have their queries conditions, which the job's have.
    `at_once` is the number with which the journal was begun, since a neighbour in a batch can change the last
    bit of a score.

    >>> path = getfixture("tmp_path") / "bm25.journal"
    >>> job = Job("bm25", "a1", (("bm25", "a1"),), digest([Query("q1", "sieve"), Query("q2", "soup")]), 2)
    >>> with Journal(path, job, at_once=1) as journal:
    ...     journal.append([Ranking(Query("q1", "sieve"), ("d1",), np.array([2.5], np.float32))], seconds=0.1)
    >>> with Journal(path, job, at_once=1) as journal:
    ...     [list(ranking) for ranking in journal.done]
    [[Hit(rank=1, id='d1', score=2.5)]]
    """

    def __init__(self, path: str | Path, job: Job, *, at_once: int) -> None:
        super().__init__(at_once)
        self.path = Path(path)
        self._file = _open(self.path)
        try:
            with storage_errors(self.path):
                self._begin_or_go_on(job)
        except BaseException:
            self._file.close()
            raise
        self._synced, self._name_synced = time.monotonic(), False

    def _begin_or_go_on(self, job: Job) -> None:
        header, self._seed = _read_header(self._file, self.path)
        if header is None:
            self._begin(job)
            return
        stages = tuple((name, fingerprint) for name, fingerprint in header["stages"])
        begun = Job(**{f.name: header[f.name] for f in fields(Job)} | {"stages": stages})
        if begun == job:
            self.at_once = int(header["at_once"])
            self._go_on(job.count)
        elif next(_records(self._file, self._seed), None) is None:
            self._begin(job)  # there is nothing in it to be lost
        else:
            raise InputError(begun.difference(job), remedy=_START_OVER, path=self.path)

    def _begin(self, job: Job) -> None:
        from tamis.base.version import __version__

        body = _line(asdict(job) | {"at_once": self.at_once, "tamis": __version__})
        self._seed = xxhash.xxh3_64_intdigest(body)
        self._file.truncate(0)
        _write(self._file, b"%s%d %016x " % (_MAGIC, FORMAT, self._seed) + body)

    def _go_on(self, count: int) -> None:
        states = [(self._file.tell(), self._seed, 0.0)]  # before each record
        for payload, seed in _records(self._file, self._seed):
            ranking, seconds = _decode(payload)
            self.done.append(ranking)
            states.append((self._file.tell(), seed, states[-1][2] + seconds))
        if len(self.done) < count:  # a batch goes through together, so half of one is of no use
            del self.done[len(self.done) // self.at_once * self.at_once :]
        end, self._seed, self.seconds = states[len(self.done)]
        self._file.truncate(end)

    def append(self, rankings: Sequence[Ranking], seconds: float) -> None:
        frames = []
        for ranking in rankings:
            payload = _encode(ranking, seconds / len(rankings))
            self._seed = xxhash.xxh3_64_intdigest(payload, self._seed)
            frames += [_FRAME.pack(len(payload), self._seed), payload]
        with storage_errors(self.path):
            _write(self._file, b"".join(frames))
            if time.monotonic() - self._synced >= SYNC_EVERY:
                self._sync()
        super().append(rankings, seconds)

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        if not self._name_synced:
            sync_folder(self.path.parent)
            self._name_synced = True
        self._synced = time.monotonic()  # not before: a slow disk must not do this all the time

    def close(self) -> None:
        self._file.close()


def count(path: str | Path) -> int:
    """How many queries a journal holds; 0 where there is none.

    >>> count(getfixture("tmp_path") / "none.journal")
    0
    """
    path = Path(path)
    if not path.exists():
        return 0
    with _open(path) as file, storage_errors(path):
        header, seed = _read_header(file, path)
        return 0 if header is None else sum(1 for _ in _records(file, seed))


def remove(path: str | Path) -> None:
    """Remove a journal of which the run is written. What is no journal stays (`InputError`), and so does one
    that another process has begun since under the same name (`LockedError`).

    >>> remove(getfixture("tmp_path") / "none.journal")
    """
    path = Path(path)
    if not path.exists():
        return
    with _open(path) as file, storage_errors(path):
        _read_header(file, path)
        if os.name != "nt":  # where what is open cannot be removed
            path.unlink()
            return
    with storage_errors(path):  # pragma: no cover
        path.unlink()


def _open(path: Path) -> FileIO:
    """The file, locked. Not buffered: what is written is the system's, which outlives us."""
    while True:
        with storage_errors(path):
            file = path.open("a+b", buffering=0)
            try:
                lock(file, path)
                file.seek(0)
                if is_there(file, path):
                    return file
            except BaseException:
                file.close()
                raise
        file.close()  # whoever held it has finished and removed it, after we had opened it


def _write(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _read_header(file: FileIO, path: Path) -> tuple[dict[str, Any] | None, int]:
    """What the journal is of, and the seed of its first record; None where it was torn while it was begun."""
    magic = file.read(len(_MAGIC))
    if magic and not magic.strip(b"\0") and _is_blank(file):
        return None, 0  # by a power cut
    if not _MAGIC.startswith(magic):
        raise InputError("not a journal of a run", remedy="give another file name", path=path)
    line = file.readline(_LONGEST_HEADER)
    if not line.endswith(b"\n") and len(line) < _LONGEST_HEADER:
        return None, 0
    version, _, rest = line.partition(b" ")
    checksum, _, body = rest.partition(b" ")
    seed = xxhash.xxh3_64_intdigest(body)
    if version.isdigit() and int(version) != FORMAT:  # which may have another kind of checksum
        problem = f"has journal format {int(version)}, and this tamis reads {FORMAT}"
        raise InputError(problem, remedy=_START_OVER, path=path)
    if (version, checksum) != (b"%d" % FORMAT, b"%016x" % seed):
        raise CorruptError(f"the first line of {path} is damaged", remedy=_START_OVER)
    header: dict[str, Any] = json.loads(body)
    return header, seed


def _is_blank(file: FileIO) -> bool:
    """Whether the rest of a file is zeros."""
    while data := file.read(1 << 20):
        if data.strip(b"\0"):
            return False
    return True


def _records(file: FileIO, seed: int) -> Iterator[tuple[bytes, int]]:
    """Each record with its checksum, as far as they verify."""
    left = os.fstat(file.fileno()).st_size - file.tell()
    while left >= _FRAME.size:
        length, checksum = _FRAME.unpack(file.read(_FRAME.size))
        left -= _FRAME.size + length
        if left < 0:
            return
        payload = file.read(length)
        if xxhash.xxh3_64_intdigest(payload, seed) != checksum:
            return
        seed = checksum
        yield payload, seed


def _encode(ranking: Ranking, seconds: float) -> bytes:
    evidence = {
        doc_id: [(int(span.start), int(span.stop), float(span.score)) for span in spans]
        for doc_id, spans in ranking.evidence.items()
    }
    head = {
        "query": _plain(ranking.query),
        "ids": list(ranking.ids),
        "kind": ranking.kind,
        "dtype": ranking.scores.dtype.str,
        "evidence": evidence,
        "seconds": round(seconds, 6),
    }
    return _line(head) + ranking.scores.tobytes()


def _decode(payload: bytes) -> tuple[Ranking, float]:
    line, _, scores = payload.partition(b"\n")
    head = json.loads(line)
    ranking = Ranking(
        Query(*head["query"]),
        tuple(head["ids"]),
        np.frombuffer(scores, head["dtype"]),
        ScoreKind(head["kind"]),
        evidence={key: tuple(Span(*span) for span in spans) for key, spans in head["evidence"].items()},
    )
    return ranking, float(head["seconds"])


def _plain(query: Query) -> list[Any]:
    return [query.id, query.text, dict(query.fields)]


def _line(value: Any) -> bytes:
    """JSON in ASCII, in which even half a surrogate pair comes back as it was; its only line end is the last
    byte."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
