"""Batches for masked language modelling and next sentence prediction (Devlin et al. 2019, §3.1 and A.2).

An input is `[CLS] A [SEP] B [SEP]`: two sequences of whole sentences of the corpus. Half the time B is the
text that follows A, else it is from another document. 15 % of the tokens are chosen for prediction: 80 % of
these are replaced by [MASK], 10 % by a random token, and 10 % are unchanged.

No state is kept between batches: the n-th depends only on the corpus, the seed and n, so training can resume
anywhere, and a text is masked differently each time.
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
SHORT = 0.1  # of the inputs are shorter than possible, so that short ones are learned too
SHOWN = (0.8, 0.1)  # of the chosen tokens become [MASK] or a random token; the others are unchanged
_SHORTEST = 2  # tokens, one per segment
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
        """A fingerprint of the texts."""
        return digest(self.tokens.ids, self.tokens.offsets, self.documents)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that masking needs to know. `special` tokens are never masked, and never drawn as
    replacements."""

    size: int
    cls: int
    sep: int
    mask: int
    special: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    """Inputs for the model, the original tokens, and which inputs have unrelated segments."""

    inputs: Inputs
    positions: Array  # int64[m]: the positions of the chosen tokens in inputs.ids
    tokens: Array  # int64[m]: the original tokens there
    is_random: Array  # int64[n]: 1 where B is from another document, else 0, as in Devlin et al.'s code

    def take(self, examples: Array) -> MaskedBatch:
        """The inputs with these numbers, in this order.

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
    """The approximate sentences of a text: they end at . ! or ? before a blank, and at line ends. A text of a
    single sentence is cut in the middle, between words, so that there is a next one to predict.

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
    """Read and tokenise a corpus. Documents of less than two words are left out."""
    parts, counts = [], [0]
    remaining = iter(documents)
    while some := list(islice(remaining, _AT_ONCE)):
        texts = [split_sentences(document.contents) for document in some]
        tokens = tokenizer.encode([sentence for sentences in texts for sentence in sentences])
        owner = np.repeat(np.arange(len(texts)), [len(sentences) for sentences in texts])
        owner = owner[tokens.lengths > 0]  # a sentence may have only control characters
        sizes = np.bincount(owner, minlength=len(texts))
        kept = np.flatnonzero(tokens.lengths > 0)[sizes[owner] > 1]
        parts.append(tokens.take(kept))
        counts += sizes[sizes > 1].tolist()
    if len(counts) < 3:
        problem = f"{len(counts) - 1} documents of at least two words"
        raise InputError(problem, remedy="pretrain on a corpus of at least two")
    return Sentences(Tokenised.join(parts), np.cumsum(counts, dtype=np.int64))


def read_vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The special tokens of a model's tokenizer.json, including [MASK]."""
    path = Path(tokenizer.folder) / TOKENIZER
    added = {token["content"]: int(token["id"]) for token in read_raw_config(path).get("added_tokens", [])}
    mask = next((added[name] for name in _MASKS if name in added), None)
    if mask is None:
        raise InputError("no [MASK] token", remedy="pretrain a model whose tokenizer has one", path=path)
    own = tokenizer.special
    special = tuple(sorted({own.cls, own.sep, own.pad, *added.values()}))
    return Vocabulary(tokenizer.vocabulary, own.cls, own.sep, mask, special)


def digest(*arrays: Array) -> str:
    """A digest of all values and lengths.

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
    """The batch with this number: `size` inputs of at most `length` tokens. For a model with one segment
    type, B has the segment of A.

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
    """Two segments of at most `room` tokens together: sentences of a document, and those that follow or those
    of another document.

    All sentences except the last of a document are equally likely to begin the first segment, whatever the
    second is, so that the first segment alone gives no hint.

    >>> corpus = Sentences(Tokenised.of([[7, 8], [9], [10, 11], [12]]), np.array([0, 2, 4]))
    >>> first, second = next_sentence_pair(corpus, np.random.default_rng(0), 9, is_random=False)
    >>> first.tolist(), second.tolist()
    ([10, 11], [12])
    """
    ids, offsets, documents = corpus.tokens.ids, corpus.tokens.offsets, corpus.documents
    if generator.random() < SHORT:
        room = int(generator.integers(_SHORTEST, room + 1))
    start = after = 0
    while start + 1 >= after:  # until a sentence is drawn that another one follows: at least half do
        start = int(generator.integers(documents[-1]))
        own, after = _document(documents, start)
    stop = max(_reaching(offsets, start, room, after), start + 2)
    cut = int(generator.integers(start + 1, stop))
    first, second = ids[offsets[start] : offsets[cut]], ids[offsets[cut] : offsets[stop]]
    if is_random:
        other = int(generator.integers(documents[-1] - (after - own)))
        other += (after - own) * (other >= own)  # all sentences except those of this document
        _, end = _document(documents, other)
        second = ids[offsets[other] : offsets[_reaching(offsets, other, max(room - len(first), 1), end)]]
    return fitted(first, second, room)


def fitted(first: Array, second: Array, room: int) -> tuple[Array, Array]:
    """Cut two segments to `room` tokens, the longer one first. The first segment loses its beginning and the
    second its end, so that they stay adjacent.

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
    """Inputs with some tokens masked, and their positions. Of the n tokens of an input that are not special,
    max(1, round(rate n)) are chosen, uniformly at random.

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
    """The offsets at which the document of a sentence begins and ends."""
    number = int(np.searchsorted(documents, sentence, side="right"))
    return int(documents[number - 1]), int(documents[number])


def _reaching(offsets: Array, start: int, tokens: int, after: int) -> int:
    """The end of a range of sentences from `start` with at least `tokens` tokens, but not beyond `after`; it
    has at least one sentence."""
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
