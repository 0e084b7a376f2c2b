"""Where terms stand in documents, of an index with positions, and which stand next to each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.index.segment import Segment, Term

AT_ONCE = 1 << 15  # documents whose positions are held at once


def count_ordered(left: Array, right: Array) -> Array:
    """The places (document << 32 | position) of `left` directly followed by `right`.

    >>> count_ordered(np.array([3, 9]), np.array([4, 8])).tolist()
    [3]
    """
    if not len(right):
        return left[:0]
    at = np.minimum(np.searchsorted(right, left + 1), len(right) - 1)
    followed: Array = right[at] == left + 1
    return left[followed]


def count_unordered(left: Array, right: Array, window: int) -> Array:
    """The places of `left` with a `right` on either side so near that both fit into the window. Where both
    are one term, a place needs another.

    >>> count_unordered(np.array([3, 90]), np.array([1, 4, 60]), 8).tolist()
    [3]
    """
    after = np.searchsorted(right, left, side="right")
    before = np.searchsorted(right, left, side="left") - 1
    near_after = (after < len(right)) & (right[np.minimum(after, len(right) - 1)] - left < window)
    near_before = (before >= 0) & (left - right[np.maximum(before, 0)] < window)
    return left[near_after | near_before]


class Places(NamedTuple):
    """The positions of a term in a segment: its documents, the offsets of their positions, and the
    positions."""

    documents: Array
    starts: Array
    positions: Array

    @classmethod
    def of(cls, segment: Segment, term: Term) -> Places:
        documents, tfs = segment.decode(term)
        starts = np.concatenate([[0], np.cumsum(tfs)])
        return cls(documents, starts, segment.positions(term).astype(np.uint32))

    def between(self, first: int, last: int) -> Array:
        """The places in some documents: document << 32 | position, ascending."""
        low, high = np.searchsorted(self.documents, [first, last])
        starts = self.starts[low : high + 1]
        documents = np.repeat(self.documents[low:high], np.diff(starts))
        return documents << 32 | self.positions[starts[0] : starts[-1]]
