"""The measures of section 2.5 of the survey (Eqs. 3-8) and related ones, for the ranking of one query. They
agree with trec_eval to the last digits; measures that trec_eval does not have follow the cited paper. The
value of a query without a relevant document (at the threshold `rel`) is 0.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tamis.base.arrays import Array

Gain = Literal["linear", "exp"]
ShortLists = Literal["k", "l"]

ALL = sys.maxsize  # the cutoff of a measure without one
UNJUDGED = np.iinfo(np.int64).min  # below every grade, so that no threshold makes it relevant


@dataclass(frozen=True, slots=True)
class Graded:
    """A ranking as the measures need it: judgments instead of documents."""

    grades: Array  # of the documents in rank order, UNJUDGED for those without a judgment
    pool: Array  # the grades of all the documents that are judged for the query, highest first

    def __len__(self) -> int:
        return len(self.grades)

    def condensed(self) -> Graded:
        """The list without its unjudged documents (Sakai 2007)."""
        return Graded(self.grades[self.grades != UNJUDGED], self.pool)


def graded(ids: Sequence[str], judgments: Mapping[str, int]) -> Graded:
    """The grades of a ranking of documents.

    >>> found = graded(["d3", "d1"], {"d1": 2, "d2": 1, "d3": 0})
    >>> found.grades.tolist(), found.pool.tolist()
    ([0, 2], [2, 1, 0])
    """
    places = [rank for rank, doc_id in enumerate(ids) if doc_id in judgments]
    grades = np.full(len(ids), UNJUDGED)
    grades[places] = [judgments[ids[rank]] for rank in places]
    return Graded(grades, np.sort(np.array(list(judgments.values()), np.int64))[::-1])


# -- binary relevance: a grade of at least `rel` is relevant
# ------------------------------------------------------------------------------------------------------------


def precision(found: Graded, k: int, rel: int = 1, short_lists: ShortLists = "k") -> float:
    """The share of relevant documents among the first k. A list of l < k documents cannot reach 1 if the sum
    is divided by k, as in trec_eval; some papers divide it by l.

    >>> two = graded(["d1", "d2"], {"d1": 1})
    >>> precision(two, 10), precision(two, 10, short_lists="l")
    (0.1, 0.5)
    """
    size = k if short_lists == "k" else min(k, len(found))
    return _count(found.grades[:k] >= rel) / size if size else 0.0


def recall(found: Graded, k: int = ALL, rel: int = 1) -> float:
    """The share of the relevant documents that are among the first k.

    >>> recall(graded(["d1", "d2"], {"d1": 1, "d5": 1}), 10)
    0.5
    """
    return _of_relevant(_count(found.grades[:k] >= rel), found, rel)


def success(found: Graded, k: int, rel: int = 1) -> float:
    """1 if there is a relevant document among the first k.

    >>> success(graded(["d1", "d2"], {"d2": 1}), 1)
    0.0
    """
    return float((found.grades[:k] >= rel).any())


def reciprocal_rank(found: Graded, k: int = ALL, rel: int = 1) -> float:
    """1 / the rank of the first relevant document; 0 if none is among the first k.

    >>> reciprocal_rank(graded(["d1", "d2"], {"d2": 1}))
    0.5
    """
    hits = np.flatnonzero(found.grades[:k] >= rel)
    return 1 / (int(hits[0]) + 1) if len(hits) else 0.0


def average_precision(found: Graded, k: int = ALL, rel: int = 1) -> float:
    """The mean over the relevant documents of the precision at their ranks, 0 for those that are not
    retrieved. A cutoff does not change the divisor.

    >>> average_precision(graded(["d1", "d2", "d3", "d4"], {"d1": 1, "d4": 1, "d7": 1}))
    0.5
    """
    ranks = np.flatnonzero(found.grades[:k] >= rel) + 1
    return _of_relevant(float((np.arange(1, len(ranks) + 1) / ranks).sum()), found, rel)


def r_precision(found: Graded, rel: int = 1) -> float:
    """The precision at rank R for a query with R relevant documents.

    >>> r_precision(graded(["d1", "d2", "d3"], {"d1": 1, "d3": 1}))
    0.5
    """
    return recall(found, _relevant(found, rel), rel)


def bpref(found: Graded, rel: int = 1) -> float:
    """The mean over the relevant documents of 1 - min(n, R) / min(R, N), with n of the N documents judged not
    relevant above each (Buckley & Voorhees 2004). Unjudged documents and negative grades are left out.

    >>> bpref(graded(["d1", "d9", "d2", "d3"], {"d1": 1, "d2": 0, "d3": 1, "d4": 0}))
    0.75
    """
    relevant = _relevant(found, rel)
    most = min(relevant, _count((found.pool >= 0) & (found.pool < rel)))
    bad = np.cumsum((found.grades >= 0) & (found.grades < rel))
    above = np.minimum(bad[found.grades >= rel], relevant)
    # if no document is judged not relevant, none is above
    return _of_relevant(float((1 - above / max(most, 1)).sum()), found, rel)


def rank_biased_precision(found: Graded, p: float = 0.8, k: int = ALL, rel: int = 1) -> float:
    """(1 - p) times the sum of p^(rank-1) over the relevant documents (Moffat & Zobel 2008).

    >>> rank_biased_precision(graded(["d1", "d2", "d3"], {"d1": 1, "d3": 1}), p=0.5)
    0.625
    """
    return float((1 - p) * (p ** np.flatnonzero(found.grades[:k] >= rel).astype(np.float64)).sum())


def rbp_residual(found: Graded, p: float = 0.8, k: int = ALL) -> float:
    """How much larger RBP would be if everything unknown were relevant: the unjudged documents, and those
    after the end of the list.

    >>> rbp_residual(graded(["d1", "d2"], {"d1": 1}), p=0.5)
    0.5
    """
    grades = found.grades[:k]
    unknown = (1 - p) * (p ** np.flatnonzero(grades == UNJUDGED).astype(np.float64)).sum()
    return float(unknown + p ** len(grades))


# -- graded relevance
# ------------------------------------------------------------------------------------------------------------


def dcg(grades: Array, gain: Gain = "linear") -> float:
    """The sum of gain / log2(rank + 1). The gain is the grade (Järvelin & Kekäläinen 2002), as in trec_eval,
    or 2^grade - 1 (Burges et al. 2005), Eq. 7 of the survey: the two differ for grades above 1.

    >>> dcg(np.array([3, 0, 1])), dcg(np.array([3, 0, 1]), "exp")
    (3.5, 7.5)
    """
    ranks = np.flatnonzero(grades > 0) + 1
    gains = grades[ranks - 1].astype(np.float64)
    return float(((gains if gain == "linear" else 2**gains - 1) / np.log2(ranks + 1)).sum())


def ndcg(found: Graded, k: int = ALL, gain: Gain = "linear") -> float:
    """DCG divided by the DCG of the ideal order of all documents judged for the query.

    >>> round(ndcg(graded(["d2", "d1"], {"d1": 3, "d2": 1}), 10), 4)
    0.7967
    """
    ideal = dcg(found.pool[:k], gain)
    return dcg(found.grades[:k], gain) / ideal if ideal else 0.0


# -- judgments
# ------------------------------------------------------------------------------------------------------------


def judged(found: Graded, k: int = ALL) -> float:
    """The share of the first k documents, or of all if there are fewer, that are judged.

    >>> judged(graded(["d1", "d2"], {"d1": 0}), 10)
    0.5
    """
    grades = found.grades[:k]
    return _count(grades != UNJUDGED) / len(grades) if len(grades) else 0.0


def _count(which: Array) -> int:
    return int(np.count_nonzero(which))


def _relevant(found: Graded, rel: int) -> int:
    return _count(found.pool >= rel)


def _of_relevant(total: float, found: Graded, rel: int) -> float:
    relevant = _relevant(found, rel)
    return total / relevant if relevant else 0.0
