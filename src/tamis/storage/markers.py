"""Markers for folders that tamis may delete: each contains a file that says so, with a checksum.

The name of a folder is not enough: `segments/speaker1` may be a user's recordings. So a folder that is not
yet in a manifest, or will soon be removed from it, has a marker. The marker contains the name of the folder,
so that a copy under another name does not count. A folder without a marker is never removed, and neither is a
file with an unknown name in a marked folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import xxhash

from tamis.storage.files import sync_folder

MARKER = "tamis.marker"
_LARGEST = 1 << 16  # bytes


def mark(folder: Path, *names: str) -> None:
    """Mark a folder as written by tamis, for the names that it has and will have (default: its current name).

    >>> folder = getfixture("tmp_path") / "part"
    >>> folder.mkdir()
    >>> is_marked(folder)
    False
    >>> mark(folder)
    >>> is_marked(folder), is_marked(folder.rename(folder.with_name("copy")))
    (True, False)
    """
    body = json.dumps({"tamis": "removes this folder when it is not needed", "names": names or [folder.name]})
    # no rename needed: an incomplete marker does not count, and then the folder is kept
    with (folder / MARKER).open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{xxhash.xxh3_128_hexdigest(body.encode())}\n{body}\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)  # so that after a power cut no files are in the folder without the marker


def is_marked(folder: Path) -> bool:
    """Whether a folder has a complete marker for its name."""
    path = folder / MARKER
    try:
        if folder.is_symlink() or path.is_symlink() or path.stat().st_size > _LARGEST:
            return False
        digest, _, rest = path.read_bytes().partition(b"\n")
    except OSError:
        return False
    body = rest[:-1]
    if digest != xxhash.xxh3_128_hexdigest(body).encode():
        return False
    return folder.name in json.loads(body)["names"]


def unmark(folder: Path) -> None:
    """Remove the marker of a folder, once it is in a manifest.

    >>> mark(getfixture("tmp_path"))
    >>> unmark(getfixture("tmp_path"))
    >>> is_marked(getfixture("tmp_path"))
    False
    """
    if is_marked(folder):
        with suppress(OSError):
            (folder / MARKER).unlink()


def remove_marked(folder: Path, is_ours: Callable[[str], bool], *, empty_too: bool = False) -> None:
    """Remove the files of a marked folder whose names are ours, and the folder if it is then empty. With
    `empty_too`, an empty folder without a marker is removed too, if its name is known to be ours. What cannot
    be removed, for example because a reader on Windows has it open, stays until the next time."""
    if is_marked(folder):
        for path in list(files_of(folder)):
            if path.name != MARKER and is_ours(path.name):
                with suppress(OSError):
                    path.unlink()
    elif not empty_too:
        return
    if is_empty(folder):
        with suppress(OSError):
            sync_folder(folder)  # otherwise a power cut could leave the files without the marker
            (folder / MARKER).unlink(missing_ok=True)
            folder.rmdir()


def is_empty(folder: Path) -> bool:
    """Whether a folder contains nothing except possibly a marker, complete or not: its state after creation.

    >>> is_empty(getfixture("tmp_path"))
    True
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(path.name == MARKER for path in folder.iterdir())


def files_of(folder: Path) -> Iterator[Path]:
    """The plain files of a folder, without links and folders."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
