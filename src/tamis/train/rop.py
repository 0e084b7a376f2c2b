"""Representative words prediction, ROP (Ma et al. 2021): the model learns which of two sets of a document's
words is the likelier one under the document's language model.

Both sets are drawn from the document without its stop words, in proportion to the words' frequencies there,
and have the same size, drawn from a Poisson distribution. The likelier one, by query likelihood with
Dirichlet smoothing, should score higher with the document. This needs neither queries nor judgments.

The n-th batch depends only on the corpus, the seed and n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.models import templates
from tamis.models.templates import Inputs, Special, Tokenised
from tamis.models.tokenizer import Tokenizer
from tamis.text import wordbreak
from tamis.text.analyze import ENGLISH_STOP_WORDS, Analyzer, lower_case, stop_words
from tamis.train.masked import digest

MEAN_SIZE = 3.0  # words per set
MU = 1000.0
WORDS = Analyzer("words", wordbreak.split, (lower_case, stop_words(ENGLISH_STOP_WORDS)))
_AT_ONCE = 1000  # documents tokenised together
_DRAWS = 100  # documents tried for each pair of sets before the corpus is given up


@dataclass(frozen=True, slots=True)
class Bags:
    """A corpus as bags of words and as tokens: document i has the distinct words
    words[offsets[i] : offsets[i + 1]], each `counts` times."""

    texts: Tokenised  # the documents
    vocabulary: Tokenised  # the words
    frequencies: Array  # int64[v]: how often each word occurs in the corpus
    tokens: int  # the corpus's words in total, the sum of `frequencies`
    offsets: Array  # int64[d + 1]
    words: Array  # int32
    counts: Array  # int32

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the texts."""
        return digest(self.texts.ids, self.texts.offsets, self.vocabulary.ids, self.words, self.counts)


def read_bags(documents: Iterable[Document], tokenizer: Tokenizer, analyzer: Analyzer = WORDS) -> Bags:
    """Read, analyse and tokenise a corpus. Documents of less than two different words are left out."""
    numbers: dict[str, int] = {}
    texts, words, counts, sizes = [], [], [], [0]
    remaining = iter(documents)
    while some := list(islice(remaining, _AT_ONCE)):
        bags = [Counter(analyzer.tokens(document.contents)) for document in some]
        kept = [place for place, bag in enumerate(bags) if len(bag) > 1]
        texts.append(tokenizer.encode([some[place].contents for place in kept]))
        bags = [bags[place] for place in kept]
        found = [numbers.setdefault(word, len(numbers)) for bag in bags for word in bag]
        words.append(np.array(found, np.int32))
        counts.append(np.array([count for bag in bags for count in bag.values()], np.int32))
        sizes += map(len, bags)
    if len(sizes) == 1:
        problem = "no document has two different words"
        raise InputError(problem, remedy="pretrain on another corpus, or without ROP")
    all_words, all_counts = np.concatenate(words), np.concatenate(counts)
    frequencies = np.bincount(all_words, all_counts).astype(np.int64)
    return Bags(
        texts=Tokenised.join(texts),
        vocabulary=tokenizer.encode(list(numbers)),
        frequencies=frequencies,
        tokens=int(frequencies.sum()),
        offsets=np.cumsum(sizes, dtype=np.int64),
        words=all_words,
        counts=all_counts,
    )


def query_likelihood(tf: Array, cf: Array, length: int, tokens: int, mu: float = MU) -> float:
    """log P(words | document) = sum log((tf + mu cf / |C|) / (|d| + mu)), where |d| is the document's length
    and |C| the collection's.

    >>> round(query_likelihood(np.array([2, 0]), np.array([4, 2]), length=10, tokens=100, mu=10), 4)
    -6.7254
    """
    return float(np.log((tf + mu * cf / tokens) / (length + mu)).sum())


def word_sets(
    bags: Bags, document: int, generator: np.random.Generator, mean_size: float = MEAN_SIZE, mu: float = MU
) -> tuple[Array, Array] | None:
    """Two sets of a document's words, the likelier first; None if they are equally likely. A set has at least
    one word, and at least one word less than the document.

    >>> bags = Bags(Tokenised.of([[7, 8, 8]]), Tokenised.of([[7], [8]]), np.array([1, 2]), 3,
    ...             np.array([0, 2]), np.array([0, 1]), np.array([1, 2]))
    >>> [words.tolist() for words in word_sets(bags, 0, np.random.default_rng(0), mu=1)]
    [[1], [0]]
    """
    own = slice(int(bags.offsets[document]), int(bags.offsets[document + 1]))
    words, tf = bags.words[own], bags.counts[own]
    size = int(np.clip(generator.poisson(mean_size), 1, len(words) - 1))
    length = int(tf.sum())
    sets = [generator.choice(len(words), size, replace=False, p=tf / length) for _ in range(2)]
    one, other = (query_likelihood(tf[s], bags.frequencies[words[s]], length, bags.tokens, mu) for s in sets)
    if np.isclose(one, other, rtol=1e-12, atol=0):  # equal words in another order round differently
        return None
    first, second = sets if one > other else reversed(sets)
    return words[first], words[second]


def rop_batch(
    bags: Bags,
    special: Special,
    *,
    size: int,
    length: int,
    seed: int,
    number: int,
    mean_size: float = MEAN_SIZE,
    mu: float = MU,
    segment_types: int = 2,
) -> Inputs:
    """The batch with this number: `[CLS] words [SEP] document [SEP]` for `size` pairs of sets, the likelier
    set of each pair first.

    >>> bags = Bags(Tokenised.of([[7, 8, 8]]), Tokenised.of([[7], [8]]), np.array([1, 2]), 3,
    ...             np.array([0, 2]), np.array([0, 1]), np.array([1, 2]))
    >>> rop_batch(bags, Special(cls=1, sep=2), size=1, length=9, seed=0, number=0, mu=1).ids.tolist()
    [1, 8, 2, 7, 8, 8, 2, 1, 7, 2, 7, 8, 8, 2]
    """
    generator = np.random.default_rng([seed, number])
    documents: list[int] = []
    sets: list[Array] = []
    for _ in range(_DRAWS * size):
        if len(sets) == 2 * size:
            break
        document = int(generator.integers(len(bags)))
        if pair := word_sets(bags, document, generator, mean_size, mu):
            documents.append(document)
            sets += pair
    if len(sets) < 2 * size or size < 1:
        problem = f"a batch of {size} where {len(documents)} documents have words that differ in likelihood"
        raise InputError(problem, remedy="pretrain on another corpus, or without ROP")
    texts, words = bags.texts.take(documents), bags.vocabulary.take(np.concatenate(sets))
    offsets = words.offsets[np.cumsum([0, *map(len, sets)])]
    inputs = []
    for place in range(len(sets)):
        query, text = words.ids[offsets[place] : offsets[place + 1]], texts.take([place // 2])
        made, _ = templates.mono(query, text, special, total_limit=length, segment_types=segment_types)
        inputs.append(made)
    return Inputs.join(inputs)
