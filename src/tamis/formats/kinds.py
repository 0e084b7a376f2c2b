"""The kinds of files that contain documents: their suffixes, and the packages that reading them needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from tamis.base.extras import install
from tamis.formats import man_pages
from tamis.formats.office import KINDS as OFFICE
from tamis.storage.files import COMPRESSED_SUFFIXES

#: Formats of records, each a document; then formats of files that are one document each, and `files` for all
#: of the latter.
RecordFormat = Literal["jsonl", "csv", "tsv", "trec", "parquet", "arrow"]
FileFormat = Literal["text", "markdown", "rst", "html", "man", "pdf", "office"]
CorpusFormat = Literal[
    "jsonl", "csv", "tsv", "trec", "text", "markdown", "rst", "html", "man", "pdf", "office", "parquet",
    "arrow", "files",
]  # fmt: skip

RECORDS: tuple[CorpusFormat, ...] = ("jsonl", "csv", "tsv", "trec", "parquet", "arrow")

SUFFIXES: dict[str, CorpusFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".trec": "trec",
    ".sgml": "trec",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "text",
    ".text": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".rst": "rst",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    **dict.fromkeys(OFFICE, "office"),
}
#: Suffixes that are ignored in folders: a stray package.json does not make a folder of notes a corpus.
NOT_IN_FOLDERS = (".json", ".ndjson", ".sgml")
#: With `--format text`, Markdown is text too.
_TEXTS = (".txt", ".text", ".md")
#: Formats whose library opens the file itself, so that `.gz` is not supported.
_PACKED: tuple[CorpusFormat, ...] = ("office", "parquet", "arrow")
_LOOKED_AT = 1 << 12


class Extra(NamedTuple):
    """An optional package that a kind of file needs."""

    module: str
    install: str

    def is_missing(self) -> bool:
        return find_spec(self.module) is None


EXTRAS: dict[str, Extra] = {
    "pdf": Extra("pypdfium2", install("pypdfium2")),
    "parquet": Extra("pyarrow", install("pyarrow")),
    "arrow": Extra("pyarrow", install("pyarrow")),
}


def install_for(path: Path) -> str:
    """The command that installs the package needed to read a file; empty if none is needed.

    >>> "pypdfium2" in install_for(Path("a.pdf")), install_for(Path("a.txt"))
    (True, '')
    """
    extra = EXTRAS.get(SUFFIXES.get(suffix_of(path), ""))
    return extra.install if extra is not None else ""


def suffix_of(path: Path) -> str:
    """The lower-case suffix that determines the format: that of `a.tsv.gz` is `.tsv`.

    >>> suffix_of(Path("a.TSV.gz")), suffix_of(Path("README"))
    ('.tsv', '')
    """
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()


def kind_of(path: Path) -> str:
    """The kind under which an unread file is counted: its suffixes, or "without a suffix".

    >>> [kind_of(Path(name)) for name in ("a.PNG", "a.tar.gz", "Makefile", "libc.so.6.1")]
    ['.png', '.tar.gz', 'without a suffix', '.so']
    """
    suffix = suffix_of(path)
    if suffix[1:].isdecimal():  # a version number, possibly with more parts
        shorter = path
        while shorter.suffix[1:].isdecimal():
            shorter = shorter.with_suffix("")
        return suffix_of(shorter) or suffix
    packed = path.suffix.lower() in COMPRESSED_SUFFIXES
    return (suffix + path.suffix.lower() * packed) or "without a suffix"


def format_of(path: Path) -> CorpusFormat | None:
    """The format of a file by its name; None if it is unknown.

    >>> format_of(Path("a.md")), format_of(Path("a.jsonl.zst")), format_of(Path("a.png"))
    ('markdown', 'jsonl', None)
    """
    suffix = suffix_of(path)
    format = SUFFIXES.get(suffix)
    if format in _PACKED and path.suffix.lower() != suffix:  # for example a.docx.gz
        return None
    return format or ("man" if man_pages.NAME.search(suffix) and _is_man_page(path) else None)


def format_in_folder(path: Path, wanted: CorpusFormat | None) -> CorpusFormat | None:
    """The format in which a file of a folder is read; None if it is not read because of `wanted` (None: any
    format).

    >>> format_in_folder(Path("a.json"), None), format_in_folder(Path("a.json"), "jsonl")
    (None, 'jsonl')
    >>> format_in_folder(Path("a.md"), "files"), format_in_folder(Path("a.md"), "text")
    ('markdown', 'text')
    """
    if wanted == "text":
        return "text" if suffix_of(path) in _TEXTS else None
    if wanted is None and suffix_of(path) in NOT_IN_FOLDERS:
        return None
    format = format_of(path)
    if wanted == "files":
        return None if format in RECORDS else format
    return format if wanted in (None, format) else None


def _is_man_page(path: Path) -> bool:
    from tamis.base.errors import TamisError
    from tamis.storage.files import open_bytes

    try:
        if not path.is_file():  # a pipe would block
            return False
        with open_bytes(path) as stream:
            return man_pages.looks_like_roff(stream.read(_LOOKED_AT))
    except (TamisError, OSError):
        return False
