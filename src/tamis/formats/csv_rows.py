"""CSV as written by spreadsheets and databases: a header that names the columns, then the rows."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

from tamis.base.errors import InputError, quoted
from tamis.formats.json_lines import first_present
from tamis.formats.lines import LONGEST_RECORD, SkipReport, numbered_lines, skip_or_raise, too_long
from tamis.storage.files import PathLike, not_utf8, open_bytes

SEPARATORS = (",", ";", "\t")  # spreadsheets write ; in countries with a decimal comma
LONGEST_CELL = 1 << 24  # characters: a quote that is never closed must not fill the memory

_TWICE = 'write a quote inside a text twice ("")'
# By a part of the error messages of Python's reader.
_COMPLAINTS = {
    "unexpected end of data": ("a quote is opened and never closed", f"close it; {_TWICE}"),
    "expected after": ("text after a closing quote", _TWICE),
    "field limit": (f"a cell of over {LONGEST_CELL:,} characters", "close its quote, or split the text"),
    "new-line character": ("a carriage return outside quotes", "end lines with a line feed"),
}


class _Row(NamedTuple):
    line: int  # its first line
    lines: int
    cells: list[str]
    error: InputError | None


def read_rows(
    path: PathLike,
    required: Sequence[Sequence[str]],
    *,
    optional: Sequence[str] = (),
    skipped: SkipReport | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Line number and cells of each row, by the names of the columns.

    The header must have one name of each of `required`; these and the `optional` names are not
    case-sensitive: `ID` is `id`. The separator is the comma, semicolon or tab with which most of them are
    found. Columns without a name and rows without content are left out. A bad row counts in `skipped` with
    all its lines, which can be many if a quote is not closed.

    >>> file = getfixture("tmp_path") / "tools.csv"
    >>> _ = file.write_text('ID;Text\n1;"A sieve;\nfine"\n2;A pot\n')
    >>> list(read_rows(file, [["id"], ["text"]]))
    [(2, {'id': '1', 'text': 'A sieve;\nfine'}), (4, {'id': '2', 'text': 'A pot'})]
    """
    names = {*chain(*required, optional)}
    with open_bytes(path) as stream:
        rows = _rows(stream, names, path)
        header = next(rows, None)
        if header is None:
            return
        columns = _columns(header, names, required, path)
        for line, lines, cells, error in rows:
            if not error and len(cells) != len(header.cells):
                error = _ragged(len(cells), len(header.cells), path, line)
            if error:
                skip_or_raise(error, skipped, lines)
            else:
                yield line, {name: cells[place] for name, place in columns.items()}


def _rows(stream: BinaryIO, names: Collection[str], path: PathLike) -> Iterator[_Row]:
    """The rows that are not empty, valid or not."""
    lines = _Lines(stream, path)
    bad = lines.bad
    opening: list[str] = []
    for text in lines:
        opening.append(text)
        if not text.isspace():
            break
    if not opening:
        return
    # The limit applies to the whole process: never lower it, because other readers may need it.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    reader = csv.reader(chain(opening, lines), delimiter=_separator(opening[-1], names), strict=True)
    while True:
        line = reader.line_num + 1
        cells: list[str] = []
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            bad.append(_malformed(error, path, line))
        if bad or any(map(str.strip, cells)):
            yield _Row(line, reader.line_num + 1 - line, cells, bad[0] if bad else None)
        bad.clear()
        lines.held = 0


class _Lines:
    r"""The lines, ended by `\n`. Invalid UTF-8 is added to `bad` and not raised: the row continues, and only
    the reader finds its end. `held` is the number of bytes of the row so far; a row that is too long is an
    error even if bad rows are skipped, because its end is unknown."""

    def __init__(self, stream: BinaryIO, path: PathLike) -> None:
        self.bad: list[InputError] = []
        self.held = 0
        self._path, self._lines = path, numbered_lines(stream, path)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, raw = next(self._lines)
        self.held += len(raw)
        if self.held > LONGEST_RECORD:
            raise too_long("a row", LONGEST_RECORD, self._path, number)
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            self.bad.append(not_utf8(error, path=self._path, line=number))
            line = raw.decode(errors="replace")
        return line.replace("\r\n", "\n")


def _separator(header: str, names: Collection[str]) -> str:
    def columns(separator: str) -> tuple[int, int]:
        cells = header.split(separator)
        return sum(_name(cell.strip().strip('"'), names) in names for cell in cells), len(cells)

    return max(SEPARATORS, key=columns)


def _name(cell: str, names: Collection[str]) -> str:
    name = cell.strip()
    return name.lower() if name.lower() in names else name


def _columns(
    header: _Row, names: Collection[str], required: Sequence[Sequence[str]], path: PathLike
) -> dict[str, int]:
    """The index of each column that has a name."""
    if header.error:
        raise header.error
    columns: dict[str, int] = {}
    for place, cell in enumerate(header.cells):
        name = _name(cell, names)
        if name in columns:
            problem = f"two columns {quoted(name)}"
            raise InputError(problem, remedy="rename one", path=os.fspath(path), line=header.line)
        if name:
            columns[name] = place
    try:
        for keys in required:
            first_present(columns, keys, "columns")
    except InputError as error:
        remedy = "the first line names the columns: rename or add one"
        raise InputError(error.problem, remedy=remedy, path=os.fspath(path), line=header.line) from None
    return columns


def _ragged(found: int, wanted: int, path: PathLike, line: int) -> InputError:
    problem = f"{found} columns where the header has {wanted}"
    quotes = "put quotes around a text that holds the separator"
    remedy = quotes if found > wanted else "give every row all the columns, be they empty"
    return InputError(problem, remedy=remedy, path=os.fspath(path), line=line)


def _malformed(error: csv.Error, path: PathLike, line: int) -> InputError:
    known = (complaint for part, complaint in _COMPLAINTS.items() if part in str(error))
    problem, remedy = next(known, (f"not CSV ({error})", "repair the row"))
    return InputError(problem, remedy=remedy, path=os.fspath(path), line=line)
