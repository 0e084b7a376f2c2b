"""Pairs that are not read: exact at the limit, and no candidate passes one that nothing connects it to."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tamis.base.arrays import Array
from tamis.rank.aggregate import Aggregate, aggregate, opponents, order, probability
from tamis.rank.contested import completed, contested, within

EXAMPLES = 5_000 if os.environ.get("TAMIS_HYPOTHESIS") == "thorough" else 200
several = settings(max_examples=EXAMPLES, deadline=None)

WHOLE: tuple[Aggregate, ...] = ("sum", "binary", "min", "max")
wholes = st.sampled_from(WHOLE)
windows = st.none() | st.integers(1, 12)
margins_apart = st.none() | st.floats(0, 4)
values = st.floats(-30, 30) | st.sampled_from([-1.0, 0.0, 1.0])


@st.composite
def scored(draw: st.DrawFn) -> Array:
    """Scores, best first, some of them equal."""
    k = draw(st.integers(0, 12))
    return -np.sort(-draw(arrays.arrays(np.float64, k, elements=values)))


def read(draw: st.DataObject, pairs: Array) -> Array:
    return draw.draw(arrays.arrays(np.float64, len(pairs), elements=values))


@several
@given(scored(), windows, margins_apart)
def test_pairs_are_read_in_both_orders(scores: Array, window: int | None, margin: float | None) -> None:
    pairs = contested(scores, window, margin).tolist()
    assert sorted([j, i] for i, j in pairs) == pairs
    assert len(pairs) <= within(len(scores), window) <= within(len(scores))
    for i, j in pairs:
        assert i != j
        assert window is None or abs(i - j) <= window
        assert margin is None or abs(scores[i] - scores[j]) < margin


@several
@given(scored(), wholes, st.booleans(), st.data())
def test_all_pairs_read_is_the_aggregation_itself(
    scores: Array, how: Aggregate, known: bool, data: st.DataObject
) -> None:
    k = len(scores)
    pairs = contested(scores, window=max(k, 1))
    assert pairs.tolist() == opponents(k, "sum").tolist()
    margins = read(data, pairs)
    found = completed(margins, pairs, k, scores if known else None)
    assert found.probabilities.tolist() == probability(margins).tolist()  # to the last bit
    assert order(*found, k, how).tolist() == order(probability(margins), pairs, k, how).tolist()


@several
@given(scored(), windows, margins_apart, st.booleans(), st.data())
def test_what_is_read_counts_as_it_was_read(
    scores: Array, window: int | None, margin: float | None, known: bool, data: st.DataObject
) -> None:
    k = len(scores)
    pairs = contested(scores, window, margin)
    margins = read(data, pairs)
    found = completed(margins, pairs, k, scores if known else None)
    assert found.pairs.tolist() == opponents(k, "sum").tolist()
    whole = np.full((k, k), np.nan)
    whole[found.pairs[:, 0], found.pairs[:, 1]] = found.probabilities
    assert whole[pairs[:, 0], pairs[:, 1]].tolist() == probability(margins).tolist()
    assert ((found.probabilities >= 0) & (found.probabilities <= 1)).all()


@several
@given(scored(), windows, margins_apart, wholes, st.data())
def test_groups_without_a_pair_between_them_keep_their_order(
    scores: Array, window: int | None, margin: float | None, how: Aggregate, data: st.DataObject
) -> None:
    """Where incoming scores are no probabilities: of two groups, all above and all below some place, that no
    pair connects, every candidate of the first stays above every candidate of the second."""
    k = len(scores)
    pairs = contested(scores, window, margin)
    ranked = order(*completed(read(data, pairs), pairs, k), k, how)
    for place in range(1, k):
        if not ((pairs[:, 0] < place) & (pairs[:, 1] >= place)).any():
            assert set(ranked[:place].tolist()) == set(range(place))


@several
@given(scored(), wholes, st.booleans())
def test_no_pair_read_is_the_incoming_order(scores: Array, how: Aggregate, known: bool) -> None:
    k = len(scores)
    none = contested(scores, margin=0.0)
    found = completed(np.zeros(0), none, k, scores if known else None)
    ranked = order(*found, k, how)
    # a sigmoid may be larger than that of a larger number by its last bit
    np.testing.assert_allclose(scores[ranked], scores, rtol=0, atol=1e-9)
    assert known or ranked.tolist() == list(range(k))


@several
@given(scored(), windows, wholes, st.floats(-20, 20), st.data())
def test_a_constant_added_to_all_log_odds_changes_nothing(
    scores: Array, window: int | None, how: Aggregate, more: float, data: st.DataObject
) -> None:
    pairs = contested(scores, window)
    margins = read(data, pairs)
    one, other = (completed(margins, pairs, len(scores), odds) for odds in (scores, scores + more))
    np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=0, atol=1e-12)
    found = [aggregate(*each, len(scores), "sum") for each in (one, other)]
    np.testing.assert_allclose(*found, rtol=0, atol=1e-10)
