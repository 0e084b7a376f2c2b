"""Tests, intervals, effects and corrections against scipy, enumeration, simulation and values by hand."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.evaluate.significance import (
    bonferroni,
    bootstrap_interval,
    cohens_d,
    hedges_g,
    holm,
    randomisation_test,
    t_test,
    win_tie_loss,
)


def some_differences(n: int, seed: int = 1, mean: float = 0.03) -> Array:
    return np.random.default_rng(seed).normal(mean, 0.1, n)


# -- tests
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 10, 50, 225, 10_000])
def test_the_t_test_is_that_of_scipy(n: int) -> None:
    ours, theirs = np.random.default_rng(n).random((2, n))
    expected = stats.ttest_rel(ours, theirs).pvalue
    assert t_test(ours - theirs) == pytest.approx(expected, rel=1e-10)
    assert t_test(theirs - ours) == t_test(ours - theirs)


def test_a_very_small_p_value_is_not_zero() -> None:
    d = some_differences(500, mean=0.2)
    assert 0 < t_test(d) < 1e-100
    assert t_test(d) == pytest.approx(stats.ttest_1samp(d, 0).pvalue, rel=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_the_randomisation_test_is_enumeration(seed: int) -> None:
    # tenths, so that many assignments of signs give the very same sum: in floats, only up to rounding
    tenths = np.random.default_rng(seed).integers(-3, 5, 9).tolist()
    observed = abs(sum(tenths))
    sums = [
        abs(sum(s * d for s, d in zip(signs, tenths, strict=True))) for signs in product((-1, 1), repeat=9)
    ]
    expected = Fraction(sum(value >= observed for value in sums), len(sums))
    assert randomisation_test([d / 10 for d in tenths]) == pytest.approx(float(expected), abs=1e-15)


def test_samples_agree_with_enumeration() -> None:
    d = some_differences(17, seed=3)
    exact = randomisation_test(d, permutations=2**17)
    sampled = randomisation_test(d, permutations=100_000)
    assert sampled != exact  # 2**17 is more than 100,000
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 100_000))


def test_what_was_observed_counts_as_one_of_the_samples() -> None:
    d = np.full(200, 0.1) + some_differences(200, mean=0) / 100
    assert randomisation_test(d, permutations=999) == 1 / 1000  # none of the samples is as extreme


def test_queries_without_a_difference_do_not_matter_to_randomisation() -> None:
    d = some_differences(12)
    assert randomisation_test(np.concatenate([d, np.zeros(1000)])) == randomisation_test(d)


def test_samples_depend_on_the_seed_alone() -> None:
    d = some_differences(60)
    assert randomisation_test(d, seed=7) == randomisation_test(d, seed=7)
    assert randomisation_test(d, seed=7) != randomisation_test(d, seed=8)
    assert bootstrap_interval(d, seed=7) == bootstrap_interval(d, seed=7)
    assert bootstrap_interval(d, seed=7) != bootstrap_interval(d, seed=8)


def test_random_signs_are_fair() -> None:
    # p-values of samples follow the uniform distribution where there is no difference
    generator = np.random.default_rng(5)
    found = [randomisation_test(generator.normal(0, 1, 30), permutations=500, seed=i) for i in range(400)]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_many_queries_take_little_memory() -> None:
    d = some_differences(10_000, mean=0.001)
    tracemalloc.start()
    randomisation_test(d, permutations=5_000)
    bootstrap_interval(d, resamples=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20  # a matrix of signs alone would be 400 MB


# -- where there is nothing to test
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [[0.0], [0.0] * 5, [0.3], [0.1, 0.1, 0.1], [0.3 - 0.2, 0.2 - 0.1]])
def test_without_spread_p_is_one_and_the_interval_has_no_width(d: list[float]) -> None:
    assert t_test(d) == 1
    for method in ("bca", "percentile"):
        low, high = bootstrap_interval(d, method=method)  # type: ignore[arg-type]
        assert low == high == pytest.approx(d[0])


def test_randomisation_without_spread() -> None:
    assert randomisation_test([0.0] * 40) == 1
    assert randomisation_test([0.3]) == 1
    assert randomisation_test([0.1] * 10) == 2 / 2**10


def test_effects_without_spread() -> None:
    assert cohens_d([0.0, 0.0]) == hedges_g([0.0, 0.0]) == 0
    assert cohens_d([-0.1] * 3) == hedges_g([-0.1] * 3) == -math.inf
    assert math.isnan(cohens_d([0.1])) and math.isnan(hedges_g([0.1]))


@pytest.mark.parametrize("d", [[], [[0.1]], [0.1, math.nan], [math.inf]])
def test_differences_that_are_none(d: list[float]) -> None:
    for function in (t_test, randomisation_test, bootstrap_interval, cohens_d, win_tie_loss):
        with pytest.raises(InputError):
            function(d)


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="0 permutations"):
        randomisation_test([0.1, 0.2], permutations=0)
    with pytest.raises(InputError, match="0 resamples"):
        bootstrap_interval([0.1, 0.2], resamples=0)
    with pytest.raises(InputError, match="a confidence of 95"):
        bootstrap_interval([0.1, 0.2], confidence=95)


# -- intervals
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_are_those_of_scipy(method: str, confidence: float) -> None:
    d = np.random.default_rng(2).exponential(0.1, 60) - 0.05  # skewed, where BCa differs from the percentiles
    theirs = stats.bootstrap(
        (d,), np.mean, n_resamples=40_000, confidence_level=confidence, method=method, rng=1
    ).confidence_interval
    ours = bootstrap_interval(d, confidence=confidence, method=method, resamples=40_000)  # type: ignore[arg-type]
    assert ours == pytest.approx((theirs.low, theirs.high), abs=5e-4)  # both sample


def test_bca_moves_towards_the_longer_tail() -> None:
    d = np.random.default_rng(2).exponential(0.1, 60)
    plain, corrected = bootstrap_interval(d, method="percentile"), bootstrap_interval(d, method="bca")
    assert corrected.low > plain.low + 1e-3
    assert corrected.high > plain.high + 1e-3


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_intervals_cover_the_mean_as_often_as_they_say(method: str, shape: str) -> None:
    generator = np.random.default_rng(11)
    trials, n = 600, 50
    samples = generator.normal(0.02, 0.1, (trials, n))
    mean = 0.02
    if shape == "skewed":
        samples, mean = generator.exponential(0.1, (trials, n)), 0.1
    covered = 0
    for i, d in enumerate(samples):
        low, high = bootstrap_interval(d, confidence=0.9, method=method, resamples=400, seed=i)  # type: ignore[arg-type]
        covered += low <= mean <= high
    # of 600, three standard errors are 3.7 points; resampling 50 queries is known to cover a little less
    assert 0.85 <= covered / trials <= 0.937


# -- effects
# ------------------------------------------------------------------------------------------------------------


def test_effects_by_hand() -> None:
    d = [0.1, 0.3, 0.2, 0.4]
    deviation = math.sqrt((0.15**2 + 0.05**2 + 0.05**2 + 0.15**2) / 3)
    assert cohens_d(d) == pytest.approx(0.25 / deviation)
    # three degrees of freedom: Γ(3/2) / (√(3/2) Γ(1)) = (√π / 2) / √1.5
    assert hedges_g(d) == pytest.approx(0.25 / deviation * (math.sqrt(math.pi) / 2) / math.sqrt(1.5))
    assert hedges_g([0.1, 0.3]) == 0


def test_hedges_correction_is_near_its_usual_approximation() -> None:
    d = some_differences(40)
    assert hedges_g(d) / cohens_d(d) == pytest.approx(1 - 3 / (4 * 39 - 1), abs=1e-4)


def test_wins_ties_and_losses() -> None:
    assert win_tie_loss([0.2, 0.0, 0.3 - 0.2 - 0.1, -1e-9]) == (1, 2, 1)


def test_what_is_no_seed() -> None:
    for chance in (bootstrap_interval, randomisation_test):
        with pytest.raises(InputError, match="the seed -1: use a whole number of at least 0"):
            chance(np.arange(30.0) ** 2 - 9, seed=-1)


# -- many tests
# ------------------------------------------------------------------------------------------------------------


def test_corrections_by_hand() -> None:
    p = [0.04, 0.01, 0.03, 0.005]
    assert bonferroni(p) == pytest.approx([0.16, 0.04, 0.12, 0.02])
    # sorted: 4 x .005, 3 x .01, 2 x .03, and 1 x .04 raised to the one before
    assert holm(p) == pytest.approx([0.06, 0.03, 0.06, 0.02])


def test_a_family_of_one() -> None:
    assert bonferroni([0.04]) == holm([0.04]) == [0.04]


def test_a_family_of_none() -> None:
    assert bonferroni([]) == holm([]) == []


def test_tests_made_elsewhere_count() -> None:
    assert bonferroni([0.01, 0.02], family=10) == pytest.approx([0.1, 0.2])
    assert holm([0.01, 0.02], family=10) == pytest.approx([0.1, 0.18])
    with pytest.raises(InputError, match="a family of 1 with 2 tests"):
        holm([0.01, 0.02], family=1)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value(p: float) -> None:
    for correct in (bonferroni, holm):
        with pytest.raises(InputError, match="p-value"):
            correct([0.5, p])
