"""What several trials of one system say of it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tamis.base.errors import InputError
from tamis.evaluate.trials import over_trials


def test_by_hand() -> None:
    found = over_trials([0.30, 0.32, 0.34, 0.31, 0.38])
    assert found.mean == pytest.approx(0.33)
    assert found.median == pytest.approx(0.32)
    assert found.trials == 5
    # deviation sqrt(0.004 / 4), Student's t of 4 degrees at 97.5 %: 2.7764
    assert found.margin == pytest.approx(2.7764451 * (0.004 / 4) ** 0.5 / 5**0.5)
    assert found.interval == pytest.approx((0.33 - found.margin, 0.33 + found.margin))


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 3, 30])
def test_against_scipy(confidence: float, count: int) -> None:
    values = np.random.default_rng(count).normal(0.3, 0.01, count)
    low, high = stats.t.interval(confidence, count - 1, values.mean(), stats.sem(values))
    found = over_trials(values.tolist(), confidence=confidence)
    assert found.interval == pytest.approx((low, high), rel=1e-9)


def test_equal_trials_have_no_width() -> None:
    assert over_trials([0.1, 0.1, 0.1]).interval == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("values", [[], [0.3], [0.3, float("nan")]])
def test_too_little_to_say_anything(values: list[float]) -> None:
    with pytest.raises(InputError):
        over_trials(values)


def test_a_confidence_that_is_none() -> None:
    with pytest.raises(InputError, match=r"a confidence of 95"):
        over_trials([0.1, 0.2], confidence=95)
