"""Judgments sampled deep and shallow: how many, of which queries, and that a seed decides."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.base.errors import InputError
from tamis.evaluate.sampling import RATES, Scheme, sample_judgments

SCHEMES: list[Scheme] = ["deep", "shallow"]


def pool(counts: Sequence[int]) -> dict[str, dict[str, int]]:
    return {f"q{n}": {f"d{n}.{i}": i % 3 for i in range(count)} for n, count in enumerate(counts)}


def sizes(qrels: dict[str, dict[str, int]]) -> list[int]:
    return [len(grades) for grades in qrels.values()]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.sampled_from([*RATES, 0.25, 1.0]),
    st.sampled_from(SCHEMES),
    st.integers(0, 5),
)
def test_exactly_so_many_of_the_judgments_that_there_were(
    counts: list[int], rate: float, scheme: Scheme, seed: int
) -> None:
    qrels = pool(counts)
    sampled = sample_judgments(qrels, rate, scheme, seed=seed)
    exact = Fraction(str(rate)) * sum(counts)
    assert abs(sum(sizes(sampled)) - exact) <= Fraction(1, 2)
    for qid, grades in sampled.items():
        assert grades
        assert grades.items() <= qrels[qid].items()
        # nothing moves
        assert list(grades) == [docid for docid in qrels[qid] if docid in grades]
    assert list(sampled) == [qid for qid in qrels if qid in sampled]


@pytest.mark.parametrize("rate", RATES)
def test_of_equal_queries_deep_keeps_whole_ones_and_shallow_some_of_each(rate: float) -> None:
    """Ten queries with ten judgments each: nothing is left to drop."""
    qrels = pool([10] * 10)
    tenth = round(rate * 10)
    assert sizes(sample_judgments(qrels, rate, "deep")) == [10] * tenth
    assert sizes(sample_judgments(qrels, rate, "shallow")) == [tenth] * 10


def test_what_is_too_much_is_dropped_one_a_query() -> None:
    """Of 4 x 10, 30 % is 12. Deep: ceil(1.2) = 2 queries with 20, of which 8 go, four of each. Shallow, of
    4 x 5: ceil(1.5) = 2 of each make 8, of which 2 go: a query loses one at most."""
    assert sizes(sample_judgments(pool([10] * 4), 0.3, "deep")) == [6, 6]
    assert sorted(sizes(sample_judgments(pool([5] * 4), 0.3, "shallow"))) == [1, 1, 2, 2]


@given(st.lists(st.integers(2, 40), min_size=2, max_size=15), st.sampled_from(RATES), st.integers(0, 3))
def test_shallow_keeps_every_query_it_can(counts: list[int], rate: float, seed: int) -> None:
    share = Fraction(str(rate))
    sampled = sample_judgments(pool(counts), rate, "shallow", seed=seed)
    target = sum(sizes(sampled))
    assert len(sampled) == min(len(counts), target)
    for qid, grades in sampled.items():
        assert len(grades) <= ceil(share * counts[int(qid[1:])])


def test_deep_takes_further_queries_where_the_first_have_too_few() -> None:
    """Nine queries have one judgment and one has 91: half of 100 needs the large one, whoever comes first."""
    for seed in range(10):
        assert sum(sizes(sample_judgments(pool([91, *[1] * 9]), 0.5, "deep", seed=seed))) == 50


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_seed_decides(scheme: Scheme) -> None:
    qrels = pool([10] * 20)
    assert sample_judgments(qrels, 0.3, scheme, seed=1) == sample_judgments(qrels, 0.3, scheme, seed=1)
    assert sample_judgments(qrels, 0.3, scheme, seed=1) != sample_judgments(qrels, 0.3, scheme, seed=2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_rate_of_one_keeps_all(scheme: Scheme) -> None:
    qrels = pool([3, 1, 7])
    assert sample_judgments(qrels, 1, scheme) == qrels


@pytest.mark.parametrize("scheme", SCHEMES)
def test_test_queries_keep_all_their_judgments(scheme: Scheme) -> None:
    qrels = pool([10] * 10)
    training = [f"q{n}" for n in range(8)]
    sampled = sample_judgments(qrels, 0.1, scheme, only=training)
    assert {qid: sampled[qid] for qid in ("q8", "q9")} == {qid: qrels[qid] for qid in ("q8", "q9")}
    assert sum(len(sampled.get(qid, {})) for qid in training) == 8


def test_nothing_of_the_caller_changes() -> None:
    qrels = pool([5, 5])
    sample_judgments(qrels, 0.5, "deep")
    assert qrels == pool([5, 5])


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, float("nan")])
def test_rates_that_are_none(rate: float) -> None:
    with pytest.raises(InputError, match="a rate of"):
        sample_judgments(pool([1]), rate, "deep")


def test_schemes_that_are_none() -> None:
    with pytest.raises(InputError, match="use deep or shallow"):
        sample_judgments(pool([1]), 0.5, "wide")  # type: ignore[arg-type]
