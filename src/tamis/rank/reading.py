"""From documents to the inputs of a model: their passages, the offsets of each, and its tokens.

A passage is read as a separate document with the document's title. A passage that does not fit beside the
longest query is cut into pieces that fit. Windows of tokens and even chunks are cut from the document's
tokens, which may be those stored beside the index; these have no word or sentence boundaries, so windows of
words or sentences are tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.index.index import Index
from tamis.infer.tokens import KEPT, texts_of
from tamis.models.templates import COUNTED, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.text.analyze import Analyzer, get_analyzer
from tamis.text.segment import (
    Keep,
    Passage,
    check_kept,
    check_windows,
    cut_at_tokens,
    even_chunks,
    kept,
    sentence_windows,
    sentences,
    token_places,
    windows,
    word_windows,
)

Unit = Literal["words", "tokens", "sentences", "even"]
Title = bool | Literal["once"]
Wanted = Callable[[str], bool]

# The papers' windows and strides: MaxP, PARADE, Birch. Even chunks are as long as the model allows.
_SIZES: dict[str, tuple[int, int]] = {
    "words": (150, 75),
    "tokens": (225, 200),
    "sentences": (1, 1),
    "even": (1, 1),
}


@dataclass(frozen=True, slots=True)
class Cutting:
    """How documents are cut into passages.

    `unit` is the unit of windows, `window` and `stride` their size: 150 and 75 words, 225 and 200 tokens, or
    single sentences; `even` chunks have at most `window` tokens, or as many as the model reads. `title` puts
    the document's title before each passage, or with "once" before the text, so that only the first passage
    begins with it, as models that are trained on documents expect. If a document has more than `passages`
    passages, the first are read, or with `keep="sampled"` the first, the last and a sample of the others.
    """

    unit: Unit = "words"
    window: int | None = None
    stride: int | None = None
    title: Title = True
    passages: int | None = None
    keep: Keep = "first"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise InputError(f"passages of {self.unit!r}", remedy=f"use {', '.join(get_args(Unit))}")
        if self.unit == "even" and self.stride is not None:
            raise InputError("even chunks with a stride", remedy="leave it out: they do not overlap")
        if self.title not in (True, False, "once"):
            raise InputError(f"a title {self.title!r}", remedy="use true, false or once")
        check_windows(*self.sizes)
        check_kept(self.passages, self.keep)

    @property
    def sizes(self) -> tuple[int, int]:
        """Window and stride; the default stride keeps the overlap in proportion to the unit's defaults.

        >>> Cutting(window=100).sizes, Cutting("tokens").sizes
        ((100, 50), (225, 200))
        """
        usual, step = _SIZES[self.unit]
        window = usual if self.window is None else self.window
        return window, max(1, window * step // usual) if self.stride is None else self.stride

    @property
    def first(self) -> int | None:
        """The number of passages if only those at the start are read; None if any may be read."""
        return self.passages if self.keep == "first" else None

    def within(self, tokens: int) -> bool:
        """Whether all windows that are read lie within the first `tokens` tokens of any document."""
        window, stride = self.sizes
        return (
            self.unit == "tokens"
            and self.first is not None
            and ((self.first - 1) * stride + window <= tokens)
        )

    def chosen(self, passages: Sequence[Passage], document: str) -> list[Passage]:
        """The passages of a document that are read."""
        numbers = kept(len(passages), self.passages, self.keep, seed=self.seed, document=document)
        return [passages[number] for number in numbers.tolist()]


class Read(NamedTuple):
    """A document's passages: their offsets, and the tokens that the model reads of each."""

    passages: Sequence[Passage]  # offsets in the text that is read: see `Reader.in_text`
    tokens: Tokenised
    lost: int  # how many words (or tokens) are in no passage

    def take(self, numbers: Array) -> Read:
        """Some of the passages."""
        return Read([self.passages[n] for n in numbers.tolist()], self.tokens.take(numbers), self.lost)


def analyzer_of(ranking: Ranking) -> Analyzer:
    """The analyzer for a ranking's texts: that of the index that they come from, or else the English one."""
    return ranking.texts.analyzer if isinstance(ranking.texts, Index) else get_analyzer("english")


class Reader:
    """Cuts documents for a model that has `room` for tokens of a text beside the longest query."""

    def __init__(self, cutting: Cutting, tokenizer: Tokenizer, room: int) -> None:
        self.cutting, self.tokenizer, self.room = cutting, tokenizer, room
        self.in_tokens = cutting.unit in ("tokens", "even")

    def prepare(self) -> None:
        """Load the sentence splitter, if sentences are to be split."""
        if self.cutting.unit == "sentences":
            sentences("")

    def read(
        self, ranking: Ranking, ids: Sequence[str], wanted: Wanted | None = None, room: int | None = None
    ) -> list[Read]:
        """Read some documents of a ranking; of their passages (of characters) only those in `wanted`. `room`
        is for windows of tokens, if the query leaves more than the longest query would."""
        part = replace(ranking, ids=ids, scores=np.zeros(len(ids)))
        documents = list(map(self._read_as, part.documents()))
        if not self.in_tokens:
            return self._of_characters(documents, wanted)
        tokens = texts_of(part, self.tokenizer, limit=COUNTED)
        room = self.room if room is None else room
        return [self._of_tokens(document, tokens.take([n]), room) for n, document in enumerate(documents)]

    @property
    def in_text(self) -> bool:
        """Whether passages are character offsets in a document's text: not passages of tokens, nor of a text
        that begins with its title."""
        return not self.in_tokens and self.cutting.title != "once"

    def characters(self, document: Document, passages: Sequence[Passage]) -> Sequence[Passage]:
        """The passages as offsets in a document's text. A passage within its title is empty."""
        if self.in_text or not passages:
            return passages
        text = self._read_as(document).text
        before = len(text) - len(document.text)
        return [
            Passage(max(start - before, 0), max(stop - before, 0))
            for start, stop in self._in_read(text, passages)
        ]

    def contents(self, document: Document, passages: Sequence[Passage]) -> list[str]:
        """The text that is read for a document's passages: each with its heading."""
        document = self._read_as(document)
        headed = replace(document, title=self._heading(document))
        places = self._in_read(document.text, passages)
        return [replace(headed, text=document.text[start:stop]).contents for start, stop in places]

    def _in_read(self, text: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        """Passages as character offsets in the text that is read."""
        if not self.in_tokens or not passages:
            return passages
        _, starts, stops = token_places(text, self.tokenizer, max(stop for _, stop in passages))
        return [Passage(int(starts[a]), int(stops[b - 1])) if a < b else Passage(0, 0) for a, b in passages]

    def _read_as(self, document: Document) -> Document:
        if self.cutting.title != "once":
            return document
        return replace(document, title="", text=document.contents)

    def _of_characters(self, documents: Sequence[Document], wanted: Wanted | None) -> list[Read]:
        headed = [replace(document, title=self._heading(document)) for document in documents]
        places, lost = [], []
        for document in headed:
            found = self._places(document.text, self.cutting.first if wanted is None else None)
            beyond = len(document.text[found[-1].stop :].split())
            if wanted is not None:
                found = [each for each in found if wanted(document.text[each.start : each.stop])]
            places.append(self.cutting.chosen(found, document.id))
            lost.append(_words_lost(document.text, found, places[-1]) + beyond)
        tokens = self._tokenised(headed, places)
        longest = [each.lengths.max(initial=0) for each in tokens]
        for number in np.flatnonzero(np.array(longest) > self.room).tolist():
            document = headed[number]
            fitting = self._fitting(document, places[number])
            own = self.cutting.chosen(fitting, document.id)
            lost[number] += _words_lost(document.text, fitting, own)
            places[number], (tokens[number],) = own, self._tokenised([document], [own])
        return [Read(*each) for each in zip(places, tokens, lost, strict=True)]

    def _places(self, text: str, most: int | None) -> list[Passage]:
        """All passages, or of words only the first `most`, which can be found without the others."""
        if self.cutting.unit == "sentences":
            found = sentence_windows(text, *self.cutting.sizes)
        else:
            found = word_windows(text, *self.cutting.sizes, most)
        return found or [Passage(0, 0)]

    def _heading(self, document: Document) -> str:
        """The heading of each passage: the title, cut so that half the room is left for the passage."""
        title = document.title if self.cutting.title else ""
        if len(title) <= self.room // 2:  # then it has no more tokens either
            return title
        starts = token_places(title, self.tokenizer).starts.tolist()
        return title[: cut_at_tokens(Passage(0, len(title)), starts, max(self.room // 2, 1))[0].stop]

    def _tokenised(
        self, documents: Sequence[Document], places: Sequence[Sequence[Passage]]
    ) -> list[Tokenised]:
        """The tokens that are read for each document's passages, tokenised together."""
        texts = [
            replace(document, text=document.text[start:stop]).contents
            for document, own in zip(documents, places, strict=True)
            for start, stop in own
        ]
        tokens = self.tokenizer.encode(texts, limit=max(self.room, KEPT))
        offsets = np.cumsum([0, *map(len, places)]).tolist()
        return [tokens.take(range(start, stop)) for start, stop in pairwise(offsets)]

    def _fitting(self, document: Document, places: Sequence[Passage]) -> list[Passage]:
        """The passages, each cut into pieces that fit into the model's input."""
        heading = self.tokenizer.encode([f"{document.title}\n"]).lengths[0] if document.title else 0
        size = max(self.room - int(heading), 1)
        # one piece more than is read; the last one represents all the rest
        most = None if self.cutting.first is None else self.cutting.first * size + 1
        fitting: list[Passage] = []
        for place in places:
            fitting += self._pieces(document.text, place, size, most)
        return fitting

    def _pieces(self, text: str, place: Passage, size: int, most: int | None) -> list[Passage]:
        starts = token_places(text[place.start : place.stop], self.tokenizer, most).starts
        pieces = cut_at_tokens(place, (starts + place.start).tolist(), size)
        if len(pieces) < 2:
            return pieces
        # a piece that begins inside a word has other tokens than in the whole text, perhaps more
        read = len(pieces) if most is None else most // size
        lengths = self.tokenizer.encode([text[start:stop] for start, stop in pieces[:read]]).lengths
        found: list[Passage] = []
        for piece, length in zip(pieces, [*lengths.tolist(), *[0] * len(pieces[read:])], strict=True):
            found += [piece] if length <= size else self._pieces(text, piece, size, None)
        return found

    def _of_tokens(self, document: Document, tokens: Tokenised, room: int) -> Read:
        """Windows cut from the document's tokens, which may be those stored beside the index."""
        heading = self.tokenizer.encode([f"{document.title}\n"]).ids if document.title else tokens.ids[:0]
        body = tokens.ids[len(heading) :]
        if not np.array_equal(tokens.ids[: len(heading)], heading) or (
            tokens.lengths[0] >= COUNTED and not self.cutting.within(len(body))
        ):
            # the text has other tokens after a title, or more tokens than are stored
            body = token_places(document.text, self.tokenizer).ids
        before = heading[: self.room // 2] if self.cutting.title else heading[:0]
        longest = max(room - len(before), 1)
        if self.cutting.unit == "even":
            usual = max(self.room - len(before), 1)
            found = even_chunks(len(body), min(self.cutting.window or usual, longest))
        else:
            # smaller windows if there is no room, as in training, so that no text between two is skipped
            window = min(self.cutting.sizes[0], longest)
            found = windows(len(body), window, min(self.cutting.sizes[1], window))
        places = self.cutting.chosen([Passage(*each) for each in found or [(0, 0)]], document.id)
        read = Tokenised.of([[*before.tolist(), *body[start:stop].tolist()] for start, stop in places])
        return Read(places, read, len(body) - sum(stop - start for start, stop in _merged(places)))


def _words_lost(text: str, all_of_them: Sequence[Passage], chosen: Sequence[Passage]) -> int:
    if len(all_of_them) == len(chosen):
        return 0
    count = [
        sum(len(text[start:stop].split()) for start, stop in _merged(each)) for each in (all_of_them, chosen)
    ]
    return count[0] - count[1]


def _merged(passages: Sequence[Passage]) -> list[Passage]:
    """The union of passages, without overlap; `passages` are sorted."""
    merged: list[Passage] = []
    for start, stop in passages:
        if merged and start <= merged[-1].stop:
            merged[-1] = Passage(merged[-1].start, max(stop, merged[-1].stop))
        else:
            merged.append(Passage(start, stop))
    return merged
