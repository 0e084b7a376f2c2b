"""Examples that are drawn once: a fixed number of relevant documents and as many others, to measure what a
model learns from that number of labels (Nogueira & Cho 2019, and figure 8 of Lin et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.base.errors import InputError
from tamis.train.examples import Batch, Negatives, Order, Stream, balanced
from tamis.train.sets import Group, TrainingSet

_CANDIDATES = Negatives()


def sample(data: TrainingSet, count: int, seed: int, negatives: Negatives = _CANDIDATES) -> list[Group]:
    """Draw `count` pairs of a query and a relevant document from a set, each with a non-relevant document.

    >>> import numpy as np
    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.sets import Judged
    >>> judged = Judged(np.array([0, 2]), np.array([0, 1]), np.array([1, 1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> [group.documents.tolist() for group in sample(data, 2, seed=0)]
    [[0, 2], [1, 2]]
    """
    # batches of one pair: the first `count` are different positives, in random order
    pairs = balanced(data, 2, seed, negatives)
    if not 1 <= count <= pairs.epoch:
        raise InputError(
            f"a sample of {count:,} relevant documents where there are {pairs.epoch:,}",
            remedy="draw fewer, or leave out `sample`",
        )
    return [pairs.batch(number).groups[0] for number in range(count)]


def fixed(data: TrainingSet, groups: Sequence[Group], size: int, seed: int) -> Stream:
    """Batches of `size` of these groups, each once per epoch, in another order each time.

    >>> import numpy as np
    >>> from tamis.models.templates import Tokenised
    >>> from tamis.train.sets import Judged
    >>> judged = Judged(np.array([0, 2]), np.array([0, 1]), np.array([1, 1]))
    >>> data = TrainingSet(Tokenised.of([[7]]), Tokenised.of([[8], [5], [6]]), ["q"], ["a", "b", "c"], judged)
    >>> stream = fixed(data, sample(data, 2, seed=0), size=2, seed=0)
    >>> [[group.documents.tolist() for group in stream.batch(number).groups] for number in (0, 1)]
    [[[0, 2], [1, 2]], [[1, 2], [0, 2]]]
    """
    order = Order(len(groups), seed)

    def batch(number: int) -> Batch:
        return Batch(data, [groups[place] for place in order.part(number, size).tolist()])

    return Stream(batch, order.batches(size))
