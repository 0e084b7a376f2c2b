"""Graphs of the bundled models, kept from one process to the next: to write one takes several times as long
as to load it, and `tamis search` would do both for a single query.

They lie in `tamis` under the user's folder for caches (`XDG_CACHE_HOME`, else `~/.cache`), or where
`TAMIS_CACHE` says; with that set to nothing, none are kept. Nothing is lost with them, and a folder that
cannot be written is no error.
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
MOST = 12  # graphs that are kept: those of older versions go
_DIGEST = 16  # bytes


def cache_folder() -> Path | None:
    """Where graphs are kept, None if nowhere."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if given else None
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    with suppress(RuntimeError):  # a user without a home
        return (Path(base) if base else Path.home() / ".cache") / "tamis"
    return None


def kept_graph(key: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, or gave the last time; `key` changes whenever that would.

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
            if old.is_file() and _is_whole(old.read_bytes()):  # or it is somebody else's
                old.unlink(missing_ok=True)
    return graph


def _is_whole(content: bytes) -> bool:
    """Whether a file's content is a graph that was kept: its digest, and the graph."""
    return content[:_DIGEST] == xxhash.xxh3_128_digest(content[_DIGEST:])
