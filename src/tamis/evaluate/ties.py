"""The effect of ties: the values that a run could have if its equal scores were ordered differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tamis.base.arrays import Array
from tamis.core.ranking import Ranking
from tamis.evaluate.formulae import ShortLists, graded
from tamis.evaluate.measures import (
    DEFAULT_MEASURES,
    Evaluation,
    Mean,
    Unjudged,
    over_queries,
    parse_measures,
    values,
)
from tamis.formats import Qrels

TIE_RULE = "by the rank column, then as in the file"  # how `Run.read` orders equal scores
_NOISE = 1e-12  # rounding of a sum in another order


@dataclass(frozen=True, slots=True)
class TieEffect:
    """How much a run's values depend on the order of equal scores."""

    queries: list[str]  # queries whose values would change
    low: dict[str, float]  # each measure over all queries, with the worst tied documents first
    high: dict[str, float]  # and with the best first


def tie_effect(
    qrels: Qrels,
    run: Mapping[str, Ranking],
    evaluation: Evaluation,
    measures: Sequence[str] = DEFAULT_MEASURES,
    *,
    unjudged: Unjudged = "nonrelevant",
    short_lists: ShortLists = "k",
    mean: Mean = "arithmetic",
) -> TieEffect:
    """Measure the run with the best and with the worst tied documents first; `evaluation` is that of the run
    in its own order. Scores are tied if they are equal as float32, as in trec_eval. Measures of unjudged
    documents (`Judged`) are left out, because they do not rate one order better than another.

    >>> from tamis.base.documents import Query
    >>> from tamis.evaluate.measures import evaluate
    >>> run = {"q": Ranking(Query("q", ""), ("d1", "d2"), np.array([7.0, 7.0]))}
    >>> qrels = {"q": {"d2": 1}}
    >>> tie_effect(qrels, run, evaluate(qrels, run, ["RR"]), ["RR"])
    TieEffect(queries=['q'], low={'RR': 0.5}, high={'RR': 1.0})
    """
    from tamis.evaluate.engines import of_whole_lists

    parsed = [measure for measure in parse_measures(measures) if not of_whole_lists(measure)]
    counted = next(iter(evaluation.per_query.values()))
    worst, best = {}, {}
    for qid in counted:
        if qid in run and (orders := _extremes(run[qid], qrels[qid])) is not None:
            worst[qid], best[qid] = orders
    open_qrels = {qid: qrels[qid] for qid in worst}
    low, high = ({str(measure): dict(evaluation.per_query[str(measure)]) for measure in parsed} for _ in "lh")
    changed: set[str] = set()
    for into, rankings in ((low, worst), (high, best)):
        for name, found in values(parsed, open_qrels, rankings, unjudged, short_lists).items():
            changed.update(qid for qid, value in found.items() if abs(value - into[name][qid]) > _NOISE)
            into[name].update(found)
    return TieEffect(
        [qid for qid in counted if qid in changed], _over(parsed, low, mean), _over(parsed, high, mean)
    )


def _over(
    measures: Sequence[Any], per_query: Mapping[str, Mapping[str, float]], mean: Mean
) -> dict[str, float]:
    return {
        str(measure): over_queries(measure, per_query[str(measure)].values(), mean) for measure in measures
    }


def _extremes(ranking: Ranking, judgments: Mapping[str, int]) -> tuple[Ranking, Ranking] | None:
    """The ranking with the worst tied documents first, and with the best first; None if both are the same."""
    with np.errstate(over="ignore"):
        scores = ranking.scores.astype(np.float32)
    tied = scores[1:] == scores[:-1]
    if not tied.any():
        return None
    # the order of documents that are not relevant has no effect, not even on bpref
    worth = np.maximum(graded(ranking.ids, judgments).grades, 0)
    if not (tied & (worth[1:] != worth[:-1])).any():
        return None
    group = np.concatenate([[0], np.cumsum(~tied)])
    return _in_order(ranking, np.lexsort((worth, group))), _in_order(ranking, np.lexsort((-worth, group)))


def _in_order(ranking: Ranking, order: Array) -> Ranking:
    # the scores are kept: within a group they are equal except perhaps for the last bits
    return replace(ranking, ids=tuple(ranking.ids[place] for place in order.tolist()))
