"""How a model of long documents reads one: its inputs, and where in them what is.

A document's passages lie end to end, each with the query before it:

    [CLS] q [SEP] p1 [SEP] [CLS] q [SEP] p2 [SEP] ...

so that for all that only moves inputs about (batches by token budget, the score cache, training) a document
is one input like any other, and a batch mixes the passages of many. The special tokens say where a passage
begins: no text can hold one (see `tamis.models.tokenizer`).

CEDR's passages are chunks as even as possible; all others' are windows of equal length that overlap. Nothing
here depends on a document's neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.models import templates
from tamis.models.config import EncoderConfig
from tamis.models.long_plan import LongDoc
from tamis.models.templates import COUNTED, Inputs, Special, Tokenised, Truncation


class Read(NamedTuple):
    """Documents as inputs, and whose passages are whose: those of document d are `numbers[ends[d] :
    ends[d + 1]]`, by their places among all windows of the document."""

    inputs: Inputs
    offsets: Array  # int64[documents + 1]
    numbers: Array  # int64[passages]
    truncation: Truncation


def read(
    queries: Tokenised,
    own: Array,
    texts: Tokenised,
    special: Special,
    plan: LongDoc,
    config: EncoderConfig | None,
    *,
    seed: int = 0,
) -> Read:
    """Each text as one input for a model of this kind; `own` is the number of its query. `seed` decides
    which windows of a document that has too many are read: it and their number alone. `config` is None for
    static embeddings, which know no positions: there a document is one passage.

    >>> plan = LongDoc("cedr-knrm", sequence=7)
    >>> tiny = EncoderConfig("bert", 9, hidden=8, layers=1, heads=1, feed_forward=8)
    >>> queries, texts = Tokenised.of([[7]]), Tokenised.of([[4, 5, 6, 8], [3]])
    >>> made = read(queries, np.zeros(2, np.int64), texts, Special(cls=1, sep=2), plan, tiny)
    >>> made.inputs.ids.tolist(), made.inputs.offsets.tolist(), made.offsets.tolist()
    ([1, 7, 2, 4, 5, 2, 1, 7, 2, 6, 8, 2, 1, 7, 2, 3, 2], [0, 12, 17], [0, 2, 3])
    """
    total = plan.tokens + plan.query + 8 if config is None else min(plan.sequence, config.max_length)
    room = total - 3 - special.double_separator
    # what `templates.mono` leaves to a text; never less than half, so that there is room for one
    asked = np.minimum(np.diff(queries.offsets), min(plan.query, room // 2))
    rooms = np.maximum(room - asked, 1)[own]
    held = np.minimum(np.diff(texts.offsets), plan.tokens)
    made = _even(held, rooms) if plan.even else _windows(held, rooms, plan, seed)
    ids = texts.ids[ranges(texts.offsets[made.own] + made.starts, made.counts)]
    passages = Tokenised(ids, _offsets(made.counts), made.counts)
    inputs, cut = templates.mono(
        queries,
        passages,
        special,
        own=own[made.own],
        query_limit=plan.query,
        total_limit=total,
        segment_types=1 if config is None else config.segments,
    )
    offsets = np.searchsorted(made.own, np.arange(len(texts) + 1))
    whole = Inputs(inputs.ids, inputs.segments, inputs.offsets[offsets])
    return Read(whole, offsets, made.numbers, _truncation(texts, made, offsets, cut))


class _Spans(NamedTuple):
    """Passages: the document of each, in order, its first token there, its length, and its number."""

    own: Array
    starts: Array
    counts: Array
    numbers: Array


def _even(lengths: Array, rooms: Array) -> _Spans:
    """The fewest chunks that fit, their lengths no more than one apart: `even_chunks` of many documents.

    >>> _even(np.array([7, 0]), np.array([3, 3])).counts.tolist()
    [3, 2, 2, 0]
    """
    several = np.maximum(-(-lengths // rooms), 1)
    own = np.repeat(np.arange(len(lengths)), several)
    number = _count_up(several)
    size, longer = np.divmod(lengths, several)
    starts = number * size[own] + np.minimum(number, longer[own])
    return _Spans(own, starts, size[own] + (number < longer[own]), number)


def _windows(lengths: Array, rooms: Array, plan: LongDoc, seed: int) -> _Spans:
    """Windows until one reaches the end, the last as long as what is left. A query that leaves less room
    than a window makes the windows smaller: no text falls between two.

    >>> _windows(np.array([9, 2]), np.array([50, 50]), LongDoc("maxp", window=4, stride=3), 0).counts.tolist()
    [4, 4, 3, 2]
    """
    window = np.minimum(plan.window, rooms)
    stride = np.minimum(plan.stride, window)
    several = 1 + np.maximum(-(-(lengths - window) // stride), 0)
    if plan.kind == "maxp":  # as `tamis.rank.passage` reads
        kept = [np.arange(min(count, plan.passages)) for count in several.tolist()]
    else:
        kept = [_kept(count, plan.passages, seed) for count in several.tolist()]
    own = np.repeat(np.arange(len(lengths)), [len(each) for each in kept])
    number = np.concatenate([np.zeros(0, np.int64), *kept])
    starts = number * stride[own]
    return _Spans(own, starts, np.minimum(window[own], lengths[own] - starts), number)


def _kept(count: int, most: int, seed: int) -> Array:
    """Which of a document's windows are read: the first, the last and others at random, in their order.

    >>> _kept(3, 4, seed=0).tolist(), _kept(9, 2, seed=0).tolist(), len(_kept(9, 4, seed=0))
    ([0, 1, 2], [0, 8], 4)
    """
    if count <= most:
        return np.arange(count)
    drawn = np.random.default_rng([seed, count]).choice(count - 2, max(most - 2, 0), replace=False) + 1
    return np.sort(np.concatenate([[0], drawn, [count - 1]]))[:most]


def _truncation(texts: Tokenised, made: _Spans, offsets: Array, cut: Truncation) -> Truncation:
    """Of documents, where the template knows only of their passages."""
    # of two windows that overlap, the first counts up to where the second begins
    until_next = np.append(np.diff(made.starts), 0)
    until_next[offsets[1:] - 1] = made.counts[offsets[1:] - 1]
    seen = np.add.reduceat(np.minimum(made.counts, until_next), offsets[:-1]) if len(texts) else texts.lengths
    # counting stops at `COUNTED`: who has as many has more
    lost = np.maximum(texts.lengths - seen, texts.lengths >= COUNTED)
    return Truncation(
        texts=len(texts),
        texts_cut=int(np.count_nonzero(lost)),
        text_tokens=int(texts.lengths.sum()),
        text_tokens_lost=int(lost.sum()),
        queries=cut.queries,
        queries_cut=cut.queries_cut,
        query_tokens=cut.query_tokens,
        query_tokens_lost=cut.query_tokens_lost,
        at_least=bool((texts.lengths >= COUNTED).any()),
        queries_at_least=cut.queries_at_least,
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in documents made by `read`: passages by themselves, and within each the query's and
    the text's tokens.

    >>> ids = np.array([1, 7, 2, 4, 5, 2, 1, 7, 2, 6, 2])
    >>> there = Layout.of(Inputs(ids, np.zeros(11, np.uint8), np.array([0, 11])), Special(cls=1, sep=2))
    >>> there.offsets.tolist(), there.text_starts.tolist(), there.text_counts.tolist()
    ([0, 2], [3, 9], [2, 1])
    """

    passages: Inputs
    offsets: Array  # int64[documents + 1]: whose passages are whose
    query_counts: Array  # int64[passages]; a query begins after its [CLS]
    text_starts: Array  # int64[passages]: places among all tokens
    text_counts: Array  # int64[passages]

    @classmethod
    def of(cls, inputs: Inputs, special: Special) -> Layout:
        starts = np.flatnonzero(inputs.ids == special.cls)
        separators = np.flatnonzero(inputs.ids == special.sep)
        after_query = separators[np.searchsorted(separators, starts)]
        stops = np.append(starts[1:], len(inputs.ids))
        text = after_query + 1 + special.double_separator
        passages = Inputs(inputs.ids, inputs.segments, np.append(starts, len(inputs.ids)))
        offsets = np.searchsorted(starts, inputs.offsets)
        return cls(passages, offsets, after_query - starts - 1, text, stops - 1 - text)


def _count_up(counts: Array) -> Array:
    """0, 1, ... for each count."""
    return ranges(np.zeros(len(counts), np.int64), counts)


def _offsets(counts: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
