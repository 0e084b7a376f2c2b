"""Lucene's one-byte lengths."""

import numpy as np
import pytest

from tamis.index.lengths import LENGTH_OF_NORM, norms

# what SmallFloat.byte4ToInt(SmallFloat.intToByte4(length)) of Lucene 9.9.1 gives
LUCENE = {
    **{length: length for length in range(41)},
    41: 40,
    42: 42,
    55: 54,
    56: 56,
    57: 56,
    63: 60,
    64: 64,
    87: 84,
    88: 88,
    99: 96,
    100: 96,
    255: 248,
    256: 248,
    500: 472,
    1_000: 984,
    10_000: 9_240,
    65_535: 61_464,
    123_456: 122_904,
    1_000_000: 983_064,
    1_000_000_000: 939_524_120,
    2**31 - 1: 2_013_265_944,
}


@pytest.mark.parametrize("dtype", [np.int64, np.uint32])
def test_lengths_are_those_of_lucene(dtype: type) -> None:
    lengths = np.array(list(LUCENE), dtype=dtype)
    assert LENGTH_OF_NORM[norms(lengths)].tolist() == list(LUCENE.values())


def test_every_byte_stands_for_a_length_of_its_own() -> None:
    assert len(LENGTH_OF_NORM) == 256
    assert (np.diff(LENGTH_OF_NORM) > 0).all()
    assert norms(LENGTH_OF_NORM).tolist() == list(range(256))


def test_a_rounded_length_is_never_above_and_never_an_eighth_below() -> None:
    lengths = np.unique(np.geomspace(1, 2**31 - 1, 5000).astype(np.int64))
    rounded = LENGTH_OF_NORM[norms(lengths)]
    assert (rounded <= lengths).all()
    assert (rounded > lengths * 7 / 8).all()


def test_no_documents() -> None:
    assert norms(np.zeros(0, np.uint32)).dtype == np.uint8
