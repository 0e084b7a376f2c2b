"""Fewer judgments: deep (all of a few queries) or shallow (a few of all queries), the same number of them.

With Q queries, D_q judgments per query and M in total, both schemes keep exactly r*M judgments at rate r (the
reproduction of MaxP by Zhang, Yates & Lin, section 3.3; there the text has r*D, the files r*M):

1. deep keeps ceil(r*Q) random queries with all their judgments, and further random queries if these are too
   few, since queries have different numbers of them; shallow keeps ceil(r*D_q) random judgments of every
   query;
2. then each query in turn loses a random judgment until r*M are left (a half is rounded up). A query keeps
  its
   last judgment as long as any query has more than one.

Sample for training and validation only, and test on all judgments: `only` names the queries to sample from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from math import ceil, floor
from typing import Literal, get_args

import numpy as np

from tamis.base.errors import InputError
from tamis.evaluate.chance import seeded
from tamis.formats import Qrels

Scheme = Literal["deep", "shallow"]

#: The rates of the paper; 1 keeps everything.
RATES = (0.1, 0.3, 0.5, 0.7, 0.9)


def sample_judgments(
    qrels: Mapping[str, Mapping[str, int]],
    rate: float,
    scheme: Scheme,
    *,
    seed: int = 0,
    only: Collection[str] | None = None,
) -> Qrels:
    """Keep a share of the judgments. Queries and documents keep their order; a query without judgments is
    removed. With `only`, all other queries keep all their judgments.

    >>> qrels = {q: {f"d{i}": i % 2 for i in range(10)} for q in ("q1", "q2", "q3", "q4")}
    >>> {qid: len(grades) for qid, grades in sample_judgments(qrels, 0.3, "shallow").items()}
    {'q1': 3, 'q2': 3, 'q3': 3, 'q4': 3}
    >>> {qid: len(grades) for qid, grades in sample_judgments(qrels, 0.3, "deep", seed=1).items()}
    {'q1': 6, 'q2': 6}
    """
    if not 0 < rate <= 1:
        raise InputError(f"a rate of {rate}", remedy="use a rate above 0 and up to 1")
    if scheme not in get_args(Scheme):
        raise InputError(f"{scheme!r} is not a scheme", remedy=f"use {' or '.join(get_args(Scheme))}")
    pool = {qid: list(grades) for qid, grades in qrels.items() if only is None or qid in only}
    share = Fraction(str(float(rate)))  # 0.7 means seven tenths, and ceil(0.7 * 10) must be 7
    target = floor(share * sum(map(len, pool.values())) + Fraction(1, 2))
    generator = seeded(seed)
    kept = (_deep if scheme == "deep" else _shallow)(pool, share, target, generator)
    _drop(kept, target, generator)
    sampled: Qrels = {}
    for qid, grades in qrels.items():
        if qid not in pool:
            sampled[qid] = dict(grades)
        elif kept.get(qid):
            wanted = set(kept[qid])
            sampled[qid] = {docid: grade for docid, grade in grades.items() if docid in wanted}
    return sampled


_Kept = dict[str, list[str]]  # the documents of each query, in random order if some will be dropped


def _deep(pool: _Kept, share: Fraction, target: int, generator: np.random.Generator) -> _Kept:
    qids = _shuffled(list(pool), generator)
    enough = ceil(share * len(pool))
    kept: _Kept = {}
    judgments = 0
    for qid in qids:
        if len(kept) >= enough and judgments >= target:
            break
        kept[qid] = _shuffled(pool[qid], generator)
        judgments += len(kept[qid])
    return kept


def _shallow(pool: _Kept, share: Fraction, target: int, generator: np.random.Generator) -> _Kept:
    return {qid: _shuffled(docids, generator)[: ceil(share * len(docids))] for qid, docids in pool.items()}


def _shuffled(ids: list[str], generator: np.random.Generator) -> list[str]:
    return [ids[place] for place in generator.permutation(len(ids))]


def _drop(kept: _Kept, target: int, generator: np.random.Generator) -> None:
    """Drop one judgment from each query in turn, in random order, until `target` are left."""
    excess = sum(map(len, kept.values())) - target
    turns = _shuffled(list(kept), generator)
    for least in (1, 0):
        while excess > 0 and (losing := [qid for qid in turns if len(kept[qid]) > least]):
            for qid in losing[:excess]:
                kept[qid].pop()
            excess -= len(losing[:excess])
