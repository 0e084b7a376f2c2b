"""Types and helpers for numeric arrays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: equal: inputs of one length. padded: padded to the longest. packed: laid end to end.
Layout = Literal["equal", "padded", "packed"]


def ranges(starts: Array, counts: Array) -> Array:
    """The concatenation of start, start+1, ... for each pair.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total, dtype=np.int64)


def batches(lengths: Array, budget: int, layout: Layout) -> list[Array]:
    """The indices of the inputs of each batch, the longest first; a single input may exceed the budget.

    >>> [batch.tolist() for batch in batches(np.array([3, 5, 3, 2]), 6, "equal")]
    [[1], [0, 2], [3]]
    >>> [batch.tolist() for batch in batches(np.array([3, 5, 3, 2]), 8, "packed")]
    [[1, 0], [2, 3]]
    >>> [batch.tolist() for batch in batches(np.array([3, 5, 3, 2]), 8, "padded")]
    [[1], [0, 2], [3]]
    """
    if layout == "packed" and lengths.sum() <= budget:
        return [np.arange(len(lengths))] if len(lengths) else []
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    found, start = [], 0
    while start < len(order):
        ahead = sorted_lengths[start:]
        longest = max(int(ahead[0]), 1)
        if layout == "packed":
            count = int(np.searchsorted(np.cumsum(ahead), budget, side="right"))
        else:
            count = budget // longest
            if layout == "equal":
                count = min(count, int(np.searchsorted(-ahead, -ahead[0], side="right")))
        count = max(count, 1)
        found.append(order[start : start + count])
        start += count
    return found
