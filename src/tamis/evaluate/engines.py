"""The implementation of each measure: our formulae for the usual ones, ir_measures and its engines for the
rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import ir_measures
from ir_measures.measures.base import MeanAgg

from tamis.base.errors import TamisError
from tamis.core.ranking import Ranking
from tamis.evaluate import formulae
from tamis.evaluate.formulae import ALL, Graded, ShortLists
from tamis.formats import Qrels, strictly_decreasing

Formula = Callable[[Graded], float]

_AT_ONCE = 500  # queries per call of an engine: it takes dictionaries, which are large


class RBPResidual(ir_measures.measures.Measure):
    """The gain of RBP if every unjudged document were relevant; ir_measures has no such measure."""

    __name__ = NAME = "RBPResidual"
    SUPPORTED_PARAMS = ir_measures.RBP.SUPPORTED_PARAMS


def residual(rbp: Any) -> Any:
    """The residual that belongs to an RBP.

    >>> residual(parse("RBP(p=0.5)@10"))
    RBPResidual(p=0.5)@10
    """
    made: Any = RBPResidual
    return made(**rbp.params)


def parse(name: str) -> Any:
    """A measure by its name in ir_measures, with its parameters, or by its name in trec_eval.

    >>> parse("MRR@10"), parse("recip_rank"), parse("ndcg_cut_10")
    (RR@10, RR, nDCG@10)
    """
    is_residual = name.startswith(RBPResidual.NAME)
    measure: Any = _of_trec_eval(name) or ir_measures.parse_measure(
        name.replace(RBPResidual.NAME, "RBP") if is_residual else name
    )
    measure.validate_params()
    if cutoff(measure) < 1 or not 0 <= _get(measure, "p", 0.5) < 1:
        raise ValueError(name)
    return residual(measure) if is_residual else measure


def in_other_case(name: str) -> str | None:
    """A name that differs from that of a measure by its case alone, as it should be.

    >>> in_other_case("ndcg@10"), in_other_case("mrr@10"), in_other_case("nDGC@10")
    ('nDCG@10', 'RR@10', None)
    """
    head = re.match(r"[^@(]*", name)[0]  # type: ignore[index]  # it matches any name
    known = {each.lower(): str(measure.NAME) for each, measure in ir_measures.measures.registry.items()}
    near = known.get(head.lower())
    return None if near is None or head in ir_measures.measures.registry else near + name[len(head) :]


def _of_trec_eval(name: str) -> Any:
    """The measure of trec_eval by this name (`P_10` or `P.10`); None if there is none, or more than one."""
    if name in ir_measures.measures.registry:
        return None
    try:
        named = ir_measures.parse_trec_measure(name)
    except (ValueError, KeyError, IndexError):
        return None
    return named[0] if len(named) == 1 else None


def cutoff(measure: Any) -> int:
    """The k of a measure @k, or a number larger than any list.

    >>> cutoff(parse("nDCG@10")), cutoff(parse("AP")) > 1_000_000
    (10, True)
    """
    return int(_get(measure, "cutoff", ALL))


def is_mean(measure: Any) -> bool:
    """Whether the measure is a mean over queries, not a sum.

    >>> is_mean(parse("AP")), is_mean(parse("NumRelRet"))
    (True, False)
    """
    return isinstance(measure.aggregator(), MeanAgg)


def of_whole_lists(measure: Any) -> bool:
    """Whether the measure counts unjudged documents, so that it is meaningless without them."""
    return measure.NAME in ("Judged", RBPResidual.NAME)


def formula(measure: Any, short_lists: ShortLists = "k") -> Formula | None:
    """Our function that computes a measure from a graded list; None if there is none.

    >>> from tamis.evaluate.formulae import graded
    >>> found = graded(["d1", "d2"], {"d2": 1})
    >>> formula(parse("RR@10"))(found)
    0.5
    """
    k, rel = cutoff(measure), _get(measure, "rel", 1)
    formulas: dict[str, Formula] = {
        "P": partial(formulae.precision, k=k, rel=rel, short_lists=short_lists),
        "R": partial(formulae.recall, k=k, rel=rel),
        "Success": partial(formulae.success, k=k, rel=rel),
        "RR": partial(formulae.reciprocal_rank, k=k, rel=rel),
        "AP": partial(formulae.average_precision, k=k, rel=rel),
        "Rprec": partial(formulae.r_precision, rel=rel),
        "Bpref": partial(formulae.bpref, rel=rel),
        "Judged": partial(formulae.judged, k=k),
        "RBP": partial(formulae.rank_biased_precision, p=_get(measure, "p", 0.8), k=k, rel=rel),
        RBPResidual.NAME: partial(formulae.rbp_residual, p=_get(measure, "p", 0.8), k=k),
    }
    if measure.NAME == "nDCG" and "gains" not in measure.params:
        gain: formulae.Gain = "exp" if measure["dcg"] == "exp-log2" else "linear"
        formulas["nDCG"] = partial(formulae.ndcg, k=k, gain=gain)
    chosen = formulas.get(measure.NAME)
    if chosen is not None and measure.params.get("judged_only"):
        return partial(_of_condensed, chosen)
    return chosen


def computed(
    measures: Sequence[Any], qrels: Qrels, run: Mapping[str, Ranking]
) -> Iterator[tuple[str, str, float]]:
    """Yield measure, query and value, computed by the engines of ir_measures, for the queries of the
    qrels."""
    qids = list(qrels)
    for start in range(0, len(qids), _AT_ONCE):
        # gdeval, which computes ERR, accepts only numbers as query ids
        number = {str(i): qid for i, qid in enumerate(qids[start : start + _AT_ONCE], start=1)}
        results = {
            i: dict(zip(run[qid].ids, strictly_decreasing(run[qid].scores).tolist(), strict=True))
            for i, qid in number.items()
            if qid in run
        }
        judgments = {i: qrels[qid] for i, qid in number.items()}
        try:
            for i, measure, value in ir_measures.iter_calc(measures, judgments, results):
                yield str(measure), number[i], float(value)
        except Exception as error:  # an engine is missing or failed: the type depends on the engine
            raise TamisError(
                f"cannot compute {', '.join(map(str, measures))} ({' '.join(str(error).split())})",
                remedy="`tamis doctor` lists the packages that compute further measures",
            ) from error


def _of_condensed(chosen: Formula, found: Graded) -> float:
    return chosen(found.condensed())


def _get(measure: Any, parameter: str, default: Any) -> Any:
    """A parameter's value or default; ir_measures has a special object for "neither"."""
    given = measure[parameter] if parameter in measure.SUPPORTED_PARAMS else default
    return given if isinstance(given, int | float) else default
