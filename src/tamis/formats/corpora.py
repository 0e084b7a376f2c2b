"""Corpora: JSONL (BEIR), CSV, TSV (MS MARCO), TREC SGML, folders of text and ir_datasets, one document at
a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from tamis.base.documents import Document
from tamis.base.errors import InputError, TamisError, quoted
from tamis.formats import irds
from tamis.formats.csv_rows import read_rows
from tamis.formats.json_lines import first_filled, first_present, parse_object, to_id, to_text
from tamis.formats.lines import (
    LONGEST_RECORD,
    SkipReport,
    check_no_header,
    located,
    read_lines,
    skip_file_or_raise,
    skip_or_raise,
)
from tamis.formats.sgml import read_trec_documents
from tamis.storage.files import COMPRESSED_SUFFIXES, STDIN, PathLike, read_text

CorpusFormat = Literal["jsonl", "csv", "tsv", "trec", "text"]

ID_KEYS = ("_id", "id", "docid")
TEXT_KEYS = ("text", "contents", "content", "body")

_SUFFIXES: dict[str, CorpusFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".trec": "trec",
    ".sgml": "trec",
    ".txt": "text",
    ".md": "text",
}
# Inside a folder fewer names count: a stray package.json does not make a folder of notes a corpus.
FOLDER_SUFFIXES = (".jsonl", ".csv", ".tsv", ".trec", ".txt", ".md")
# What makes a BEIR folder, and what belongs to it: the queries, and a folder or files of judgments.
BEIR_CORPUS = "corpus.jsonl"
_OF_BEIR = (BEIR_CORPUS, "queries.jsonl", "qrels")
_MOST_COLUMNS = 8  # of a TSV that are looked at: one too many is enough to know
_HEADER_REMEDY = "read the file as csv (--format csv), or take the line out"


class _Source(NamedTuple):
    path: PathLike
    format: CorpusFormat | Literal["irds"]
    name: str  # the id, where the file is one document


class Place(NamedTuple):
    """Where a document stands in a corpus.

    >>> str(Place("corpus.jsonl", 7, "jsonl")), str(Place("notes/soup.txt", None, "text"))
    ('corpus.jsonl, line 7', 'notes/soup.txt')
    """

    path: str
    line: int | None  # the first of the document; None where it is the whole file, or has no lines
    format: CorpusFormat | Literal["irds"]

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}, line {self.line}"


_Numbered = Iterator[tuple[int | None, Document]]  # documents with their lines


def read_corpus(
    *paths: PathLike, format: CorpusFormat | None = None, skipped: SkipReport | None = None
) -> Iterator[Document]:
    """The documents of files and folders, read one at a time, in order.

    The format follows from the suffix (before `.gz` or `.zst`) unless `format` names it; `-` is the standard
    input, JSONL by default:

    - jsonl: id in `_id`, `id` or `docid` (numbers become strings), text in `text`, `contents`, `content` or
      `body` (the first of them that is neither `null` nor blank), optional `title` and `metadata`; every
      other key is kept in the metadata, even an empty one. `null` text and titles are empty.
    - csv: the first line names the columns as the keys of jsonl are named, in any case; commas, semicolons
      or tabs separate them; see `tamis.formats.csv_rows`.
    - tsv: `id text`, `id title text` or MS MARCO's `id url title body` (the url goes to the metadata); the
      first line decides which.
    - trec: `<DOC>` elements; see `tamis.formats.sgml`.
    - text: the file is one document, its name is the id.

    A folder that holds `corpus.jsonl` is a BEIR folder: that file alone is read. Any other folder is read
    recursively and in sorted order, without hidden files: its `.jsonl`, `.csv`, `.tsv` and `.trec` files, or
    its `.txt` and `.md` files with their relative paths as ids. With a `format`, the files with its
    suffixes, or every file where none has them (TREC's disks have no suffixes). Pipes, sockets and devices
    in it are left out: reading one may wait without end.

    `irds:NAME` is a dataset of ir_datasets, whatever the `format`; see `tamis.formats.irds`.

    Paths are checked at once. Empty texts and NUL characters are allowed; whether ids repeat is for the
    store to find out. A bad line (or a bad file, where a file is a document) is an `InputError`, or is
    counted in `skipped` and left out.

    >>> file = getfixture("tmp_path") / "corpus.jsonl"
    >>> _ = file.write_text('{"_id": 7, "title": "Tamis", "text": "A sieve.", "year": 1900}')
    >>> list(read_corpus(file))
    [Document(id='7', text='A sieve.', title='Tamis', metadata={'year': 1900})]
    """
    if format is not None and format not in get_args(CorpusFormat):
        remedy = f"use one of {', '.join(get_args(CorpusFormat))}"
        raise InputError(f"unknown corpus format {format!r}", remedy=remedy)
    sources = [source for path in paths for source in _sources(path, format)]
    return _read_sources(sources, skipped)


def files_left_out(folder: Path, format: CorpusFormat | None = None) -> list[Path]:
    """The files of a folder that `read_corpus` passes over though nobody told it to: those whose format it
    cannot tell, those that are no regular files and, in a BEIR folder, those that could be a corpus too.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("a.txt", "b.md", "c.pdf"):
    ...     (folder / name).touch()
    >>> [path.name for path in files_left_out(folder)]
    ['c.pdf']
    >>> for name in ("corpus.jsonl", "queries.jsonl", "licence.pdf"):
    ...     (folder / name).touch()
    >>> [path.name for path in files_left_out(folder)]
    ['a.txt', 'b.md']
    """
    files = _visible_files(folder)
    if is_beir(folder, format):
        wanted = _SUFFIXES if format is None else [key for key in _SUFFIXES if _SUFFIXES[key] == format]
        others = (path for path in files if _suffix(path) in wanted)
        return [path for path in others if not path.relative_to(folder).parts[0].startswith(_OF_BEIR)]
    if format is not None:
        own = [path for path in files if _SUFFIXES.get(_suffix(path)) == format]
        read = own if any(not is_special(path) for path in own) else files
        return [path for path in read if is_special(path)]
    return sorted(set(files) - {Path(source.path) for source in _folder_sources(folder, None)})


def files_read(folder: Path) -> list[Path]:
    """The files of a folder that `read_corpus` may read.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("a.txt", "b.run"):
    ...     (folder / name).touch()
    >>> [path.name for path in files_read(folder)]
    ['a.txt']
    """
    if (corpus := _beir_corpus(folder, None)) is not None:
        return [corpus]
    files = _visible_files(folder)
    return [path for path in files if _suffix(path) in FOLDER_SUFFIXES] or files


def is_special(path: Path) -> bool:
    """Whether a file in a folder is no regular one, but a pipe, a socket or a device.

    >>> is_special(Path("/dev/null")), is_special(Path("no such file"))
    (True, False)
    """
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:  # which reading it explains
        return False


def is_beir(folder: Path, format: CorpusFormat | None = None) -> bool:
    """Whether a folder is read as BEIR's, that is whether its `corpus.jsonl` alone is.

    >>> folder = getfixture("tmp_path")
    >>> (folder / "corpus.jsonl.gz").touch()
    >>> is_beir(folder), is_beir(folder, "tsv")
    (True, False)
    """
    return _beir_corpus(folder, format) is not None


def places_of(
    doc_id: str, *paths: PathLike, format: CorpusFormat | None = None, first: int | None = None
) -> list[Place]:
    """Where the documents with this id stand among the `first` of a corpus: two places at most, fewer where
    files cannot be read again.

    It reads the corpus anew, so that nothing needs to be kept of each document for an error that is rare.

    >>> file = getfixture("tmp_path") / "corpus.jsonl"
    >>> _ = file.write_text('{"id": 1, "text": "a"}\\n{"id": 2, "text": "b"}\\n{"id": 1, "text": "c"}')
    >>> [place.line for place in places_of("1", file)]
    [1, 3]
    """
    found: list[Place] = []
    try:
        sources = [source for path in paths for source in _sources(path, format) if _can_reread(source)]
        for source, line, document in islice(_located_documents(sources, SkipReport()), first):
            if document.id == doc_id:
                found.append(Place(os.fspath(source.path), line, source.format))
                if len(found) == 2:
                    break
    except TamisError:  # the error that the places are for is the one to tell
        pass
    return found


def _can_reread(source: _Source) -> bool:
    """Not a pipe, which is empty by now, or would be waited for without end."""
    if source.format == "irds":
        return True
    return os.fspath(source.path) != STDIN and Path(source.path).is_file()


def _read_sources(sources: list[_Source], skipped: SkipReport | None) -> Iterator[Document]:
    for _, _, document in _located_documents(sources, skipped):
        yield document


def _located_documents(
    sources: list[_Source], skipped: SkipReport | None
) -> Iterator[tuple[_Source, int | None, Document]]:
    for source in sources:
        if (broken := _broken_link(source)) is not None:
            skip_file_or_raise(broken, skipped)
            continue
        for line, document in _READERS[source.format](source, skipped):
            yield source, line, document


def _broken_link(source: _Source) -> InputError | None:
    """The error for a link in a folder to what is not there: "no such file" would be said of a name that
    whoever looks into the folder sees."""
    path = Path(source.path)
    if not path.is_symlink():
        return None
    try:
        path.stat()
    except FileNotFoundError:
        remedy = "remove the link, or put the file where it leads"
        return InputError(f"a link to what is not there ({path.readlink()})", remedy=remedy, path=path)
    except OSError:  # which reading it explains
        pass
    return None


def _sources(path: PathLike, format: CorpusFormat | None) -> list[_Source]:
    if os.fspath(path) == STDIN:
        return [_Source(STDIN, format or "jsonl", "stdin")]
    if (dataset := irds.dataset_name(path)) is not None:
        irds.dataset_with(dataset, "docs")
        return [_Source(path, "irds", dataset)]
    path = Path(path)
    if path.is_dir():
        return _folder_sources(path, format)
    if not path.exists():
        raise InputError("no such file or folder", remedy="check the path", path=path)
    chosen = format or _SUFFIXES.get(_suffix(path))
    if chosen is None:
        formats = ", ".join(get_args(CorpusFormat))
        remedy = f"give the format (--format): {formats}; or convert the file to one of these"
        raise InputError(f"the suffix {quoted(path.suffix)} names no corpus format", remedy=remedy, path=path)
    return [_Source(path, chosen, path.name)]


def _suffix(path: Path) -> str:
    """The lower-case suffix that tells the format: that of `a.tsv.gz` is `.tsv`."""
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()


def _folder_sources(folder: Path, format: CorpusFormat | None) -> list[_Source]:
    if (corpus := _beir_corpus(folder, format)) is not None:
        return [_Source(corpus, "jsonl", corpus.name)]
    files = [path for path in _visible_files(folder) if not is_special(path)]
    known = [path for path in files if _suffix(path) in FOLDER_SUFFIXES]
    if format is None:
        formats = {_SUFFIXES[_suffix(path)]: path for path in reversed(known)}
        if "text" in formats and len(formats) > 1:
            names = " and ".join(sorted(path.name for path in formats.values()))
            problem = f"holds both corpus files and text files ({names})"
            raise InputError(problem, remedy="give the format (--format)", path=folder)
        chosen = known
    else:
        chosen = [path for path in files if _SUFFIXES.get(_suffix(path)) == format] or files
    if not chosen:
        remedy = f"give a folder with {', '.join(FOLDER_SUFFIXES)} files, or the format (--format)"
        raise InputError("holds no corpus file", remedy=remedy, path=folder)
    return [
        _Source(path, format or _SUFFIXES[_suffix(path)], path.relative_to(folder).as_posix())
        for path in chosen
    ]


def _beir_corpus(folder: Path, format: CorpusFormat | None) -> Path | None:
    if format not in (None, "jsonl"):
        return None
    names = (BEIR_CORPUS + suffix for suffix in ("", *COMPRESSED_SUFFIXES))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _visible_files(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:  # or os.walk passes it over, and nobody misses the documents in it
        remedy = "check that you may read it"
        raise InputError(
            f"cannot be opened ({error.strerror})", remedy=remedy, path=error.filename
        ) from error

    found = []
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(found, key=lambda path: path.as_posix())


def _read_jsonl(source: _Source, skipped: SkipReport | None) -> _Numbered:
    for number, line in read_lines(source.path, skipped=skipped):
        try:
            document = _document(parse_object(line))
        except InputError as error:
            skip_or_raise(located(error, source.path, number), skipped)
        else:
            yield number, document


def _read_csv(source: _Source, skipped: SkipReport | None) -> _Numbered:
    for number, record in read_rows(source.path, (ID_KEYS, TEXT_KEYS), optional=("title",), skipped=skipped):
        try:
            document = _document(record)
        except InputError as error:
            skip_or_raise(located(error, source.path, number), skipped)
        else:
            yield number, document


def _document(record: dict[str, Any]) -> Document:
    """The record's document; empties `record` of what it takes, so that the rest is metadata."""
    id_key, text_key = first_present(record, ID_KEYS), first_filled(record, TEXT_KEYS)
    document_id, text = to_id(record.pop(id_key)), to_text(record.pop(text_key), text_key)
    title = to_text(record.pop("title", None), "title")
    metadata = record.pop("metadata", None)
    if isinstance(metadata, dict):
        record = metadata | record
    elif metadata is not None:
        record["metadata"] = metadata
    return Document(document_id, text, title, record)


def _read_tsv(source: _Source, skipped: SkipReport | None) -> _Numbered:
    width = 0
    for number, line in read_lines(source.path, skipped=skipped):
        cells = line.split("\t", _MOST_COLUMNS)
        if not width:
            try:
                check_no_header(cells, ID_KEYS, TEXT_KEYS, _HEADER_REMEDY)
            except InputError as header:  # even where lines may be skipped, as in a CSV
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


def _read_text(source: _Source, skipped: SkipReport | None) -> _Numbered:
    try:
        document = Document(_file_id(source), read_text(source.path, LONGEST_RECORD))
    except InputError as error:
        skip_file_or_raise(error, skipped)
    else:
        yield None, document


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
    "text": _read_text,
    "irds": _read_irds,
}
