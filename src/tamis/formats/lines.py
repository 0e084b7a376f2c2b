"""Reads the lines of text files, and skips or reports bad ones."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tamis.base.errors import InputError, quoted
from tamis.formats.kinds import kind_of
from tamis.storage.files import BOM, PathLike, not_utf8, open_bytes

#: Maximum bytes of a line, a row of CSV, a <DOC> or a text file, so that an endless one cannot fill the
#: memory.
LONGEST_RECORD = 1 << 25
#: Maximum bytes of a line of ids and numbers, which needs much more memory when it is split into columns.
LONGEST_COLUMNS = 1 << 20

_HUGE_REFERENCE = re.compile(r"&#[0-9]{1000,};?")
_DETAIL = re.compile(r" \(.*\)")
_COLUMN = re.compile(r"[^ \t\n\r\f\v]+")


@dataclass(slots=True)
class SkipReport:
    """Counts the bad lines and files that a reader skipped, and keeps the first few errors.

    Readers raise an error for the first bad line unless they get one of these.

    >>> report = SkipReport()
    >>> report.add(InputError("no id", path="corpus.jsonl", line=3))
    >>> report.count, report.examples
    (1, ['corpus.jsonl, line 3: no id'])
    """

    count: int = 0  # lines, and files that were skipped completely
    files: int = 0  # how many of these are files
    examples: list[str] = field(default_factory=list)
    most_examples: int = 5
    #: How many files of each kind (by suffix) were skipped for each reason.
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def lines(self) -> int:
        return self.count - self.files

    def add(self, error: InputError, lines: int = 1) -> None:
        """Count a skipped line, or all the lines of a skipped row."""
        self.count += lines
        self._keep(error)

    def add_file(self, error: InputError) -> None:
        """Count a file that is skipped completely."""
        self.count += 1
        self.files += 1
        self.reasons[kind_of(Path(error.path or "")), _reason(error)] += 1
        self._keep(error)

    def _keep(self, error: InputError) -> None:
        if len(self.examples) < self.most_examples:
            self.examples.append(str(error))


def _reason(error: InputError) -> str:
    """The problem of a file without details, so that files with the same problem are counted together."""
    place = error.path if error.line is None else f"{error.path}, line {error.line}"
    return _DETAIL.sub("", error.problem.removeprefix(f"{place}: "))


def skip_or_raise(error: InputError, skipped: SkipReport | None, lines: int = 1) -> None:
    """Count a bad line if the caller allows it, else raise its error.

    >>> report = SkipReport()
    >>> skip_or_raise(InputError("no id"), report)
    >>> report.count
    1
    """
    if skipped is None:
        raise error
    skipped.add(error, lines)


def skip_file_or_raise(error: InputError, skipped: SkipReport | None) -> None:
    """The same for a file that cannot be used at all.

    >>> report = SkipReport()
    >>> skip_file_or_raise(InputError("not UTF-8"), report)
    >>> report.files, report.lines
    (1, 0)
    """
    if skipped is None:
        raise error
    skipped.add_file(error)


def located(error: InputError, path: PathLike, line: int) -> InputError:
    """The same error with its location, which a parser of a single line does not know.

    >>> str(located(InputError("no id", remedy="add one"), "corpus.jsonl", 3))
    'corpus.jsonl, line 3: no id: add one'
    """
    return InputError(error.problem, remedy=error.remedy, path=os.fspath(path), line=line)


def too_long(what: str, limit: int, path: PathLike, line: int | None = None) -> InputError:
    """The error for a line or a record that is too large to hold in memory.

    >>> str(too_long("a line", 1 << 26, "corpus.jsonl", 3))
    'corpus.jsonl, line 3: a line of over 64 MiB: split it, or check the format'
    """
    size = f"{limit >> 20} MiB" if limit >> 20 else f"{limit} bytes"
    return InputError(
        f"{what} of over {size}", remedy="split it, or check the format", path=os.fspath(path), line=line
    )


def read_bytes(path: PathLike, limit: int) -> bytes:
    """The decompressed bytes of a file; raises an error if there are more than `limit`.

    >>> file = getfixture("tmp_path") / "a.html"
    >>> _ = file.write_bytes(b"<p>Fine")
    >>> read_bytes(file, 100)
    b'<p>Fine'
    """
    with open_bytes(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"holds over {limit >> 20} MiB", remedy="split it", path=os.fspath(path))
    return data


def numbered_lines(
    stream: BinaryIO, path: PathLike, skipped: SkipReport | None = None, limit: int = LONGEST_RECORD
) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, without the byte order mark. A line of more than `limit` bytes
    is an error, or is skipped without reading it into memory.

    >>> from io import BytesIO
    >>> list(numbered_lines(BytesIO(BOM + b"q1\\nq2"), "queries.tsv"))
    [(1, b'q1\\n'), (2, b'q2')]
    """
    for number, line in enumerate(iter(lambda: stream.readline(limit + 1), b""), 1):
        if len(line) > limit:
            skip_or_raise(too_long("a line", limit, path, number), skipped)
            drop_line(stream, line)
        else:
            yield number, line.removeprefix(BOM) if number == 1 else line


def drop_line(stream: BinaryIO, start: bytes) -> None:
    """Skip the rest of a line without holding it in memory.

    >>> from io import BytesIO
    >>> stream = BytesIO(b"a long line\\nq2")
    >>> drop_line(stream, stream.read(3))
    >>> stream.read()
    b'q2'
    """
    while start and not start.endswith(b"\n"):
        start = stream.readline(1 << 18)


def unescaped(text: str) -> str:
    """A text with its entities replaced. An invalid character reference becomes U+FFFD, even one with
    thousands of digits, which Python cannot convert.

    >>> unescaped("&lt;&#233;&#" + "9" * 5000 + ";")
    '<é\ufffd'
    """
    return html.unescape(_HUGE_REFERENCE.sub("\ufffd", text) if "&#" in text else text)


def read_lines(
    path: PathLike, *, skipped: SkipReport | None = None, limit: int = LONGEST_RECORD
) -> Iterator[tuple[int, str]]:
    r"""Number and text of each line that is not blank: strict UTF-8, no byte order mark, no line end.

    >>> file = getfixture("tmp_path") / "ids.txt"
    >>> _ = file.write_bytes(b"\xef\xbb\xbfd1\r\n\nd2")
    >>> list(read_lines(file))
    [(1, 'd1'), (3, 'd2')]
    """
    with open_bytes(path) as stream:
        # Bytes are split before they are decoded: a bad line can be skipped alone, and only \n ends a line
        # (a JSON string may hold U+2028, at which str.splitlines would cut it).
        for number, raw in numbered_lines(stream, path, skipped, limit):
            try:
                line = raw.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                skip_or_raise(not_utf8(error, path=path, line=number), skipped)
                continue
            if line and not line.isspace():
                yield number, line


def check_no_header(cells: Sequence[str], ids: Collection[str], texts: Collection[str], remedy: str) -> None:
    """Raise an error for a header line in a format without headers: it would be read as a document or a
    query, and the columns below could be in another order.

    >>> check_no_header(["7", "A sieve."], ["id"], ["text"], "take it out")
    >>> check_no_header(["ID", "Title", "Text"], ["id"], ["text"], "take it out")
    Traceback (most recent call last):
    tamis.base.errors.InputError: a header ('ID', 'Title', 'Text') where there should be none: take it out
    """
    names = {cell.strip().lower() for cell in cells}
    if not names.isdisjoint(ids) and not names.isdisjoint(texts):
        named = ", ".join(quoted(cell, 40) for cell in cells[:8])
        raise InputError(f"a header ({named}) where there should be none", remedy=remedy)


def split_columns(line: str) -> list[str]:
    """The columns of a TREC file: only ASCII white space separates them, as in trec_eval.

    `str.split()` would also split an id at a no-break space.

    >>> split_columns(" q1\\t0 d\\xa01  2 ")
    ['q1', '0', 'd\\xa01', '2']
    """
    return _COLUMN.findall(line)


def check_columns(values: Iterable[str], name: str) -> None:
    """Raise an error for values that run files cannot contain, before hours of work whose result could not be
    written.

    >>> check_columns(["q1", "q2"], "query id")
    """
    for value in values:
        check_column(value, name)


def check_column(value: str, name: str) -> None:
    """Raise an error for a value that a column of a TREC file cannot contain: white space of any kind, or
    nothing.

    No-break spaces and similar characters are invalid too, because the readers of other tools would split the
    column there.

    >>> check_column("my notes.txt", "document id")
    Traceback (most recent call last):
    tamis.base.errors.InputError: the document id 'my notes.txt' is empty or holds white space: TREC files ...
    """
    if value.split() != [value]:
        raise InputError(
            f"the {name} {quoted(value)} is empty or holds white space",
            remedy="TREC files separate columns by white space: rename it",
        )
