"""Read every byte of an index and compare it with the checksums of its manifest."""

from __future__ import annotations

from pathlib import Path

from tamis.base.errors import CorruptError, StorageError
from tamis.index.manifest import Manifest
from tamis.index.segment import SegmentInfo
from tamis.storage.columns import Column


def verify(folder: Path) -> list[str]:
    """The problems of the files of the index at `folder`; an empty list if there are none.

    >>> import tempfile
    >>> from tamis import Document, Index
    >>> folder = Path(tempfile.mkdtemp()) / "idx"
    >>> index = Index.build([Document("d1", "A sieve.")], folder)
    >>> verify(folder)
    []
    >>> frames = next(folder.rglob("store.frames"))
    >>> _ = frames.write_bytes(bytes([frames.read_bytes()[0] ^ 1]) + frames.read_bytes()[1:])
    >>> verify(folder)
    ['.../store.frames is corrupt (bytes 0 to ... fail their checksum)']
    """
    while True:
        manifest = Manifest.read(folder)
        problems = _problems(folder, manifest)
        # a writer may have replaced the commit, and removed its files, while we read them
        if not problems or Manifest.read(folder) == manifest:
            return problems


def _problems(folder: Path, manifest: Manifest) -> list[str]:
    return [problem for segment in manifest.segments for problem in problems_of(folder, segment)]


def problems_of(folder: Path, segment: SegmentInfo) -> list[str]:
    """The problems of the files of one segment of the index at `folder`."""
    problems = []
    columns = dict(segment.columns)
    if segment.deleted is not None and segment.deleted_info is not None:
        columns[segment.deleted] = segment.deleted_info
    for name, info in columns.items():
        path = folder / "segments" / segment.name / name
        try:
            Column(path, info).all()
        except FileNotFoundError:
            problems.append(f"{path} is missing")
        except (CorruptError, StorageError) as error:
            problems.append(error.problem)
    return problems
