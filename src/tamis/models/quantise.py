"""Matrices as 8-bit integers with one scale per row, as in int8 graphs and int8 checkpoints.

Quantising a dequantised matrix again gives bit-identical numbers and scales, so an int8 checkpoint runs in
the int8 graph without a second rounding. For this, a scale has 17 significant bits, so that its product with
a 7-bit integer is an exact float32, and the factors of columns are powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.models.config import EncoderConfig
from tamis.models.names import shapes

_LARGEST = 127
_SCALE_BITS = np.uint32(0xFFFFFF80)  # of a float32: the exponent, and 16 bits after the leading one
_LEAST = 1e-30  # a row with only smaller values counts as zero
#: Tensors so small that 8 bits would save nothing.
_FLOATS = ("embeddings.segment", "head.output.weight")


class Int8Matrix(NamedTuple):
    """A matrix [m, n]: its integers, the scales of its rows [m], and the factors of its columns [n], if any.

    >>> Int8Matrix(np.array([[1, -2]], np.int8), np.array([0.5], np.float32)).floats().tolist()
    [[0.5, -1.0]]
    """

    values: Array
    scale: Array
    columns: Array | None = None

    def floats(self) -> Array:
        matrix: Array = self.values.astype(np.float32)
        with np.errstate(over="ignore"):  # the reader checks for values that are not finite
            matrix *= self.scale[:, None]
            if self.columns is not None:
                matrix *= self.columns
        return matrix


def per_row(matrix: Array) -> tuple[Array, Array]:
    """Quantise a float32 matrix to int8 with one scale per row.

    >>> per_row(np.array([[0.5, -1.27], [0.0, 0.0]], dtype=np.float32))[0].tolist()
    [[50, -127], [0, 0]]
    """
    largest = np.abs(matrix).max(axis=1)
    short = np.asarray(largest / _LARGEST, np.float32).view(np.uint32) & _SCALE_BITS
    scales = np.where(largest < _LEAST, np.float32(1), short.view(np.float32))
    with np.errstate(invalid="ignore"):  # scales that are not finite are never written
        return np.rint(matrix / scales[:, None]).astype(np.int8), scales


def channel_factors(scale: Array, bias: Array) -> Array:
    """The square root of each channel's size relative to the median channel, for the output of a norm: half
    of the difference stays in the activations, half moves to the weights. Rounded to a power of two.

    >>> channel_factors(np.array([1.0, 1.0, 3.5]), np.array([0.0, 0.0, 0.5])).tolist()
    [1.0, 1.0, 2.0]
    """
    size = np.abs(scale) + np.abs(bias)
    usual = max(float(np.median(size)), 1e-12)
    _, exponents = np.frexp(np.maximum(size / usual, 1e-3))
    factors: Array = np.ldexp(np.float32(1), exponents // 2)  # log2 of a square root, rounded
    return factors


def norms_before(config: EncoderConfig) -> dict[str, str]:
    """The matrices that are multiplied with the output of exactly one norm, and that norm. The layers of
    ALBERT share matrices, so that some are multiplied with the outputs of several norms: these are left out.

    >>> config = EncoderConfig("bert", 30522, hidden=384, layers=6, heads=12, feed_forward=1536)
    >>> norms_before(config)["layers.1.attention.key.weight"]
    'layers.0.feed_forward.norm'
    """
    found: dict[str, set[str]] = {}
    norm = "" if config.projected else "embeddings.norm"
    for number in range(config.layers):
        layer = f"layers.{config.group(number)}"
        for part in ("query", "key", "value"):
            found.setdefault(f"{layer}.attention.{part}.weight", set()).add(norm)
        found[f"{layer}.feed_forward.up.weight"] = {f"{layer}.attention.norm"}
        norm = f"{layer}.feed_forward.norm"
    return {name: norms.pop() for name, norms in found.items() if len(norms) == 1 and "" not in norms}


def int8_matrices(config: EncoderConfig, tensors: Mapping[str, Array]) -> dict[str, Callable[[], Int8Matrix]]:
    """Functions that quantise the matrices that an int8 checkpoint stores as 8 bits, in the form used by the
    int8 graph. The other tensors of the encoder are small.

    >>> config = EncoderConfig("bert", 4, hidden=2, layers=1, heads=1, feed_forward=2)
    >>> int8_matrices(config, {"embeddings.word": np.eye(4, 2, dtype=np.float32)})["embeddings.word"]().values
    array([[127,   0], [  0, 127], [  0,   0], [  0,   0]], dtype=int8)
    """
    norms = norms_before(config)
    names = [name for name, shape in shapes(config).items() if len(shape) == 2 and name not in _FLOATS]
    return {name: partial(_matrix, tensors, name, norms.get(name)) for name in names}


def _matrix(tensors: Mapping[str, Array], name: str, norm: str | None) -> Int8Matrix:
    matrix = np.asarray(tensors[name], np.float32)
    if norm is None:
        return Int8Matrix(*per_row(matrix))
    # a checkpoint stores norms as float16: compute the factors as its reader will
    kept = (np.asarray(tensors[f"{norm}.{part}"], np.float16) for part in ("weight", "bias"))
    factors = channel_factors(*(each.astype(np.float32) for each in kept))
    return Int8Matrix(*per_row(matrix * factors), columns=1 / factors)


class Rounded(Mapping[str, Array]):
    """The tensors of an encoder as they are read from an int8 checkpoint.

    >>> config = EncoderConfig("bert", 4, hidden=2, layers=1, heads=1, feed_forward=2)
    >>> row = np.array([[1.27, 0.104]], np.float32)
    >>> Rounded(config, {"embeddings.word": row})["embeddings.word"].round(3)
    array([[1.27, 0.1 ]], dtype=float32)
    """

    def __init__(self, config: EncoderConfig, tensors: Mapping[str, Array]) -> None:
        self._tensors, self._matrices = tensors, int8_matrices(config, tensors)

    def __getitem__(self, name: str) -> Array:
        return self._matrices[name]().floats() if name in self._matrices else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
