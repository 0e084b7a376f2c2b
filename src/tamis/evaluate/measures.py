"""Measures of a run against judgments, by ir_measures' or trec_eval's names. The conventions are:

- Ties: a ranking's order counts, whatever its scores. For a run file that is the order of decreasing score,
  equal scores by the rank column, then as in the file; trec_eval puts the larger of two tied ids first.
  `ties.tie_effect` tells whether it matters.
- A judged query that is missing from the run counts as zero, so that leaving out queries does not help.
  Queries that were not run can be left out of the mean.
- For a query without a relevant document (a grade above 0), recall, AP and nDCG are undefined (0/0): it is
  left out of every mean. A threshold does not change which queries count: with AP(rel=2) a query whose
  highest grade is 1 counts as zero, as in ir_measures and trec_eval.
- The mean over queries is arithmetic by default.
- Unjudged documents are not relevant, unless the lists are condensed: then they are removed. `Judged@10` is
  the judged share of the first ten, always of the whole list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import geometric_mean, harmonic_mean
from typing import Any, Literal, get_args

import numpy as np

from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, check_ids
from tamis.evaluate.formulae import Graded, ShortLists, graded
from tamis.evaluate.judgments import with_relevant
from tamis.formats import Qrels

DEFAULT_MEASURES = ("nDCG@10", "AP", "RR@10", "P@10", "R@1000")
_EXAMPLES = (
    "nDCG@10, AP, RR@10, P@10, R@1000, Judged@10, Bpref, Rprec, RBP(p=0.8), Success@5 or AP(rel=2), "
    "or trec_eval's ndcg_cut_10, map, recip_rank, P_10"
)

Unjudged = Literal["nonrelevant", "condensed"]
Missing = Literal["zero", "left-out"]
Mean = Literal["arithmetic", "geometric", "harmonic"]

LEAST = 1e-5  # the smallest value in a geometric or harmonic mean, as in trec_eval's gm_map


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Each measure over all queries, and for each query: `mean["AP"]`, `per_query["AP"]["q1"]`."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]
    missing: list[str]  # judged queries that are missing from the run: they count as zero, or are left out
    unjudged: list[str]  # queries of the run without judgments: they do not count
    irrelevant: list[str]  # judged queries without a relevant document: they do not count


def parse_measures(names: str | Iterable[str]) -> list[Any]:
    """The measures of ir_measures or trec_eval with these names, each once; a string is one name.

    >>> parse_measures(["nDCG@10", "MAP", "AP", "ndcg_cut_10"])
    [nDCG@10, AP]
    >>> parse_measures("nDCG@10")
    [nDCG@10]
    >>> parse_measures(["nDGC@10"])
    Traceback (most recent call last):
    tamis.base.errors.InputError: 'nDGC@10' is not a measure: use a name such as nDCG@10, AP, ...
    """
    from tamis.evaluate.engines import in_other_case, parse

    measures: dict[str, Any] = {}
    for name in [names] if isinstance(names, str) else names:
        try:
            measure = parse(name.strip())
        except (
            NameError,
            ValueError,
            TypeError,
            AttributeError,
            AssertionError,
        ) as error:  # its errors for unknown names
            near = in_other_case(name.strip())
            meant = f"did you mean {near}? Use" if near else "use"
            raise InputError(
                f"{name!r} is not a measure", remedy=f"{meant} a name such as {_EXAMPLES}"
            ) from error
        measures[str(measure)] = measure
    return list(measures.values())


def with_companions(names: str | Iterable[str]) -> list[str]:
    """The measures, followed by those that help to read them: the share of judged documents above each
    cutoff, and RBP's residual.

    >>> with_companions(["nDCG@10", "P@10", "AP", "RBP(p=0.5)"])
    ['nDCG@10', 'Judged@10', 'P@10', 'AP', 'RBP(p=0.5)', 'RBPResidual(p=0.5)']
    """
    from tamis.evaluate.engines import RBPResidual, residual

    together: dict[str, None] = {}
    for measure in parse_measures(names):
        together[str(measure)] = None
        if measure.NAME == "RBP":
            together[str(residual(measure))] = None
        elif measure.NAME != RBPResidual.NAME and "cutoff" in measure.params:
            together[f"Judged@{measure['cutoff']}"] = None
    return list(together)


def evaluate(
    qrels: Qrels,
    run: Mapping[str, Ranking],
    measures: str | Sequence[str] = DEFAULT_MEASURES,
    *,
    unjudged: Unjudged = "nonrelevant",
    short_lists: ShortLists = "k",
    missing: Missing = "zero",
    mean: Mean = "arithmetic",
) -> Evaluation:
    """Measure a run against judgments.

    With `unjudged="condensed"` the documents without a judgment are removed from the lists first. P@k of a
    list of l < k documents is divided by k, or with `short_lists="l"` by l. Judged queries that are missing
    from the run count as zero, or with `missing="left-out"` are ignored: then compare only runs with the same
    queries. `mean` is over the queries; GMAP is the geometric mean of AP.

    >>> import numpy as np
    >>> from tamis.base.documents import Query
    >>> run = {"q1": Ranking(Query("q1", "sieve"), ("d2", "d1"), np.array([7.0, 7.0]))}
    >>> evaluate({"q1": {"d1": 1}, "q2": {"d5": 1}}, run, ["RR", "P@1"]).mean
    {'RR': 0.25, 'P@1': 0.0}
    >>> evaluate({"q1": {"d1": 1}}, run, ["RR"], unjudged="condensed").mean
    {'RR': 1.0}
    >>> evaluate({"q1": {"d1": 1}, "q2": {"d5": 1}}, run, ["RR"], missing="left-out").mean
    {'RR': 0.5}
    """
    parsed = parse_measures(measures)
    _check_choice("unjudged", unjudged, get_args(Unjudged))
    _check_choice("short_lists", short_lists, get_args(ShortLists))
    _check_choice("missing", missing, get_args(Missing))
    _check_choice("mean", mean, get_args(Mean))
    judged = with_relevant(qrels)
    if not judged:
        raise InputError("the judgments hold no relevant document", remedy="check that they are qrels")
    for qid, grades in judged.items():
        check_ids(qid, islice(grades, 1))  # one id is checked: the others are alike
    answered = {qid: run[qid] for qid in judged if qid in run}
    if not answered:
        raise InputError(
            "the run answers none of the judged queries", remedy="check that the query ids match"
        )
    for ranking in answered.values():
        if not isinstance(ranking, Ranking):
            raise InputError("the run holds no rankings", remedy="make one of its scores: Run.from_scores")
        check_ranking(ranking)
    counted = judged if missing == "zero" else {qid: judged[qid] for qid in answered}
    per_query = values(parsed, counted, answered, unjudged, short_lists)
    return Evaluation(
        {str(measure): over_queries(measure, per_query[str(measure)].values(), mean) for measure in parsed},
        per_query,
        [qid for qid in judged if qid not in answered],
        [qid for qid in run if qid not in qrels],
        [qid for qid in qrels if qid not in judged],
    )


def _check_choice(option: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InputError(f"evaluate with {option}={value!r}", remedy=f"use {' or '.join(choices)}")


def values(
    measures: Sequence[Any],
    qrels: Qrels,
    run: Mapping[str, Ranking],
    unjudged: Unjudged,
    short_lists: ShortLists,
) -> dict[str, dict[str, float]]:
    """The value of each measure for each query of the qrels, from parsed measures and checked rankings."""
    from tamis.evaluate.engines import computed, formula, of_whole_lists

    formulas = {str(measure): formula(measure, short_lists) for measure in measures}
    whole = {str(measure) for measure in measures if unjudged == "nonrelevant" or of_whole_lists(measure)}
    found: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in formulas}
    for qid, grades in qrels.items():
        if qid in run:
            lists: dict[bool, Graded] = {True: graded(run[qid].ids, grades)}
            lists[False] = lists[True].condensed() if unjudged == "condensed" else lists[True]
            for name, compute in formulas.items():
                if compute is not None:
                    found[name][qid] = compute(lists[name in whole])
    others = [measure for measure in measures if formulas[str(measure)] is None]
    if others:
        if unjudged == "condensed":
            run = {qid: condensed(run[qid], grades) for qid, grades in qrels.items() if qid in run}
        for name, qid, value in computed(others, qrels, run):
            found[name][qid] = value
    return found


def condensed(ranking: Ranking, judgments: Mapping[str, int]) -> Ranking:
    """The ranking without the documents that are not judged (Sakai 2007).

    >>> from tamis.base.documents import Query
    >>> ranking = Ranking(Query("q", ""), ("d1", "d2", "d3"), np.array([3.0, 2.0, 1.0]))
    >>> condensed(ranking, {"d3": 1, "d1": 0}).ids
    ('d1', 'd3')
    """
    kept = [place for place, doc_id in enumerate(ranking.ids) if doc_id in judgments]
    return replace(ranking, ids=tuple(ranking.ids[place] for place in kept), scores=ranking.scores[kept])


def check_ranking(ranking: Ranking) -> None:
    """Refuse an invalid ranking: a duplicate document, or scores that are not numbers or that increase.

    >>> from tamis.base.documents import Query
    >>> check_ranking(Ranking(Query("q1", ""), ("d1", "d1"), np.array([2.0, 1.0])))
    Traceback (most recent call last):
    tamis.base.errors.InputError: query 'q1': the document 'd1' comes twice: keep one of them
    """
    query, ids, scores = ranking.query.id, ranking.ids, ranking.scores
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise InputError(f"query {query!r}: the document {twice!r} comes twice", remedy="keep one of them")
    if not np.isfinite(scores).all():
        raise InputError(
            f"query {query!r}: a score is not a finite number", remedy="check the stage that gave it"
        )
    if (scores[1:] > scores[:-1]).any():
        raise InputError(f"query {query!r}: the scores increase", remedy="sort by decreasing score first")


def over_queries(measure: Any, per_query: Iterable[float], mean: Mean = "arithmetic") -> float:
    """The mean, or the sum for measures that count (NumRelRet). Shares of judged documents and residuals have
    only arithmetic means.

    >>> over_queries(parse_measures(["AP"])[0], [0.25, 0.75])
    0.5
    >>> round(over_queries(parse_measures(["AP"])[0], [0.25, 1.0, 0.0], "geometric"), 4)
    0.0136
    """
    from tamis.evaluate.engines import is_mean, of_whole_lists

    if mean != "arithmetic" and is_mean(measure) and not of_whole_lists(measure):
        above_zero = [max(value, LEAST) for value in per_query]
        return geometric_mean(above_zero) if mean == "geometric" else harmonic_mean(above_zero)
    aggregator = measure.aggregator()
    for value in per_query:
        aggregator.add(value)
    return float(aggregator.result())
