"""Significance: what must hold of all differences and all p-values."""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tamis.evaluate.significance import (
    bonferroni,
    bootstrap_interval,
    cohens_d,
    hedges_g,
    holm,
    randomisation_test,
    t_test,
    win_tie_loss,
    without_spread,
)

EXAMPLES = 5_000 if os.environ.get("TAMIS_HYPOTHESIS") == "thorough" else 150
several = settings(max_examples=EXAMPLES, deadline=None)

# in steps of a hundredth, so that ties and equal differences are common
steps = st.integers(-100, 100).map(lambda i: i / 100)
differences = st.lists(steps, min_size=1, max_size=30)
p_values = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.05, 1.0]), max_size=12)


@several
@given(differences, st.randoms(use_true_random=False))
def test_p_is_a_probability_that_order_and_direction_do_not_change(d: list[float], random: Random) -> None:
    shuffled = list(d)
    random.shuffle(shuffled)
    for test in (t_test, lambda d: randomisation_test(d, permutations=1 << 10)):
        p = test(d)
        assert 0 <= p <= 1
        assert test([-x for x in d]) == pytest.approx(p, rel=1e-9)
    assert t_test(shuffled) == pytest.approx(t_test(d), rel=1e-6, abs=1e-12)
    if len(d) <= 10:  # then nothing is sampled
        assert randomisation_test(shuffled) == randomisation_test(d)


@several
@given(differences)
def test_randomisation_never_says_zero(d: list[float]) -> None:
    assert randomisation_test(d, permutations=200) >= 1 / 201


@several
@given(differences, st.sampled_from(["bca", "percentile"]))
def test_an_interval_lies_within_the_differences(d: list[float], method: str) -> None:
    low, high = bootstrap_interval(d, method=method, resamples=200)  # type: ignore[arg-type]
    assert min(d) - 1e-12 <= low <= high <= max(d) + 1e-12


@several
@given(differences)
def test_a_wider_confidence_has_the_wider_interval(d: list[float]) -> None:
    narrow, wide = (bootstrap_interval(d, confidence=c, resamples=200) for c in (0.8, 0.99))
    assert wide.low <= narrow.low + 1e-12 and narrow.high <= wide.high + 1e-12


@several
@given(differences)
def test_effects_have_the_sign_of_the_mean_and_are_corrected_towards_zero(d: list[float]) -> None:
    assume(len(d) > 2 and not without_spread(np.array(d)))
    assert abs(hedges_g(d)) <= abs(cohens_d(d))
    assert np.sign(cohens_d(d)) == np.sign(hedges_g(d)) == np.sign(np.mean(d))


@several
@given(differences)
def test_every_query_is_won_tied_or_lost(d: list[float]) -> None:
    wins, ties, losses = win_tie_loss(d)
    assert wins + ties + losses == len(d)
    assert win_tie_loss([-x for x in d]) == (losses, ties, wins)


@several
@given(p_values, st.integers(0, 5))
def test_corrections_only_raise_and_keep_the_order(p: list[float], elsewhere: int) -> None:
    family = len(p) + elsewhere
    by_holm, by_bonferroni = holm(p, family), bonferroni(p, family)
    for raw, step_down, simple in zip(p, by_holm, by_bonferroni, strict=True):
        assert raw <= step_down <= simple <= 1
    ranked = sorted(range(len(p)), key=p.__getitem__)
    assert [by_holm[i] for i in ranked] == sorted(by_holm)
    assert all(more >= less for more, less in zip(holm(p, family + 1), by_holm, strict=True))
