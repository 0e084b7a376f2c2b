"""Measures of a run against judgments. ir_measures computes them; what it is given is decided here.

- Ties: a ranking's order is what counts. The measures get scores that strictly decrease in that order; left
  to itself, trec_eval puts the larger of two tied ids first, and other engines do otherwise.
- A judged query that the run does not answer counts zero: a system cannot gain by staying silent.
- A query without a relevant document has no recall, AP or nDCG (0/0): it is left out of every mean.
- What is not judged is not relevant; `Judged@10` says how much of the first ten that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamis.errors import InputError, TamisError
from tamis.formats import Qrels, strictly_decreasing
from tamis.ranking import Ranking

DEFAULT_MEASURES = ("nDCG@10", "AP", "RR@10", "P@10", "R@1000")
_EXAMPLES = "nDCG@10, AP, RR@10, P@10, R@1000, Judged@10, Bpref, Rprec, Success@5 or AP(rel=2)"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Each measure over all queries, and for each query: `mean["AP"]`, `per_query["AP"]["q1"]`."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    missing: list[str]  # judged queries that the run does not answer: they count zero
    unjudged: list[str]  # queries of the run without judgments: they do not count
    irrelevant: list[str]  # judged queries without a relevant document: they do not count


def parse_measures(names: Iterable[str]) -> list[Any]:
    """The measures of ir_measures by these names, each once.

    >>> parse_measures(["nDCG@10", "MAP", "AP"])
    [nDCG@10, AP]
    >>> parse_measures(["nDGC@10"])
    Traceback (most recent call last):
    tamis.errors.InputError: there is no measure 'nDGC@10': use a name such as nDCG@10, AP, ...
    """
    import ir_measures

    measures: dict[str, Any] = {}
    for name in names:
        try:
            measure = ir_measures.parse_measure(name.strip())
        except (NameError, ValueError, TypeError, AttributeError) as error:  # its ways to say no
            raise InputError(
                f"there is no measure {name!r}", remedy=f"use a name such as {_EXAMPLES}"
            ) from error
        measures[str(measure)] = measure
    return list(measures.values())


def evaluate(
    qrels: Qrels, run: Mapping[str, Ranking], measures: Sequence[str] = DEFAULT_MEASURES
) -> Evaluation:
    """Measure a run against judgments.

    >>> import numpy as np
    >>> from tamis.documents import Query
    >>> run = {"q1": Ranking(Query("q1", "sieve"), ("d2", "d1"), np.array([7.0, 7.0]))}
    >>> evaluate({"q1": {"d1": 1}, "q2": {"d5": 1}}, run, ["RR", "P@1"]).mean
    {'RR': 0.25, 'P@1': 0.0}
    """
    import ir_measures

    parsed = parse_measures(measures)
    judged = {qid: grades for qid, grades in qrels.items() if any(grade > 0 for grade in grades.values())}
    if not judged:
        raise InputError("the judgments hold no relevant document", remedy="check that they are qrels")
    scores = {
        qid: dict(zip(run[qid].ids, strictly_decreasing(run[qid].scores).tolist(), strict=True))
        for qid in judged
        if qid in run
    }
    if not scores:
        raise InputError(
            "the run answers none of the judged queries", remedy="check that their query ids are alike"
        )
    per_query = {str(measure): dict.fromkeys(judged, 0.0) for measure in parsed}
    # gdeval, which computes ERR and nDCG with exponential gains, takes only numbers for query ids
    number = {qid: str(i) for i, qid in enumerate(judged, start=1)}
    qid_of = {i: qid for qid, i in number.items()}
    numbered_qrels = {number[qid]: grades for qid, grades in judged.items()}
    numbered_run = {number[qid]: results for qid, results in scores.items()}
    try:
        for i, measure, value in ir_measures.iter_calc(parsed, numbered_qrels, numbered_run):
            per_query[str(measure)][qid_of[i]] = float(value)
    except Exception as error:  # an engine is missing, or refused: which exception depends on the engine
        raise TamisError(
            f"cannot compute {', '.join(map(str, parsed))} ({' '.join(str(error).split())})",
            remedy="`tamis doctor` lists the packages that compute further measures",
        ) from error
    return Evaluation(
        {str(measure): _over_queries(measure, per_query[str(measure)].values()) for measure in parsed},
        per_query,
        [qid for qid in judged if qid not in scores],
        [qid for qid in run if qid not in qrels],
        [qid for qid in qrels if qid not in judged],
    )


def _over_queries(measure: Any, values: Iterable[float]) -> float:
    """The mean, or the sum for measures that count (NumRelRet)."""
    aggregator = measure.aggregator()
    for value in values:
        aggregator.add(value)
    return float(aggregator.result())
