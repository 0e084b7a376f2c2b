"""A hit as one integer, so that the one sort order (score descending, then id ascending) is integer order.

The upper 32 bits are the single-precision score, mapped so that a higher score is a smaller number; the lower
32 the rank of the document's id among the segment's sorted ids. Two hits never compare equal, so every way of
finding the k best finds the same k.
"""

from __future__ import annotations

import numpy as np

from tamis.base.arrays import Array


def keys(scores: Array, ranks: Array) -> Array:
    """
    >>> best_first = np.sort(keys(np.array([1.5, -2.0, 1.5, 0.0]), np.array([7, 1, 3, 2])))
    >>> [(float(s), int(r)) for s, r in zip(*unpack(best_first))]
    [(1.5, 3), (1.5, 7), (0.0, 2), (-2.0, 1)]
    """
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # + 0 turns -0.0 into 0.0
    # positive floats order as their bits, negative ones against them
    descending = np.where(bits >> 31, bits, bits ^ np.uint32(0x7FFFFFFF))
    return descending.astype(np.uint64) << np.uint64(32) | ranks.astype(np.uint64)


def unpack(keys: Array) -> tuple[Array, Array]:
    """The scores and id ranks of hits."""
    descending = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(descending >> 31, descending, descending ^ np.uint32(0x7FFFFFFF))
    return bits.view(np.float32), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def best(keys: Array, k: int) -> Array:
    """The k best hits, best first."""
    if k < len(keys):
        keys = np.partition(keys, k - 1)[:k]
    return np.sort(keys)
