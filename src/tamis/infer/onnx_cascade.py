"""A model with exits on the processor, by ONNX Runtime: needs no torch.

Each part of the layers between two exits is a graph of its own. The states of the candidates that go on lie
in memory meanwhile, and new batches of one length are formed from them. No score depends on its batch, so
that those at the last exit are `OnnxBackend`'s to the last bit.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tamis.base.arrays import Array
from tamis.infer.engine import Check, batches, go_on, side_by_side
from tamis.infer.onnx_backend import OnnxRuntime, open_session, tokens
from tamis.infer.walk import Keep, exit_margins
from tamis.models.checkpoint import overlaid
from tamis.models.exits import ExitCheckpoint
from tamis.models.graph import BEFORE, build_part
from tamis.models.templates import Inputs


class OnnxCascadeBackend(OnnxRuntime):
    """A model with exits in ONNX Runtime."""

    def __init__(
        self, checkpoint: ExitCheckpoint, precision: str = "auto", workers: int | None = None
    ) -> None:
        super().__init__(checkpoint.start.config, precision, workers)
        tensors = overlaid(checkpoint.start.tensors, checkpoint.heads)
        last = self.config.layers
        self._parts = [
            open_session(
                build_part(
                    self.config,
                    tensors,
                    self.precision,
                    start,
                    stop,
                    head="head" if stop == last else f"exits.{stop}",
                ).SerializeToString()
            )
            for start, stop in pairwise((0, *checkpoint.layers))
        ]

    def margins(self, inputs: Inputs) -> Array:
        """The last exit's."""
        margins: Array = self.walk(inputs, lambda live, margins: live, self.token_budget)[:, -1]
        return margins

    def walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check = go_on) -> Array:
        """See `tamis.infer.walk.ExitBackend`."""
        states: dict[int, Array] = {}  # float32[length, hidden] of each candidate that is live

        def ask(exit: int, live: Array) -> Array:
            for left in states.keys() - set(live.tolist()):
                del states[left]

            def score(batch: Array) -> Array:
                wanted()
                numbers = live[batch].tolist()
                if exit == 0:
                    feed = tokens(inputs.take(numbers))
                else:
                    feed = {BEFORE: np.stack([states.pop(number) for number in numbers])}
                logits, *after = self._parts[exit].run(None, feed)
                for each in after:  # all but the last part give their states
                    states.update(zip(numbers, each, strict=True))
                return self._margins(logits)

            together = batches(inputs.lengths[live], token_budget, self.layout)
            margins = np.empty(len(live), np.float32)
            for batch, scores in zip(together, side_by_side(score, together, self.workers), strict=True):
                margins[batch] = scores
            return margins

        return exit_margins(len(inputs), len(self._parts), ask, keep, self.description)
