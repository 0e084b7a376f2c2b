"""The values of one field of a segment's documents, so that a comparison with all of them takes
milliseconds."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import Compare, OneOf, Value, comparable
from tamis.storage.document_store import Store

_COMPARISONS: dict[str, Any] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


class SortedIds(Sequence[bytes]):
    """The ids of a store in their order, read from it one by one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __len__(self) -> int:
        return self._store.ids_in_order

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        return self._store.ids(self._store.at_rank(np.array([place])))[0].encode()


class SortedTexts(Sequence[bytes]):
    """Different texts in their order, end to end.

    >>> bisect_left(SortedTexts([b"de", b"en"]), b"e")
    1
    """

    def __init__(self, texts: Iterable[bytes]) -> None:
        text, ends = bytearray(), array("q", [0])  # no list: there may be as many as documents
        for each in texts:
            text += each
            ends.append(len(text))
        self._text, self._ends = bytes(text), np.array(ends, np.int64)

    @property
    def nbytes(self) -> int:
        return len(self._text) + self._ends.nbytes

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if place >= len(self):
            raise IndexError(place)
        return self._text[int(self._ends[place]) : int(self._ends[place + 1])]


@dataclass(frozen=True, slots=True)
class FieldColumn:
    """The values of one field, by kind: of each value the document that has it. Texts are numbered in their
    order. No documents (None) are all of them, in their order."""

    present: Array  # bool: whether a document has a value
    number_documents: Array | None
    numbers: Array
    text_documents: Array | None
    codes: Array
    texts: SortedIds | SortedTexts
    true: Array
    false: Array
    kinds: frozenset[str]

    @property
    def nbytes(self) -> int:
        arrays = (self.present, self.number_documents, self.numbers, self.text_documents, self.codes)
        kept = sum(each.nbytes for each in (*arrays, self.true, self.false) if each is not None)
        return kept + (self.texts.nbytes if isinstance(self.texts, SortedTexts) else 0)

    @classmethod
    def of_ids(cls, store: Store) -> FieldColumn:
        """The field `id`, which takes no memory of its own: its texts are the store's."""
        none, count = np.zeros(0, np.uint32), len(store)
        codes = store.id_rank if len(store.id_rank) else np.arange(count, dtype=np.uint32)
        every = np.ones(count, dtype=bool)
        return cls(every, None, np.zeros(0), None, codes, SortedIds(store), none, none, frozenset({"text"}))

    def where(self, condition: Compare | OneOf) -> Array:
        """Which documents satisfy a comparison, as `tamis.base.conditions.holds` says it."""
        if isinstance(condition, OneOf):
            return self._equal(condition.values)
        if condition.operator == "=":
            return self._equal([condition.value])
        if condition.operator == "!=":
            other = condition.value is not None
            return self.present & ~self._equal([condition.value]) if other else self.present.copy()
        kind, wanted = comparable(condition.value)
        mask = np.zeros(len(self.present), dtype=bool)
        if kind == "number":
            _mark(mask, self.number_documents, _COMPARISONS[condition.operator](self.numbers, wanted))
        else:
            find = bisect_left if condition.operator in ("<", ">=") else bisect_right
            bound = find(self.texts, wanted.encode("utf-8", "surrogatepass"))
            below = self.codes < bound
            # documents that one with the same id has replaced are numbered behind the others
            _mark(mask, self.text_documents, below if condition.operator in ("<", "<=") else ~below)
        return mask

    def _equal(self, values: Sequence[Value]) -> Array:
        mask = np.zeros(len(self.present), dtype=bool)
        numbers, codes = [], []
        for value in values:
            kind, wanted = comparable(value)
            if value is None:
                mask |= ~self.present
            elif kind == "truth":
                mask[self.true if wanted else self.false] = True
            elif kind == "number":
                numbers.append(wanted)
            else:
                data = wanted.encode("utf-8", "surrogatepass")
                place = bisect_left(self.texts, data)
                if place < len(self.texts) and self.texts[place] == data:
                    codes.append(place)
        if numbers:
            _mark(mask, self.number_documents, _among(self.numbers, numbers))
        if codes:
            _mark(mask, self.text_documents, _among(self.codes, codes))
        return mask


def _among(column: Array, values: Sequence[Any]) -> Array:
    found: Array = column == values[0] if len(values) == 1 else np.isin(column, values)
    return found


def _mark(mask: Array, documents: Array | None, hits: Array) -> None:
    if documents is not None:
        mask[documents[hits]] = True
    elif len(hits):
        mask |= hits
