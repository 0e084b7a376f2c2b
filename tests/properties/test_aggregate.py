"""Aggregation: candidates and pairs may come in any order, and scores stay in their range."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tamis.base.arrays import Array
from tamis.rank.aggregate import Aggregate, aggregate, inferences, opponents, order, probability, sample

EXAMPLES = 5_000 if os.environ.get("TAMIS_HYPOTHESIS") == "thorough" else 200
several = settings(max_examples=EXAMPLES, deadline=None)

WHOLE: tuple[Aggregate, ...] = ("sum", "binary", "min", "max")
wholes = st.sampled_from(WHOLE)
hows = st.sampled_from(["sum", "binary", "min", "max", "sample"])


class Compared(NamedTuple):
    """k candidates, some or all of their pairs, and these pairs' probabilities."""

    probabilities: Array
    pairs: Array
    k: int


@st.composite
def compared(draw: st.DrawFn, how: str = "sum") -> Compared:
    k = draw(st.integers(0, 12))
    m = draw(st.integers(1, 12)) if how == "sample" else None
    pairs = opponents(k, how, m, seed=draw(st.integers(0, 3)))  # type: ignore[arg-type]
    # one half and other values that come again, so that ties are common
    values = st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0])
    return Compared(draw(arrays.arrays(np.float64, len(pairs), elements=values)), pairs, k)


@several
@given(compared(), wholes, st.randoms(use_true_random=False))
def test_permuting_candidates_permutes_their_scores(c: Compared, how: Aggregate, random: object) -> None:
    to = np.array(_shuffled(range(c.k), random), dtype=np.int64)  # candidate i is now at to[i]
    before = aggregate(c.probabilities, c.pairs, c.k, how)
    after = aggregate(c.probabilities, to[c.pairs], c.k, how)
    assert after[to].tolist() == before.tolist()  # to the last bit
    ranked, again = (order(c.probabilities, pairs, c.k, how) for pairs in (c.pairs, to[c.pairs]))
    assert before[ranked].tolist() == after[again].tolist()


@several
@given(hows.flatmap(lambda how: st.tuples(st.just(how), compared(how))), st.randoms(use_true_random=False))
def test_the_order_of_pairs_does_not_matter(given: tuple[Aggregate, Compared], random: object) -> None:
    how, c = given
    shuffled = np.array(_shuffled(range(len(c.pairs)), random), dtype=np.int64)
    probabilities, pairs = c.probabilities[shuffled], c.pairs[shuffled]
    same = aggregate(c.probabilities, c.pairs, c.k, how).tolist()
    assert aggregate(probabilities, pairs, c.k, how).tolist() == same
    ranked = order(c.probabilities, c.pairs, c.k, how).tolist()
    assert order(probabilities, pairs, c.k, how).tolist() == ranked
    assert sorted(ranked) == list(range(c.k))
    assert (np.diff(np.array(same)[ranked]) <= 0).all()


@several
@given(st.floats(0, 1), st.floats(0, 1), wholes)
def test_swapping_two_candidates_swaps_their_scores(p: float, q: float, how: Aggregate) -> None:
    pairs = opponents(2, how)
    first, second = (aggregate(np.array(both), pairs, 2, how).tolist() for both in ([p, q], [q, p]))
    assert first == second[::-1]


@several
@given(compared(), st.integers(0, 5), st.integers(0, 9))
def test_sample_of_all_opponents_is_sum(c: Compared, more: int, seed: int) -> None:
    m = max(c.k - 1, 1) + more
    assert opponents(c.k, "sample", m, seed).tolist() == c.pairs.tolist()
    assert aggregate(c.probabilities, c.pairs, c.k, "sample").tolist() == (
        aggregate(c.probabilities, c.pairs, c.k, "sum").tolist()
    )
    assert order(c.probabilities, c.pairs, c.k, "sample").tolist() == (
        order(c.probabilities, c.pairs, c.k, "sum").tolist()
    )


@several
@given(st.integers(2, 12), st.data())
def test_antisymmetric_probabilities_give_complementary_sums(k: int, data: st.DataObject) -> None:
    margins = data.draw(arrays.arrays(np.float64, (k, k), elements=st.floats(-40, 40)))
    margins = margins - margins.T  # so that p[i, j] + p[j, i] = 1
    pairs = opponents(k, "sum")
    scores = aggregate(probability(margins[pairs[:, 0], pairs[:, 1]]), pairs, k, "sum")
    mirrored = aggregate(probability(margins[pairs[:, 1], pairs[:, 0]]), pairs, k, "sum")
    np.testing.assert_allclose(scores + mirrored, k - 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.sum(), k * (k - 1) / 2, rtol=0, atol=1e-11)
    strict = aggregate(probability(margins[pairs[:, 0], pairs[:, 1]]), pairs, k, "binary")
    assert strict.sum() <= k * (k - 1) / 2  # a tie is a win of neither


@several
@given(hows.flatmap(lambda how: st.tuples(st.just(how), compared(how))))
def test_scores_stay_in_their_range(given: tuple[Aggregate, Compared]) -> None:
    how, c = given
    scores = aggregate(c.probabilities, c.pairs, c.k, how)
    compared_with = len(c.pairs) // c.k if c.k else 0
    assert scores.shape == (c.k,)
    assert scores.dtype == np.float64
    assert (scores >= 0).all()
    assert (scores <= (min(compared_with, 1) if how in ("min", "max") else compared_with + 1e-12)).all()
    if how == "binary":
        assert (scores == np.round(scores)).all()


@several
@given(st.integers(0, 15), st.integers(1, 16), st.integers(0, 2**70), st.text(max_size=8))
def test_each_candidate_gets_m_other_opponents(k: int, m: int, seed: int, query: str) -> None:
    pairs = opponents(k, "sample", m, seed, query)
    assert len(pairs) == inferences(k, "sample", m) == k * min(m, max(k - 1, 0))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    drawn = [tuple(pair) for pair in pairs.tolist()]
    assert drawn == sorted(set(drawn))
    assert np.bincount(pairs[:, 0], minlength=k).tolist() == [min(m, k - 1)] * k
    more = {tuple(pair) for pair in opponents(k, "sample", m + 1, seed, query).tolist()}
    assert set(drawn) <= more


@several
@given(compared(), st.integers(1, 12), st.integers(0, 9))
def test_a_trial_over_the_matrix_is_the_sample_itself(c: Compared, m: int, seed: int) -> None:
    whole = np.full((c.k, c.k), np.nan)
    whole[c.pairs[:, 0], c.pairs[:, 1]] = c.probabilities
    pairs = opponents(c.k, "sample", m, seed, "q")
    inferred = whole[pairs[:, 0], pairs[:, 1]]
    assert sample(whole, m, seed, "q").tolist() == aggregate(inferred, pairs, c.k, "sample").tolist()


@several
@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_probabilities_keep_the_order_of_margins(values: list[float]) -> None:
    margins = np.sort(np.array(values))
    found = probability(margins)
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= -1e-15).all()
    np.testing.assert_allclose(found + probability(-margins), 1, rtol=0, atol=1e-15)


def _shuffled(values: range, random: object) -> list[int]:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    return shuffled
