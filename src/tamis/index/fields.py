"""The fields of a segment's documents for conditions: read from the document store when a condition first
asks for them, and kept in memory as far as there is room."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import ID, TITLE, Compare, OneOf, Path, comparable, holds, values_of
from tamis.base.interrupt import check
from tamis.index.field_column import FieldColumn, SortedTexts
from tamis.storage.document_store import Store

#: Bytes that the columns of a segment may take for each of its documents, and beside that. A number takes up
#: to 13, a text up to 9 and what differs from the others. A field that does not fit is read again for every
#: condition.
BYTES_EACH, BYTES_MORE = 128, 1 << 22
_MASKS = 32  # of conditions, one bit a document
_KINDS = 1024  # fields of which it is known what they have
_UNFINISHED = 4  # pieces of work that are kept for whoever goes on with them,
_TOGETHER = 4  # and fields that one of them reads: each may take all the room while it is read
_SAMPLED = 1_000  # documents whose fields are told of
_DEEPEST = 5  # objects inside each other
_WAIT = 0.05  # seconds between looks whether anybody still waits

_T = TypeVar("_T")
#: Work in short parts: between them it may be left, and gone on with later.
Parts = Generator[None, None, _T]


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A field whose values do not fit into memory."""

    kinds: frozenset[str]


#: The columns of fields.
Columns = dict[Path, FieldColumn | TooLarge]


class Kept(Generic[_T]):
    """The values that were used last, as far as there is `room` for their sizes; for several threads.

    >>> kept = Kept(room=2)
    >>> for name in "abc":
    ...     kept.put(name, name.upper(), size=1)
    >>> kept.get("a"), kept.get("c")
    (None, 'C')
    """

    def __init__(self, room: int) -> None:
        self._room, self._used = room, 0
        self._values: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> _T | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: _T, size: int) -> None:
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, size
            self._used += size - before
            while self._used > self._room and len(self._values) > 1:
                _, (_, freed) = self._values.popitem(last=False)
                self._used -= freed


class _Work(Generic[_T]):
    """Work in parts, that may change hands between them."""

    def __init__(self, parts: Parts[_T]) -> None:
        self.parts: Parts[_T] | None = parts
        self.lock = threading.Lock()
        self.done = False
        self.result: _T

    def advance(self) -> None:
        """Do the next part."""
        assert self.parts is not None
        try:
            next(self.parts)
        except StopIteration as end:
            self.parts, self.result, self.done = None, end.value, True
        except BaseException:
            self.parts = None
            raise


class Fields:
    """The columns of a segment, and which documents satisfied the last conditions. Deleted documents are
    among them, so that it serves every commit that has the segment.

    What is begun and given up at a deadline is gone on with by the next who asks for it: otherwise a large
    index would never finish it within the time of one request.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.room = BYTES_EACH * len(store) + BYTES_MORE
        self._columns = Kept[FieldColumn | TooLarge](self.room)
        self._kinds = Kept[frozenset[str]](_KINDS)
        self._masks = Kept[Array](_MASKS)
        self._begun: OrderedDict[Hashable, _Work[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def columns(self, paths: Collection[Path]) -> Columns:
        """The columns of some fields; those that are not in memory are read in one pass."""
        known, missing = self._known(paths)
        left = sorted(missing)
        while left:
            several, left = tuple(left[:_TOGETHER]), left[_TOGETHER:]
            known |= self._finished(several, partial(self._read, several))
        return known

    def kinds(self, paths: Collection[Path]) -> dict[Path, frozenset[str]]:
        """The kinds of the values of some fields, also of those whose columns are no longer in memory."""
        found = {path: kinds for path in paths if (kinds := self._kinds.get(path)) is not None}
        for path, column in self.columns(frozenset(paths).difference(found)).items():
            found[path] = column.kinds
            self._kinds.put(path, column.kinds, 1)
        return found

    def needed(self, conditions: Collection[Compare | OneOf]) -> Columns:
        """The columns of those comparisons of which it is not known which documents satisfy them."""
        return self.columns({each.field for each in conditions if self._masks.get(str(each)) is None})

    @cached_property
    def names(self) -> frozenset[Path]:
        """The fields of the first documents."""
        found: set[Path] = set()
        left = _SAMPLED
        for frame in range(self.store.frames):
            check()
            metadata = self.store.described(frame)[2][:left]
            found.update(path for each in metadata for path in _paths(each))
            left -= len(metadata)
            if not left:
                break
        return frozenset(found)

    def _known(self, paths: Collection[Path]) -> tuple[Columns, frozenset[Path]]:
        """The columns that are in memory, and the fields of which there is none."""
        found = {path: column for path in paths if (column := self._columns.get(path)) is not None}
        return found, frozenset(paths).difference(found)

    def _read(self, paths: Collection[Path]) -> Parts[Columns]:
        found, missing = self._known(paths)  # another thread may have read them meanwhile
        growing = [_Growing(path, self.room) for path in missing if path != ID]
        for frame in range(self.store.frames if growing else 0):
            first, titles, metadata = self.store.described(frame)
            for each in growing:
                each.add(first, _values(each.path, titles, metadata))
            yield
        while growing:
            each = growing.pop()  # what is finished makes room
            found[each.path] = column = each.finished(len(self.store))
            self._columns.put(each.path, column, 0 if isinstance(column, TooLarge) else column.nbytes)
            yield
        if ID in missing:
            found[ID] = column = FieldColumn.of_ids(self.store)
            self._columns.put(ID, column, len(self.store))
        return found

    def where(self, condition: Compare | OneOf, columns: Columns) -> Array:
        """Which documents satisfy a comparison. The columns that it takes are `needed`: together they may
        take more memory than there is for all."""
        known = self._known_mask(str(condition))
        if known is not None:
            return known
        column = columns.get(condition.field) or self.columns([condition.field])[condition.field]
        if isinstance(column, TooLarge):
            return self.mask(str(condition), lambda: self._scan(condition))
        return self.mask(str(condition), lambda: _at_once(column.where(condition)))

    def _scan(self, condition: Compare | OneOf) -> Parts[Array]:
        mask = np.zeros(len(self.store), dtype=bool)
        for frame in range(self.store.frames):
            first, titles, metadata = self.store.described(frame)
            for document, values in enumerate(_values(condition.field, titles, metadata), first):
                mask[document] = holds(condition, values)
            yield
        return mask

    def mask(self, key: Hashable, work: Callable[[], Parts[Array]]) -> Array:
        """A mask over the documents, worked out unless it is one of the last."""

        def made() -> Parts[Array]:
            bits = self._masks.get(key)  # another thread may have made it meanwhile
            if bits is None:
                bits = np.packbits((yield from work()))
                self._masks.put(key, bits, 1)
            return bits

        known = self._known_mask(key)
        return self._unpacked(self._finished(key, made)) if known is None else known

    def _known_mask(self, key: Hashable) -> Array | None:
        bits = self._masks.get(key)
        return None if bits is None else self._unpacked(bits)

    def _unpacked(self, bits: Array) -> Array:
        return np.unpackbits(bits, count=len(self.store)).view(bool)

    def _finished(self, key: Hashable, begin: Callable[[], Parts[_T]]) -> _T:
        """The result of work in parts, by one of the threads that ask for it. Whoever gives it up leaves it
        to the next."""
        with self._lock:
            work: _Work[_T] | None = self._begun.get(key)
            if work is None:
                work = self._begun[key] = _Work(begin())
                if len(self._begun) > _UNFINISHED:
                    self._begun.popitem(last=False)
        while not work.lock.acquire(timeout=_WAIT):
            check()
        try:
            while work.parts is not None:
                work.advance()
                check()
            if work.done:
                return work.result
        finally:
            work.lock.release()
            if work.parts is None:
                self._forget(key, work)
        return self._finished(key, begin)  # it failed in another thread

    def _forget(self, key: Hashable, work: _Work[Any]) -> None:
        with self._lock:
            if self._begun.get(key) is work:
                del self._begun[key]


def _at_once(mask: Array) -> Parts[Array]:
    yield
    return mask


_PLAIN = (str, int, float)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The fields that have a value somewhere in an object."""
    if isinstance(value, dict) and len(path) < _DEEPEST:
        for key, inside in value.items():
            yield from _paths(inside, (*path, key))
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for each in value:
            yield from _paths(each, path)
    elif path and value is not None:
        yield path


def _values(path: Path, titles: Sequence[str], metadata: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """The values of a field of some documents, as `tamis.base.conditions.field_values` has them."""
    if path == TITLE:
        return ([title] if title else [] for title in titles)
    if len(path) > 1:
        return (values_of(each, path) for each in metadata)
    # most fields are at the top, and most of them have one plain value
    plain = (each.get(path[0]) for each in metadata)
    return ([each] if isinstance(each, _PLAIN) else values_of(each, ()) for each in plain)


@dataclass(slots=True)
class _Growing:
    """A column while the store is read; `kinds` alone once it does not fit into the room."""

    path: Path
    room: int
    kinds: set[str] = field(default_factory=set)
    number_documents: array[int] = field(default_factory=lambda: array("I"))
    numbers: array[float] = field(default_factory=lambda: array("d"))
    text_documents: array[int] = field(default_factory=lambda: array("I"))
    codes: array[int] = field(default_factory=lambda: array("I"))
    texts: dict[str, int] = field(default_factory=dict)
    true: array[int] = field(default_factory=lambda: array("I"))
    false: array[int] = field(default_factory=lambda: array("I"))
    others: array[int] = field(default_factory=lambda: array("I"))
    characters: int = 0
    fits: bool = True

    def add(self, first: int, several: Iterable[Sequence[Any]]) -> None:
        """The values of documents, by the number of the first."""
        for document, values in enumerate(several, first):
            for value in values:
                kind, plain = comparable(value)
                self.kinds.add(kind)
                if self.fits:
                    self._keep(document, kind, plain)
        if self.fits and self._size > self.room:
            self.fits = False
            for part in (self.number_documents, self.text_documents, self.codes, self.true, self.false):
                del part[:]
            del self.numbers[:], self.others[:]
            self.texts.clear()

    def _keep(self, document: int, kind: str, plain: Any) -> None:
        if kind == "text":
            new = len(self.texts)
            code = self.texts.setdefault(plain, new)
            self.characters += len(plain) if code == new else 0
            self.codes.append(code)
            self.text_documents.append(document)
        elif kind == "number":
            self.numbers.append(plain)
            self.number_documents.append(document)
        else:
            (self.others if kind == "other" else self.true if plain else self.false).append(document)

    @property
    def _size(self) -> int:
        plain = len(self.true) + len(self.false) + len(self.others)
        return 12 * len(self.numbers) + 8 * (len(self.codes) + len(self.texts)) + 4 * plain + self.characters

    def finished(self, count: int) -> FieldColumn | TooLarge:
        kinds = frozenset(self.kinds)
        if not self.fits:
            return TooLarge(kinds)
        parts = (self.number_documents, self.text_documents, self.true, self.false, self.others)
        numbers, texts, true, false, others = (np.array(part, np.uint32) for part in parts)
        present = np.zeros(count, dtype=bool)
        for documents in (numbers, texts, true, false, others):
            present[documents] = True
        in_order = sorted(self.texts)  # by code points, which is the order of their bytes in UTF-8
        rank = np.zeros(len(in_order), np.uint32)
        rank[[self.texts[text] for text in in_order]] = np.arange(len(in_order), dtype=np.uint32)
        return FieldColumn(
            present,
            _unless_every(numbers, count),
            np.array(self.numbers, np.float64),
            _unless_every(texts, count),
            rank[np.array(self.codes, np.uint32)],
            SortedTexts(text.encode("utf-8", "surrogatepass") for text in in_order),
            true,
            false,
            kinds,
        )


def _unless_every(documents: Array, count: int) -> Array | None:
    return None if len(documents) == count and np.array_equal(documents, np.arange(count)) else documents
