"""What a cross-encoder reads: a query and one, two or n texts as one sequence of tokens.

    mono      [CLS] q [SEP] d [SEP]                   segments 0 1        Nogueira & Cho 2019
    duo       [CLS] q [SEP] di [SEP] dj [SEP]         segments 0 1 2      Nogueira et al. 2019
    listwise  [CLS] q [SEP] d1 [SEP] ... dn [SEP]     segments 0 1 ... 1  Zhang et al. 2020

A separator belongs to the segment it ends. RoBERTa's kind writes two separators between two parts.

One truncation rule: the query is cut to its budget, then each text from its end to what is left; a query is
never cut further to make room for a long text. The query's budget is its limit (64 tokens for mono, 62 for
duo and listwise), or an equal share of the room, a quarter beside many texts, where a model has so few
positions that this is smaller. One text takes all the query leaves; several get equal shares of what the
query's *budget* leaves, so that a text is cut alike whatever the query (at 512 positions: 223 tokens each of
two, 55 of eight). Nothing is cut in silence: each function says in a `Truncation` what fell away.

An empty text gives `[CLS] q [SEP] [SEP]`, an empty query `[CLS] [SEP] d [SEP]`; both are scored like any
other.

The query may be one for all inputs, its tokens, or one of several: then `own` says which is each input's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Literal, NamedTuple, get_args

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.errors import InputError

COUNTED = 1 << 13  # tokens of a text that are counted: a longer one has at least so many
Form = Literal["default", "no-positions", "no-segments", "swapped", "markers"]
#: The table of embeddings that a form does without.
ABLATED: Mapping[Form, str] = {"no-positions": "embeddings.position", "no-segments": "embeddings.segment"}


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Texts as tokens, laid end to end, without special tokens: text i is `ids[offsets[i] : offsets[i + 1]]`.

    `lengths` says how many tokens each text has, of which only the first may be held here; counting stops at
    `COUNTED`.

    >>> texts = Tokenised.of([[7, 8, 9], [], [5]])
    >>> texts.take([2, 0]).ids.tolist(), texts.lengths.tolist()
    ([5, 7, 8, 9], [3, 0, 1])
    """

    ids: Array  # int32[tokens]
    offsets: Array  # int64[n + 1]
    lengths: Array  # int64[n]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], *, limit: int = COUNTED) -> Tokenised:
        """Texts given as lists of tokens, each cut to its first `limit`."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        kept = [row[:limit] for row in rows] if lengths.max(initial=0) > limit else rows
        offsets = _offsets(np.minimum(lengths, limit))
        ids = np.fromiter(chain.from_iterable(kept), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids, offsets, np.minimum(lengths, COUNTED))

    @classmethod
    def join(cls, parts: Sequence[Tokenised]) -> Tokenised:
        """The texts of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)])
        lengths = np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)])
        return cls(ids, _join_offsets([part.offsets for part in parts]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def take(self, numbers: Sequence[int] | Array) -> Tokenised:
        """Those texts, in that order."""
        chosen = np.asarray(numbers, dtype=np.int64)
        counts = self.offsets[chosen + 1] - self.offsets[chosen]
        return Tokenised(
            self.ids[ranges(self.offsets[chosen], counts)], _offsets(counts), self.lengths[chosen]
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
    def join(cls, parts: Sequence[Inputs]) -> Inputs:
        """The inputs of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in parts)])
        segments = np.concatenate([np.zeros(0, np.uint8), *(part.segments for part in parts)])
        return cls(ids, segments, _join_offsets([part.offsets for part in parts]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Array:
        """How many tokens each input has."""
        return np.diff(self.offsets)

    def take(self, numbers: Sequence[int] | Array) -> Inputs:
        """Those inputs, in that order."""
        chosen = np.asarray(numbers, dtype=np.int64)
        counts = self.offsets[chosen + 1] - self.offsets[chosen]
        at = ranges(self.offsets[chosen], counts)
        return Inputs(self.ids[at], self.segments[at], _offsets(counts))

    def part(self, start: int, stop: int) -> Inputs:
        """The inputs from `start` to `stop`, without copying their tokens.

        >>> inputs = Inputs(np.array([1, 7, 1, 8, 9]), np.array([0, 0, 0, 1, 1]), np.array([0, 2, 5]))
        >>> inputs.part(1, 2).ids.tolist(), inputs.part(1, 2).offsets.tolist()
        ([1, 8, 9], [0, 3])
        """
        first, last = self.offsets[start], self.offsets[stop]
        return Inputs(self.ids[first:last], self.segments[first:last], self.offsets[start : stop + 1] - first)


@dataclass(frozen=True, slots=True)
class Special:
    """A tokenizer's special tokens, and the words that stand for them in the `markers` form."""

    cls: int
    sep: int
    pad: int = 0
    double_separator: bool = False  # between two parts, as RoBERTa has it: <s> q </s></s> d </s>
    query_marker: tuple[int, ...] = ()  # "Query:"
    document_marker: tuple[int, ...] = ()  # "Document:"


@dataclass(frozen=True, slots=True)
class Truncation:
    """How many queries and texts were cut, and how many of their tokens fell away.

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
    at_least: bool = False  # some text was too long to count all its tokens
    queries_at_least: bool = False  # some query was

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


def mono(
    query: Sequence[int] | Array | Tokenised,
    texts: Tokenised,
    special: Special,
    *,
    own: Array | None = None,
    query_limit: int = 64,
    total_limit: int = 512,
    form: Form = "default",
    segment_types: int = 2,
) -> tuple[Inputs, Truncation]:
    """One input for each text. The forms are those of the template ablation: `swapped` is
    `[CLS] d [SEP] q [SEP]`, `markers` is `[CLS] Query: q Document: d` with no separator (segments as in the
    default), `no-positions` and `no-segments` have the default's inputs (see `ablated`). A model with fewer
    than two `segment_types` gets segment 0 everywhere.

    >>> inputs, truncation = mono([7], Tokenised.of([[8, 9], [5]]), Special(cls=1, sep=2))
    >>> inputs.ids.tolist(), inputs.segments.tolist(), inputs.offsets.tolist()
    ([1, 7, 2, 8, 9, 2, 1, 7, 2, 5, 2], [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1], [0, 6, 11])
    >>> queries, texts = Tokenised.of([[7], [6, 6]]), Tokenised.of([[8], [9]])
    >>> mono(queries, texts, Special(cls=1, sep=2), own=np.array([1, 0]))[0].ids.tolist()
    [1, 6, 6, 2, 8, 2, 1, 7, 2, 9, 2]
    """
    if form not in get_args(Form):
        raise InputError(f"no input form {form!r}", remedy=f"use one of {', '.join(get_args(Form))}")
    opening, between, closing, end = _around(special, form)
    room = total_limit - 1 - len([*opening, *between, *closing, *end])
    asked = _asked(query, own, len(texts), _query_budget(query_limit, room, 1))
    parts: list[_Part]
    if form == "swapped":
        parts = [(0, [special.cls]), (0, _TEXT), (0, between), (1, _QUERY), (1, end)]
    else:
        parts = [(0, [special.cls, *opening]), (0, _QUERY), (0, between)]
        parts += [(1, closing), (1, _TEXT), (1, end)]
    budgets = room - asked.counts[asked.own]
    rows = np.arange(len(texts))
    inputs = _assemble(parts, asked, texts, rows[:, None], budgets, segment_types)
    return inputs, _truncation(asked, texts, rows, budgets)


def mono_room(
    query_tokens: int,
    special: Special,
    *,
    query_limit: int = 64,
    total_limit: int = 512,
    form: Form = "default",
) -> int:
    """How many tokens of a text `mono` reads beside a query of so many.

    >>> mono_room(9, Special(cls=1, sep=2)), mono_room(100, Special(cls=1, sep=2))
    (500, 445)
    """
    room = total_limit - 1 - sum(map(len, _around(special, form)))
    return room - min(query_tokens, _query_budget(query_limit, room, 1))


def duo(
    query: Sequence[int] | Array | Tokenised,
    texts: Tokenised,
    pairs: Array,
    special: Special,
    *,
    own: Array | None = None,
    query_limit: int = 62,
    text_limit: int = 223,
    total_limit: int = 512,
    segment_types: int = 3,
) -> tuple[Inputs, Truncation]:
    """One input for each row (i, j) of `pairs`, numbers of `texts`: is the first better than the second?

    >>> inputs, truncation = duo([7], Tokenised.of([[8, 9], [5]]), np.array([[0, 1]]), Special(cls=1, sep=2))
    >>> inputs.ids.tolist(), inputs.segments.tolist()
    ([1, 7, 2, 8, 9, 2, 5, 2], [0, 0, 0, 1, 1, 1, 2, 2])
    """
    if segment_types < 3:
        raise InputError(
            f"duo needs three segment types where the model has {segment_types}",
            remedy="use a model trained for pairs, or give this one a third segment",
        )
    between, end = _separators(special)
    query_budget, text_budget = _duo_budgets(special, query_limit, text_limit, total_limit)
    budget = np.array(text_budget)
    asked = _asked(query, own, len(pairs), query_budget)
    parts: list[_Part] = [(0, [special.cls]), (0, _QUERY), (0, between)]
    parts += [(1, _TEXT), (1, between), (2, _TEXT), (2, end)]
    inputs = _assemble(parts, asked, texts, pairs, budget, segment_types)
    return inputs, _truncation(asked, texts, np.unique(pairs), budget)


def duo_room(
    special: Special, *, query_limit: int = 62, text_limit: int = 223, total_limit: int = 512
) -> int:
    """How many tokens of each text `duo` reads.

    >>> duo_room(Special(cls=1, sep=2)), duo_room(Special(cls=1, sep=2), query_limit=20, total_limit=128)
    (223, 52)
    """
    return _duo_budgets(special, query_limit, text_limit, total_limit)[1]


def listwise(
    query: Sequence[int] | Array | Tokenised,
    texts: Tokenised,
    groups: Array,
    special: Special,
    *,
    own: Array | None = None,
    query_limit: int = 62,
    total_limit: int = 512,
    segment_types: int = 2,
) -> tuple[Inputs, Truncation]:
    """One input for each row of `groups`: the numbers of n `texts`, or of fewer and then -1. A text is cut
    alike in a group that is not full, so that it is the same text in whichever it falls.

    All texts are of segment 1, the second of the two that pretraining knows: a segment for each would begin
    untrained, and would tell places apart which shall mean nothing.

    >>> texts, groups = Tokenised.of([[8, 9], [5], [6]]), np.array([[2, 0], [1, -1]])
    >>> inputs, truncation = listwise([7], texts, groups, Special(cls=1, sep=2))
    >>> inputs.ids.tolist(), inputs.segments.tolist(), inputs.offsets.tolist()
    ([1, 7, 2, 6, 2, 8, 9, 2, 1, 7, 2, 5, 2], [0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1], [0, 8, 13])
    """
    between, end = _separators(special)
    count, opening = groups.shape[1], between[1:]
    room = total_limit - 2 - count * len(between)
    query_budget = _query_budget(query_limit, room, count)
    budget = np.array((room - query_budget) // count)
    asked = _asked(query, own, len(groups), query_budget)
    parts: list[_Part] = [(0, [special.cls]), (0, _QUERY), (0, end)]
    for place in range(count):
        parts += [(min(place, 1), opening), (1, _TEXT), (1, end)]
    there = groups >= 0
    present = np.concatenate([np.ones((len(groups), 3), bool), np.repeat(there, 3, axis=1)], axis=1)
    inputs = _assemble(parts, asked, texts, groups, budget, segment_types, present)
    return inputs, _truncation(asked, texts, np.unique(groups[there]), budget)


class TextSpans(NamedTuple):
    """Where the texts of inputs for listwise are, input after input: a text's tokens and the separator that
    ends it are `ids[starts[i] : starts[i] + counts[i]]`."""

    starts: Array  # int64[texts]
    counts: Array  # int64[texts]: at least 1
    owners: Array  # int64[texts]: the number of the input that it is in
    numbers: Array  # int64[texts]: which of its texts it is


def text_spans(inputs: Inputs, special: Special) -> TextSpans:
    """Where the texts of inputs for listwise are.

    >>> texts, groups = Tokenised.of([[8, 9], [5], [6]]), np.array([[2, 0], [1, -1]])
    >>> inputs, truncation = listwise([7], texts, groups, Special(cls=1, sep=2))
    >>> [each.tolist() for each in text_spans(inputs, Special(cls=1, sep=2))]
    [[3, 5, 11], [2, 3, 2], [0, 0, 1], [0, 1, 0]]
    """
    # no text holds one: what spells it out is tokenised as any other word
    places = np.flatnonzero(inputs.ids == special.sep)
    owners = np.searchsorted(inputs.offsets, places, side="right") - 1
    turns = np.arange(len(places)) - np.searchsorted(owners, owners)  # 0: the one that ends the query
    a_text = 1 + special.double_separator
    ending = np.flatnonzero((turns > 0) & (turns % a_text == 0))
    starts = places[ending - 1] + 1
    return TextSpans(starts, places[ending] + 1 - starts, owners[ending], turns[ending] // a_text - 1)


def ablated(tensors: Mapping[str, Array], form: Form) -> dict[str, Array]:
    """The weights for a form that leaves out position or segment embeddings: with the table set to zero. A
    token's vector is the sum of its word, position and segment embeddings, so adding zeros is the same as not
    adding them (a model trained in such a form must leave the table at zero).

    >>> tensors = {"embeddings.position": np.ones((2, 3)), "embeddings.word": np.ones((5, 3))}
    >>> ablated(tensors, "no-positions")["embeddings.position"].any()
    np.False_
    """
    table = ABLATED.get(form)
    zeros = {name: np.zeros_like(tensors[name]) for name in tensors if name == table}
    return {**tensors, **zeros}


_QUERY, _TEXT = "query", "text"  # where an input's own query and its next text go
_Part = tuple[int, Sequence[int] | str]  # a segment, and the tokens of every input, or whose own go here


class _Asked(NamedTuple):
    """Queries, of which each input has one."""

    queries: Tokenised
    counts: Array  # int64[queries]: how many of its tokens are kept
    own: Array  # int64[inputs]: the number of each input's query


def _asked(query: Sequence[int] | Array | Tokenised, own: Array | None, inputs: int, budget: int) -> _Asked:
    if not isinstance(query, Tokenised):
        ids, length = np.asarray(query, dtype=np.int32), np.array([len(query)])
        query, own = Tokenised(ids, _offsets(length), length), np.zeros(inputs, np.int64)
    elif own is None or len(own) != inputs:
        raise InputError(
            f"{inputs} inputs with {0 if own is None else len(own)} queries", remedy="give each its own"
        )
    return _Asked(query, np.minimum(np.diff(query.offsets), budget), own)


def _separators(special: Special) -> tuple[list[int], list[int]]:
    """What stands between two parts, and after the last."""
    return [special.sep] * (1 + special.double_separator), [special.sep]


def _around(special: Special, form: Form) -> tuple[Sequence[int], ...]:
    """What mono puts before the query, between it and the text, before the text, and at the end."""
    if form == "markers":
        return special.query_marker, (), special.document_marker, ()
    between, end = _separators(special)
    return (), between, (), end


def _duo_budgets(special: Special, query_limit: int, text_limit: int, total_limit: int) -> tuple[int, int]:
    """How many tokens duo reads of the query, and of each text."""
    between, end = _separators(special)
    room = total_limit - 1 - 2 * len(between) - len(end)
    query_budget = _query_budget(query_limit, room, 2)
    return query_budget, min(text_limit, (room - query_budget) // 2)


def _query_budget(limit: int, room: int, texts: int) -> int:
    """How many tokens a query may have beside so many texts, in the room that special tokens leave."""
    budget = min(limit, room // min(texts + 1, 4))
    if limit < 0 or room <= texts or room - budget < texts:  # a token at least of each
        raise InputError(
            f"no room for {texts} texts and a query" if texts > 1 else "no room for a text and a query",
            remedy="raise the limit, or use a model with more positions",
        )
    return budget


def _assemble(
    parts: Sequence[_Part],
    asked: _Asked,
    texts: Tokenised,
    groups: Array,
    budgets: Array,
    segment_types: int,
    present: Array | None = None,
) -> Inputs:
    """Every input is the same sequence of parts, or has those that are `present` in its row. All tokens lie
    in one array, the texts', the queries' and then the fixed parts', so that the inputs are one gather from
    it."""
    place, column = len(texts.ids), 0
    own_starts, own_counts = asked.queries.offsets[asked.own] + place, asked.counts[asked.own]
    sources, place = [texts.ids, asked.queries.ids], place + len(asked.queries.ids)
    starts = np.empty((len(groups), len(parts)), dtype=np.int64)
    counts = np.empty_like(starts)
    for number, (_, tokens) in enumerate(parts):
        if tokens is _QUERY:
            starts[:, number], counts[:, number] = own_starts, own_counts
        elif tokens is _TEXT:
            chosen = groups[:, column]
            starts[:, number] = texts.offsets[chosen]
            counts[:, number] = np.minimum(texts.offsets[chosen + 1] - texts.offsets[chosen], budgets)
            column += 1
        else:
            starts[:, number], counts[:, number] = place, len(tokens)
            sources.append(np.array(tokens, dtype=np.int32))
            place += len(tokens)
    if present is not None:
        counts *= present
    ids = np.concatenate(sources)[ranges(starts.ravel(), counts.ravel())]
    segments = np.array([segment for segment, _ in parts], dtype=np.uint8)
    if segment_types < 2:
        segments[:] = 0
    offsets = _offsets(counts.sum(axis=1))
    return Inputs(ids, np.repeat(np.tile(segments, len(groups)), counts.ravel()), offsets)


def _truncation(asked: _Asked, texts: Tokenised, used: Array, budgets: Array) -> Truncation:
    """Of the queries, and of the texts with the numbers `used`."""
    lengths, held = texts.lengths[used], texts.offsets[used + 1] - texts.offsets[used]
    lost = lengths - np.minimum(held, budgets)
    query_lost = asked.queries.lengths - asked.counts
    return Truncation(
        texts=len(used),
        texts_cut=int(np.count_nonzero(lost)),
        text_tokens=int(lengths.sum()),
        text_tokens_lost=int(lost.sum()),
        queries=len(asked.queries),
        queries_cut=int(np.count_nonzero(query_lost)),
        query_tokens=int(asked.queries.lengths.sum()),
        query_tokens_lost=int(query_lost.sum()),
        at_least=bool((lengths >= COUNTED).any()),
        queries_at_least=bool((asked.queries.lengths >= COUNTED).any()),
    )


def _offsets(counts: Array) -> Array:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _join_offsets(offsets: Sequence[Array]) -> Array:
    return _offsets(np.concatenate([np.zeros(0, np.int64), *map(np.diff, offsets)]))
