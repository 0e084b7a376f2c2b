"""Detects whether this processor sums products of unsigned and signed bytes exactly.

ONNX Runtime multiplies activations (unsigned) with weights (signed) by an instruction that older x86
processors (AVX2, and AVX-512 without VNNI) execute in 16 bits: the sum of two products of large numbers
overflows and saturates silently. If the weights are unsigned too, it uses other instructions, which are exact
everywhere, but a little slower on those processors. The behaviour of the processor is tested, not looked up.
"""

from __future__ import annotations

from functools import cache

import numpy as np

INNER, OUTER, LARGEST = 64, 32, 127
#: The ONNX model of the test, y = MatMulInteger(x, weights) with the largest weights. It is stored as bytes,
#: because loading the library that writes models takes longer than everything else that a cached model needs.
MODEL = (
    b'\x08\n:\xe9\x10\n\x1e\n\x01x\n\x07weights\x12\x01y"\rMatMulInteger\x12\x08products'
    b"*\x92\x10\x08@\x08 \x10\x03B\x07weightsJ\x80\x10" + bytes([LARGEST]) * (INNER * OUTER) + b"Z\x13\n\x01x"
    b"\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08 \n\x02\x08@b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02"
    b"\x08 \n\x02\x08 B\x04\n\x00\x10\x15"
)


@cache
def products_saturate() -> bool:
    """Whether sums of large products saturate."""
    import onnxruntime

    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    (sums,) = session.run(None, {"x": np.full((OUTER, INNER), 255, np.uint8)})
    return bool((sums != INNER * 255 * LARGEST).any())
