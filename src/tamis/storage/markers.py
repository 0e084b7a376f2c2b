"""Folders that may be deleted: each holds a file that says so, with a checksum.

A name proves nothing: `segments/speaker1` may be somebody's recordings. So a folder that no manifest names
yet, or soon no longer, has a marker. It contains the name of the folder, so that a copy under another name
does not count. A folder without a marker is never removed, nor is a file with a foreign name in a marked
folder.
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
    """Mark a folder as written by tamis, under its own name and the other `names` that it will have.

    >>> folder = getfixture("tmp_path") / "part"
    >>> folder.mkdir()
    >>> is_marked(folder)
    False
    >>> mark(folder)
    >>> is_marked(folder), is_marked(folder.rename(folder.with_name("copy")))
    (True, False)
    """
    body = json.dumps({"tamis": "removes this folder when it is not needed", "names": names or [folder.name]})
    # not by a rename: half a marker is none, and then the folder stays
    with (folder / MARKER).open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{xxhash.xxh3_128_hexdigest(body.encode())}\n{body}\n")
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)  # so that no power cut leaves what comes into it without the marker


def is_marked(folder: Path) -> bool:
    """Whether a folder has a whole marker that was written for its name."""
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
    """Remove the marker of a folder: from now on a manifest names it.

    >>> mark(getfixture("tmp_path"))
    >>> unmark(getfixture("tmp_path"))
    >>> is_marked(getfixture("tmp_path"))
    False
    """
    if is_marked(folder):
        with suppress(OSError):
            (folder / MARKER).unlink()


def remove_marked(folder: Path, is_ours: Callable[[str], bool], *, empty_too: bool = False) -> None:
    """Remove a marked folder's files whose names are ours, and the folder if nothing is left in it;
    `empty_too` one without a marker that holds nothing, for who knows its name. What cannot be removed, such
    as what a reader on Windows holds open, stays for the next time."""
    if is_marked(folder):
        for path in list(files_of(folder)):
            if path.name != MARKER and is_ours(path.name):
                with suppress(OSError):
                    path.unlink()
    elif not empty_too:
        return
    if is_empty(folder):
        with suppress(OSError):
            sync_folder(folder)  # or a power cut could leave the files without the marker
            (folder / MARKER).unlink(missing_ok=True)
            folder.rmdir()


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing but perhaps a marker, or half of one: as it is just after it was made.

    >>> is_empty(getfixture("tmp_path"))
    True
    """
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(path.name == MARKER for path in folder.iterdir())


def files_of(folder: Path) -> Iterator[Path]:
    """The plain files of a folder: no links, nor folders."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
