"""The part of a long text that a model reads: its start, or the window that matches the query best.

The best window is found without a model. Windows are as long as the room allows and begin where a sentence
begins. They are treated as documents and ranked by BM25 over tokens: a query token that is in few of the
windows has a high weight, one that is in every window a low weight. The choice depends only on the query and
the text, so other candidates cannot change what is read.

Of equally good windows the first is read, so a text that contains no token of the query is read as with
`cut=start`. A title is kept before the window, up to half the room. Only the first 8,192 tokens of a text are
searched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.infer.tokens import texts_of
from tamis.models.templates import COUNTED, Tokenised
from tamis.models.tokenizer import Tokenizer

Cut = Literal["start", "best"]

_K1 = 0.9  # the k1 of BM25 in the first stage; b does not matter, since all windows are equally long


def check_cut(cut: str) -> None:
    """Refuse an unknown way to cut.

    >>> check_cut("end")
    Traceback (most recent call last):
    tamis.base.errors.InputError: no cut 'end': use start or best
    """
    if cut not in get_args(Cut):
        raise InputError(f"no cut {cut!r}", remedy=f"use {' or '.join(get_args(Cut))}")


def window_starts(text: Array, size: int, sentence_ends: Array) -> Array:
    """The offsets at which windows of `size` tokens begin: 0, after each token that ends a sentence, and the
    offset of a last window that ends with the text. A sentence of more than `size` tokens has further
    windows, half a window apart.

    >>> window_starts(np.array([1, 2, 9, 3, 9, 4, 5, 6, 7, 8]), 4, np.array([9])).tolist()
    [0, 3, 5, 6]
    >>> window_starts(np.arange(10), 4, np.array([99])).tolist()
    [0, 2, 4, 6]
    """
    last = max(len(text) - size, 0)
    after = np.flatnonzero(np.isin(text[:last], sentence_ends)) + 1
    starts = [0]
    for sentence in [*after.tolist(), last]:
        if sentence - starts[-1] > size:
            starts += range(starts[-1] + max(size // 2, 1), sentence, max(size // 2, 1))
        starts.append(sentence)
    return np.unique(starts)


def window_scores(query: Array, text: Array, starts: Array, size: int) -> Array:
    """The BM25 scores of the windows of a text that begin at `starts`.

    >>> window_scores(np.array([7]), np.array([1, 2, 7, 7, 3]), np.arange(4), 2).round(2).tolist()
    [0.0, 0.36, 0.47, 0.36]
    """
    terms = np.unique(query)[:, None]
    before = np.zeros((len(terms), len(text) + 1), np.int64)
    np.cumsum(terms == text, axis=1, out=before[:, 1:])
    tf = before[:, np.minimum(starts + size, len(text))] - before[:, starts]
    df = np.count_nonzero(tf, axis=1, keepdims=True)
    idf = np.log1p((len(starts) - df + 0.5) / (df + 0.5))
    scores: Array = (idf * tf * (_K1 + 1) / (tf + _K1)).sum(axis=0)
    return scores


def best_window(query: Array, text: Array, size: int, sentence_ends: Array) -> Array:
    """The window of a text that matches the query best.

    >>> text, full_stop = np.array([1, 2, 9, 3, 7, 9, 4, 5, 6, 9]), np.array([9])
    >>> best_window(np.array([7]), text, 4, full_stop).tolist()
    [3, 7, 9, 4]
    >>> best_window(np.array([8]), text, 4, full_stop).tolist()
    [1, 2, 9, 3]
    """
    starts = window_starts(text, size, sentence_ends)
    start = starts[window_scores(query, text, starts, size).argmax()]
    return text[start : start + size]


def cut_texts(ranking: Ranking, tokenizer: Tokenizer, query: Array, room: int, cut: Cut) -> Tokenised:
    """The tokens of a ranking's candidates; a model reads the first `room` of each. `lengths` remains the
    length of the whole texts, so that lost tokens are counted."""
    texts = texts_of(ranking, tokenizer, limit=room)
    long = np.flatnonzero(texts.lengths > room)
    if cut == "start" or not len(long):
        return texts
    part = replace(ranking, ids=[ranking.ids[n] for n in long.tolist()], scores=np.zeros(len(long)))
    whole = texts.take(long)
    if (np.diff(whole.offsets) < whole.lengths).any():  # then some of these tokens are not kept
        whole = texts_of(part, tokenizer, limit=COUNTED)
    titles = tokenizer.encode([document.title and f"{document.title}\n" for document in part.documents()])
    rows = []
    for number in range(len(long)):
        text, title = whole.take([number]).ids, titles.take([number]).ids
        if not np.array_equal(text[: len(title)], title):  # the title has other tokens when text follows it
            title = title[:0]
        body = text[len(title) :]
        kept = title[: max(room // 2, room - len(body))]
        found = best_window(query, body, room - len(kept), tokenizer.sentence_ends)
        rows.append(np.concatenate([kept, found]))
    read = Tokenised(np.concatenate(rows), np.cumsum([0, *map(len, rows)]), whole.lengths)
    places = np.arange(len(texts))
    places[long] = len(texts) + np.arange(len(long))
    return Tokenised.join([texts, read]).take(places)
