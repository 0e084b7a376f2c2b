"""Files in the folder of an index beside its commit: those left by a killed or finished writer are removed,
foreign files are not. Files are removed if they have a marker (`tamis.storage.markers`), are named by the
manifest, or begin like a manifest; never by their name alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tamis.base.errors import TamisError
from tamis.index.manifest import NAME, Manifest, begins_as_manifest
from tamis.index.segment import SegmentInfo
from tamis.storage.columns import is_column
from tamis.storage.files import TEMPORARY, TEMPORARY_FILE, is_temporary
from tamis.storage.markers import MARKER, files_of, is_empty, is_marked, mark, remove_marked, unmark

_FOLDER = re.compile(rf"\d{{8,}}-[0-9a-f]{{8}}|{re.escape(TEMPORARY)}[0-9a-f]{{16}}(-old)?")
_SEGMENT_FILE = re.compile(
    r"(store|terms|documents|postings)\.[a-z_]+|deleted-(\d{8,}|at-first)"
    r"|run-\d+|(begun-)?task-\d+|done-\d+"  # what processes that build it leave to each other
)
_TOKENS_FILES = ("tokens.json", "ids", "ends", "lengths", "digests")


def remove_remains(folder: Path) -> None:
    """Remove what a killed or finished writer left that the manifest does not name; what cannot be removed
    stays for the next time. Only the holder of the lock may call this."""
    try:
        named = {segment.name: segment for segment in Manifest.read(folder).segments}
    except TamisError:
        if (folder / NAME).exists():
            return  # the segments it names could still be recovered
        named = {}
    for path in folder.glob(f"{TEMPORARY}*"):
        if is_temporary_manifest(path):
            with suppress(OSError):
                path.unlink()
    for path in (folder / "segments").glob("*"):
        segment = named.get(path.name)
        if segment is None:
            remove_marked(path, is_segment_file, empty_too=is_begun(path))
            continue
        unmark(path)  # the manifest names it now
        for bits in path.glob("deleted-*"):
            if bits.name != segment.deleted and is_segment_file(bits.name):
                with suppress(OSError):
                    bits.unlink()


def mark_leaving(folder: Path, staying: Manifest) -> None:
    """Mark the segments that the next manifest does not name any more, while it can be proved that they are
    ours: the present one names them, or, where that is damaged, they hold our columns."""
    named = {segment.name for segment in staying.segments}
    try:
        now = {segment.name for segment in Manifest.read(folder).segments}
    except TamisError:
        now = {path.name for path in (folder / "segments").glob("*") if _holds_columns(path)}
    for name in now - named:
        if _is_folder(folder / "segments" / name):
            mark(folder / "segments" / name)


def is_segment_file(name: str) -> bool:
    """
    >>> is_segment_file("store.frames"), is_segment_file("take.wav")
    (True, False)
    """
    return _SEGMENT_FILE.fullmatch(name) is not None


def is_tokens_file(name: str) -> bool:
    """
    >>> is_tokens_file("tokens.json"), is_tokens_file("take.wav")
    (True, False)
    """
    return name in _TOKENS_FILES or TEMPORARY_FILE.fullmatch(name) is not None


def is_temporary_manifest(path: Path) -> bool:
    """Whether a file is a manifest that a killed writer did not rename, or one left empty by a power cut."""
    return is_temporary(path) and (begins_as_manifest(path) or _is_blank(path))


def has_tokens(folder: Path) -> bool:
    """Whether a folder is marked, or has the description of a segment's tokens, which begins as a manifest:
    older ones have no marker."""
    return is_marked(folder) or (_is_folder(folder) and begins_as_manifest(folder / "tokens.json"))


def foreign(folder: Path) -> Path | None:
    """A file in a folder that is not part of an index, finished or interrupted; None if there is none.

    >>> folder = getfixture("tmp_path")
    >>> foreign(folder)
    >>> (folder / "segments" / "speaker1").mkdir(parents=True)
    >>> foreign(folder).name
    'speaker1'
    """
    return next(_foreign(folder), None)


def _foreign(folder: Path) -> Iterator[Path]:
    named = _named(folder)
    for path in sorted(folder.iterdir()):
        if path.name == "segments" and _is_folder(path):
            for each in sorted(path.iterdir()):
                yield from _not_of_segment(each, named.get(each.name))
        elif path.name == "tokens" and _is_folder(path):
            yield from _not_of_tokens(path)
        elif path.name == NAME:
            if not begins_as_manifest(path) and not _is_blank(path):
                yield path
        elif not _is_lock(path) and not is_temporary_manifest(path):
            yield path


def _not_of_segment(folder: Path, segment: SegmentInfo | None) -> Iterator[Path]:
    ours = segment or is_marked(folder) or is_begun(folder) or _holds_columns(folder)
    if not _is_folder(folder) or not ours:
        yield folder
        return
    listed = set(segment.columns) if segment else set()
    yield from _others(folder, lambda name: name in listed or is_segment_file(name))


def _not_of_tokens(tokens: Path) -> Iterator[Path]:
    for each in sorted(tokens.iterdir()):
        if not _is_folder(each):
            if not _is_lock(each):
                yield each
            continue
        for folder in sorted(each.iterdir()):
            if not _is_folder(folder) or not (has_tokens(folder) or is_begun(folder)):
                yield folder
            else:
                yield from _others(folder, is_tokens_file)


def _others(folder: Path, is_ours: Callable[[str], bool]) -> Iterator[Path]:
    ours = {path.name for path in files_of(folder) if path.name == MARKER or is_ours(path.name)}
    yield from (path for path in sorted(folder.iterdir()) if path.name not in ours)


def _named(folder: Path) -> dict[str, SegmentInfo]:
    """The names of the segments of the last commit; none without a readable manifest."""
    try:
        return {segment.name: segment for segment in Manifest.read(folder).segments}
    except TamisError:
        return {}


def _holds_columns(folder: Path) -> bool:
    """Whether a folder has a segment's name and columns: an index whose manifest is lost has such."""
    named = _FOLDER.fullmatch(folder.name) and _is_folder(folder)
    return bool(named) and any(is_column(folder / name) for name in ("documents.norms", "store.frames"))


def _is_blank(path: Path) -> bool:
    """Whether a file holds nothing, as a power cut can leave it."""
    return not path.is_symlink() and path.is_file() and not path.read_bytes().strip(b"\0")


def is_begun(folder: Path) -> bool:
    """Whether a folder has a name of ours and nothing in it yet but perhaps half a marker."""
    return bool(_FOLDER.fullmatch(folder.name)) and is_empty(folder)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_lock(path: Path) -> bool:
    """Our lock's file is empty, and is never removed."""
    return path.name == "lock" and not path.is_symlink() and path.is_file() and not path.stat().st_size
