"""Measures against values computed by hand, and what is done about ties, silence and missing judgments."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from math import log2
from random import Random
from typing import Any

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Query, Ranking, Run, TamisError
from tamis.base.errors import InputError
from tamis.evaluate.formulae import ShortLists
from tamis.evaluate.measures import DEFAULT_MEASURES, evaluate, parse_measures, with_companions
from tamis.evaluate.ties import TieEffect, tie_effect


def ranking(qid: str, ids: str, scores: list[float] | None = None) -> Ranking:
    values = np.arange(len(ids), 0, -1.0) if scores is None else np.array(scores)
    return Ranking(Query(qid, ""), tuple(ids), values)


def value(name: str, ids: str, qrels: dict[str, int], short_lists: ShortLists = "k") -> float:
    """One measure of one ranking."""
    (found,) = evaluate({"q": qrels}, {"q": ranking("q", ids)}, [name], short_lists=short_lists).mean.values()
    return found


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


def test_exponential_gains_and_relevance_threshold() -> None:
    qrels = {"q": {"a": 3, "b": 1}}
    names = ["nDCG(dcg='exp-log2')@2", "AP(rel=2)"]
    evaluation = evaluate(qrels, {"q": ranking("q", "ba")}, names)
    dcg = 1 + 7 / log2(3)
    ideal = 7 + 1 / log2(3)
    assert list(evaluation.mean.values()) == pytest.approx([dcg / ideal, 1 / 2])


@pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")
def test_measures_of_other_engines() -> None:
    """ERR is computed by gdeval, which rounds to five decimals."""
    qrels = {"first": {"a": 3, "b": 1}, "silent": {"a": 1}}
    evaluation = evaluate(qrels, {"first": ranking("first", "ba")}, ["ERR@2", "AP"])
    by_hand = 1 / 16 + (15 / 16) * (7 / 16) / 2
    assert evaluation.per_query["ERR@2"] == pytest.approx({"first": by_hand, "silent": 0.0}, abs=1e-5)


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


def test_a_threshold_does_not_change_who_counts() -> None:
    """As in ir_measures and trec_eval: with rel=2 a query that has only grade 1 counts, as zero."""
    qrels = {"p": {"a": 2}, "q": {"a": 1}}
    run = {"p": ranking("p", "a"), "q": ranking("q", "a")}
    evaluation = evaluate(qrels, run, ["AP(rel=2)", "AP"])
    assert evaluation.mean == {"AP(rel=2)": 0.5, "AP": 1.0}
    assert evaluation.irrelevant == []
    theirs = ir_measures.calc_aggregate(
        [ir_measures.AP(rel=2)], qrels, {qid: dict.fromkeys(each.ids, 1.0) for qid, each in run.items()}
    )
    assert list(theirs.values()) == [0.5]


def test_queries_that_the_run_does_not_answer_may_be_left_out() -> None:
    qrels = {"answered": {"a": 1, "z": 1}, "silent": {"b": 1}, "empty": {"c": 1}}
    run = {"answered": ranking("answered", "a"), "empty": ranking("empty", "")}
    assert evaluate(qrels, run, ["AP"]).mean == {"AP": pytest.approx(0.5 / 3)}
    evaluation = evaluate(qrels, run, ["AP"], missing="left-out")
    assert evaluation.mean == {"AP": 0.25}
    assert evaluation.per_query == {"AP": {"answered": 0.5, "empty": 0.0}}
    assert evaluation.missing == ["silent"]
    with pytest.raises(InputError, match="none of the judged queries"):
        evaluate({"q": {"a": 1}}, {"other": ranking("other", "a")}, missing="left-out")


def test_other_means() -> None:
    """A geometric mean is that of trec_eval's gm_map: no value counts less than 0.00001."""
    qrels = {"p": {"a": 1}, "q": {"b": 1}, "r": {"c": 1}}
    run = {"p": ranking("p", "a"), "q": ranking("q", "xb"), "r": ranking("r", "x")}
    measures = ["AP", "NumRelRet", "Judged@1"]
    found = evaluate(qrels, run, measures, mean="geometric").mean
    assert found["AP"] == pytest.approx((1 * 0.5 * 1e-5) ** (1 / 3), rel=1e-12)
    assert list(found.values())[1] == 2  # a number is summed
    assert found["Judged@1"] == pytest.approx(1 / 3)  # what is not a quality stays a share
    found = evaluate(qrels, run, ["AP"], mean="harmonic").mean
    assert found["AP"] == pytest.approx(3 / (1 + 2 + 1e5), rel=1e-12)
    assert evaluate(qrels, run, ["AP"]).mean == {"AP": 0.5}


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
    with pytest.raises(InputError, match="is not a measure"):
        parse_measures([name])


def test_nothing_to_measure() -> None:
    with pytest.raises(InputError, match="no relevant document"):
        evaluate({"q": {"a": 0}}, {"q": ranking("q", "a")})
    with pytest.raises(InputError, match="none of the judged queries"):
        evaluate({"q": {"a": 1}}, {"other": ranking("other", "a")})


@pytest.mark.skipif(find_spec("cwl") is not None, reason="the engine is installed")
def test_a_measure_without_an_engine_is_one_line() -> None:
    with pytest.raises(TamisError) as raised:
        evaluate({"q": {"a": 1}}, {"q": ranking("q", "a")}, ["INST(max_rel=1)"])
    assert "\n" not in str(raised.value)


# -- corner cases of the definitions
# ------------------------------------------------------------------------------------------------------------


def test_precision_ignores_positions() -> None:
    early = value("P@10", "abcdefghij", {"a": 1, "b": 1})
    late = value("P@10", "abcdefghij", {"i": 1, "j": 1})
    assert early == late == 0.2


def test_precision_of_a_short_list() -> None:
    assert value("P@5", "ab", {"a": 1}) == 1 / 5
    assert value("P@5", "ab", {"a": 1}, short_lists="l") == 1 / 2
    assert value("P@5", "abcdefgh", {"a": 1}, short_lists="l") == 1 / 5
    assert value("P@5", "", {"a": 1}, short_lists="l") == 0


def test_r_precision_stops_at_the_number_of_relevant_documents() -> None:
    qrels = {"a": 1, "c": 1, "y": 1}
    assert value("Rprec", "abcd", qrels) == 2 / 3
    assert value("Rprec", "a", qrels) == 1 / 3  # of R, though the list is shorter


def test_recall_cannot_be_perfect_below_the_number_of_relevant_documents() -> None:
    assert value("R@2", "abc", {"a": 1, "b": 1, "c": 1}) == 2 / 3


def test_reciprocal_rank_has_a_cutoff() -> None:
    assert value("RR@2", "abc", {"c": 1}) == 0
    assert value("RR@3", "abc", {"c": 1}) == 1 / 3


def test_a_cutoff_does_not_change_what_average_precision_is_divided_by() -> None:
    qrels = {"a": 1, "b": 1, "c": 1}
    assert value("AP@1", "abc", qrels) == 1 / 3
    assert value("AP", "abc", qrels) == 1


def test_linear_and_exponential_gains_agree_on_binary_grades_only() -> None:
    binary, many = {"a": 1, "c": 1}, {"a": 1, "c": 3}
    assert value("nDCG@3", "abc", binary) == value("nDCG(dcg='exp-log2')@3", "abc", binary)
    assert value("nDCG@3", "abc", many) != value("nDCG(dcg='exp-log2')@3", "abc", many)


def test_ideal_ranking_is_of_all_judged_documents() -> None:
    assert value("nDCG@1", "b", {"a": 2, "b": 1}) == 1 / 2


def test_bpref_by_hand() -> None:
    qrels = {"a": 1, "c": 1, "e": 1, "b": 0, "d": 0, "x": 0}
    # unjudged z does not count; above c there is one of three not relevant, above e there are two
    assert value("Bpref", "abzcde", qrels) == pytest.approx((1 + (1 - 1 / 3) + (1 - 2 / 3)) / 3)
    assert value("Bpref", "za", {"a": 1}) == 1  # nothing judged not relevant: nothing to be above


def test_negative_grades_have_no_gain_and_are_no_part_of_bpref() -> None:
    spam = {"a": -2, "b": 1, "c": 0}
    assert value("nDCG@2", "ab", spam) == pytest.approx(1 / log2(3))
    assert value("Bpref", "ab", spam) == 1


def test_rank_biased_precision_and_its_residual() -> None:
    qrels = {"a": 1, "c": 0}
    assert value("RBP(p=0.5)", "abc", qrels) == 0.5
    assert value("RBPResidual(p=0.5)", "abc", qrels) == 0.25 + 0.125  # rank 2, and what comes after rank 3
    assert value("RBP(p=0.5)@1", "xa", qrels) == 0
    assert value("RBPResidual(p=0.5)", "", qrels) == 1


def test_judged_is_of_the_list_where_it_is_short() -> None:
    assert value("Judged@10", "ax", {"a": 0, "r": 1}) == 0.5
    assert value("Judged@1", "ax", {"a": 0, "r": 1}) == 1
    assert value("Judged@10", "", {"r": 1}) == 0


def test_precision_is_never_above_the_judged_share() -> None:
    qrels = {"a": 1, "b": 0, "e": 1}
    for k in range(1, 9):
        found = evaluate({"q": qrels}, {"q": ranking("q", "xaybe")}, [f"P@{k}", f"Judged@{k}"]).mean
        assert found[f"P@{k}"] <= found[f"Judged@{k}"]


def test_condensed_lists_leave_out_what_is_not_judged() -> None:
    qrels = {"q": {"a": 1, "b": 0, "c": 1}}
    run = {"q": ranking("q", "xbyac")}
    names = ["AP", "RR", "P@2", "Judged@2", "AP(judged_only=True)", "NumRet"]
    whole = evaluate(qrels, run, names).mean
    condensed = evaluate(qrels, run, names, unjudged="condensed").mean
    assert whole["AP"] == pytest.approx((1 / 4 + 2 / 5) / 2)
    assert condensed["AP"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert whole["AP(judged_only=True)"] == condensed["AP"]
    assert condensed["RR"] == 1 / 2
    assert condensed["P@2"] == 1 / 2
    assert condensed["Judged@2"] == whole["Judged@2"] == 1 / 2  # of the list as it is
    assert (whole["NumRet"], condensed["NumRet"]) == (5, 3)  # by an engine of ir_measures


def test_a_threshold_never_makes_the_unjudged_relevant() -> None:
    assert value("P(rel=0)@2", "xa", {"a": 0, "b": 1}) == 1 / 2


@pytest.mark.parametrize("name", ["P", "P@0", "nDCG@-1", "RBP(p=1.5)", "AP(rel='x')", "RBPResidual(q=1)"])
def test_parameters_that_a_measure_cannot_have(name: str) -> None:
    with pytest.raises(InputError, match="is not a measure"):
        parse_measures([name])


def test_companions_stand_beside_what_they_explain() -> None:
    assert with_companions(["nDCG@10", "RR@10", "AP", "R@100", "Judged@5"]) == [
        "nDCG@10", "Judged@10", "RR@10", "AP", "R@100", "Judged@100", "Judged@5"
    ]  # fmt: skip


# -- rankings that are none
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "scores", "problem"),
    [
        ("aa", [2.0, 1.0], "query 'q': the document 'a' comes twice"),
        ("ab", [2.0, float("nan")], "query 'q': a score is not a finite number"),
        ("ab", [float("inf"), 1.0], "query 'q': a score is not a finite number"),
        ("ab", [1.0, 2.0], "query 'q': the scores increase"),
    ],
)
def test_bad_rankings(ids: str, scores: list[float], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        evaluate({"q": {"a": 1}}, {"q": ranking("q", ids, scores)}, ["AP"])


# -- ties
# ------------------------------------------------------------------------------------------------------------


def effect(qrels: dict[str, dict[str, int]], run: dict[str, Ranking], *names: str) -> TieEffect:
    return tie_effect(qrels, run, evaluate(qrels, run, names), names)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"missing": "left_out"}, "evaluate with missing='left_out': use zero or left-out"),
        ({"mean": "median"}, "evaluate with mean='median': use arithmetic or geometric or harmonic"),
        ({"unjudged": "relevant"}, "evaluate with unjudged='relevant'"),
        ({"short_lists": "n"}, "evaluate with short_lists='n'"),
    ],
)
def test_an_option_that_there_is_not(option: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate({"q": {"a": 1}}, {"q": ranking("q", "ab")}, ["RR"], **option)


def test_ties_that_matter_are_bounded() -> None:
    run = {"p": ranking("p", "abc", [5.0, 5.0, 5.0]), "q": ranking("q", "abc")}
    found = effect({"p": {"b": 1}, "q": {"b": 1}}, run, "RR", "P@3")
    assert found.queries == ["p"]
    assert found.low == pytest.approx({"RR": (1 / 3 + 1 / 2) / 2, "P@3": 1 / 3})
    assert found.high == pytest.approx({"RR": (1 + 1 / 2) / 2, "P@3": 1 / 3})


def test_ties_that_change_nothing_are_not_mentioned() -> None:
    run = {"q": ranking("q", "abcd", [5.0, 4.0, 4.0, 4.0])}
    assert effect({"q": {"a": 1}}, run, "AP", "nDCG").queries == []  # b, c and d are alike
    assert effect({"q": {"a": 1, "b": 1, "c": 1, "d": 1}}, run, "AP").queries == []
    assert effect({"q": {"a": 1, "c": 0}}, run, "AP").queries == []  # 0 and unjudged are the same to AP


def test_ties_have_no_best_share_of_judged_documents() -> None:
    run = {"q": ranking("q", "abc", [5.0, 5.0, 5.0])}  # b first is worse, and judged
    found = effect({"q": {"b": 0, "c": 1}}, run, "Judged@1", "RR", "RBPResidual(p=0.5)")
    assert (found.low, found.high) == ({"RR": pytest.approx(1 / 3)}, {"RR": 1.0})
    assert effect({"q": {"b": 0, "c": 1}}, run, "Judged@1") == TieEffect([], {}, {})


def test_ties_are_those_of_single_precision() -> None:
    run = {"q": ranking("q", "ab", [1.0 + 1e-12, 1.0])}
    assert effect({"q": {"b": 1}}, run, "RR").high == {"RR": 1.0}


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.lists(st.sampled_from([None, 0, 1, 2]), min_size=8, max_size=8),
    st.randoms(use_true_random=False),
)
def test_no_order_of_ties_is_beyond_the_bounds(
    scores: list[int], grades: list[int | None], random: Random
) -> None:
    ids = [f"d{i}" for i in range(len(scores))]
    judged = {docid: grade for docid, grade in zip(ids, grades, strict=False) if grade is not None}
    qrels = {"q": {**judged, "elsewhere": 1}}
    shuffled = random.sample(range(len(ids)), len(ids))
    order = sorted(shuffled, key=lambda i: -scores[i])
    run = {"q": Ranking(Query("q", ""), [ids[i] for i in order], np.array([float(scores[i]) for i in order]))}
    names = ["AP", "nDCG@3", "RR", "Bpref", "P@2", "Rprec"]
    found, mean = effect(qrels, run, *names), evaluate(qrels, run, names).mean
    for name in names:
        assert found.low[name] - 1e-12 <= mean[name] <= found.high[name] + 1e-12


def test_scores_by_query_are_a_run_once_they_are_ranked() -> None:
    scores = {"q1": {"d1": 0.5, "d2": 2.0, "d0": 0.5}, "q2": {}}
    with pytest.raises(InputError, match=r"Run\.from_scores"):
        evaluate({"q1": {"d1": 1}}, scores, "RR")  # type: ignore[arg-type]
    run = Run.from_scores(scores, queries=[Query("q1", "sieve")])
    assert run["q1"].ids == ("d2", "d0", "d1") and run["q1"].query.text == "sieve" and not len(run["q2"])
    assert evaluate({"q1": {"d1": 1}}, run, "RR").mean == {"RR": pytest.approx(1 / 3)}


def test_judgments_with_numbers_for_ids_are_refused() -> None:
    """2 and "2" are not alike: all would be not relevant."""
    run = Run.from_scores({"q": {"2": 1.0}})
    with pytest.raises(InputError, match="query 'q': the document id 2 is int, not str"):
        evaluate({"q": {2: 1}}, run, ["AP"])  # type: ignore[dict-item]
