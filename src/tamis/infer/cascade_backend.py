"""A model with exits by torch: a query's candidates go from exit to exit, ever fewer of them.

One query is read at a time, so that nothing beside it can change a bit of its scores. Its candidates are
packed where the device has a kernel for that, and elsewhere padded in rectangles of about one length. What
the layers have made of those that are live stays in memory between exits: of a thousand inputs of 512 tokens
in a model of 768 dimensions, 1.6 GB in fp32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array
from tamis.infer.engine import Check, batches, go_on
from tamis.infer.torch_backend import (
    PRECISIONS,
    TOKEN_BUDGETS,
    TorchBackend,
    check,
    device_of,
    has_packed_attention,
    precision_of,
)
from tamis.infer.walk import Keep, exit_margins
from tamis.models.exit_encoder import ExitEncoder, Walk
from tamis.models.exits import ExitCheckpoint
from tamis.models.templates import Inputs


class CascadeBackend(TorchBackend):
    """A model with exits on a device; the options are `TorchBackend`'s, and `margins` are the last exit's."""

    def __init__(self, checkpoint: ExitCheckpoint, device: str = "auto", precision: str = "auto") -> None:
        self.device = device_of(device)
        self.precision = precision_of(precision, self.device)
        self.config = checkpoint.start.config
        self.layout = "packed" if has_packed_attention(self) else "padded"
        self.token_budget = TOKEN_BUDGETS[self.device.type]
        self.compiled = False
        encoder = ExitEncoder.from_exits(checkpoint).to(self.device, PRECISIONS[self.precision])
        encoder.heads_at_full_precision()
        self.encoder = encoder
        self._forward = encoder.packed if self.layout == "packed" else encoder.padded

    def walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check = go_on) -> Array:
        """See `tamis.infer.walk.ExitBackend`."""
        check(inputs, self.config)
        return self._fitting(lambda: self._walk(inputs, keep, token_budget, wanted))

    def _walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check) -> Array:
        walks: list[tuple[Array, Walk]] = []

        def ask(exit: int, live: Array) -> Array:
            nonlocal walks
            if exit == 0:
                together = batches(inputs.lengths, token_budget, self.layout)
                walks = [(numbers, self._begin(inputs.take(numbers))) for numbers in together]
            else:
                walks = _thinned(walks, live, self.device)
            # all of them before any is read, which waits for the device
            asked = [(numbers, self._next(walk, wanted)) for numbers, walk in walks]
            margins = np.empty(len(inputs), np.float32)
            for numbers, some in asked:
                margins[numbers] = some.cpu().numpy()
            return margins[live]

        return exit_margins(len(inputs), len(self.encoder.exit_layers), ask, keep, self.description)

    def _begin(self, inputs: Inputs) -> Walk:
        begin = self.encoder.walk_packed if self.layout == "packed" else self.encoder.walk_padded
        return begin(*self._arguments(inputs))  # type: ignore[arg-type]

    def _next(self, walk: Walk, wanted: Check) -> Tensor:
        wanted()
        return self._margins(walk.logits())


def _thinned(
    walks: list[tuple[Array, Walk]], going_on: Array, device: torch.device
) -> list[tuple[Array, Walk]]:
    """The walks with those inputs alone; one of which none is left ends."""
    left = []
    for numbers, walk in walks:
        rows = np.flatnonzero(np.isin(numbers, going_on))
        if len(rows):
            if len(rows) < len(numbers):
                walk.keep(torch.from_numpy(rows).to(device))
            left.append((numbers[rows], walk))
    return left
