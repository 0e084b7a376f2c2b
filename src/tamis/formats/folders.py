"""Lists the files of a folder: which are read, and which are left out and why."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from tamis.base.errors import InputError
from tamis.formats.kinds import EXTRAS, RECORDS, SUFFIXES, CorpusFormat, format_in_folder, kind_of, suffix_of
from tamis.formats.lines import SkipReport
from tamis.storage.files import COMPRESSED_SUFFIXES

# The file that defines a BEIR folder, and its other files: the queries, and a folder or files of judgments.
BEIR_CORPUS = "corpus.jsonl"
_OF_BEIR = (BEIR_CORPUS, "queries.jsonl", "qrels")

#: Why a file is left out: its kind is unknown, or not the requested one; it is a pipe or a device; it is in a
#: BEIR folder but not the corpus; it is hidden, a hidden folder or a link to a folder; an extra is missing;
#: it contains records, in a folder with mostly documents; it is a folder that cannot be opened.
Why = Literal["unknown", "other", "special", "beir", "hidden", "extra", "records", "closed"]

#: A folder with at least this many documents per file of records is a folder of documents, if they also have
#: more bytes.
_MANY = 50


class LeftFile(NamedTuple):
    """A file, or a folder, that is not read."""

    path: Path
    kind: str  # kind of file: its suffix, as in `kinds.kind_of`
    why: Why


class Entry(NamedTuple):
    """A file that is read, and how."""

    path: Path
    format: CorpusFormat


@dataclass(slots=True)
class LeftOut:
    """Collects the files of a corpus's folders that are not read, for a reader that gets one of these.

    `bad` counts the files that could not be read; with a `LeftOut`, a reader never stops at a bad file of a
    folder if that file is one document.

    >>> left = LeftOut([LeftFile(Path(name), ".png", "unknown") for name in ("a.png", "b.png")])
    >>> left.counts("unknown")
    {'.png': 2}
    """

    files: list[LeftFile] = field(default_factory=list)
    bad: SkipReport = field(default_factory=SkipReport)

    def counts(self, *why: Why) -> dict[str, int]:
        """How many files of each kind are left out for these reasons, the most frequent first."""
        return dict(Counter(file.kind for file in self.files if file.why in why).most_common())

    def first(self, *why: Why) -> Path | None:
        return next((file.path for file in self.files if file.why in why), None)


def list_folder(folder: Path, wanted: CorpusFormat | None) -> tuple[list[Entry], list[LeftFile]]:
    """The files of a folder that are read, and those that are not, each in the order of their paths.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("a.txt", "b.md", "c.png", ".hidden"):
    ...     (folder / name).touch()
    >>> read, left = list_folder(folder, None)
    >>> [entry.format for entry in read], [file.path.name for file in left]
    (['text', 'markdown'], ['.hidden', 'c.png'])
    """
    left: list[LeftFile] = []
    files = list(_visible_files(folder, left))
    if (corpus := beir_corpus(folder, wanted)) is not None:
        left += [LeftFile(path, kind_of(path), "beir") for path in files if path != corpus]
        return [Entry(corpus, "jsonl")], _ordered(left)
    found = [Entry(path, format) for path in files if (format := format_in_folder(path, wanted)) is not None]
    if wanted not in (None, "files", "office") and not any(not is_special(entry.path) for entry in found):
        found = [Entry(path, wanted) for path in files]  # TREC's disks have no suffixes
    read: list[Entry] = []
    missing = {format for format, extra in EXTRAS.items() if extra.is_missing()}
    for entry in found:
        if is_special(entry.path):
            left.append(LeftFile(entry.path, kind_of(entry.path), "special"))
        elif entry.format in missing:
            left.append(LeftFile(entry.path, kind_of(entry.path), "extra"))
        else:
            read.append(entry)
    others = sorted(set(files) - {entry.path for entry in found})
    for path in others:
        known = wanted is not None and format_in_folder(path, None) is not None
        why: Why = "special" if is_special(path) else "other" if known else "unknown"
        left.append(LeftFile(path, kind_of(path), why))
    if wanted is None:
        stray = set(_stray_records(read))
        left += [LeftFile(entry.path, kind_of(entry.path), "records") for entry in stray]
        read = [entry for entry in read if entry not in stray]
    return read, _ordered(left)


def _stray_records(entries: list[Entry]) -> list[Entry]:
    """The files of records, for example a sample CSV, in a folder that consists mostly of documents."""
    records = [entry for entry in entries if entry.format in RECORDS]
    documents = [entry for entry in entries if entry.format not in RECORDS]
    if not records or len(documents) < _MANY * len(records) or _bytes(documents) < _bytes(records):
        return []
    return records


def _bytes(entries: list[Entry]) -> int:
    total = 0
    for entry in entries:
        with suppress(OSError):  # a broken link; reading it reports this
            total += entry.path.stat().st_size
    return total


def _ordered(files: list[LeftFile]) -> list[LeftFile]:
    return sorted(files, key=lambda file: file.path.as_posix())


def both_kinds(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """One file of each format that is a document a file, and one of each format of records. If a folder has
    both, and not mostly documents, the user must say which of them are the corpus."""
    first = {entry.format: entry for entry in reversed(entries)}
    chosen = sorted(first.values(), key=lambda entry: entry.path)
    return [each for each in chosen if each.format not in RECORDS], [
        each for each in chosen if each.format in RECORDS
    ]


def is_special(path: Path) -> bool:
    """Whether a file in a folder is a pipe, a socket or a device and not a regular file.

    >>> is_special(Path("/dev/null")), is_special(Path("no such file"))
    (True, False)
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:  # reading the file reports it
        return False


def is_beir(folder: Path, format: CorpusFormat | None = None) -> bool:
    """Whether a folder is read as a BEIR folder, that is, only its `corpus.jsonl`.

    >>> folder = getfixture("tmp_path")
    >>> (folder / "corpus.jsonl.gz").touch()
    >>> is_beir(folder), is_beir(folder, "tsv")
    (True, False)
    """
    return beir_corpus(folder, format) is not None


def beir_corpus(folder: Path, format: CorpusFormat | None) -> Path | None:
    """The only file that is read of a BEIR folder; None if it is not a BEIR folder."""
    if format not in (None, "jsonl"):
        return None
    names = (BEIR_CORPUS + suffix for suffix in ("", *COMPRESSED_SUFFIXES))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def could_be_corpus(path: Path, folder: Path, format: CorpusFormat | None) -> bool:
    """Whether another file in a BEIR folder could contain documents, and is not one of BEIR's own files."""
    if path.relative_to(folder).parts[0].startswith(_OF_BEIR):
        return False
    own = SUFFIXES.get(suffix_of(path))
    return own in (*RECORDS, "text", "markdown") if format is None else own == format


def closed(folder: Path) -> InputError:
    """The error for a folder that cannot be opened.

    >>> str(closed(Path("notes")))
    'notes: cannot be opened: check that you may read it'
    """
    return InputError("cannot be opened", remedy="check that you may read it", path=folder)


def _visible_files(folder: Path, left: list[LeftFile]) -> Iterator[Path]:
    def note(error: OSError) -> None:  # otherwise os.walk skips it silently, with all its documents
        path = Path(error.filename)
        if path == folder:
            raise closed(path) from error
        left.append(LeftFile(path, "closed folder", "closed"))

    found = []
    for parent, folders, names in os.walk(folder, onerror=note):
        for name in list(folders):
            path = Path(parent, name)
            if name.startswith("."):
                left.append(LeftFile(path, "hidden folder", "hidden"))
                folders.remove(name)
            elif path.is_symlink():
                left.append(LeftFile(path, "linked folder", "hidden"))
        hidden = [name for name in names if name.startswith(".")]
        left += [LeftFile(Path(parent, name), "hidden file", "hidden") for name in hidden]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return iter(sorted(found, key=lambda path: path.as_posix()))
