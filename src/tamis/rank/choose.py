"""Which passages of a long document the model reads: those that a cheaper model scores highest.

The cheaper model is a smaller pointwise model, or a model of the first stage (BM25) over the passages:

    s(p) = sum over the query's terms in p of the model's contribution (tf in p, length of p)

with the statistics of the index that the documents come from, so that a passage has the score that a document
with that text would have there. Without an index, the statistics are those of the document's own passages.
Other documents of the ranking or the batch have no influence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, each_document
from tamis.index.index import Index
from tamis.index.lengths import LENGTH_OF_NORM, norms
from tamis.index.score import BM25, Collection, Model, QueryLikelihood, Terms, TfIdf
from tamis.models.templates import Inputs, Tokenised, Truncation
from tamis.rank.mono import Mono
from tamis.rank.reading import Read, Reader, analyzer_of

AMONG = 30  # passages of a document that the cheaper model scores

Lexical = BM25 | QueryLikelihood | TfIdf


# -- formulae
# ------------------------------------------------------------------------------------------------------------


def highest(scores: Array, k: int) -> Array:
    """The positions of the k highest scores, in ascending order; of equal scores the first.

    >>> highest(np.array([0.1, 0.9, 0.5, 0.9]), 2).tolist(), highest(np.zeros(3), 2).tolist()
    ([1, 3], [0, 1])
    """
    return np.sort(np.argsort(-scores, kind="stable")[:k])


def own_statistics(tf: Array, lengths: Array, weight: Array) -> tuple[Terms, Collection]:
    """Statistics over these passages alone; `tf` has one row per passage and one column per term.

    >>> terms, collection = own_statistics(np.array([[2, 0], [1, 0]]), np.array([3, 1]), np.ones(2))
    >>> terms.df.tolist(), terms.cf.tolist(), collection
    ([2, 0], [3, 0], Collection(documents=2, tokens=4))
    """
    terms = Terms(weight, (tf > 0).sum(axis=0), tf.sum(axis=0))
    return terms, Collection(int((lengths > 0).sum()), int(lengths.sum()))


def lexical_scores(model: Model, tf: Array, lengths: Array, terms: Terms, collection: Collection) -> Array:
    """The scores of passages by a model of the first stage; `tf` has one row per passage, one column per
    term.

    >>> tf, lengths = np.array([[2, 0], [1, 0]]), np.array([3, 1])
    >>> lexical_scores(BM25(), tf, lengths, *own_statistics(tf, lengths, np.ones(2))).round(4).tolist()
    [0.1184, 0.106]
    """
    # a term that no passage contains adds nothing, and has no idf in some variants
    held = terms.df > 0
    tf, terms = tf[:, held], Terms(terms.weight[held], terms.df[held], terms.cf[held])
    if model.lengths == "lucene":
        lengths = LENGTH_OF_NORM[norms(lengths)]
    added = model.contribution(np.maximum(tf, 1), lengths[:, None], terms, collection)
    scores: Array = np.where(tf > 0, added, 0).sum(axis=1, dtype=np.float64)
    prior = model.prior(lengths, terms, collection)
    return scores if prior is None else scores + prior


# -- the choice
# ------------------------------------------------------------------------------------------------------------


class Unread(NamedTuple):
    """Documents of a ranking that are cut into passages, some of which will be read."""

    ranking: Ranking
    ids: Sequence[str]
    reads: Sequence[Read]


class Choice:
    """Chooses the best `passages` of those scored by a pointwise stage or a model of the first stage."""

    def __init__(self, by: Mono | Lexical, passages: int | None, among: int, stage: str) -> None:
        if not isinstance(by, Mono | Lexical):
            raise InputError(
                f"{stage} that chooses by {by!r}",
                remedy="choose by bm25, ql, tfidf or a mono, as in choose=bm25",
            )
        if among < 1 or passages is None or not 1 <= passages < among:
            number = "all" if passages is None else passages
            raise InputError(
                f"{stage} that chooses {number} of {among} passages",
                remedy="read 1 or more, and fewer than are looked at, as in passages=3, among=30",
            )
        self.by, self.passages, self.among = by, passages, among

    @property
    def model(self) -> Mono | None:
        """The pointwise stage, if that is what chooses."""
        return self.by if isinstance(self.by, Mono) else None

    def made(self, unread: Sequence[Unread], reader: Reader) -> list[list[Read]]:
        """The passages of each ranking's documents that will be read. Documents with few passages keep all of
        them, and these are not scored here."""
        by, longer = self.by, [self._longer(each) for each in unread]
        if isinstance(by, Mono):
            scores = _by_model(by, longer, reader)
        else:
            scores = [_lexical(by, each, reader) for each in longer]
        return [self._left(each.reads, iter(own)) for each, own in zip(unread, scores, strict=True)]

    def _longer(self, unread: Unread) -> Unread:
        numbers = [n for n, read in enumerate(unread.reads) if len(read.passages) > self.passages]
        return Unread(unread.ranking, [unread.ids[n] for n in numbers], [unread.reads[n] for n in numbers])

    def _left(self, reads: Sequence[Read], scores: Iterator[Array]) -> list[Read]:
        few = self.passages
        return [r if len(r.passages) <= few else r.take(highest(next(scores), few)) for r in reads]


def _by_model(stage: Mono, longer: Sequence[Unread], reader: Reader) -> list[list[Array]]:
    """The margins of each document's passages, using the stage's cache and tally."""
    found: list[list[Array]] = [[] for _ in longer]
    numbers = [number for number, each in enumerate(longer) if each.reads]
    if not numbers:
        return found
    tokenizer = stage.scorer.tokenizer
    inputs: list[Inputs] = []
    cuts: list[Truncation] = []
    for each in (longer[number] for number in numbers):
        if tokenizer.fingerprint == reader.tokenizer.fingerprint:
            texts = Tokenised.join([read.tokens for read in each.reads])
        else:
            contents = [text for own in _contents(each, reader) for text in own]
            texts = tokenizer.encode(contents, limit=stage.limit)
        made, cut = stage.inputs_of(tokenizer.encode([each.ranking.query.text]), texts)
        inputs.append(made)
        cuts.append(cut)
    margins = stage.margins([longer[number].ranking for number in numbers], inputs, cuts)
    for number, own in zip(numbers, margins, strict=True):
        offsets = np.cumsum([len(read.passages) for read in longer[number].reads])
        found[number] = np.split(own, offsets[:-1])
    return found


def _contents(unread: Unread, reader: Reader) -> Iterator[list[str]]:
    """The text that is read for each document's passages."""
    texts = unread.ranking.texts
    assert texts is not None  # they were cut, so they exist
    for document, read in zip(each_document(texts, unread.ids), unread.reads, strict=True):
        yield reader.contents(document, read.passages)


def _lexical(model: Model, longer: Unread, reader: Reader) -> list[Array]:
    ranking = longer.ranking
    analyzer = analyzer_of(ranking)
    weights = Counter(analyzer.tokens(ranking.query.text))  # each occurrence counts 1, as in a search
    weight = np.array(list(weights.values()), np.float64)
    known = None
    if isinstance(ranking.texts, Index):
        known = ranking.texts.statistics(weights, model), ranking.texts.collection
    scores = []
    for texts in _contents(longer, reader) if longer.reads else ():
        tf, lengths = _counted([analyzer.tokens(text) for text in texts], weights)
        stated = known or own_statistics(tf, lengths, weight)
        scores.append(lexical_scores(model, tf, lengths, *stated))
    return scores


def _counted(passages: Sequence[Sequence[str]], wanted: Iterable[str]) -> tuple[Array, Array]:
    """How often each passage contains each term, and how long it is."""
    place = {term: number for number, term in enumerate(wanted)}
    tf = np.zeros((len(passages), len(place)), np.int64)
    for row, terms in zip(tf, passages, strict=True):
        for term in terms:
            if term in place:
                row[place[term]] += 1
    return tf, np.array([len(terms) for terms in passages], np.int64)
