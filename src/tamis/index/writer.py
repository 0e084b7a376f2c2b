"""The one writer of an index: add, replace, delete, merge. Nothing of it is seen until it is committed, and
then all of it at once."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import (
    CorruptError,
    InputError,
    LockedError,
    TamisError,
    UnknownDocumentError,
    quoted,
    some,
)
from tamis.index.build import SegmentWriter
from tamis.index.commit import Commit
from tamis.index.crew import Crew
from tamis.index.manifest import NAME, Manifest
from tamis.index.parcels import Builder
from tamis.index.remains import foreign, mark_leaving, remove_remains
from tamis.index.segment import Segment, SegmentInfo, merge_segments, with_deleted
from tamis.storage.document_store import DuplicateIdError, Keep
from tamis.storage.files import storage_errors, sync_folder
from tamis.storage.locks import FolderLock, folder_lock
from tamis.text.analyze import get_analyzer

SEGMENTS_KEPT = 8  # a commit that leaves more merges the smallest ones
OnDuplicate = Literal["error", "replace", "skip"]
_KEEP: dict[str, Keep | None] = {"error": None, "replace": "last", "skip": "first"}


@dataclass(slots=True)
class Skipped:
    """Documents that were not added because a committed one has their id, where that is the rule."""

    count: int = 0
    changed: int = 0  # of these, how many have another title or text than the one that is kept
    first_changed: str = ""  # the id of one

    def add(self, document: Document, kept: Document) -> None:
        self.count += 1
        if (document.title, document.text) != (kept.title, kept.text):
            self.first_changed = self.first_changed or document.id
            self.changed += 1


class IndexWriter:
    """Collects changes; `commit` makes them visible all at once. Made by `create` and `Index.writer`."""

    def __init__(
        self,
        folder: Path,
        commit: Commit,
        on_duplicate: OnDuplicate,
        lock: FolderLock,
        *,
        is_new: bool = False,
        workers: int = 1,
    ) -> None:
        if on_duplicate not in _KEEP:
            raise InputError(f"no rule {on_duplicate!r} for duplicates", remedy="use error, replace or skip")
        if workers < 1:
            raise InputError(f"cannot build with {workers} workers", remedy="use 1 or more")
        self._folder = folder
        self._last = commit
        self._lock = lock
        self._replaced = _manifest(folder)  # what the next commit takes the place of
        self._on_duplicate: OnDuplicate = on_duplicate
        self.skipped = Skipped()
        self._is_new = is_new
        self._ended = False
        self._deleted: dict[str, Array] = {}  # segment name -> bits to be committed
        self._open: SegmentWriter | None = None
        self._crew = Crew(Builder(commit.analyzer, positions=commit.manifest.positions), workers)

    @property
    def pending(self) -> int:
        """Documents added since the last commit."""
        return self._open.count if self._open else 0

    def add(self, document: Document) -> None:
        """Add a document; ids repeated since the last commit are detected at commit. A refused document
        (`InputError`) changes nothing."""
        self._check_usable()
        if not isinstance(document, Document):  # from callers without a type checker
            problem = f"a {type(document).__name__} is not a document"
            raise InputError(problem, remedy="give a tamis.Document(id, text)")
        found = self._find(document.id)
        if found is not None and self._on_duplicate == "skip":
            segment, number = found
            self.skipped.add(document, segment.store.document(number))
            return
        if found is not None and self._on_duplicate == "error":
            raise DuplicateIdError(
                document.id,
                f"the index already holds a document {quoted(document.id)}",
                remedy="delete it first, or add with on_duplicate='replace' or 'skip' (--on-duplicate)",
            )
        if self._open is None:
            with self._changing():
                self._open = self._new_segment()
        try:
            self._open.add(document)
        except InputError:
            raise
        except BaseException:
            self._ended = True
            raise
        if found is not None:
            self._mark(*found)

    def delete(self, *identities: str) -> None:
        """Delete committed documents: all, or none if one is not there."""
        self._check_usable()
        wanted = dict.fromkeys(identities)  # one named twice would be gone at the second time
        places = {doc_id: self._find(doc_id) for doc_id in wanted}
        unknown = [doc_id for doc_id, place in places.items() if place is None]
        if unknown:
            raise self._unknown(unknown, len(places))
        for place in places.values():
            if place is not None:
                self._mark(*place)

    def _unknown(self, ids: Sequence[str], wanted: int) -> UnknownDocumentError:
        remedy = f"check the id{'s' if len(ids) > 1 else ''}"
        if self.pending:
            remedy += ", and commit what is just added before you delete it"
        if len(ids) == 1:
            return UnknownDocumentError(f"the index holds no document {ids[0]!r:.100}", remedy=remedy)
        named = some(f"{doc_id!r:.100}" for doc_id in ids)
        problem = f"the index does not hold {len(ids):,} of these {wanted:,} documents ({named})"
        return UnknownDocumentError(problem, remedy=remedy)

    def commit(self) -> None:
        """Write what is pending, make it durable, and replace the manifest."""
        with self._changing():
            if self._open is not None and not self._open.count:  # all that came was refused
                self._open.discard()
                self._open = None
            if self._open is None and not self._deleted:
                if self._is_new:  # an index with nothing in it is an index
                    self._publish([segment.info for segment in self._last.segments])
                return
            self._publish(self._write_pending())
            if len(self._last.segments) > SEGMENTS_KEPT:
                by_size = sorted(self._last.segments, key=len)
                self._merge(by_size[: len(by_size) - SEGMENTS_KEPT // 2])

    def merge(self) -> None:
        """Commit, then make one segment of all."""
        self.commit()
        if len(self._last.segments) > 1 or any(s.deleted is not None for s in self._last.segments):
            with self._changing():
                self._merge(self._last.segments)

    def discard(self) -> None:
        """Discard uncommitted changes and end."""
        self._ended = True
        if self._lock.is_inherited:
            return  # the files and the other processes are the parent's
        self._crew.close()
        if self._open is not None:
            if self._lock.is_held:
                self._open.discard()
            self._open = None
        # or another writer may be at work, or our commit is there and could not be made durable: a power cut
        # would bring back the one before, which needs its segments
        if self._lock.is_held and _manifest(self._folder) == self._replaced:
            remove_remains(self._folder)

    def _check_usable(self) -> None:
        if self._ended:
            raise TamisError(
                "this writer has ended or failed", remedy="open another one: the last commit is complete"
            )
        if self._lock.is_inherited:  # what a child wrote would come into the parent's files
            self._lock.check()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What breaks off half-way must not be committed later as if it were whole."""
        self._check_usable()
        try:
            self._lock.check()
            with storage_errors(self._folder):
                yield
        except BaseException:
            self._ended = True
            raise

    def _new_name(self) -> str:
        return f"{self._last.manifest.generation + 1:08d}-{secrets.token_hex(4)}"

    def _new_segment(self) -> SegmentWriter:
        return SegmentWriter(
            self._folder / "segments" / self._new_name(),
            self._crew,
            keep=_KEEP[self._on_duplicate],
        )

    def _find(self, doc_id: str) -> tuple[Segment, int] | None:
        """Where the committed document with this id is, unless it is deleted since."""
        found = self._last.find(doc_id)
        return None if found is None or self._is_deleted(*found) else found

    def _is_deleted(self, segment: Segment, number: int) -> bool:
        bits = self._deleted.get(segment.info.name)
        return bits is not None and bool(bits[number])

    def _mark(self, segment: Segment, number: int) -> None:
        bits = self._deleted.get(segment.info.name)
        if bits is None:
            bits = np.zeros(len(segment), dtype=bool) if segment.deleted is None else segment.deleted.copy()
            self._deleted[segment.info.name] = bits
        bits[number] = True

    def _write_pending(self) -> list[SegmentInfo]:
        infos = []
        for segment in self._last.segments:
            info, bits = segment.info, self._deleted.get(segment.info.name)
            if bits is None:
                infos.append(info)
            elif not bits.all():
                folder = self._folder / "segments" / info.name
                name = f"deleted-{self._last.manifest.generation + 1:08d}"
                infos.append(with_deleted(folder, info, bits, name))
        if self._open is not None:
            infos.append(self._open.close())
            self._open = None
        return infos

    def _merge(self, chosen: Sequence[Segment]) -> None:
        merged = merge_segments(self._folder / "segments" / self._new_name(), chosen)
        gone = {segment.info.name for segment in chosen}
        kept = [segment.info for segment in self._last.segments if segment.info.name not in gone]
        self._publish([*kept, merged] if merged.documents else kept)

    def _publish(self, infos: Sequence[SegmentInfo]) -> None:
        for info in infos:
            sync_folder(self._folder / "segments" / info.name)
        if infos:
            sync_folder(self._folder / "segments")
        last = self._last.manifest
        manifest = replace(last, generation=last.generation + 1, segments=tuple(infos))
        mark_leaving(self._folder, manifest)
        manifest.write(self._folder, self._check_alone)
        self._replaced = manifest
        self._is_new, self._deleted = False, {}
        self._last = Commit.of(self._folder, manifest, self._last)
        remove_remains(self._folder)

    def _check_alone(self) -> None:
        """Check that no other writer has committed since: it may have done so if the lock file was
        removed."""
        self._lock.check()
        if _manifest(self._folder) != self._replaced:
            raise LockedError(
                f"another process has written to {self._folder} meanwhile",
                remedy="open another writer: its commit is complete, this one was not made",
            )


@contextmanager
def create(
    path: str | Path,
    *,
    analyzer: str = "english",
    positions: bool = False,
    overwrite: bool = False,
    on_duplicate: OnDuplicate = "error",
    workers: int = 1,
) -> Iterator[IndexWriter]:
    """Begin an index in a new or empty folder; until the first commit there is none, or the one to be
    overwritten. `workers` processes at most build it, this one included."""
    folder = Path(path)
    get_analyzer(analyzer)  # an unknown name should fail before anything is written
    if folder.is_file():
        raise InputError(f"{folder} is a file", remedy="choose another name for the index's folder")
    if folder.is_dir():
        with suppress(FileNotFoundError):  # another writer is at work, as the lock will tell
            _check_ours(folder)
    with folder_lock(folder) as lock:
        _check_ours(folder)
        if (folder / NAME).exists() and not overwrite:
            remedy = (
                "resume it (--resume), add to it (--add) or overwrite it (--overwrite); "
                "in Python: Index.open(path).add(documents), or overwrite=True"
            )
            raise InputError(f"{folder} already holds an index", remedy=remedy)
        remove_remains(folder)
        manifest = Manifest(secrets.token_hex(8), _generation(folder), analyzer, positions, ())
        commit = Commit.of(folder, manifest)
        yield from discarding(IndexWriter(folder, commit, on_duplicate, lock, is_new=True, workers=workers))


def _check_ours(folder: Path) -> None:
    """An index is written into a new folder or in the place of one; nothing else is put at risk."""
    other = foreign(folder)
    if other is not None:
        problem = f"{folder} is not empty, and {other.relative_to(folder)} in it is not part of an index"
        raise InputError(problem, remedy="choose another folder, or move that elsewhere")


def _manifest(folder: Path) -> Manifest | None:
    """The last commit's; None where there is none that can be read."""
    try:
        return Manifest.read(folder)
    except (CorruptError, InputError):
        return None


def _generation(folder: Path) -> int:
    """Of what is overwritten; 0 where there is nothing, or nothing that can be read."""
    manifest = _manifest(folder)
    return manifest.generation if manifest else 0


def discarding(writer: IndexWriter) -> Iterator[IndexWriter]:
    """The writer, which ends with the block that uses it."""
    try:
        yield writer
    finally:
        writer.discard()
