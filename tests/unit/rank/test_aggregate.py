"""duoBERT's aggregations, on one example worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.base.arrays import Array
from tamis.base.errors import InputError, TamisError
from tamis.models.architecture import margin
from tamis.rank.aggregate import (
    Aggregate,
    aggregate,
    binary,
    check_aggregate,
    inferences,
    matrix,
    max_,
    min_,
    opponents,
    order,
    probability,
    sample,
    sum_,
)

NONE = np.nan

# Row i is what candidate i gets against each: p[0, 1] = 0.9 is "a beats b with probability 0.9".
#              a     b     c     d         sum   wins  min   max
P = np.array([[NONE, 0.9,  0.6,  0.3],   # 1.8   2     0.3   0.9
              [0.2,  NONE, 0.7,  0.5],   # 1.4   1     0.2   0.7     0.5 is no win
              [0.5,  0.4,  NONE, 0.8],   # 1.7   1     0.4   0.8
              [0.8,  0.6,  0.1,  NONE]])  # 1.5  2     0.1   0.8     # fmt: skip


def over_pairs(p: Array, pairs: Array) -> Array:
    return np.array([p[i, j] for i, j in pairs.tolist()])


ALL = opponents(4, "sum")

# -- the worked example
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "scores", "best_first"),
    [
        ("sum", [1.8, 1.4, 1.7, 1.5], "acdb"),
        ("binary", [2, 1, 1, 2], "adcb"),  # a 1.8 before d 1.5, c 1.7 before b 1.4
        ("min", [0.3, 0.2, 0.4, 0.1], "cabd"),
        ("max", [0.9, 0.7, 0.8, 0.8], "acdb"),  # c and d as they came
        ("sample", [1.8, 1.4, 1.7, 1.5], "acdb"),  # over all pairs it is SUM
    ],
)
def test_the_five_aggregations(how: Aggregate, scores: list[float], best_first: str) -> None:
    found = aggregate(over_pairs(P, ALL), ALL, 4, how)
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(scores, abs=1e-15)
    assert "".join("abcd"[i] for i in order(over_pairs(P, ALL), ALL, 4, how)) == best_first


def test_as_functions_of_the_matrix() -> None:
    diagonal = np.where(np.isnan(P), 0.99, P)  # whatever stands there
    for p in (P, diagonal):
        assert sum_(p).tolist() == pytest.approx([1.8, 1.4, 1.7, 1.5], abs=1e-15)
        assert binary(p).tolist() == [2, 1, 1, 2]
        assert min_(p).tolist() == [0.3, 0.2, 0.4, 0.1]
        assert max_(p).tolist() == [0.9, 0.7, 0.8, 0.8]
        assert sample(p, m=3).tolist() == sum_(p).tolist()


def test_sample_sums_what_was_drawn() -> None:
    one = np.array([[0, 1], [1, 3], [2, 0], [3, 1]])
    assert aggregate(over_pairs(P, one), one, 4, "sample").tolist() == [0.9, 0.5, 0.5, 0.6]
    assert order(over_pairs(P, one), one, 4, "sample").tolist() == [0, 3, 1, 2]  # b and c as they came
    two = np.array([[0, 1], [0, 3], [1, 3], [1, 2], [2, 0], [2, 1], [3, 1], [3, 0]])
    # a 0.9 + 0.3, b 0.5 + 0.7, c 0.5 + 0.4, d 0.6 + 0.8
    expected = pytest.approx([1.2, 1.2, 0.9, 1.4], abs=1e-15)
    assert aggregate(over_pairs(P, two), two, 4, "sample").tolist() == expected


def test_binary_ties_that_sum_ties_too_stay_as_they_came() -> None:
    circle = np.array([[NONE, 0.9, 0.1], [0.1, NONE, 0.9], [0.9, 0.1, NONE]])
    pairs = opponents(3, "binary")
    assert aggregate(over_pairs(circle, pairs), pairs, 3, "binary").tolist() == [1, 1, 1]
    assert order(over_pairs(circle, pairs), pairs, 3, "binary").tolist() == [0, 1, 2]


def test_only_binary_looks_at_the_sum() -> None:
    # MIN ties at 0.1, MAX at 0.9; the second has the larger sum, and stays second
    p = np.array([[NONE, 0.1, 0.9, 0.1], [0.9, NONE, 0.9, 0.1], [0.9, 0.1, NONE, 0.9], [0.1, 0.9, 0.9, NONE]])
    assert order(over_pairs(p, ALL), ALL, 4, "min").tolist() == [0, 1, 2, 3]
    assert order(over_pairs(p, ALL), ALL, 4, "max").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["sum", "binary", "min", "max", "sample"])
def test_one_candidate_keeps_its_place_and_none_is_none(how: Aggregate) -> None:
    m = 5 if how == "sample" else None
    for k in (0, 1):
        pairs = opponents(k, how, m)
        assert pairs.shape == (0, 2)
        assert aggregate(np.zeros(0), pairs, k, how).tolist() == [0.0] * k
        assert order(np.zeros(0), pairs, k, how).tolist() == list(range(k))


# -- mistakes that were made elsewhere
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["sum", "binary", "min", "max"])
def test_a_candidate_is_scored_by_its_own_row(how: Aggregate) -> None:
    # A tool gave log p to one of a pair and 1 - log p to the other: here p[i, j] is of i alone.
    changed = P.copy()
    changed[1] = [0.95, NONE, 0.01, 0.99]
    before, after = (aggregate(over_pairs(p, ALL), ALL, 4, how) for p in (P, changed))
    assert after[[0, 2, 3]].tolist() == before[[0, 2, 3]].tolist()
    assert after[1] != before[1]


def test_both_sides_of_a_pair_are_worth_the_same() -> None:
    pairs = opponents(2, "sum")
    assert aggregate(np.array([0.9, 0.9]), pairs, 2, "sum").tolist() == [0.9, 0.9]
    assert aggregate(np.array([0.5, 0.5]), pairs, 2, "sum").tolist() == [0.5, 0.5]
    assert order(np.array([0.2, 0.7]), pairs, 2, "sum").tolist() == [1, 0]


def test_two_logits_are_ranked_by_their_difference() -> None:
    # One tool ranked by logit[1], where the first wins, another by log-softmax, where the second does.
    logits = np.array([[3.0, 4.0], [-2.0, 1.0], [0.5, 0.5]], dtype=np.float32)
    assert margin(logits).tolist() == [1.0, 3.0, 0.0]
    # 1 / (1 + 1/e), 1 / (1 + 1/e**3), 1/2
    assert probability(margin(logits)).tolist() == pytest.approx([0.7310585786, 0.9525741268, 0.5])
    softmax = np.exp(logits[:, 1]) / np.exp(logits).sum(axis=1)
    assert probability(margin(logits)) == pytest.approx(softmax, rel=1e-6)
    assert np.argsort(-margin(logits)).tolist() == np.argsort(-np.log(softmax)).tolist() == [1, 0, 2]
    assert margin(np.array([[1.5], [-2.0]])).tolist() == [1.5, -2.0]


def test_no_margin_overflows() -> None:
    with np.errstate(all="raise", under="ignore"):
        extreme = probability(np.array([-np.inf, -1e300, -750.0, 750.0, 1e300, np.inf]))
    assert extreme.tolist() == [0, 0, pytest.approx(0, abs=1e-300), 1, 1, 1]
    single = probability(np.array([-90.0], dtype=np.float32))  # e**90 is beyond float32
    assert single.dtype == np.float64
    assert single[0] == pytest.approx(8.194012623990515e-40)


# -- which pairs
# ------------------------------------------------------------------------------------------------------------


def test_a_draw_depends_on_seed_and_query_alone() -> None:
    first = opponents(50, "sample", 10, seed=1, query="q1")
    opponents(50, "sample", 10, seed=1, query="q2")  # whatever is drawn in between
    assert opponents(50, "sample", 10, seed=1, query="q1").tolist() == first.tolist()
    assert opponents(50, "sample", 10, seed=1, query="q2").tolist() != first.tolist()
    assert opponents(50, "sample", 10, seed=2, query="q1").tolist() != first.tolist()


def test_a_draw_stays_what_it_is() -> None:
    # A run that is resumed, or repeated by someone else, must draw the same.
    drawn = opponents(5, "sample", 2, seed=7, query="q1")
    assert drawn[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert drawn[:, 1].tolist() == [2, 4, 2, 3, 0, 4, 1, 2, 1, 3]


def test_draws_are_uniform() -> None:
    times = np.zeros((5, 5))
    for query in range(2000):
        i, j = opponents(5, "sample", 2, query=str(query)).T
        times[i, j] += 1
    assert np.diag(times).tolist() == [0] * 5
    # Each of four opponents is drawn by half of the queries: 1000, give or take five deviations of 22.4.
    assert abs(times[~np.eye(5, dtype=bool)] - 1000).max() < 112


def test_inferences_are_counted() -> None:
    # the table of costs: k1 (k1 - 1)
    assert [inferences(k, "sum") for k in (0, 1, 10, 20, 30, 40, 50)] == [0, 0, 90, 380, 870, 1560, 2450]
    for k in range(6):
        assert inferences(k, "max") == len(opponents(k, "max"))
        for m in range(1, 6):
            assert inferences(k, "sample", m) == len(opponents(k, "sample", m))


# -- what is refused
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "m", "seed", "message"),
    [
        ("median", None, 0, "there is no aggregate 'median': use sum, binary, min, max, sample"),
        ("sum", 3, 0, "sum compares all pairs and has no m: leave m out, or use aggregate=sample"),
        ("sample", None, 0, "sample with m=None: give m, the opponents of each candidate: 1 or more"),
        ("sample", 0, 0, "sample with m=0: give m, the opponents of each candidate: 1 or more"),
        ("sample", 3, -1, "the seed -1: use a whole number of at least 0"),
    ],
)
def test_what_is_no_aggregation(how: Aggregate, m: int | None, seed: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        check_aggregate(how, m, seed)
    assert str(caught.value) == message
    with pytest.raises(InputError):
        opponents(4, how, m, seed)


@pytest.mark.parametrize(
    ("probabilities", "pairs", "message"),
    [
        ([0.5], [[0, 1], [1, 0]], "1 probabilities for pairs of shape"),
        ([0.5, np.nan], [[0, 1], [1, 0]], "not between 0 and 1: check the model"),
        ([0.5, -3.2], [[0, 1], [1, 0]], "not between 0 and 1: check the model"),  # a margin
        ([0.5, 0.5], [[0, 1], [0, 1]], "a pair comes twice"),
        ([0.5, 0.5], [[0, 1], [1, 1]], "not of two different candidates of 2"),
        ([0.5, 0.5], [[0, 1], [2, 1]], "not of two different candidates of 2"),
        ([0.5, 0.5], [[0, 1], [-1, 1]], "not of two different candidates of 2"),
    ],
)
def test_pairs_that_cannot_be(probabilities: list[float], pairs: list[list[int]], message: str) -> None:
    with pytest.raises(TamisError, match=message):
        matrix(np.array(probabilities), np.array(pairs), 2)


def test_all_pairs_are_needed_but_for_sample() -> None:
    some = ALL[:-1]
    for how in ("sum", "binary", "min", "max"):
        with pytest.raises(TamisError, match=f"11 pairs of 4 candidates: {how} needs every ordered pair"):
            aggregate(over_pairs(P, some), some, 4, how)  # type: ignore[arg-type]
    assert len(aggregate(over_pairs(P, some), some, 4, "sample")) == 4
