"""A copy of an index at one commit, while readers and a writer continue.

The files of a commit never change, so a hard link to each is a copy that takes no space, and stays when a
writer removes the name in the index. Without hard links, or on another file system, the bytes are copied.
Every checksum is verified in the copy, and its manifest is written last: an interrupted backup is not an
index.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tamis.base.errors import CorruptError, InputError
from tamis.index.manifest import Manifest
from tamis.index.segment import SegmentInfo
from tamis.index.tokens import TokensInfo
from tamis.storage.columns import Column, ColumnInfo
from tamis.storage.files import make_folder, storage_errors, sync_folder

__all__ = ["Backup", "backup"]


@dataclass(frozen=True, slots=True)
class Backup:
    """What was copied."""

    commit: str  # `Index.fingerprint` of the commit
    files: int
    linked: int  # of them, as hard links
    size: int  # bytes, including those of links
    without_tokens: tuple[str, ...]  # folders of tokens that are damaged or were just replaced


@dataclass
class Copier:
    """Copies files, by hard links if possible, and records what it made."""

    links: bool = True
    files: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    linked: int = 0

    def folder(self, path: Path) -> None:
        for each in reversed([path, *path.parents]):
            if not each.exists():
                make_folder(each)
                self.folders.append(each)

    def file(self, source: Path, target: Path) -> None:
        """Copy one; `FileNotFoundError` where it is not there."""
        if self.links:
            try:
                os.link(source, target)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without links
                pass
            else:
                self.files.append(target)
                self.linked += 1
                return
        with source.open("rb") as old, target.open("xb") as new:
            self.files.append(target)
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.fsync(new.fileno())

    def sync(self) -> None:
        for folder in reversed(self.folders):
            sync_folder(folder)

    def undo(self, files: int = 0, folders: int = 0) -> None:
        """Remove what was made but for the first so many."""
        for path in reversed(self.files[files:]):
            with suppress(OSError):
                path.unlink()
        for path in reversed(self.folders[folders:]):
            with suppress(OSError):
                path.rmdir()
        del self.files[files:], self.folders[folders:]


def backup(index: str | Path, destination: str | Path, *, links: bool = True) -> Backup:
    """Copy the last commit of an index, with its tokens, into a new or empty folder; `links` says whether
    hard links may stand for copies. A writer may commit meanwhile: the copy is of one commit.

    >>> from tamis import Document, Index
    >>> folder = getfixture("tmp_path")
    >>> _ = Index.build([Document("d1", "a sieve")], folder / "idx")
    >>> _ = backup(folder / "idx", folder / "copy")
    >>> Index.open(folder / "copy").bm25()("sieve").ids
    ('d1',)
    """
    source, target = Path(index), Path(destination)
    manifest = Manifest.read(source)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is not an empty folder", remedy="choose another")
    inside = (each for each in [target, *target.absolute().parents] if each.exists())
    if any(each.samefile(source) for each in inside):
        raise InputError(f"{target} lies in the index itself", remedy="choose another folder")
    copier = Copier(links)
    try:
        with storage_errors(target):
            copier.folder(target)
            manifest = _segments(source, target, manifest, copier)
            without = _tokens(source, target, manifest, copier)
            copier.sync()
            manifest.write(target)
    except BaseException:
        copier.undo()
        raise
    size = sum(path.stat().st_size for path in copier.files)
    commit = f"{manifest.identity}@{manifest.generation}"
    return Backup(commit, len(copier.files), copier.linked, size, tuple(without))


def _segments(source: Path, target: Path, manifest: Manifest, copier: Copier) -> Manifest:
    """Copy the segments of the last commit, and return its manifest. A writer may replace it, and remove
    files, while we copy them: then we start over."""
    while True:
        begun, folders = len(copier.files), len(copier.folders)
        try:
            for segment in manifest.segments:
                folder = target / "segments" / segment.name
                _columns(source / "segments" / segment.name, folder, columns_of(segment), copier)
            return manifest
        except (FileNotFoundError, CorruptError) as error:
            copier.undo(begun, folders)
            now = Manifest.read(source)
            if now == manifest:
                problem = f"{error.filename} is missing" if isinstance(error, OSError) else error.problem
                problem = problem.replace(str(target), str(source))
                raise CorruptError(problem, remedy=f"see `tamis doctor {source} --repair`") from error
            manifest = now


def columns_of(segment: SegmentInfo) -> dict[str, ColumnInfo]:
    """All files of a segment.

    >>> columns_of(SegmentInfo("s", 0, {}))
    {}
    """
    columns = dict(segment.columns)
    if segment.deleted is not None and segment.deleted_info is not None:
        columns[segment.deleted] = segment.deleted_info
    return columns


def _columns(source: Path, target: Path, columns: Mapping[str, ColumnInfo], copier: Copier) -> None:
    copier.folder(target)
    for name, info in columns.items():
        copier.file(source / name, target / name)
        Column(target / name, info).all()


def _tokens(source: Path, target: Path, manifest: Manifest, copier: Copier) -> list[str]:
    """Copy the tokens of the segments; which folders could not be. They can be made again."""
    named = {segment.name for segment in manifest.segments}
    without = []
    for path in sorted(source.glob("tokens/*/*")):
        if path.name not in named:
            continue
        begun, folders = len(copier.files), len(copier.folders)
        folder = target / path.relative_to(source)
        try:
            description = TokensInfo.read(path / "tokens.json")
            if description is None:
                continue
            _columns(path, folder, description.columns, copier)
            copier.file(path / "tokens.json", folder / "tokens.json")
            if TokensInfo.read(folder / "tokens.json") != description:
                raise CorruptError(f"{path} was just replaced")
        except (FileNotFoundError, CorruptError):
            copier.undo(begun, folders)
            without.append(str(path))
    return without
