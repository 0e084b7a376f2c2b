"""A cache of the bundled models' graphs: building a graph takes several times as long as loading it, and
`tamis search` would do both for a single query.

The cache is the folder `tamis` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`), or the folder
named by `TAMIS_CACHE`; an empty `TAMIS_CACHE` disables it. It can be deleted at any time, and a folder that
cannot be written is not an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import xxhash

from tamis.base.errors import StorageError
from tamis.storage.files import atomic_write

VARIABLE = "TAMIS_CACHE"
MOST = 12  # graphs in the cache: the oldest ones, of older versions, are removed
_DIGEST = 16  # bytes


def cache_folder() -> Path | None:
    """The folder of the cache, or None if it is disabled."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if given else None
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    with suppress(RuntimeError):  # a user without a home folder
        return (Path(base) if base else Path.home() / ".cache") / "tamis"
    return None


def kept_graph(key: str, make: Callable[[], bytes]) -> bytes:
    """The result of `make`, from the cache if possible; `key` must change whenever the result would.

    >>> kept_graph("doctest", lambda: b"a graph"), kept_graph("doctest", lambda: b"another")
    (b'a graph', b'a graph')
    """
    folder = cache_folder()
    if folder is None:
        return make()
    path = folder / f"{key}.graph"
    with suppress(OSError):
        content = path.read_bytes()
        if _is_whole(content):
            return content[_DIGEST:]
    graph = make()
    with suppress(OSError, StorageError):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(xxhash.xxh3_128_digest(graph) + graph)
        newest = sorted(folder.glob("*.graph"), key=lambda each: -each.stat().st_mtime)
        for old in newest[MOST:]:
            if old.is_file() and _is_whole(old.read_bytes()):  # never remove files of other programs
                old.unlink(missing_ok=True)
    return graph


def _is_whole(content: bytes) -> bool:
    """Whether a file's content is a complete cached graph: its digest, and the graph."""
    return content[:_DIGEST] == xxhash.xxh3_128_digest(content[_DIGEST:])
