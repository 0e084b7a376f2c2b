"""The inputs of models: texts as tokens, inputs laid end to end, and what was truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np

from tamis.base.arrays import Array, ranges

COUNTED = 1 << 13  # counting the tokens of a text stops here: a longer text has at least this many


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Texts as tokens, laid end to end, without special tokens: text i is `ids[offsets[i] : offsets[i + 1]]`.

    `lengths` is the number of tokens of each text, of which only the first may be stored here; counting stops
    at `COUNTED`.

    >>> texts = Tokenised.of([[7, 8, 9], [], [5]])
    >>> texts.take([2, 0]).ids.tolist(), texts.lengths.tolist()
    ([5, 7, 8, 9], [3, 0, 1])
    """

    ids: Array  # int32[tokens]
    offsets: Array  # int64[n + 1]
    lengths: Array  # int64[n]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], *, limit: int = COUNTED) -> Tokenised:
        """Texts from lists of tokens, each truncated to its first `limit`."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        kept = [row[:limit] for row in rows] if lengths.max(initial=0) > limit else rows
        offsets = offsets_of(np.minimum(lengths, limit))
        ids = np.fromiter(chain.from_iterable(kept), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids, offsets, np.minimum(lengths, COUNTED))

    @classmethod
    def join(cls, parts: Sequence[Tokenised]) -> Tokenised:
        """Concatenate the texts of several objects."""
        if len(parts) == 1:
            return parts[0]
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)])
        lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])
        return cls(ids, _join_offsets([part.offsets for part in parts]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, numbers: Sequence[int] | Array) -> Tokenised:
        """The texts with these indices, in this order."""
        chosen = np.asarray(numbers, dtype=np.int64)
        counts = self.offsets[chosen + 1] - self.offsets[chosen]
        return Tokenised(
            self.ids[ranges(self.offsets[chosen], counts)], offsets_of(counts), self.lengths[chosen]
        )


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a model laid end to end, without padding: input i is `ids[offsets[i] : offsets[i + 1]]`.
    Positions count from 0 within each input.

    >>> inputs = Inputs(np.array([1, 7, 1, 8, 9]), np.array([0, 0, 0, 1, 1]), np.array([0, 2, 5]))
    >>> swapped = inputs.take([1, 0])
    >>> swapped.ids.tolist(), swapped.segments.tolist(), swapped.offsets.tolist()
    ([1, 8, 9, 1, 7], [0, 1, 1, 0, 0], [0, 3, 5])
    """

    ids: Array  # int32[tokens]
    segments: Array  # uint8[tokens]
    offsets: Array  # int64[n + 1]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> Inputs:
        """Inputs from lists of tokens, and of their segments; the default is segment 0 for all tokens.

        >>> Inputs.of([[1, 7], [1, 8, 9]]).offsets.tolist()
        [0, 2, 5]
        """
        offsets = offsets_of(np.fromiter(map(len, rows), np.int64, len(rows)))
        ids = np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1]))
        of_each = np.fromiter(chain.from_iterable(segments or ()), np.uint8, len(ids) if segments else 0)
        return cls(ids, of_each if segments else np.zeros(len(ids), np.uint8), offsets)

    @classmethod
    def join(cls, parts: Sequence[Inputs]) -> Inputs:
        """Concatenate the inputs of several objects."""
        if len(parts) == 1:
            return parts[0]
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)])
        segments = np.concatenate([np.zeros(0, np.uint8), *(part.segments for part in parts)])
        return cls(ids, segments, _join_offsets([part.offsets for part in parts]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Array:
        """The number of tokens of each input."""
        return np.diff(self.offsets)

    def take(self, numbers: Sequence[int] | Array) -> Inputs:
        """The inputs with these indices, in this order."""
        chosen = np.asarray(numbers, dtype=np.int64)
        counts = self.offsets[chosen + 1] - self.offsets[chosen]
        at = ranges(self.offsets[chosen], counts)
        return Inputs(self.ids[at], self.segments[at], offsets_of(counts))

    def part(self, start: int, stop: int) -> Inputs:
        """The inputs from `start` to `stop` - 1, without copying their tokens.

        >>> inputs = Inputs(np.array([1, 7, 1, 8, 9]), np.array([0, 0, 0, 1, 1]), np.array([0, 2, 5]))
        >>> inputs.part(1, 2).ids.tolist(), inputs.part(1, 2).offsets.tolist()
        ([1, 8, 9], [0, 3])
        """
        first, last = self.offsets[start], self.offsets[stop]
        return Inputs(self.ids[first:last], self.segments[first:last], self.offsets[start : stop + 1] - first)


@dataclass(frozen=True, slots=True)
class Special:
    """A tokenizer's special tokens, and the words that replace them in the `markers` form."""

    cls: int
    sep: int
    pad: int = 0
    double_separator: bool = False  # between two parts, as in RoBERTa: <s> q </s></s> d </s>
    query_marker: tuple[int, ...] = ()  # "Query:"
    document_marker: tuple[int, ...] = ()  # "Document:"


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many queries and texts were truncated, and how many of their tokens were lost.

    >>> one = Truncation(texts=2, texts_cut=1, text_tokens=600, text_tokens_lost=90)
    >>> print(one + one)
    2 of 4 texts cut, 180 of 1,200 tokens lost; no query cut
    """

    texts: int = 0
    texts_cut: int = 0
    text_tokens: int = 0
    text_tokens_lost: int = 0
    queries: int = 0
    queries_cut: int = 0
    query_tokens: int = 0
    query_tokens_lost: int = 0
    at_least: bool = False  # not all tokens of some text were counted
    queries_at_least: bool = False  # not all tokens of some query were counted

    def __add__(self, other: Truncation) -> Truncation:
        names = [each.name for each in fields(self) if each.name not in ("at_least", "queries_at_least")]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Truncation(
            **sums,
            at_least=self.at_least or other.at_least,
            queries_at_least=self.queries_at_least or other.queries_at_least,
        )

    def __str__(self) -> str:
        text = _report(
            "text", self.texts_cut, self.texts, self.text_tokens_lost, self.text_tokens, self.at_least
        )
        query = _report(
            "query",
            self.queries_cut,
            self.queries,
            self.query_tokens_lost,
            self.query_tokens,
            self.queries_at_least,
        )
        return f"{text}; {query}"


def _report(what: str, cut: int, of: int, lost: int, tokens: int, at_least: bool) -> str:
    if not cut:
        return f"no {what} cut"
    plural = {"text": "texts", "query": "queries"}[what]
    few = "at least " if at_least else ""
    return f"{cut:,} of {of:,} {plural} cut, {few}{lost:,} of {tokens:,} tokens lost"


def offsets_of(counts: Array) -> Array:
    """The offsets of lists of these lengths laid end to end.

    >>> offsets_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _join_offsets(offsets: Sequence[Array]) -> Array:
    return offsets_of(np.concatenate([np.zeros(0, np.int64), *map(np.diff, offsets)]))
