"""Lucene's one-byte document lengths: exact up to 39, then four significant bits."""

from __future__ import annotations

import numpy as np

from tamis.base.arrays import Array

_EXACT = 24  # the values that the float-like code of the largest int leaves free


def _long_to_float4(length: int) -> int:
    """A tiny float: three bits behind the leading one, and an exponent."""
    bits = length.bit_length()
    if bits < 4:
        return length
    shift = bits - 4
    return (length >> shift & 0x07) | (shift + 1) << 3


def _float4_to_long(code: int) -> int:
    shift = (code >> 3) - 1
    return code & 0x07 if shift == -1 else (code & 0x07 | 0x08) << shift


#: The length encoded by each norm byte.
LENGTH_OF_NORM: Array = np.array(
    [code if code < _EXACT else _EXACT + _float4_to_long(code - _EXACT) for code in range(256)],
    dtype=np.int64,
)


def norms(lengths: Array) -> Array:
    """The norm byte of each length: the largest whose length is not above it.

    >>> LENGTH_OF_NORM[norms(np.array([0, 39, 41, 100, 1000]))].tolist()
    [0, 39, 40, 96, 984]
    """
    return (np.searchsorted(LENGTH_OF_NORM, lengths, side="right") - 1).astype(np.uint8)
