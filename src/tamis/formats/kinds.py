"""The kinds of files that hold documents: by which suffixes they are known, and what reading them needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from tamis.base.extras import install
from tamis.formats import man_pages
from tamis.formats.office import KINDS as OFFICE
from tamis.storage.files import COMPRESSED_SUFFIXES

#: Of records, each a document; then of files that are one document each, and `files` for all of these.
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
#: Inside a folder fewer names count: a stray package.json does not make a folder of notes a corpus.
NOT_IN_FOLDERS = (".json", ".ndjson", ".sgml")
#: Markdown is text too, to `--format text`.
_TEXTS = (".txt", ".text", ".md")
#: What its reader opens by itself, so that no `.gz` may follow the suffix.
_PACKED: tuple[CorpusFormat, ...] = ("office", "parquet", "arrow")
_LOOKED_AT = 1 << 12


class Extra(NamedTuple):
    """What a kind of file needs that is not always installed."""

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
    """The command that installs what reading a file needs; empty if nothing needs to be added.

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
    """What a file that is not read is counted as: its suffixes, or that it has none.

    >>> [kind_of(Path(name)) for name in ("a.PNG", "a.tar.gz", "Makefile", "libc.so.6.1")]
    ['.png', '.tar.gz', 'without a suffix', '.so']
    """
    suffix = suffix_of(path)
    if suffix[1:].isdecimal():  # a version, of which there may be more parts
        shorter = path
        while shorter.suffix[1:].isdecimal():
            shorter = shorter.with_suffix("")
        return suffix_of(shorter) or suffix
    packed = path.suffix.lower() in COMPRESSED_SUFFIXES
    return (suffix + path.suffix.lower() * packed) or "without a suffix"


def format_of(path: Path) -> CorpusFormat | None:
    """The format of a file by its name; None if it is of no known kind.

    >>> format_of(Path("a.md")), format_of(Path("a.jsonl.zst")), format_of(Path("a.png"))
    ('markdown', 'jsonl', None)
    """
    suffix = suffix_of(path)
    format = SUFFIXES.get(suffix)
    if format in _PACKED and path.suffix.lower() != suffix:  # such as a.docx.gz
        return None
    return format or ("man" if man_pages.NAME.search(suffix) and _is_man_page(path) else None)


def format_in_folder(path: Path, wanted: CorpusFormat | None) -> CorpusFormat | None:
    """The format in which a file of a folder is read, if `wanted` (any, without one) is read there.

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
        if not path.is_file():  # a pipe would be waited for
            return False
        with open_bytes(path) as stream:
            return man_pages.looks_like_roff(stream.read(_LOOKED_AT))
    except (TamisError, OSError):
        return False
