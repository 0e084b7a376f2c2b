"""The index folder: immutable segments, and a manifest that is replaced in one step and covers every byte.

    IDX/manifest.json      generation, analyzer, segments and their columns' checksums; its own checksum
    IDX/segments/NAME/...  column files, never changed once the manifest names them
    IDX/lock               held by the one process that writes

A commit writes new files, makes them durable, and then replaces the manifest. A process killed at any moment
leaves the last manifest, and files that no manifest names, which the next writer removes (`tamis.index.
remains`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tamis.base.errors import CorruptError, InputError
from tamis.index.segment import SegmentInfo
from tamis.storage.files import atomic_write, unreadable

FORMAT = 1
NAME = "manifest.json"
_BEGINNING = re.compile(rb'[0-9a-f]{32}\n\{\n "format": [0-9]')


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed state of an index."""

    identity: str  # of the index, given when it was made
    generation: int
    analyzer: str
    positions: bool
    segments: tuple[SegmentInfo, ...]

    def write(self, folder: Path, check: Callable[[], None] | None = None) -> None:
        """Take the place of the last commit; `check` is called just before, and may refuse by an error."""
        body = {
            "format": FORMAT,
            "identity": self.identity,
            "generation": self.generation,
            "analyzer": self.analyzer,
            "positions": self.positions,
            "segments": [segment.to_json() for segment in self.segments],
        }
        text = json.dumps(body, indent=1)
        with atomic_write(folder / NAME, "w", check=check) as file:
            file.write(f"{xxhash.xxh3_128_hexdigest(text.encode())}\n{text}\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / NAME
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


def is_index(folder: str | Path) -> bool:
    """Whether a folder is an index: it has a manifest, whatever that says.

    >>> is_index(getfixture("tmp_path"))
    False
    """
    return (Path(folder) / NAME).is_file()


def begins_as_manifest(path: Path) -> bool:
    """Whether a file begins like a tamis manifest, damaged further on or not: many programs have a
    manifest.json.

    >>> begins_as_manifest(getfixture("tmp_path") / "manifest.json")
    False
    """
    try:
        with path.open("rb") as file:
            return not path.is_symlink() and bool(_BEGINNING.match(file.read(64)))
    except OSError:
        return False
