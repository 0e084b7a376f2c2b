"""Hits as integers: their order is the one sort order."""

import numpy as np
import pytest

from tamis.index import hits


def test_smaller_keys_are_better_hits() -> None:
    # best first: higher scores, then lower ranks; both zeros are one score
    ordered = [
        (np.inf, 0),
        (3.0e38, 0),
        (2.0, 5),
        (np.nextafter(np.float32(2), np.float32(0)), 0),
        (1.0, 3),
        (1.0, 4),
        (1.0, 2**32 - 1),
        (1e-45, 0),  # the smallest float32 above zero
        (0.0, 1),
        (-0.0, 2),
        (0.0, 3),
        (-1e-45, 0),
        (-1.0, 0),
        (-1.0, 9),
        (-3.0e38, 0),
        (-np.inf, 0),
    ]
    scores = np.array([score for score, _ in ordered], dtype=np.float32)
    ranks = np.array([rank for _, rank in ordered], dtype=np.uint32)
    keys = hits.keys(scores, ranks)
    assert keys.dtype == np.uint64
    assert (keys[1:] > keys[:-1]).all()


def test_keys_worked_out() -> None:
    # 1.0 is 0x3F800000: its lower 31 bits turned over are 0x407FFFFF; -1.0 is 0xBF800000 as it is
    keys = hits.keys(np.array([1.0, -1.0]), np.array([7, 7]))
    assert [hex(key) for key in keys.tolist()] == ["0x407fffff00000007", "0xbf80000000000007"]


def test_unpacking_gives_back_scores_and_ranks() -> None:
    generator = np.random.default_rng(5)
    scores = generator.normal(0, 100, 1000).astype(np.float32)
    ranks = generator.permutation(1000)
    found_scores, found_ranks = hits.unpack(hits.keys(scores, ranks))
    assert found_scores.dtype == np.float32
    assert found_scores.tolist() == scores.tolist()
    assert found_ranks.tolist() == ranks.tolist()


@pytest.mark.parametrize("k", [1, 2, 99, 100, 101, 1000])
def test_the_best_are_a_prefix_of_all_in_order(k: int) -> None:
    generator = np.random.default_rng(k)
    scores = generator.integers(-3, 3, 100) / 2  # few distinct values: many ties
    ranks = generator.permutation(100)
    expected = sorted(zip((-scores).tolist(), ranks.tolist(), strict=True))[:k]
    found_scores, found_ranks = hits.unpack(hits.best(hits.keys(scores, ranks), k))
    assert list(zip((-found_scores).tolist(), found_ranks.tolist(), strict=True)) == expected


def test_no_hits() -> None:
    none = hits.keys(np.zeros(0), np.zeros(0, np.int64))
    assert len(hits.best(none, 10)) == 0
