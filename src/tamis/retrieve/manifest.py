"""The index folder: immutable segments, and a manifest that is replaced in one step and vouches for every
byte.

    IDX/manifest.json      generation, analyzer, segments and their columns' checksums; its own checksum
    IDX/segments/NAME/...  column files, never changed once the manifest names them
    IDX/lock               held by the one process that writes

A commit writes new files, makes them durable, and then replaces the manifest. A process killed at any moment
leaves the last manifest, and files that no manifest names, which the next writer removes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tamis.errors import CorruptError, InputError, TamisError
from tamis.files import TEMPORARY, atomic_write, storage_errors, unreadable
from tamis.locks import lock
from tamis.retrieve.segment import SegmentInfo

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed state of an index."""

    identity: str  # of the index, given when it was made
    generation: int
    analyzer: str
    positions: bool
    segments: tuple[SegmentInfo, ...]

    def write(self, folder: Path) -> None:
        body = {
            "format": FORMAT,
            "identity": self.identity,
            "generation": self.generation,
            "analyzer": self.analyzer,
            "positions": self.positions,
            "segments": [segment.to_json() for segment in self.segments],
        }
        text = json.dumps(body, indent=1)
        with atomic_write(folder / "manifest.json", "w") as file:
            file.write(f"{xxhash.xxh3_128_hexdigest(text.encode())}\n{text}\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / "manifest.json"
        try:
            data = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"{folder} holds no index",
                remedy="make one with `tamis index CORPUS -o IDX`, or finish the interrupted one",
            ) from None
        except OSError as error:
            raise unreadable(path, error) from error
        digest, _, rest = data.partition(b"\n")
        text = rest[:-1]
        whole = rest.endswith(b"\n") and digest == xxhash.xxh3_128_hexdigest(text).encode()
        if not whole:
            raise CorruptError(
                f"{path} is corrupt", remedy="restore it from a copy, or build the index again"
            )
        body = json.loads(text)
        if body["format"] != FORMAT:
            raise InputError(
                f"{folder} has index format {body['format']}, this tamis reads {FORMAT}",
                remedy="build the index again with this version",
            )
        segments = tuple(SegmentInfo.from_json(entry) for entry in body["segments"])
        return cls(body["identity"], body["generation"], body["analyzer"], body["positions"], segments)


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the index's lock; the operating system lets go of it when the process ends, however it ends."""
    path = folder / "lock"
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    with file:
        lock(file, folder)
        yield


def remove_unnamed(folder: Path) -> None:
    """Remove what a killed or finished writer left that the manifest does not name; what cannot be removed
    stays for the next time. Only the holder of the lock may call this."""
    try:
        named = {segment.name: segment for segment in Manifest.read(folder).segments}
    except TamisError:
        if (folder / "manifest.json").exists():
            return  # what it names could still be saved
        named = {}
    for path in folder.glob(f"{TEMPORARY}*"):
        _remove(path)
    for path in (folder / "segments").glob("*"):
        segment = named.get(path.name)
        if segment is None:
            shutil.rmtree(path, ignore_errors=True)  # a reader on Windows may still hold it: next time
            continue
        for bits in path.glob("deleted-*"):
            if bits.name != segment.deleted:
                _remove(bits)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def is_index_file(path: Path) -> bool:
    """Whether a name in a folder is one that an index, finished or interrupted, has there.

    >>> is_index_file(Path("idx/lock")), is_index_file(Path("idx/notes.txt"))
    (True, False)
    """
    return path.name in ("manifest.json", "segments", "tokens", "lock") or path.name.startswith(TEMPORARY)
