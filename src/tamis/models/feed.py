"""Moves inputs to an encoder on a device: packed end to end, or padded in rectangles of similar lengths."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array, batches
from tamis.models.templates import Inputs

#: Tokens of one padded rectangle: few, so that inputs of different lengths need little padding, but enough to
#: keep a device busy.
_RECTANGLES = {"cuda": 1 << 15, "mps": 1 << 14, "cpu": 1 << 12}
_ROUNDED_TO = 64


def packed(inputs: Inputs, device: torch.device) -> tuple[Tensor, Tensor, Tensor, int]:
    """The arguments of `Encoder.packed`. They are copied to the device in one transfer, from pinned
    memory."""
    tokens = len(inputs.ids)
    host = torch.empty(2 * tokens + len(inputs.offsets), dtype=torch.int32, pin_memory=device.type == "cuda")
    numbers = host.numpy()
    numbers[:tokens], numbers[tokens : 2 * tokens] = inputs.ids, inputs.segments
    numbers[2 * tokens :] = inputs.offsets
    there = host.to(device, non_blocking=True)
    return there[:tokens], there[tokens : 2 * tokens], there[2 * tokens :], longest(inputs)


def longest(inputs: Inputs) -> int:
    """An upper bound of the inputs' lengths for packed attention. It is rounded up, because each new value
    makes compiled layers compile again.

    >>> longest(Inputs(np.zeros(70, np.int32), np.zeros(70, np.uint8), np.array([0, 3, 70])))
    128
    """
    return -(-int(inputs.lengths.max(initial=1)) // _ROUNDED_TO) * _ROUNDED_TO


def padded(inputs: Inputs, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of `Encoder.padded`: ids [B, L], segments [B, L] and lengths [B].

    >>> inputs = Inputs(np.array([1, 7, 1, 8, 9]), np.array([0, 0, 0, 1, 1]), np.array([0, 2, 5]))
    >>> [tensor.tolist() for tensor in padded(inputs)]
    [[[1, 7, 0], [1, 8, 9]], [[0, 0, 0], [0, 1, 1]], [2, 3]]
    """
    lengths = inputs.lengths
    there = np.arange(int(lengths.max())) < lengths[:, None]
    ids, segments = np.zeros(there.shape, np.int64), np.zeros(there.shape, np.int64)
    ids[there], segments[there] = inputs.ids, inputs.segments
    one, two, three = (torch.from_numpy(array).to(device) for array in (ids, segments, lengths))
    return one, two, three


def rectangles(inputs: Inputs, device: torch.device) -> list[Array]:
    """The indices of the inputs of each padded rectangle.

    >>> inputs = Inputs(np.ones(5, np.int32), np.zeros(5, np.uint8), np.array([0, 2, 5]))
    >>> [some.tolist() for some in rectangles(inputs, torch.device("cpu"))]
    [[1, 0]]
    """
    return batches(inputs.lengths, _RECTANGLES[device.type], "padded")


def by_rectangle(
    score: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: Inputs, device: torch.device
) -> Tensor:
    """Apply `score` to each rectangle; returns one row per input, in the order of the inputs."""
    together = rectangles(inputs, device)
    found = [score(*padded(inputs.take(some), device)) for some in together]
    return torch.cat(found)[in_order(np.concatenate(together), device)]


def in_order(numbers: Array, device: torch.device) -> Tensor:
    """The indices that sort the numbers in ascending order.

    >>> in_order(np.array([2, 0, 1]), torch.device("cpu")).tolist()
    [1, 2, 0]
    """
    return torch.from_numpy(np.argsort(numbers, kind="stable")).to(device)
