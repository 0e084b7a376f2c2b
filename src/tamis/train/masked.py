"""Batches for masked language modelling and next sentence prediction (Devlin et al. 2019, §3.1 and A.2).

An input is `[CLS] A [SEP] B [SEP]`: two runs of whole sentences of the corpus. Half the time B is what
follows A, else it is from another document. 15 % of the tokens are chosen to be predicted: of these 80 % are
read as [MASK], 10 % as any token, 10 % as they are.

Nothing is kept from batch to batch: the n-th depends on the corpus, the seed and n alone, so training can go
on anywhere, and a text is masked otherwise whenever it comes by again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array, ranges
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.models.checkpoint import TOKENIZER
from tamis.models.config import read_raw_config
from tamis.models.templates import Inputs, Tokenised
from tamis.models.tokenizer import Tokenizer

RATE = 0.15  # of the tokens are predicted
SHORT = 0.1  # of the inputs are shorter than they could be, so that short ones are known too
SHOWN = (0.8, 0.1)  # of the chosen tokens are read as [MASK], as any token; the others as they are
_SHORTEST = 2  # tokens, one a segment
LEAST = _SHORTEST + 3  # tokens of an input, special ones included
_AT_ONCE = 1000  # documents tokenised together
_MASKS = ("[MASK]", "<mask>")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Sentences:
    """A corpus as tokens, sentence by sentence: document i has sentences documents[i] to documents[i + 1] of
    `tokens`, at least two."""

    tokens: Tokenised
    documents: Array  # int64[d + 1]

    def __len__(self) -> int:
        return len(self.documents) - 1

    @property
    def fingerprint(self) -> str:
        """Changes with the texts."""
        return digest(self.tokens.ids, self.tokens.offsets, self.documents)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that masking needs to know. `special` ones are never masked, and never drawn to stand for
    another."""

    size: int
    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """Inputs as the model reads them, what it should have read, and where segments do not belong together."""

    inputs: Inputs
    positions: Array  # int64[m]: the chosen tokens' places in inputs.ids
    tokens: Array  # int64[m]: what stood there
    is_random: Array  # int64[n]: 1 where B is from another document, else 0, as in Devlin et al.'s code

    def take(self, examples: Array) -> MaskedBatch:
        """Those inputs, in that order.

        >>> inputs = Inputs(np.array([1, 7, 2, 1, 8, 9]), np.zeros(6), np.array([0, 3, 6]))
        >>> batch = MaskedBatch(inputs, np.array([1, 4, 5]), np.array([70, 80, 90]), np.array([0, 1]))
        >>> second = batch.take(np.array([1]))
        >>> second.positions.tolist(), second.tokens.tolist(), second.is_random.tolist()
        ([1, 2], [80, 90], [1])
        """
        taken, offsets = self.inputs.take(examples), np.searchsorted(self.positions, self.inputs.offsets)
        counts = offsets[examples + 1] - offsets[examples]
        at = ranges(offsets[examples], counts)
        moved = np.repeat(taken.offsets[:-1] - self.inputs.offsets[examples], counts)
        return MaskedBatch(taken, self.positions[at] + moved, self.tokens[at], self.is_random[examples])


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, roughly: they end at . ! or ? before a blank, and at line ends. What is one
    sentence is cut in the middle, between words, so that there is a next one to predict.

    >>> split_sentences("Tamis\\nA sieve. For cooks!")
    ['Tamis', 'A sieve.', 'For cooks!']
    >>> split_sentences("a drum sieve for purees")
    ['a drum', 'sieve for purees']
    """
    sentences = [sentence for sentence in _SENTENCE_ENDS.split(text.strip()) if sentence]
    if len(sentences) != 1:
        return sentences
    words = text.split()
    middle = len(words) // 2
    return [" ".join(words[:middle]), " ".join(words[middle:])] if middle else sentences


def read_sentences(documents: Iterable[Document], tokenizer: Tokenizer) -> Sentences:
    """A corpus, tokenised. Documents of less than two words are left out."""
    parts, counts = [], [0]
    remaining = iter(documents)
    while some := list(islice(remaining, _AT_ONCE)):
        texts = [split_sentences(document.contents) for document in some]
        tokens = tokenizer.encode([sentence for sentences in texts for sentence in sentences])
        owner = np.repeat(np.arange(len(texts)), [len(sentences) for sentences in texts])
        owner = owner[tokens.lengths > 0]  # a sentence can be all of control characters
        sizes = np.bincount(owner, minlength=len(texts))
        kept = np.flatnonzero(tokens.lengths > 0)[sizes[owner] > 1]
        parts.append(tokens.take(kept))
        counts += sizes[sizes > 1].tolist()
    if len(counts) < 3:
        problem = f"{len(counts) - 1} documents of at least two words"
        raise InputError(problem, remedy="pretrain on a corpus of at least two")
    return Sentences(Tokenised.join(parts), np.cumsum(counts, dtype=np.int64))


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The special tokens of a model's tokenizer.json, [MASK] among them."""
    path = Path(tokenizer.folder) / TOKENIZER
    added = {token["content"]: int(token["id"]) for token in read_raw_config(path).get("added_tokens", [])}
    mask = next((added[name] for name in _MASKS if name in added), None)
    if mask is None:
        raise InputError("no [MASK] token", remedy="pretrain a model whose tokenizer has one", path=path)
    own = tokenizer.special
    special = tuple(sorted({own.cls, own.sep, own.pad, *added.values()}))
    return Vocabulary(tokenizer.vocabulary, own.cls, own.sep, mask, special)


def digest(*arrays: Array) -> str:
    """Changes with any value or length.

    >>> digest(np.array([1]), np.array([2])) == digest(np.array([1, 2]), np.zeros(0, int))
    False
    """
    seen = xxhash.xxh3_128()
    for array in arrays:
        seen.update(f"{array.dtype.str} {len(array)}\n".encode())
        seen.update(np.ascontiguousarray(array).view(np.uint8).data)
    return str(seen.hexdigest())


def masked_batch(
    corpus: Sentences,
    vocabulary: Vocabulary,
    *,
    size: int,
    length: int,
    seed: int,
    number: int,
    segment_types: int = 2,
) -> MaskedBatch:
    """The batch with this number: `size` inputs of at most `length` tokens. A model of one segment type
    reads B as it reads A.

    >>> corpus = Sentences(Tokenised.of([[7, 8], [9], [10, 11], [12]]), np.array([0, 2, 4]))
    >>> vocabulary = Vocabulary(size=13, cls=1, sep=2, mask=3, special=(0, 1, 2, 3))
    >>> batch = masked_batch(corpus, vocabulary, size=2, length=8, seed=0, number=0)
    >>> len(batch.inputs), len(batch.positions), len(batch.is_random)
    (2, 2, 2)
    """
    if length < LEAST or size < 1:
        problem = f"batches of {size} inputs of {length} tokens"
        raise InputError(problem, remedy=f"use at least 1 input of at least {LEAST} tokens")
    generator = np.random.default_rng([seed, number])
    is_random = (generator.random(size) < 0.5).astype(np.int64)
    pairs = [next_sentence_pair(corpus, generator, length - 3, bool(each)) for each in is_random]
    inputs = _joined(pairs, vocabulary, segment_types)
    ids, positions = mask_tokens(inputs.ids, inputs.offsets, vocabulary, generator)
    masked = Inputs(ids, inputs.segments, inputs.offsets)
    return MaskedBatch(masked, positions, inputs.ids[positions].astype(np.int64), is_random)


def next_sentence_pair(
    corpus: Sentences, generator: np.random.Generator, room: int, is_random: bool
) -> tuple[Array, Array]:
    """Two segments of at most `room` tokens together: sentences of a document and those that follow, or those
    of another document.

    Every sentence but a document's last is as likely as any to begin the first segment, whatever comes
    second, so that the first alone tells nothing.

    >>> corpus = Sentences(Tokenised.of([[7, 8], [9], [10, 11], [12]]), np.array([0, 2, 4]))
    >>> first, second = next_sentence_pair(corpus, np.random.default_rng(0), 9, is_random=False)
    >>> first.tolist(), second.tolist()
    ([10, 11], [12])
    """
    ids, offsets, documents = corpus.tokens.ids, corpus.tokens.offsets, corpus.documents
    if generator.random() < SHORT:
        room = int(generator.integers(_SHORTEST, room + 1))
    start = after = 0
    while start + 1 >= after:  # until one is met that another follows: at least half of them
        start = int(generator.integers(documents[-1]))
        own, after = _document(documents, start)
    stop = max(_reaching(offsets, start, room, after), start + 2)
    cut = int(generator.integers(start + 1, stop))
    first, second = ids[offsets[start] : offsets[cut]], ids[offsets[cut] : offsets[stop]]
    if is_random:
        other = int(generator.integers(documents[-1] - (after - own)))
        other += (after - own) * (other >= own)  # all sentences but this document's
        _, end = _document(documents, other)
        second = ids[offsets[other] : offsets[_reaching(offsets, other, max(room - len(first), 1), end)]]
    return fitted(first, second, room)


def fitted(first: Array, second: Array, room: int) -> tuple[Array, Array]:
    """Two segments cut to `room` tokens, the longer one before the shorter. The first loses its beginning and
    the second its end, so that they meet where they met.

    >>> [part.tolist() for part in fitted(np.array([1, 2, 3, 4]), np.array([5, 6, 7]), 4)]
    [[3, 4], [5, 6]]
    >>> [part.tolist() for part in fitted(np.array([1, 2, 3, 4]), np.array([5]), 4)]
    [[2, 3, 4], [5]]
    """
    share = max(room - len(second), room // 2)
    first = first[max(len(first) - share, 0) :]
    return first, second[: room - len(first)]


def mask_tokens(
    ids: Array, offsets: Array, vocabulary: Vocabulary, generator: np.random.Generator, rate: float = RATE
) -> tuple[Array, Array]:
    """Inputs with some tokens masked, and where. Of each input's n tokens that are not special,
    max(1, round(rate n)) are chosen, all sets of them alike.

    >>> vocabulary = Vocabulary(size=99, cls=1, sep=2, mask=3, special=(0, 1, 2, 3))
    >>> ids, offsets = np.array([1, *range(10, 30), 2, 1, 40, 2]), np.array([0, 22, 25])
    >>> masked, positions = mask_tokens(ids, offsets, vocabulary, np.random.default_rng(0))
    >>> len(positions), np.setdiff1d(np.flatnonzero(masked != ids), positions).tolist()
    (4, [])
    """
    plain = np.flatnonzero(~np.isin(ids, vocabulary.special))
    owner = np.searchsorted(offsets, plain, side="right") - 1
    maskable = np.bincount(owner, minlength=len(offsets) - 1)
    wanted = np.minimum(np.maximum(np.rint(rate * maskable), 1), maskable)
    order = np.lexsort((generator.random(len(plain)), owner))  # shuffled within each input
    rank = np.arange(len(plain)) - (np.cumsum(maskable) - maskable)[owner]
    positions = np.sort(plain[order[rank < wanted[owner]]])
    masked = ids.copy()
    fate = generator.random(len(positions))
    as_mask, as_any = SHOWN
    masked[positions[fate < as_mask]] = vocabulary.mask
    replaced = positions[(fate >= as_mask) & (fate < as_mask + as_any)]
    drawable = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)
    masked[replaced] = generator.choice(drawable, len(replaced))
    return masked, positions


def _document(documents: Array, sentence: int) -> tuple[int, int]:
    """Where the document of a sentence begins and ends."""
    number = int(np.searchsorted(documents, sentence, side="right"))
    return int(documents[number - 1]), int(documents[number])


def _reaching(offsets: Array, start: int, tokens: int, after: int) -> int:
    """The sentence before which at least so many tokens lie, counted from `start`, but none beyond `after`;
    at least one sentence is between."""
    return max(min(int(np.searchsorted(offsets, offsets[start] + tokens)), after), start + 1)


def _joined(pairs: list[tuple[Array, Array]], vocabulary: Vocabulary, segment_types: int) -> Inputs:
    """`[CLS] A [SEP] B [SEP]` of each pair."""
    cls, sep = np.array([vocabulary.cls], np.int32), np.array([vocabulary.sep], np.int32)
    ids = np.concatenate([part for first, second in pairs for part in (cls, first, sep, second, sep)])
    counts = np.array([(len(first) + 2, len(second) + 1) for first, second in pairs])
    second = int(segment_types > 1)
    segments = np.repeat(np.tile(np.array([0, second], np.uint8), len(pairs)), counts.ravel())
    offsets = np.concatenate([[0], np.cumsum(counts.sum(axis=1))])
    return Inputs(ids, segments, offsets)
