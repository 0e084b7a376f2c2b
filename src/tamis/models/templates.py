"""The inputs of cross-encoders: a query and one, two or n texts as one sequence of tokens.

    mono      [CLS] q [SEP] d [SEP]                   segments 0 1        Nogueira & Cho 2019
    duo       [CLS] q [SEP] di [SEP] dj [SEP]         segments 0 1 2      Nogueira et al. 2019
    listwise  [CLS] q [SEP] d1 [SEP] ... dn [SEP]     segments 0 1 ... 1  Zhang et al. 2020

A separator belongs to the segment that it ends. Models like RoBERTa have two separators between two parts.

There is one truncation rule: the query is truncated to its budget, then each text is truncated at its end to
the remaining room; a query is never truncated further to make room for a long text. The query's budget is its
limit (64 tokens for mono, 62 for duo and listwise), or, for a model with few positions, an equal share of the
room (at least a quarter), if that is smaller. A single text gets all the room that the query leaves. Several
texts get equal shares of the room that the query's *budget* leaves, so that truncation of a text does not
depend on the query (at 512 positions: 223 tokens each for two texts, 55 for eight). Nothing is truncated
silently: each function reports the lost tokens in a `Truncation`.

An empty text gives `[CLS] q [SEP] [SEP]`, an empty query `[CLS] [SEP] d [SEP]`; both are scored like any
other input.

The query is either the tokens of one query for all inputs, or several queries; then `query_of` has the index
of each input's query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.errors import InputError
from tamis.models.inputs import COUNTED as COUNTED
from tamis.models.inputs import Inputs as Inputs
from tamis.models.inputs import Special as Special
from tamis.models.inputs import Tokenised as Tokenised
from tamis.models.inputs import Truncation as Truncation
from tamis.models.inputs import offsets_of

Form = Literal["default", "no-positions", "no-segments", "swapped", "markers"]
#: The table of embeddings that a form does not use.
ABLATED: Mapping[Form, str] = {"no-positions": "embeddings.position", "no-segments": "embeddings.segment"}

QUERY, TEXT = "query", "text"  # placeholders for an input's query and its next text
Part = tuple[int, Sequence[int] | str]  # a segment, and fixed tokens or a placeholder


def mono(
    query: Sequence[int] | Array | Tokenised,
    texts: Tokenised,
    special: Special,
    *,
    query_of: Array | None = None,
    query_limit: int = 64,
    total_limit: int = 512,
    form: Form = "default",
    segment_types: int = 2,
) -> tuple[Inputs, Truncation]:
    """One input per text. The forms are those of the template ablation: `swapped` is `[CLS] d [SEP] q [SEP]`,
    `markers` is `[CLS] Query: q Document: d` without a separator (segments as in the default), `no-positions`
    and `no-segments` have the inputs of the default (see `ablated`). A model with fewer than two
    `segment_types` gets segment 0 everywhere.

    >>> inputs, truncation = mono([7], Tokenised.of([[8, 9], [5]]), Special(cls=1, sep=2))
    >>> inputs.ids.tolist(), inputs.segments.tolist(), inputs.offsets.tolist()
    ([1, 7, 2, 8, 9, 2, 1, 7, 2, 5, 2], [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1], [0, 6, 11])
    >>> queries, texts = Tokenised.of([[7], [6, 6]]), Tokenised.of([[8], [9]])
    >>> mono(queries, texts, Special(cls=1, sep=2), query_of=np.array([1, 0]))[0].ids.tolist()
    [1, 6, 6, 2, 8, 2, 1, 7, 2, 9, 2]
    """
    if form not in get_args(Form):
        raise InputError(f"no input form {form!r}", remedy=f"use one of {', '.join(get_args(Form))}")
    return one_text(
        mono_parts(special, form),
        query,
        texts,
        query_of=query_of,
        query_limit=query_limit,
        total_limit=total_limit,
        segment_types=segment_types,
    )


def mono_parts(special: Special, form: Form = "default") -> list[Part]:
    """The parts of an input of mono.

    >>> mono_parts(Special(cls=1, sep=2))
    [(0, [1]), (0, 'query'), (0, [2]), (1, 'text'), (1, [2])]
    """
    between, end = _separators(special)
    if form == "swapped":
        return [(0, [special.cls]), (0, TEXT), (0, between), (1, QUERY), (1, end)]
    if form == "markers":
        opening, closing = [special.cls, *special.query_marker], list(special.document_marker)
        return [(0, opening), (0, QUERY), (1, closing), (1, TEXT)]
    return [(0, [special.cls]), (0, QUERY), (0, between), (1, TEXT), (1, end)]


def one_text(
    parts: Sequence[Part],
    query: Sequence[int] | Array | Tokenised,
    texts: Tokenised,
    *,
    query_of: Array | None = None,
    query_limit: int = 64,
    total_limit: int = 512,
    segment_types: int = 2,
) -> tuple[Inputs, Truncation]:
    """One input per text, built from these parts. Each part has a segment, and fixed tokens, `QUERY` or
    `TEXT`.

    >>> prompt = [(0, [1, 9]), (0, QUERY), (1, TEXT), (1, [2])]
    >>> one_text(prompt, [7], Tokenised.of([[8, 8], [5]]), total_limit=6)[0].ids.tolist()
    [1, 9, 7, 8, 8, 2, 1, 9, 7, 5, 2]
    """
    room = _room(parts, total_limit)
    if segment_types > 1 and (last := max(segment for segment, _ in parts)) >= segment_types:
        raise InputError(
            f"segment {last} in a model that has {segment_types}", remedy="count the segments from 0"
        )
    asked = _asked(query, query_of, len(texts), _query_budget(query_limit, room, 1))
    budgets = room - asked.counts[asked.query_of]
    rows = np.arange(len(texts))
    inputs = _assemble(parts, asked, texts, rows[:, None], budgets, segment_types)
    return inputs, _truncation(asked, texts, rows, budgets)


def text_room(
    parts: Sequence[Part], query_tokens: int, *, query_limit: int = 64, total_limit: int = 512
) -> int:
    """How many tokens of a text fit beside a query of `query_tokens` tokens, in an input of these parts.

    >>> text_room(mono_parts(Special(cls=1, sep=2)), 9)
    500
    """
    room = _room(parts, total_limit)
    return room - min(query_tokens, _query_budget(query_limit, room, 1))


def _room(parts: Sequence[Part], total_limit: int) -> int:
    """How many tokens the fixed parts leave for the query and the text."""
    if sorted(each for _, each in parts if isinstance(each, str)) != [QUERY, TEXT]:
        raise InputError("an input without one query and one text", remedy="give QUERY and TEXT a part each")
    return total_limit - sum(len(each) for _, each in parts if not isinstance(each, str))


def mono_room(
    query_tokens: int,
    special: Special,
    *,
    query_limit: int = 64,
    total_limit: int = 512,
    form: Form = "default",
) -> int:
    """How many tokens of a text `mono` reads beside a query of `query_tokens` tokens.

    >>> mono_room(9, Special(cls=1, sep=2)), mono_room(100, Special(cls=1, sep=2))
    (500, 445)
    """
    return text_room(
        mono_parts(special, form), query_tokens, query_limit=query_limit, total_limit=total_limit
    )


def duo(
    query: Sequence[int] | Array | Tokenised,
    texts: Tokenised,
    pairs: Array,
    special: Special,
    *,
    query_of: Array | None = None,
    query_limit: int = 62,
    text_limit: int = 223,
    total_limit: int = 512,
    segment_types: int = 3,
) -> tuple[Inputs, Truncation]:
    """One input per row (i, j) of `pairs`, indices of `texts`: is the first better than the second?

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
    asked = _asked(query, query_of, len(pairs), query_budget)
    parts: list[Part] = [(0, [special.cls]), (0, QUERY), (0, between)]
    parts += [(1, TEXT), (1, between), (2, TEXT), (2, end)]
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
    query_of: Array | None = None,
    query_limit: int = 62,
    total_limit: int = 512,
    segment_types: int = 2,
) -> tuple[Inputs, Truncation]:
    """One input per row of `groups`: the indices of n `texts`, or of fewer, padded with -1. A text is
    truncated in the same way in a group that is not full, so that it is the same text in every group.

    All texts have segment 1, the second of the two segments of pretraining: separate segments would start
    untrained, and would distinguish positions, which should not matter.

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
    asked = _asked(query, query_of, len(groups), query_budget)
    parts: list[Part] = [(0, [special.cls]), (0, QUERY), (0, end)]
    for place in range(count):
        parts += [(min(place, 1), opening), (1, TEXT), (1, end)]
    there = groups >= 0
    present = np.concatenate([np.ones((len(groups), 3), bool), np.repeat(there, 3, axis=1)], axis=1)
    inputs = _assemble(parts, asked, texts, groups, budget, segment_types, present)
    return inputs, _truncation(asked, texts, np.unique(groups[there]), budget)


class TextSpans(NamedTuple):
    """The locations of the texts in listwise inputs, input after input: a text's tokens and the separator
    that ends it are `ids[starts[i] : starts[i] + counts[i]]`."""

    starts: Array  # int64[texts]
    counts: Array  # int64[texts]: at least 1
    owners: Array  # int64[texts]: the index of its input
    numbers: Array  # int64[texts]: its index within that input


def text_spans(inputs: Inputs, special: Special) -> TextSpans:
    """The locations of the texts in listwise inputs.

    >>> texts, groups = Tokenised.of([[8, 9], [5], [6]]), np.array([[2, 0], [1, -1]])
    >>> inputs, truncation = listwise([7], texts, groups, Special(cls=1, sep=2))
    >>> [each.tolist() for each in text_spans(inputs, Special(cls=1, sep=2))]
    [[3, 5, 11], [2, 3, 2], [0, 0, 1], [0, 1, 0]]
    """
    # no text contains a separator: "[SEP]" in a text is tokenised as ordinary characters
    places = np.flatnonzero(inputs.ids == special.sep)
    owners = np.searchsorted(inputs.offsets, places, side="right") - 1
    turns = np.arange(len(places)) - np.searchsorted(owners, owners)  # 0: the separator that ends the query
    a_text = 1 + special.double_separator
    ending = np.flatnonzero((turns > 0) & (turns % a_text == 0))
    starts = places[ending - 1] + 1
    return TextSpans(starts, places[ending] + 1 - starts, owners[ending], turns[ending] // a_text - 1)


class _Asked(NamedTuple):
    """The queries, and which of them each input has."""

    queries: Tokenised
    counts: Array  # int64[queries]: how many of its tokens are kept
    query_of: Array  # int64[inputs]: the index of each input's query


def _asked(
    query: Sequence[int] | Array | Tokenised, query_of: Array | None, inputs: int, budget: int
) -> _Asked:
    if not isinstance(query, Tokenised):
        ids, length = np.asarray(query, dtype=np.int32), np.array([len(query)])
        query, query_of = Tokenised(ids, offsets_of(length), length), np.zeros(inputs, np.int64)
    elif query_of is None or len(query_of) != inputs:
        raise InputError(
            f"{inputs} inputs with {0 if query_of is None else len(query_of)} queries",
            remedy="give the number of the query of each",
        )
    return _Asked(query, np.minimum(np.diff(query.offsets), budget), query_of)


def _separators(special: Special) -> tuple[list[int], list[int]]:
    """The separators between two parts, and after the last part."""
    return [special.sep] * (1 + special.double_separator), [special.sep]


def _duo_budgets(special: Special, query_limit: int, text_limit: int, total_limit: int) -> tuple[int, int]:
    """How many tokens duo reads of the query, and of each text."""
    between, end = _separators(special)
    room = total_limit - 1 - 2 * len(between) - len(end)
    query_budget = _query_budget(query_limit, room, 2)
    return query_budget, min(text_limit, (room - query_budget) // 2)


def _query_budget(limit: int, room: int, texts: int) -> int:
    """How many tokens a query may have beside this number of texts, in the room that special tokens leave."""
    budget = min(limit, room // min(texts + 1, 4))
    if limit < 0 or room <= texts or room - budget < texts:  # at least one token of each
        raise InputError(
            f"no room for {texts} texts and a query" if texts > 1 else "no room for a text and a query",
            remedy="raise the limit, or use a model with more positions",
        )
    return budget


def _assemble(
    parts: Sequence[Part],
    asked: _Asked,
    texts: Tokenised,
    groups: Array,
    budgets: Array,
    segment_types: int,
    present: Array | None = None,
) -> Inputs:
    """Build inputs that all have the same sequence of parts, or those that are `present` in their row. All
    tokens are in one array, first those of the texts, then of the queries and of the fixed parts, so that a
    single gather builds the inputs."""
    place, column = len(texts.ids), 0
    query_starts, query_counts = asked.queries.offsets[asked.query_of] + place, asked.counts[asked.query_of]
    sources, place = [texts.ids, asked.queries.ids], place + len(asked.queries.ids)
    starts = np.empty((len(groups), len(parts)), dtype=np.int64)
    counts = np.empty_like(starts)
    for number, (_, tokens) in enumerate(parts):
        if tokens is QUERY:
            starts[:, number], counts[:, number] = query_starts, query_counts
        elif tokens is TEXT:
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
    offsets = offsets_of(counts.sum(axis=1))
    return Inputs(ids, np.repeat(np.tile(segments, len(groups)), counts.ravel()), offsets)


def _truncation(asked: _Asked, texts: Tokenised, used: Array, budgets: Array) -> Truncation:
    """The truncation of the queries, and of the texts with the indices `used`."""
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
