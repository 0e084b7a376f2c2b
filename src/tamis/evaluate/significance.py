"""Tests of whether a difference between two runs is more than chance. Pure functions of per-query
differences.

The pairs are the queries. Both tests are two-tailed; the papers use the t-test with Bonferroni's correction.
A test that is undefined (equal runs, one query) returns p = 1, never NaN, so that a correction over a family
always has numbers to work with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.evaluate.chance import seeded

Test = Literal["t", "randomisation"]
Correction = Literal["holm", "bonferroni", "none"]
IntervalMethod = Literal["bca", "percentile"]

NOISE = 1e-12  # the largest difference of equal values of a measure that rounding may cause
_DIGITS = 12  # decimals that rounding does not change
PERMUTATIONS = 100_000
RESAMPLES = 10_000
_CHUNK = 1 << 20  # numbers held at once


class Interval(NamedTuple):
    low: float
    high: float


class WinTieLoss(NamedTuple):
    wins: int
    ties: int
    losses: int


# -- tests
# ------------------------------------------------------------------------------------------------------------


def t_test(differences: Array | Sequence[float]) -> float:
    """The p-value of the two-tailed paired t-test.

    Without spread (equal differences, or a single query) t is 0/0 or infinite, and the test is undefined: p
    is 1.

    >>> round(t_test([0.1, 0.2, 0.0, 0.3]), 4)
    0.1027
    >>> t_test([0.1, 0.1, 0.1])
    1.0
    """
    from scipy.stats import ttest_1samp  # takes half a second to import

    d = _checked(differences)
    return 1.0 if without_spread(d) else float(ttest_1samp(d, 0).pvalue)


def randomisation_test(
    differences: Array | Sequence[float], *, permutations: int = PERMUTATIONS, seed: int = 0
) -> float:
    """The p-value of the two-tailed randomisation test: how often random signs give a mean at least as large.

    If neither run is better, each query's difference could equally have the other sign. All assignments of
    signs are tried if there are at most `permutations`; otherwise that many are sampled, and the observed one
    is counted with them, since p could be zero without it (Phipson & Smyth 2010).
    `scipy.stats.permutation_test` does the same, forty times slower for 200 queries.

    >>> randomisation_test([0.1, 0.2, 0.0, 0.3])  # 2 of the 8 signs of three numbers
    0.25
    """
    d = _checked(differences)
    if permutations < 1:
        raise InputError(f"{permutations} permutations", remedy="ask for at least one")
    changing = d[np.abs(d) > NOISE]  # the sign of zero does not matter
    if not len(changing):
        return 1.0
    least = abs(changing.sum()) - NOISE * len(d)
    if len(changing) < 64 and 2 ** len(changing) <= permutations:
        return float(np.mean(np.abs(_all_sums(changing)) >= least))
    beyond = sum(
        int(np.count_nonzero(np.abs(sums) >= least)) for sums in _random_sums(changing, permutations, seed)
    )
    return (1 + beyond) / (1 + permutations)


def _all_sums(d: Array) -> Array:
    """The sums under all signs, with the first number's sign fixed: its other sign only mirrors the sums."""
    sums = d[:1]
    for value in d[1:]:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def _random_sums(d: Array, count: int, seed: int) -> Iterator[Array]:
    """The sums under random signs, in blocks.

    One random byte holds eight signs, and the 256 sums of each eight numbers are looked up: this takes an
    eighth of the additions and of the memory of a matrix of signs.
    """
    eights = np.pad(d, (0, -len(d) % 8)).reshape(-1, 8)
    signs = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    table = (eights @ signs.T).ravel()  # the sum for group e of eight numbers and byte b is at 256 e + b
    offsets = 256 * np.arange(len(eights))
    generator = seeded(seed)
    for size in _chunks(count, len(eights)):
        chosen = generator.integers(0, 256, (size, len(eights)), dtype=np.uint8)
        yield table[chosen + offsets].sum(axis=1)


# -- intervals
# ------------------------------------------------------------------------------------------------------------


def bootstrap_interval(
    differences: Array | Sequence[float],
    *,
    confidence: float = 0.95,
    method: IntervalMethod = "bca",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A confidence interval of the mean difference, from resampled queries (Efron & Tibshirani 1993, ch. 14).

    `bca` corrects the percentiles for bias and skew, which per-query differences have. Without spread in the
    differences, the width of the interval is zero.

    >>> low, high = bootstrap_interval([0.1, 0.2, 0.0, 0.3], method="percentile")
    >>> round(low, 3), round(high, 3)
    (0.05, 0.25)
    """
    d = _checked(differences)
    if not 0 < confidence < 1:
        raise InputError(
            f"a confidence of {confidence}", remedy="give a number between 0 and 1, such as 0.95"
        )
    if resamples < 1:
        raise InputError(f"{resamples} resamples", remedy="ask for at least one")
    mean = float(d.mean())
    if without_spread(d):
        return Interval(mean, mean)
    low, high = _bootstrap(d, confidence, method, resamples, seed)
    if math.isnan(
        low + high
    ):  # too few resamples: none lies below the mean, or none above, so no bias is corrected
        low, high = _bootstrap(d, confidence, "percentile", resamples, seed)
    return Interval(low, high)


def _bootstrap(
    d: Array, confidence: float, method: IntervalMethod, resamples: int, seed: int
) -> tuple[float, float]:
    from scipy.stats import bootstrap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # if the bias is undefined; the interval is NaN then
        found = bootstrap(
            (d,),
            _rounded_mean,
            n_resamples=resamples,
            batch=max(1, _CHUNK // len(d)),
            confidence_level=confidence,
            method=method,
            rng=seeded(seed),
        )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _rounded_mean(d: Array, axis: int) -> Array:
    """Round means, so that rounding errors do not separate equal ones: the bias is the share of means below
    the overall mean."""
    means: Array = np.round(d.mean(axis), _DIGITS)
    return means


# -- effect sizes
# ------------------------------------------------------------------------------------------------------------


def cohens_d(differences: Array | Sequence[float]) -> float:
    """Cohen's d of paired data (d_z): the mean difference divided by the differences' standard deviation.

    It is 0 for equal runs, infinite for other differences without spread, NaN for a single query.

    >>> round(cohens_d([0.1, 0.2, 0.0, 0.3]), 4)
    1.1619
    """
    d = _checked(differences)
    if np.abs(d).max() <= NOISE:
        return 0.0
    if len(d) == 1:
        return math.nan
    if without_spread(d):
        return math.copysign(math.inf, d.mean())
    return float(d.mean() / d.std(ddof=1))


def hedges_g(differences: Array | Sequence[float]) -> float:
    """Cohen's d_z, corrected for its upward bias for few queries (Hedges 1981).

    >>> round(hedges_g([0.1, 0.2, 0.0, 0.3]), 4)
    0.8407
    """
    effect = cohens_d(differences)
    freedom = len(differences) - 1
    if not math.isfinite(effect) or effect == 0:
        return effect
    if freedom == 1:
        return 0.0  # the factor is 0 for two queries: the gamma function has a pole at 0
    log_factor = math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2) - math.log(freedom / 2) / 2
    return effect * math.exp(log_factor)


def win_tie_loss(differences: Array | Sequence[float]) -> WinTieLoss:
    """The numbers of queries on which the run is better than the baseline, equal, and worse.

    >>> win_tie_loss([0.1, 0.0, -0.2, 0.3])
    WinTieLoss(wins=2, ties=1, losses=1)
    """
    d = _checked(differences)
    wins, losses = int((d > NOISE).sum()), int((d < -NOISE).sum())
    return WinTieLoss(wins, len(d) - wins - losses, losses)


# -- multiple tests
# ------------------------------------------------------------------------------------------------------------


def bonferroni(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """p-values multiplied by the family size: the number of these tests, or `family` if others were made
    elsewhere.

    >>> bonferroni([0.01, 0.03, 0.6])
    [0.03, 0.09, 1.0]
    """
    size = _family(p_values, family)
    return [min(1.0, size * p) for p in p_values]


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Holm's step-down correction: rejects all that Bonferroni's rejects, often more, at the same error rate.

    Tests made elsewhere are assumed to have larger p-values, which is conservative.

    >>> holm([0.01, 0.03, 0.6])
    [0.03, 0.06, 0.6]
    """
    size = _family(p_values, family)
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (size - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def _uncorrected(p_values: Sequence[float], family: int | None = None) -> list[float]:
    _family(p_values, family)
    return list(p_values)


CORRECTIONS: dict[Correction, Callable[[Sequence[float], int | None], list[float]]] = {
    "holm": holm,
    "bonferroni": bonferroni,
    "none": _uncorrected,
}


def _family(p_values: Sequence[float], family: int | None) -> int:
    for p in p_values:
        if not 0 <= p <= 1:
            raise InputError(f"a p-value of {p}", remedy="p-values are between 0 and 1")
    if family is not None and family < len(p_values):
        raise InputError(
            f"a family of {family:,} with {len(p_values):,} tests", remedy="count these tests with the others"
        )
    return len(p_values) if family is None else family


# -- common parts
# ------------------------------------------------------------------------------------------------------------


def without_spread(differences: Array) -> bool:
    """Whether all differences are equal, up to rounding; true for a single one.

    >>> without_spread(np.array([0.3 - 0.2, 0.2 - 0.1]))
    True
    """
    return bool(np.ptp(differences) <= NOISE)


def _checked(differences: Array | Sequence[float]) -> Array:
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or not len(d):
        raise InputError(
            f"differences of shape {d.shape}", remedy="give one difference per query, for at least one query"
        )
    if not np.isfinite(d).all():
        raise InputError("a difference is not a finite number", remedy="check the values of the measure")
    return d


def _chunks(count: int, width: int) -> Iterator[int]:
    """Block sizes that sum to `count`; a block has as many rows of this width as are held at once."""
    rows = max(1, _CHUNK // width)
    for done in range(0, count, rows):
        yield min(rows, count - done)
