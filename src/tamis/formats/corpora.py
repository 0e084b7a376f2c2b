"""Corpora: JSONL (BEIR), CSV, TSV (MS MARCO), TREC SGML, Parquet and Arrow, folders of texts, web pages, PDF
and office files, and ir_datasets, one document at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from tamis.base.documents import Document
from tamis.base.errors import InputError, TamisError, quoted
from tamis.formats import irds
from tamis.formats.apart import Reader
from tamis.formats.charset import decoded
from tamis.formats.csv_rows import read_rows
from tamis.formats.folders import (
    Entry,
    LeftOut,
    both_kinds,
    closed,
    could_be_corpus,
    is_beir,
    list_folder,
)
from tamis.formats.json_lines import parse_object
from tamis.formats.kinds import EXTRAS, RECORDS, SUFFIXES, CorpusFormat, format_of, install_for, suffix_of
from tamis.formats.lines import (
    LONGEST_RECORD,
    SkipReport,
    check_no_header,
    located,
    read_bytes,
    read_lines,
    skip_file_or_raise,
    skip_or_raise,
)
from tamis.formats.man_pages import read_man
from tamis.formats.markup import read_markdown, read_rst
from tamis.formats.pages import Page, looks_binary
from tamis.formats.records import ID_KEYS, TEXT_KEYS, document_of, plain
from tamis.formats.sgml import read_trec_documents
from tamis.formats.tables import read_table
from tamis.storage.files import STDIN, PathLike, read_text

_MOST_COLUMNS = 8  # of a TSV that are split: more are an error anyway
_HEADER_REMEDY = "read the file as csv (--format csv), or take the line out"


class _Source(NamedTuple):
    path: PathLike
    format: CorpusFormat | Literal["irds"]
    name: str  # the id, if the file is one document
    spared: bool = False  # whether it is left out if it is bad, by a reader that counts such files


class Place(NamedTuple):
    """The location of a document in a corpus.

    >>> str(Place("corpus.jsonl", 7, "jsonl")), str(Place("notes/soup.txt", None, "text"))
    ('corpus.jsonl, line 7', 'notes/soup.txt')
    """

    path: str
    line: int | None  # first line of the document; None if it is the whole file, or has no lines
    format: CorpusFormat | Literal["irds"]

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}, line {self.line}"


_Numbered = Iterator[tuple[int | None, Document]]  # documents with their lines


def read_corpus(
    *paths: PathLike,
    format: CorpusFormat | None = None,
    skipped: SkipReport | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[Document]:
    """The documents of files and folders, read one at a time, in order.

    The format follows from the suffix (before `.gz` or `.zst`) unless `format` names it; `-` is the standard
    input, JSONL by default. In files of records each record is a document:

    - jsonl: id in `_id`, `id` or `docid` (numbers become strings), text in `text`, `contents`, `content` or
      `body` (the first of them that is neither `null` nor blank), optional `title` and `metadata`; every
      other key is kept in the metadata, even an empty one. `null` text and titles are empty.
    - csv: the first line names the columns as the keys of jsonl are named, in any case; commas, semicolons
      or tabs separate them; see `tamis.formats.csv_rows`.
    - parquet, arrow: columns named as the keys of jsonl (the extra `arrow`).
    - tsv: `id text`, `id title text` or MS MARCO's `id url title body` (the url goes to the metadata); the
      first line decides which.
    - trec: `<DOC>` elements; see `tamis.formats.sgml`.

    Any other file is one document, and its name is the id:

    - text: as it is; markdown, rst: with the first heading as the title; man: a manual page.
    - html: the title and the main text; pdf (the extra `pdf`); office: docx, pptx, xlsx, odt, odp,
      ods and epub. Another process reads these, so that a hostile file ends only that process.

    A folder with a `corpus.jsonl` is a BEIR folder: only that file is read. Any other folder is read
    recursively and in sorted order, without hidden files: its files of records, or its files that are one
    document each, with their relative paths as ids. With a `format`, the files with its suffixes are read, or
    all files if none has them (TREC's disks have no suffixes); `files` stands for all kinds that are one
    document. Pipes, sockets and devices in it are left out, because reading one can block forever.

    `irds:NAME` is a dataset of ir_datasets, whatever the `format`; see `tamis.formats.irds`.

    Paths are checked at once. Empty texts and NUL characters are allowed; the document store checks for
    duplicate ids. A bad line (or a bad file, if a file is a document) raises an `InputError`, or is counted
    in `skipped` and left out. `left_out` collects the files of folders that are not read; with it, bad files
    of folders, and folders that cannot be opened, are counted there and do not raise.

    >>> file = getfixture("tmp_path") / "corpus.jsonl"
    >>> _ = file.write_text('{"_id": 7, "title": "Tamis", "text": "A sieve.", "year": 1900}')
    >>> list(read_corpus(file))
    [Document(id='7', text='A sieve.', title='Tamis', metadata={'year': 1900})]
    """
    if format is not None and format not in get_args(CorpusFormat):
        remedy = f"use one of {', '.join(get_args(CorpusFormat))}"
        raise InputError(f"unknown corpus format {format!r}", remedy=remedy)
    sources = [source for path in paths for source in _sources(path, format, left_out)]
    return _read_sources(sources, skipped, left_out)


def files_left_out(folder: Path, format: CorpusFormat | None = None) -> list[Path]:
    """The files of a folder that `read_corpus` does not read, except hidden ones; in a BEIR folder, only
    those that could be a corpus.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("a.txt", "b.md", "c.png"):
    ...     (folder / name).touch()
    >>> [path.name for path in files_left_out(folder)]
    ['c.png']
    >>> for name in ("corpus.jsonl", "queries.jsonl", "licence.png"):
    ...     (folder / name).touch()
    >>> [path.name for path in files_left_out(folder)]
    ['a.txt', 'b.md']
    """
    left = [file.path for file in list_folder(folder, format)[1] if file.why != "hidden"]
    if is_beir(folder, format):
        return [path for path in left if could_be_corpus(path, folder, format)]
    return left


def files_read(folder: Path) -> list[Path]:
    """The files of a folder that `read_corpus` reads; if there are none, all files that are not hidden.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("a.txt", "b.run"):
    ...     (folder / name).touch()
    >>> [path.name for path in files_read(folder)]
    ['a.txt']
    """
    read, left = list_folder(folder, None)
    return [entry.path for entry in read] or [file.path for file in left if file.why != "hidden"]


def places_of(
    doc_id: str, *paths: PathLike, format: CorpusFormat | None = None, first: int | None = None
) -> list[Place]:
    """The locations of the documents with this id among the `first` of a corpus: at most two, fewer if files
    cannot be read again.

    It reads the corpus again, so that nothing needs to be stored per document for a rare error.

    >>> file = getfixture("tmp_path") / "corpus.jsonl"
    >>> _ = file.write_text('{"id": 1, "text": "a"}\\n{"id": 2, "text": "b"}\\n{"id": 1, "text": "c"}')
    >>> [place.line for place in places_of("1", file)]
    [1, 3]
    """
    found: list[Place] = []
    try:
        sources = [source for path in paths for source in _sources(path, format, None) if _can_reread(source)]
        for source, line, document in islice(_located_documents(sources, SkipReport(), None), first):
            if document.id == doc_id:
                found.append(Place(os.fspath(source.path), line, source.format))
                if len(found) == 2:
                    break
    except TamisError:  # the caller reports the original error, for which the places are needed
        pass
    return found


def _can_reread(source: _Source) -> bool:
    """Whether a source can be read again: not a pipe, which is now empty, or would block forever."""
    if source.format == "irds":
        return True
    return os.fspath(source.path) != STDIN and Path(source.path).is_file()


def _read_sources(
    sources: list[_Source], skipped: SkipReport | None, left_out: LeftOut | None
) -> Iterator[Document]:
    for _, _, document in _located_documents(sources, skipped, left_out):
        yield document


def _located_documents(
    sources: list[_Source], skipped: SkipReport | None, left_out: LeftOut | None
) -> Iterator[tuple[_Source, int | None, Document]]:
    with ExitStack() as stack:
        reader: Reader | None = None
        for source in sources:
            spared = left_out.bad if left_out is not None and source.spared else skipped
            if (broken := _broken_link(source)) is not None:
                skip_file_or_raise(broken, spared)
                continue
            if source.format in _READERS:
                for line, document in _READERS[source.format](source, spared):
                    yield source, line, document
                continue
            if source.format in _APART and reader is None:
                reader = stack.enter_context(Reader())
            try:
                document = _file_document(source, reader)
            except TamisError as error:
                skip_file_or_raise(_as_input_error(error, source.path), spared)
            else:
                yield source, None, document


def _as_input_error(error: TamisError, path: PathLike) -> InputError:
    if isinstance(error, InputError):
        return error
    return InputError(error.problem, remedy=error.remedy, path=os.fspath(path))


def _file_document(source: _Source, reader: Reader | None) -> Document:
    """The document of a file that is one document."""
    name, path = _file_id(source), Path(source.path)
    if source.format in _APART:
        assert reader is not None
        if os.fspath(source.path) == STDIN:
            raise InputError(f"{source.format} cannot be read from a pipe", remedy="give a file")
        found = reader.read(path, source.format)
    else:
        try:
            found = _PAGES[source.format](source.path)
        except InputError as error:
            raise error if error.path else InputError(error.problem, remedy=error.remedy, path=path) from None
    return Document(name, found.text, found.title, {"url": found.url} if found.url else {})


def _text_of(path: PathLike) -> str:
    text = read_text(path, LONGEST_RECORD)
    if looks_binary(text):
        raise InputError("binary, not text", remedy="rename it, or leave it out")
    return text


def _man_text(path: PathLike) -> str:
    return decoded(read_bytes(path, LONGEST_RECORD)).replace("\r\n", "\n")


def _broken_link(source: _Source) -> InputError | None:
    """The error for a broken link in a folder: "no such file" would be confusing, because the folder lists
    the name."""
    path = Path(source.path)
    if not path.is_symlink():
        return None
    try:
        path.stat()
    except FileNotFoundError:
        remedy = "remove the link, or restore the file it points to"
        return InputError(f"a broken link ({path.readlink()})", remedy=remedy, path=path)
    except OSError:  # reading the file reports it
        pass
    return None


def _sources(path: PathLike, format: CorpusFormat | None, left_out: LeftOut | None) -> list[_Source]:
    if os.fspath(path) == STDIN:
        return [_Source(STDIN, "text" if format == "files" else format or "jsonl", "stdin")]
    if (dataset := irds.dataset_name(path)) is not None:
        irds.dataset_with(dataset, "docs")
        return [_Source(path, "irds", dataset)]
    path = Path(path)
    if path.is_dir():
        return _folder_sources(path, format, left_out)
    if not path.exists():
        raise InputError("no such file or folder", remedy="check the path", path=path)
    chosen = format_of(path) if format in (None, "files") else format
    if chosen is None:
        formats = ", ".join(get_args(CorpusFormat))
        remedy = f"give the format (--format): {formats}; or convert the file to one of these"
        raise InputError(f"the suffix {quoted(path.suffix)} names no corpus format", remedy=remedy, path=path)
    extra = EXTRAS.get(chosen)
    if extra is not None and extra.is_missing():
        problem = f"reading {suffix_of(path) or chosen} needs {extra.module}, which is not installed"
        raise InputError(problem, remedy=extra.install, path=path)
    return [_Source(path, chosen, path.name)]


def _folder_sources(folder: Path, format: CorpusFormat | None, left_out: LeftOut | None) -> list[_Source]:
    read, left = list_folder(folder, format)
    documents, records = both_kinds(read)
    if format is None and documents and records:
        named = f"such as {documents[0].path.name}, and files of records, such as {records[0].path.name}"
        problem = f"holds files that are a document each, {named}"
        formats = " or ".join(entry.format for entry in records)
        remedy = f"give the format (--format): files for the documents, {formats} for the records"
        raise InputError(problem, remedy=remedy, path=folder)
    if left_out is not None:
        left_out.files += left
    elif (unread := next((file.path for file in left if file.why == "closed"), None)) is not None:
        raise closed(unread)
    if not read:
        needed = {install for file in left if file.why == "extra" and (install := install_for(file.path))}
        remedy = f"give a folder with {_SUFFIXES_NAMED} files, or the format (--format)"
        raise InputError("holds no corpus file", remedy=" and ".join(sorted(needed)) or remedy, path=folder)
    return [_source_of(folder, entry) for entry in read]


def _source_of(folder: Path, entry: Entry) -> _Source:
    is_file = entry.format not in RECORDS
    return _Source(entry.path, entry.format, entry.path.relative_to(folder).as_posix(), spared=is_file)


def _read_jsonl(source: _Source, skipped: SkipReport | None) -> _Numbered:
    for number, line in read_lines(source.path, skipped=skipped):
        try:
            document = document_of(parse_object(line))
        except InputError as error:
            skip_or_raise(located(error, source.path, number), skipped)
        else:
            yield number, document


def _read_csv(source: _Source, skipped: SkipReport | None) -> _Numbered:
    for number, record in read_rows(source.path, (ID_KEYS, TEXT_KEYS), optional=("title",), skipped=skipped):
        try:
            document = document_of(record)
        except InputError as error:
            skip_or_raise(located(error, source.path, number), skipped)
        else:
            yield number, document


def _read_table(source: _Source, skipped: SkipReport | None) -> _Numbered:
    for number, row in read_table(source.path, source.format):
        try:
            document = document_of({key: plain(value) for key, value in row.items()})
        except InputError as error:
            skip_or_raise(located(error, source.path, number), skipped)
        else:
            yield number, document


def _read_tsv(source: _Source, skipped: SkipReport | None) -> _Numbered:
    width = 0
    for number, line in read_lines(source.path, skipped=skipped):
        cells = line.split("\t", _MOST_COLUMNS)
        if not width:
            try:
                check_no_header(cells, ID_KEYS, TEXT_KEYS, _HEADER_REMEDY)
            except InputError as header:  # always an error, even if bad lines are skipped, as in a CSV
                raise located(header, source.path, number) from None
        if not width and len(cells) in (2, 3, 4):
            width = len(cells)
        if len(cells) != width or not cells[0]:
            error = InputError(
                _tsv_problem(line.count("\t") + 1, width), remedy="use tabs only between columns"
            )
            skip_or_raise(located(error, source.path, number), skipped)
        elif width == 4:
            yield number, Document(cells[0], cells[3], cells[2], {"url": cells[1]})
        else:
            yield number, Document(cells[0], cells[-1], cells[1] if width == 3 else "")


def _tsv_problem(columns: int, width: int) -> str:
    if columns == width:
        return "the id is empty"
    expected = f"the lines above have {width}" if width else "a corpus has 2 to 4"
    return f"{columns} tab-separated columns where {expected}"


def _read_trec(source: _Source, skipped: SkipReport | None) -> _Numbered:
    yield from read_trec_documents(source.path, skipped)


def _read_irds(source: _Source, skipped: SkipReport | None) -> _Numbered:
    for document in irds.documents(source.name, skipped):
        yield None, document


def _file_id(source: _Source) -> str:
    try:
        source.name.encode()
    except UnicodeEncodeError:  # Linux allows any bytes in a name
        name = source.name.encode(errors="backslashreplace").decode()
        raise InputError("the file's name is not UTF-8", remedy="rename it", path=name) from None
    return source.name


_READERS: dict[str, Callable[[_Source, SkipReport | None], _Numbered]] = {
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "trec": _read_trec,
    "parquet": _read_table,
    "arrow": _read_table,
    "irds": _read_irds,
}
# Files that are one document each: simple ones are read in this process, the others in a separate one.
_PAGES: dict[str, Callable[[PathLike], Page]] = {
    "text": lambda path: Page("", _text_of(path)),
    "markdown": lambda path: read_markdown(_text_of(path)),
    "rst": lambda path: read_rst(_text_of(path)),
    "man": lambda path: read_man(_man_text(path)),
}
_APART = ("html", "pdf", "office")
_SUFFIXES_NAMED = ", ".join(sorted(SUFFIXES))
