"""How models of long documents read a document: its input, and the layout of that input.

A document's passages lie end to end, each with the query before it:

    [CLS] q [SEP] p1 [SEP] [CLS] q [SEP] p2 [SEP] ...

so that all code that only handles inputs (batches by token budget, the score cache, training) treats a
document as one ordinary input, and a batch mixes the passages of many documents. The special tokens mark
where a passage begins: no text can contain one (see `tamis.models.tokenizer`).

CEDR's passages are chunks of almost equal length; those of the other models are overlapping windows of a
fixed length. Nothing here depends on the other documents of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.errors import InputError
from tamis.models import templates
from tamis.models.config import EncoderConfig
from tamis.models.settings import Count, Settings, Whole
from tamis.models.templates import COUNTED, Inputs, Special, Tokenised, Truncation

_SPECIAL = 4  # the maximum number of tokens of an input that belong to neither the query nor the text


class DocumentSettings(Settings):
    """How much of a document a model reads. The defaults are those of PARADE (Li et al. 2020): 16 windows of
    225 tokens, of which 25 overlap with the next window.

    `passages` limits the number of windows: of a longer document the first, the last and a random sample of
    the others are read. `tokens` limits the tokens of a document: the rest is not read, so that a document of
    five megabytes takes no longer than one of 6,000 words.

    >>> DocumentSettings().sequence, ChunkSettings().sequence
    (256, 512)
    """

    #: Whether its passages are chunks of the whole document, of almost equal length, instead of windows.
    even: ClassVar[bool] = False
    #: Whether only the first windows are read if there are too many, as `tamis.rank.passage` does.
    first_only: ClassVar[bool] = False

    tokens: Count = 8000  # tokens of a document that are read; the rest is ignored
    window: Count = 225  # tokens of a passage; chunks are as long as fits into the input
    stride: Count = 200  # tokens from the start of one window to the start of the next
    passages: Count = 16  # maximum number of windows
    sequence: Whole = 0  # maximum tokens of an input, including the query; 0: 256, or 512 for chunks
    query: Count = 128  # maximum tokens, at most half of an input; the text gets the rest

    def model_post_init(self, _: object) -> None:
        if self.sequence == 0:
            object.__setattr__(self, "sequence", 512 if self.even else 256)
        if self.stride > self.window:
            raise InputError(
                f"windows of {self.window} tokens every {self.stride} leave out text",
                remedy="make the stride no larger than the window",
            )
        if self.tokens > COUNTED:
            raise InputError(f"cannot read {self.tokens:,} tokens", remedy=f"use at most {COUNTED:,}")

    @property
    def most_passages(self) -> int:
        """The maximum number of passages read of a document. Chunks have the length that remains beside the
        longest query and the special tokens.

        >>> DocumentSettings().most_passages, ChunkSettings().most_passages
        (16, 22)
        """
        if not self.even:
            return self.passages
        return -(-self.tokens // max(self.sequence - self.query - _SPECIAL, 1))


class ChunkSettings(DocumentSettings):
    """The same for a model that reads chunks of almost equal length."""

    even: ClassVar[bool] = True


class Read(NamedTuple):
    """Documents as inputs, and the passages of each: those of document d are `numbers[offsets[d] : offsets[d
    + 1]]`, their indices among all windows of the document."""

    inputs: Inputs
    offsets: Array  # int64[documents + 1]
    numbers: Array  # int64[passages]
    truncation: Truncation


def read(
    queries: Tokenised,
    query_of: Array,
    texts: Tokenised,
    special: Special,
    settings: DocumentSettings,
    config: EncoderConfig,
    *,
    seed: int = 0,
) -> Read:
    """One input per text for a model of this kind; `query_of` is the index of each text's query. Only `seed`
    and the number of windows decide which windows of a document with too many are read. Static embeddings
    have no positions: with them a document is one passage.

    >>> settings = ChunkSettings(sequence=7)
    >>> tiny = EncoderConfig("bert", 9, hidden=8, layers=1, heads=1, feed_forward=8)
    >>> queries, texts = Tokenised.of([[7]]), Tokenised.of([[4, 5, 6, 8], [3]])
    >>> spans = read(queries, np.zeros(2, np.int64), texts, Special(cls=1, sep=2), settings, tiny)
    >>> spans.inputs.ids.tolist(), spans.inputs.offsets.tolist(), spans.offsets.tolist()
    ([1, 7, 2, 4, 5, 2, 1, 7, 2, 6, 8, 2, 1, 7, 2, 3, 2], [0, 12, 17], [0, 2, 3])
    """
    total = min(settings.sequence, config.max_length)
    if config.static:
        total = settings.tokens + settings.query + 8
    room = total - 3 - special.double_separator
    # the room that `templates.mono` leaves for a text: at least half, so that it is never empty
    asked = np.minimum(np.diff(queries.offsets), min(settings.query, room // 2))
    rooms = np.maximum(room - asked, 1)[query_of]
    held = np.minimum(np.diff(texts.offsets), settings.tokens)
    spans = _even(held, rooms) if settings.even else _windows(held, rooms, settings, seed)
    ids = texts.ids[ranges(texts.offsets[spans.document_of] + spans.starts, spans.counts)]
    passages = Tokenised(ids, _offsets(spans.counts), spans.counts)
    inputs, cut = templates.mono(
        queries,
        passages,
        special,
        query_of=query_of[spans.document_of],
        query_limit=settings.query,
        total_limit=total,
        segment_types=config.segments,
    )
    offsets = np.searchsorted(spans.document_of, np.arange(len(texts) + 1))
    whole = Inputs(inputs.ids, inputs.segments, inputs.offsets[offsets])
    return Read(whole, offsets, spans.numbers, _truncation(texts, spans, offsets, cut))


class _Spans(NamedTuple):
    """Passages: the document of each, in order, the index of its first token, its length, and its number."""

    document_of: Array
    starts: Array
    counts: Array
    numbers: Array


def _even(lengths: Array, rooms: Array) -> _Spans:
    """The fewest chunks that fit, of lengths that differ by at most one: `even_chunks` for many documents.

    >>> _even(np.array([7, 0]), np.array([3, 3])).counts.tolist()
    [3, 2, 2, 0]
    """
    several = np.maximum(-(-lengths // rooms), 1)
    document_of = np.repeat(np.arange(len(lengths)), several)
    number = _count_up(several)
    size, longer = np.divmod(lengths, several)
    starts = number * size[document_of] + np.minimum(number, longer[document_of])
    return _Spans(document_of, starts, size[document_of] + (number < longer[document_of]), number)


def _windows(lengths: Array, rooms: Array, settings: DocumentSettings, seed: int) -> _Spans:
    """Windows until one reaches the end; the last has the remaining length. If a query leaves less room than
    a window needs, the windows become smaller, so that no text is lost between two windows.

    >>> settings = DocumentSettings(window=4, stride=3)
    >>> _windows(np.array([9, 2]), np.array([50, 50]), settings, 0).counts.tolist()
    [4, 4, 3, 2]
    """
    window = np.minimum(settings.window, rooms)
    stride = np.minimum(settings.stride, window)
    several = 1 + np.maximum(-(-(lengths - window) // stride), 0)
    if settings.first_only:
        kept = [np.arange(min(count, settings.passages)) for count in several.tolist()]
    else:
        kept = [_kept(count, settings.passages, seed) for count in several.tolist()]
    document_of = np.repeat(np.arange(len(lengths)), [len(each) for each in kept])
    number = np.concatenate([np.zeros(0, np.int64), *kept])
    starts = number * stride[document_of]
    return _Spans(document_of, starts, np.minimum(window[document_of], lengths[document_of] - starts), number)


def _kept(count: int, most: int, seed: int) -> Array:
    """Which of a document's windows are read: the first, the last and a random sample, in order.

    >>> _kept(3, 4, seed=0).tolist(), _kept(9, 2, seed=0).tolist(), len(_kept(9, 4, seed=0))
    ([0, 1, 2], [0, 8], 4)
    """
    if count <= most:
        return np.arange(count)
    drawn = np.random.default_rng([seed, count]).choice(count - 2, max(most - 2, 0), replace=False) + 1
    return np.sort(np.concatenate([[0], drawn, [count - 1]]))[:most]


def _truncation(texts: Tokenised, spans: _Spans, offsets: Array, cut: Truncation) -> Truncation:
    """The truncation of documents; that of the template counts only their passages."""
    # of two overlapping windows, the first counts up to the start of the second
    until_next = np.append(np.diff(spans.starts), 0)
    until_next[offsets[1:] - 1] = spans.counts[offsets[1:] - 1]
    seen = (
        np.add.reduceat(np.minimum(spans.counts, until_next), offsets[:-1]) if len(texts) else texts.lengths
    )
    # counting stops at `COUNTED`: a text with that many tokens may have more
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
    """The layout of documents made by `read`: the passages, and the query's and the text's tokens in each.

    >>> ids = np.array([1, 7, 2, 4, 5, 2, 1, 7, 2, 6, 2])
    >>> there = Layout.of(Inputs(ids, np.zeros(11, np.uint8), np.array([0, 11])), Special(cls=1, sep=2))
    >>> there.offsets.tolist(), there.text_starts.tolist(), there.text_counts.tolist()
    ([0, 2], [3, 9], [2, 1])
    """

    passages: Inputs
    offsets: Array  # int64[documents + 1]: the passages of each document
    query_counts: Array  # int64[passages]; a query begins after its [CLS]
    text_starts: Array  # int64[passages]: indices among all tokens
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
    """0, 1, ..., count - 1 for each count."""
    return ranges(np.zeros(len(counts), np.int64), counts)


def _offsets(counts: Array) -> Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
