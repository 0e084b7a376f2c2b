"""For any matrix: each number is within half a step, and what was dequantised is quantised as before, bit by
bit. So the graph of an int8 checkpoint is that of the weights that it was made from."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tamis.base.arrays import Array
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.models.graph import build_graph
from tamis.models.quantise import Int8Matrix, channel_factors, per_row

FAMILIES = ("bert", "roberta", "electra", "albert", "distilbert")
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 7))
#: From the smallest to the largest that weights could be, and zero.
NUMBERS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-20 else 0.0)
MATRICES = arrays(np.float32, SIZES, elements=NUMBERS)


@settings(deadline=None)
@given(MATRICES)
def test_numbers_are_within_half_a_step(matrix: Array) -> None:
    values, scales = per_row(matrix)
    assert values.dtype == np.int8 and scales.dtype == np.float32 and (scales > 0).all()
    assert (np.abs(values).max(axis=1) == np.where(matrix.any(axis=1), 127, 0)).all()
    exact = values.astype(np.float64) * scales.astype(np.float64)[:, None]
    assert (np.abs(exact - matrix) <= 0.5001 * scales[:, None]).all()
    assert (Int8Matrix(values, scales).floats() == exact).all()  # no rounding


@settings(deadline=None)
@given(MATRICES, st.data())
def test_what_was_dequantised_is_quantised_as_before(matrix: Array, data: st.DataObject) -> None:
    powers = data.draw(arrays(np.int32, matrix.shape[1], elements=st.integers(-5, 20)))
    factors = np.ldexp(np.float32(1), powers)
    values, scales = per_row(matrix * factors)
    read = Int8Matrix(values, scales, 1 / factors).floats()
    again, same = per_row(read * factors)
    assert np.array_equal(again, values) and np.array_equal(same, scales)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(*[arrays(np.float32, n, elements=NUMBERS)] * 2)))
def test_factors_are_powers_of_two_near_the_square_root(norm: tuple[Array, Array]) -> None:
    size = np.abs(norm[0]) + np.abs(norm[1])
    wanted = np.sqrt(np.maximum(size / max(float(np.median(size)), 1e-12), 1e-3))
    factors = channel_factors(*norm)
    assert (np.frexp(factors)[0] == 0.5).all()
    assert (np.abs(np.log2(factors / wanted)) <= 0.5001).all()


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_int8_checkpoint_has_the_graph_of_its_weights(
    tiny_checkpoint: Callable[..., Path], family: str, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        given = load_checkpoint(tiny_checkpoint(place / "float32", family, layers=3, hidden=16, seed=seed))
        save_checkpoint(given, place / "float16", "float16")
        half = load_checkpoint(place / "float16")
        save_checkpoint(half, place / "int8", "int8")
        small = load_checkpoint(place / "int8")
        one, other = (build_graph(each.config, each.tensors, "int8") for each in (half, small))
        assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
        for kind in ("float32", "float16"):
            save_checkpoint(small, place / "back", kind)  # type: ignore[arg-type]
            save_checkpoint(load_checkpoint(place / "back"), place / "again", "int8")
            kept, again = (place / name / "model.safetensors" for name in ("int8", "again"))
            assert kept.read_bytes() == again.read_bytes()
