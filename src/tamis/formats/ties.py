"""Removes ties between scores, so that every tool reads a run in the order in which it was written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tamis.base.errors import InputError

_LARGEST = 0x7F7FFFFF  # the bits of the largest finite float32


def strictly_decreasing(
    scores: Sequence[float] | npt.NDArray[np.floating],
) -> npt.NDArray[np.float64]:
    """Scores in the same order without ties, each reduced by as little as float32 allows.

    trec_eval orders ties by document id, other tools in other ways, and some store scores as float32, so the
    returned scores also differ as float32. A score changes only if it ties with the score above it, or if a
    chain of reduced ties reaches it. Scores must be finite and must not increase.

    >>> strictly_decreasing([2.5, 1.0, 1.0, 1.0, 0.5]).tolist()
    [2.5, 1.0, 0.99999994, 0.9999999, 0.5]
    """
    exact = np.asarray(scores, dtype=np.float64)
    if exact.ndim != 1:
        raise InputError(f"scores of {exact.ndim} dimensions", remedy="give one list of scores")
    if not np.isfinite(exact).all():
        raise InputError("a score is not a finite number", remedy="check the stage that gave it")
    if (exact[1:] > exact[:-1]).any():
        raise InputError("the scores increase", remedy="sort by decreasing score first")
    with np.errstate(over="ignore"):
        single = exact.astype(np.float32)
    if (single[1:] < single[:-1]).all() and np.isfinite(single).all():
        return exact.copy()
    # Number the float32 values so that neighbours differ by one. Then "at least one below the score above"
    # is ordinal[i] = min(ordinal[i], ordinal[i-1] - 1), a running minimum once i is added to both sides.
    ordinal = _ordinals(single)
    position = np.arange(len(ordinal))
    lowered = np.minimum.accumulate(ordinal + position) - position
    if abs(lowered).max() > _LARGEST:
        raise InputError("a score is beyond the range of float32", remedy="scale the scores down")
    changed = lowered < ordinal
    # The shortest decimal of the float32, not its exact value: 0.99999994 instead of 0.9999999403953552.
    exact = exact.copy()
    exact[changed] = [float(str(value)) for value in _floats(lowered[changed])]
    return exact


def _ordinals(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Consecutive numbers for consecutive float32 values; both zeros are number 0."""
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def _floats(ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The inverse of `_ordinals`."""
    bits = np.where(ordinals >= 0, ordinals, -ordinals | 0x80000000)
    return bits.astype(np.uint32).view(np.float32)
