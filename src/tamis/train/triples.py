"""Triples: a file with a query, a relevant text and a non-relevant one per line, as published with MS MARCO.

    what is a sieve <tab> A sieve is ... <tab> Soup is ...       texts
    1185869 0 1641                                              ids, of queries and documents in other files

The files are in random order, which training keeps, and are larger than memory (the file of texts has 40
million lines): they are read during training, batch by batch, and again from the start when they end. A run
that resumes after a kill skips the lines that it has seen. Files may be compressed (`.gz`, `.zst`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.documents import Document, Query
from tamis.base.errors import InputError
from tamis.formats.lines import located, numbered_lines, split_columns
from tamis.index.index import Index
from tamis.infer.tokens import KEPT, TokenStore
from tamis.models.templates import Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.storage.files import PathLike, not_utf8, open_bytes, unreadable
from tamis.train.sets import Group, Judged, TrainingSet
from tamis.train.streams import Batch, Stream

_COMPARED = 1 << 20  # bytes at each end of a file that its fingerprint reads
_BATCH = 1024  # documents tokenised together
_LOOKED_AT = 100  # lines that are checked to tell ids from texts
_LABELS = np.array([1, 0], np.float32)


class Line(NamedTuple):
    """A line of a file."""

    number: int
    text: str


class Source(Protocol):
    """The meaning of the lines of a file."""

    @property
    def fingerprint(self) -> str:
        """A fingerprint of everything that gives a line its meaning."""
        ...

    def batch(self, lines: Sequence[Line]) -> TrainingSet:
        """A query for each line, and two documents: the relevant one and the other. An invalid line raises an
        `InputError` with its number."""
        ...


def stream_triples(path: PathLike, source: Source, size: int, *, counted: bool = False) -> Stream:
    """Batches of `size` triples, in the order of the file. The number of batches per epoch is known only if
    they are `counted`, for which the whole file is read; else it is 1."""
    lines = Lines(path)

    def batch(number: int) -> Batch:
        try:
            data = source.batch(lines.take(number * size, size))
        except InputError as error:
            # an error about a line has no path yet; an error of the file itself has one
            if error.path is None and error.line is not None:
                raise located(error, path, error.line) from None
            raise
        return Batch(data, [Group(n, np.array([2 * n, 2 * n + 1]), _LABELS) for n in range(len(data))])

    return Stream(batch, -(-lines.count() // size) if counted else 1)


class Lines:
    """The lines of a file by their numbers. They should be requested in ascending order: to go back, the file
    is read again from the start. Blank lines do not count, and the first line follows the last.

    >>> file = getfixture("tmp_path") / "triples.tsv"
    >>> _ = file.write_text("a\\n\\nb\\nc\\n")
    >>> lines = Lines(file)
    >>> [line.text for line in lines.take(2, 3)], lines.take(1, 1)
    (['c', 'a', 'b'], [Line(number=3, text='b')])
    """

    def __init__(self, path: PathLike) -> None:
        self._path, self._total = path, 0
        self._rows, self._next = _rows(path), 0

    def take(self, start: int, count: int) -> list[Line]:
        """The next `count` lines, starting with line number `start`."""
        start = start % self._total if self._total else start
        if start < self._next:
            self._rewind()
        while self._next < start:
            if self._read() is None:  # the end: now the number of lines is known
                return self.take(start, count)
        found: list[Line] = []
        while len(found) < count:
            if (row := self._read()) is not None:
                found.append(_decoded(*row, self._path))
        return found

    def count(self) -> int:
        """The number of lines."""
        while not self._total:
            self._read()
        return self._total

    def _read(self) -> tuple[int, bytes] | None:
        """The next line, or None at the end, after which the first line is next."""
        row = next(self._rows, None)
        if row is not None:
            self._next += 1
            return row
        if not self._next:
            raise InputError("contains no triples", remedy="check the file", path=str(self._path))
        self._total = self._next
        self._rewind()
        return None

    def _rewind(self) -> None:
        self._rows, self._next = _rows(self._path), 0


def _rows(path: PathLike) -> Iterator[tuple[int, bytes]]:
    with open_bytes(path) as stream:
        for number, raw in numbered_lines(stream, path):
            if raw and not raw.isspace():
                yield number, raw


def _decoded(number: int, raw: bytes, path: PathLike) -> Line:
    try:
        return Line(number, raw.decode().rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise not_utf8(error, path=path, line=number) from None


def file_fingerprint(path: PathLike) -> str:
    """A fingerprint of a file's size and its two ends: to read all of it would take as long as to learn from
    it."""
    try:
        with Path(path).open("rb") as file:
            seen = xxhash.xxh3_128(file.read(_COMPARED))
            size = file.seek(0, 2)
            file.seek(max(size - _COMPARED, 0))
            seen.update(file.read() + str(size).encode())
    except FileNotFoundError:
        raise InputError("no such file", remedy="check the path", path=str(path)) from None
    except OSError as error:
        raise unreadable(path, error) from error
    return str(seen.hexdigest())


# -- the meaning of lines
# ------------------------------------------------------------------------------------------------------------


class TextTriples:
    """Lines of three texts, separated by tabs."""

    def __init__(self, tokenizer: Tokenizer, limit: int = KEPT) -> None:
        self._tokenizer, self._limit = tokenizer, limit

    @property
    def fingerprint(self) -> str:
        return self._tokenizer.fingerprint

    def batch(self, lines: Sequence[Line]) -> TrainingSet:
        rows = [_cells(line, line.text.split("\t"), "texts, separated by tabs") for line in lines]
        texts = [text for _, relevant, other in rows for text in (relevant, other)]
        return _set(
            self._tokenizer.encode([query for query, _, _ in rows], limit=KEPT),
            self._tokenizer.encode(texts, limit=self._limit),
            [f"of line {line.number}" for line in lines],
            [f"{which} of line {line.number}" for line in lines for which in ("the first", "the second")],
        )


def require_texts(path: PathLike) -> None:
    """Refuse a file whose first lines are ids: they would be learned as if they were texts."""
    lines = Lines(path).take(0, _LOOKED_AT)  # a shorter file repeats some
    rows = [line.text.split("\t") for line in lines]
    if all(len(row) == 3 and all(map(_like_id, row)) for row in rows):
        problem = f"these look like ids and not like texts ({', '.join(map(repr, rows[0]))})"
        error = InputError(problem, remedy="give queries and corpus too")
        raise located(error, path, lines[0].number)


def _like_id(cell: str) -> bool:
    """Whether a cell could be an id: one word in ASCII (languages without spaces do not use ASCII).

    >>> _like_id("1185869"), _like_id("what is a sieve"), _like_id("什么是筛子")
    (True, False, False)
    """
    return cell.isascii() and len(cell.split()) == 1


class IdTriples:
    """Lines of three ids: those of a query and of two documents. Documents of an index are looked up; those
    of files are tokenised and kept in memory."""

    def __init__(
        self,
        queries: Iterable[Query],
        documents: Index | Iterable[Document],
        tokenizer: Tokenizer,
        limit: int = KEPT,
    ) -> None:
        asked = list(queries)
        self._queries = tokenizer.encode([query.text for query in asked], limit=KEPT)
        self._asked = {query.id: place for place, query in enumerate(asked)}
        seen = xxhash.xxh3_128(tokenizer.fingerprint.encode())
        _add(seen, list(self._asked), self._queries)
        self._documents: TokenStore | _Held
        if isinstance(documents, Index):
            self._documents = TokenStore(documents, tokenizer, limit=limit)
            self._documents.prepare()
            seen.update(documents.fingerprint.encode())
        else:
            self._documents = _Held(documents, tokenizer, limit)
            _add(seen, list(self._documents.places), self._documents.tokens)
        self.fingerprint = str(seen.hexdigest())

    def batch(self, lines: Sequence[Line]) -> TrainingSet:
        rows = [_cells(line, split_columns(line.text), "ids") for line in lines]
        for line, (query, *_) in zip(lines, rows, strict=True):
            if query not in self._asked:
                raise InputError(
                    f"the query {query!r} is not among the queries",
                    remedy="give all of them, or leave out queries and corpus if these are texts",
                    line=line.number,
                )
        ids = [docid for _, relevant, other in rows for docid in (relevant, other)]
        missing = frozenset(self._missing(ids))
        for line, (_, *both) in zip(lines, rows, strict=True):
            if unknown := missing.intersection(both):
                raise InputError(
                    f"the corpus has no document {min(unknown)!r}", remedy="give all of it", line=line.number
                )
        queries = self._queries.take([self._asked[query] for query, _, _ in rows])
        return _set(queries, self._documents.texts(ids), [query for query, _, _ in rows], ids)

    def _missing(self, ids: Sequence[str]) -> Iterable[str]:
        if isinstance(self._documents, TokenStore):
            return self._documents.index.missing(ids)
        places = self._documents.places
        return (docid for docid in ids if docid not in places)


class _Held:
    """A tokenised corpus in memory."""

    def __init__(self, documents: Iterable[Document], tokenizer: Tokenizer, limit: int) -> None:
        self.places: dict[str, int] = {}
        parts, some = list[Tokenised](), list[str]()
        for document in documents:
            if document.id in self.places:
                raise InputError(
                    f"the document id {document.id!r} occurs twice", remedy="give every document its own"
                )
            self.places[document.id] = len(self.places)
            some.append(document.contents)
            if len(some) == _BATCH:
                parts.append(tokenizer.encode(some, limit=limit))
                some = []
        self.tokens = Tokenised.join([*parts, tokenizer.encode(some, limit=limit)])

    def texts(self, ids: Sequence[str]) -> Tokenised:
        return self.tokens.take([self.places[docid] for docid in ids])


def _cells(line: Line, cells: Sequence[str], what: str) -> tuple[str, str, str]:
    if len(cells) != 3:
        raise InputError(
            f"{len(cells)} columns where triples have 3",
            remedy=f"write a query, a relevant document and another as {what}",
            line=line.number,
        )
    query, relevant, other = cells
    return query, relevant, other


def _set(
    queries: Tokenised, documents: Tokenised, query_ids: Sequence[str], document_ids: Sequence[str]
) -> TrainingSet:
    count = len(queries)
    relevant: Array = np.arange(0, 2 * count, 2, dtype=np.int32)
    judged = Judged(np.arange(count + 1), relevant, np.ones(count, np.int32))
    return TrainingSet(queries, documents, query_ids, document_ids, judged)


def _add(seen: xxhash.xxh3_128, ids: Sequence[str], tokens: Tokenised) -> None:
    seen.update("\n".join(ids).encode("utf-8", "surrogatepass"))
    for values in (tokens.ids, tokens.offsets):
        seen.update(np.ascontiguousarray(values).view(np.uint8).data)
