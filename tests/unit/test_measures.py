"""Measures against values computed by hand, and what is done about ties, silence and missing judgments."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from math import log2

import numpy as np
import pytest

from tamis import Query, Ranking, TamisError
from tamis.errors import InputError
from tamis.evaluate.measures import DEFAULT_MEASURES, evaluate, parse_measures


def ranking(qid: str, ids: str, scores: list[float] | None = None) -> Ranking:
    values = np.arange(len(ids), 0, -1.0) if scores is None else np.array(scores)
    return Ranking(Query(qid, ""), tuple(ids), values)


def test_values_by_hand() -> None:
    qrels = {"q": {"a": 2, "b": 1, "c": 1, "x": 0}}
    evaluation = evaluate(
        qrels, {"q": ranking("q", "xabz")}, ["nDCG@10", "AP", "RR@10", "P@10", "R@1000", "P@2"]
    )
    dcg = 2 / log2(3) + 1 / log2(4)  # linear gains, as trec_eval
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert evaluation.mean == pytest.approx(
        {
            "nDCG@10": dcg / ideal,
            "AP": (1 / 2 + 2 / 3) / 3,
            "RR@10": 1 / 2,
            "P@10": 2 / 10,
            "R@1000": 2 / 3,
            "P@2": 1 / 2,
        }
    )


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")
def test_exponential_gains_and_relevance_threshold() -> None:
    qrels = {"q": {"a": 3, "b": 1}}
    names = ["nDCG(dcg='exp-log2')@2", "AP(rel=2)"]
    evaluation = evaluate(qrels, {"q": ranking("q", "ba")}, names)
    dcg = 1 + 7 / log2(3)
    ideal = 7 + 1 / log2(3)
    # gdeval, which computes the exponential gains, rounds to five decimals
    assert list(evaluation.mean.values()) == pytest.approx([dcg / ideal, 1 / 2], abs=1e-5)


def test_the_order_of_a_ranking_counts_not_its_tied_scores() -> None:
    qrels = {"q": {"a": 1}}
    first = evaluate(qrels, {"q": ranking("q", "abc", [5.0, 5.0, 5.0])}, ["RR", "P@1", "RR@10"])
    last = evaluate(qrels, {"q": ranking("q", "cba", [5.0, 5.0, 5.0])}, ["RR", "P@1", "RR@10"])
    assert first.mean == {"RR": 1.0, "P@1": 1.0, "RR@10": 1.0}
    assert last.mean == pytest.approx({"RR": 1 / 3, "P@1": 0.0, "RR@10": 1 / 3})


def test_scores_that_differ_only_in_double_precision_keep_their_order() -> None:
    scores = [1.0 + 2e-12, 1.0 + 1e-12, 1.0]
    assert evaluate({"q": {"a": 1}}, {"q": ranking("q", "abc", scores)}, ["RR"]).mean == {"RR": 1.0}


def test_who_counts() -> None:
    qrels = {"answered": {"a": 1}, "silent": {"b": 1}, "hopeless": {"c": 0}}
    run = {
        "answered": ranking("answered", "a"),
        "hopeless": ranking("hopeless", "c"),
        "new": ranking("new", "d"),
    }
    evaluation = evaluate(qrels, run, ["AP"])
    assert evaluation.mean == {"AP": 0.5}
    assert evaluation.per_query == {"AP": {"answered": 1.0, "silent": 0.0}}
    assert evaluation.missing == ["silent"]
    assert evaluation.unjudged == ["new"]
    assert evaluation.irrelevant == ["hopeless"]


def test_an_empty_ranking_is_an_answer_worth_nothing() -> None:
    evaluation = evaluate({"p": {"a": 1}, "q": {"a": 1}}, {"p": ranking("p", "a"), "q": ranking("q", "")})
    assert set(evaluation.mean) == set(DEFAULT_MEASURES)
    assert evaluation.mean["AP"] == 0.5
    assert evaluation.missing == []


def test_counting_measures_are_summed() -> None:
    qrels = {"p": {"a": 1}, "q": {"a": 1, "b": 1}}
    run = {"p": ranking("p", "ab"), "q": ranking("q", "ab")}
    assert list(evaluate(qrels, run, ["NumRelRet"]).mean.values()) == [3.0]


def test_a_measure_has_one_name() -> None:
    assert list(map(str, parse_measures(["MAP", "AP", " nDCG@10"]))) == ["AP", "nDCG@10"]


@pytest.mark.parametrize("name", ["nDGC@10", "", "nDCG@ten", "AP(", "__import__('os')", "AP(rel=os)"])
def test_unknown_measures(name: str) -> None:
    with pytest.raises(InputError, match="there is no measure"):
        parse_measures([name])


def test_nothing_to_measure() -> None:
    with pytest.raises(InputError, match="no relevant document"):
        evaluate({"q": {"a": 0}}, {"q": ranking("q", "a")})
    with pytest.raises(InputError, match="none of the judged queries"):
        evaluate({"q": {"a": 1}}, {"other": ranking("other", "a")})


@pytest.mark.skipif(find_spec("cwl") is not None, reason="the engine is installed")
def test_a_measure_without_an_engine_is_one_line() -> None:
    with pytest.raises(TamisError) as raised:
        evaluate({"q": {"a": 1}}, {"q": ranking("q", "a")}, ["RBP"])
    assert "\n" not in str(raised.value)
