"""A cache of a model's scores, in an SQLite file that any number of processes can share.

A score depends on the model, the template with its budgets, the precision, the query and the texts, and a key
is a digest of all of these: a changed document has another key, and never gets an old score. Keys of one
query have a common prefix, so that its scores are together in the file: this makes `put` five times as fast
as with random keys.

A row that was damaged on the disk counts as a missing score.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError, LockedError, StorageError, TamisError

TIMEOUT = 60.0  # seconds to wait for other processes, each of which writes for milliseconds
KEY_BYTES = 16
_HEAD_BYTES = 4  # first bytes of a key, which depend only on the query

_APPLICATION = 0x74616D69  # "tami": identifies files of tamis in SQLite's header
_FORMAT = 1
_AT_ONCE = 500  # keys per statement; every SQLite allows 999
_CREATE = """
CREATE TABLE IF NOT EXISTS scores (
    number INTEGER PRIMARY KEY,  -- grows by one a row: the smallest are the oldest
    key BLOB NOT NULL UNIQUE,
    score BLOB NOT NULL          -- four bytes of it, four of a checksum
)"""
# Not OR IGNORE: the existing row may be damaged.
_PUT = "INSERT INTO scores (key, score) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET score = excluded.score"
_EVICT = "DELETE FROM scores WHERE number <= (SELECT max(number) FROM scores) - ?"


# -- keys
# ------------------------------------------------------------------------------------------------------------


def prefix(model: str, template: str, precision: str) -> bytes:
    """The common part of a stage's keys: the model's fingerprint, the template with its budgets, the
    precision.

    >>> prefix("a1", "mono", "int8") == prefix("a1m", "ono", "int8")
    False
    """
    # each with its length: any separator could be part of a name
    return b"".join(
        len(part).to_bytes(8, "little") + part for part in map(_bytes, (model, template, precision))
    )


def pair_key(prefix: bytes, query: str, *texts: str | bytes) -> bytes:
    """The key of one input: a query with one text (mono), or with two texts in order (duo). A text can also
    be bytes, for example those of its token ids; this gives another key.

    >>> stage = prefix("a1", "duo", "int8")
    >>> pair_key(stage, "q", "one", "two") == pair_key(stage, "q", "two", "one")
    False
    """
    return pair_keys(prefix, query, texts, np.arange(len(texts))[None])[0]


def pair_keys(
    prefix: bytes, query: str, texts: Sequence[str | bytes], which: Array | None = None
) -> list[bytes]:
    """The keys of many inputs with one query: one per text, or, with `which`, one per row of it, for the
    texts with these indices. Each text is hashed only once, even if it is in many pairs.

    >>> stage = prefix("a1", "duo", "int8")
    >>> keys = pair_keys(stage, "q", ["one", "two"], np.array([[0, 1], [1, 0]]))
    >>> keys == [pair_key(stage, "q", "one", "two"), pair_key(stage, "q", "two", "one")]
    True
    """
    head: bytes = xxhash.xxh3_128_digest(len(prefix).to_bytes(8, "little") + prefix + _bytes(query))
    # digests have a fixed length, so concatenating them is unambiguous; the seed distinguishes bytes from
    # text
    digests = [xxhash.xxh3_128_digest(_bytes(text), isinstance(text, bytes)) for text in texts]
    rows = digests if which is None else [b"".join(digests[n] for n in row) for row in which.tolist()]
    first, rest = head[:_HEAD_BYTES], KEY_BYTES - _HEAD_BYTES
    return [first + xxhash.xxh3_128_digest(head + row)[:rest] for row in rows]


def _bytes(text: str | bytes) -> bytes:
    # a text may contain half a surrogate pair, which is not an error here
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


# -- the cache
# ------------------------------------------------------------------------------------------------------------


class ScoreCache:
    """Scores by key, in the single precision of models; safe for several processes and threads.

    With `limit`, at most `limit` scores are stored, and the oldest are removed first. If other processes keep
    the cache locked for longer than `timeout` seconds, a `LockedError` is raised.

    >>> cache = ScoreCache(getfixture("tmp_path") / "scores.db")
    >>> keys = pair_keys(prefix("a1", "mono", "int8"), "q", ["one", "two"])
    >>> cache.put(keys[:1], np.array([2.5]))
    >>> cache.get(keys)
    array([2.5, nan], dtype=float32)
    """

    def __init__(self, path: str | Path, *, limit: int | None = None, timeout: float = TIMEOUT) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"a cache of {limit} scores", remedy="use a limit of at least 1, or none")
        self.path, self.limit, self.timeout = Path(path), limit, timeout
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        with self._using():
            _open_caches.add(self)

    def get(self, keys: Sequence[bytes]) -> Array:
        """The score of each key; NaN for unknown keys."""
        found: dict[bytes, bytes] = {}
        with self._using() as connection:
            for start in range(0, len(keys), _AT_ONCE):
                some = keys[start : start + _AT_ONCE]
                wanted = ",".join("?" * len(some))
                found.update(
                    connection.execute(f"SELECT key, score FROM scores WHERE key IN ({wanted})", some)
                )
        missing = np.array(np.nan, "<f4").tobytes()
        return np.frombuffer(b"".join(_opened(key, found.get(key), missing) for key in keys), "<f4").copy()

    def put(self, keys: Sequence[bytes], scores: Array) -> None:
        """Store scores; NaN is not stored."""
        if len(keys) != len(scores):
            raise TamisError(f"{len(keys)} keys with {len(scores)} scores", remedy="give one score a key")
        single = scores.astype("<f4")
        data = single.tobytes()
        rows = [
            (keys[n], _sealed(keys[n], data[4 * n : 4 * n + 4]))
            for n in np.flatnonzero(~np.isnan(single)).tolist()
        ]
        with self._using() as connection:
            connection.execute("BEGIN IMMEDIATE")  # waits for the lock; an upgrade from reading would not
            try:
                connection.executemany(_PUT, rows)
                if self.limit is not None:
                    connection.execute(_EVICT, (self.limit,))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def __len__(self) -> int:
        with self._using() as connection:
            (number,) = connection.execute("SELECT count(*) FROM scores").fetchone()
        return int(number)

    def close(self) -> None:
        """Close the file."""
        with self._using() as connection:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _explained(self.path):
            if self._connection is None:
                self._connection = _connect(self.path, self.timeout)
            yield self._connection


_open_caches: weakref.WeakSet[ScoreCache] = weakref.WeakSet()
_of_parent: list[sqlite3.Connection | None] = []


def _after_fork() -> None:
    """SQLite's connections do not survive a fork: a child must neither use nor close those of its parent."""
    for cache in _open_caches:
        _of_parent.append(cache._connection)
        cache._lock, cache._connection = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def cached(cache: ScoreCache, keys: Sequence[bytes], score: Callable[[Array], Array]) -> Array:
    """The scores of all keys. `score` computes those that are not in the cache, from their indices, and they
    are stored.

    >>> cache, keys = ScoreCache(getfixture("tmp_path") / "scores.db"), [bytes(16), bytes(15) + b"1"]
    >>> cache.put(keys[:1], np.array([2.5]))
    >>> cached(cache, keys, lambda missing: missing + 0.5).tolist()
    [2.5, 1.5]
    """
    scores = cache.get(keys)
    missing = np.flatnonzero(np.isnan(scores))
    if len(missing):
        new = score(missing)
        cache.put([keys[n] for n in missing.tolist()], new)
        scores[missing] = new
    return scores


def cached_rows(
    cache: ScoreCache, keys: Sequence[bytes], score: Callable[[Array], Array], width: int
) -> Array:
    """The same for `width` scores per key; if one of them is missing, all are computed again.

    >>> cache, keys = ScoreCache(getfixture("tmp_path") / "scores.db"), [bytes(16), bytes(15) + b"1"]
    >>> cached_rows(cache, keys[:1], lambda missing: np.array([[2.5, 3.5]]), 2).tolist()
    [[2.5, 3.5]]
    >>> cached_rows(cache, keys, lambda missing: np.array([[0.5, 1.5]]), 2).tolist()
    [[2.5, 3.5], [0.5, 1.5]]
    """
    own = [[_place_key(key, place) for place in range(width)] for key in keys]
    scores = cache.get([key for row in own for key in row]).reshape(len(keys), width)
    missing = np.flatnonzero(np.isnan(scores).any(axis=1))
    if len(missing):
        new = score(missing)
        cache.put([key for number in missing.tolist() for key in own[number]], new.ravel())
        scores[missing] = new
    return scores


def _place_key(key: bytes, place: int) -> bytes:
    head = key[:_HEAD_BYTES]  # so that they are stored near the query's other scores
    return head + bytes(xxhash.xxh3_128_digest(key + place.to_bytes(8, "little")))[: KEY_BYTES - _HEAD_BYTES]


# -- on disk
# ------------------------------------------------------------------------------------------------------------


def _sealed(key: bytes, score: bytes) -> bytes:
    """The score as bytes, not as a number, because SQLite drops the sign of -0.0, with a checksum of key and
    score, because SQLite has no checksums."""
    return score + bytes(xxhash.xxh32_digest(key + score))


def _opened(key: bytes, sealed: Any, missing: bytes) -> bytes:
    if not isinstance(sealed, bytes) or sealed != _sealed(key, sealed[:4]):
        return missing
    return sealed[:4]


def _connect(path: Path, timeout: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        _set_up(connection, path, time.monotonic() + timeout)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection, path: Path, deadline: float) -> None:
    connection.execute("BEGIN")  # another process may be setting up the same file
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    connection.execute("COMMIT")
    if application != _APPLICATION and (application or tables):
        raise InputError("a database of something else", remedy="give another file name", path=path)
    if application == _APPLICATION and version != _FORMAT:
        problem = f"has cache format {version}, and this tamis reads {_FORMAT}"
        raise InputError(problem, remedy="give another file name, or delete it", path=path)
    # In this mode readers and a writer do not wait for each other. SQLite does not wait by itself when two
    # processes request the mode at once.
    while not _write_ahead(connection):
        if time.monotonic() > deadline:
            raise _locked(path)
        time.sleep(0.01)
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut can lose the last scores, not the file
    if application != _APPLICATION:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CREATE)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.execute("COMMIT")


def _write_ahead(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("PRAGMA journal_mode = WAL")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise TamisError(f"the cache {path} is closed", remedy="open it again") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # UnicodeDecodeError: names in a damaged schema
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise _locked(path) from error
        if code in _STORAGE:
            raise StorageError(f"cannot use the cache {path} ({error})", remedy=_STORAGE[code]) from error
        raise CorruptError(
            f"{path} is damaged, or not a cache of scores ({error})",
            remedy="give another file name, or delete it: its scores are computed again",
        ) from error


def _locked(path: Path) -> LockedError:
    return LockedError(
        f"other processes keep the cache {path} locked", remedy="wait until they have finished"
    )


_STORAGE = {
    sqlite3.SQLITE_PERM: "check the permissions",
    sqlite3.SQLITE_READONLY: "choose a folder that you may write to",
    sqlite3.SQLITE_IOERR: "check the disk, and that it is not a network's",
    sqlite3.SQLITE_FULL: "free some space, or choose another disk",
    sqlite3.SQLITE_CANTOPEN: "check that the folder is there and that you may write to it",
}
