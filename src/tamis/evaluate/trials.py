"""Several trials of one system that differ only by chance: training seeds, samples of its data, drawn
opponents. The papers report their mean with a 95 % interval, or their median.

The interval is Student's, of the mean over trials. It does not generalise to other queries: for that, compare
two systems per query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import fmean, median, stdev

from tamis.base.errors import InputError
from tamis.evaluate.significance import Interval


@dataclass(frozen=True, slots=True)
class Trials:
    """A summary of one measure over several trials."""

    mean: float
    margin: float  # the interval is mean - margin to mean + margin
    median: float
    trials: int

    @property
    def interval(self) -> Interval:
        return Interval(self.mean - self.margin, self.mean + self.margin)


def over_trials(values: Sequence[float], *, confidence: float = 0.95) -> Trials:
    """The mean, its interval and the median of a measure over trials.

    >>> found = over_trials([0.361, 0.365, 0.358, 0.364, 0.362])
    >>> round(found.mean, 4), round(found.margin, 4), found.median
    (0.362, 0.0034, 0.362)
    """
    from scipy.special import stdtrit  # not scipy.stats, which takes half a second to import

    if len(values) < 2:
        raise InputError("an interval over trials needs two of them", remedy="give further runs")
    if not all(map(isfinite, values)):
        raise InputError("a trial's value is not a finite number", remedy="choose another measure")
    if not 0 < confidence < 1:
        raise InputError(f"a confidence of {confidence}", remedy="give a number between 0 and 1")
    error = stdev(values) / sqrt(len(values))
    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    return Trials(fmean(values), quantile * error, median(values), len(values))
