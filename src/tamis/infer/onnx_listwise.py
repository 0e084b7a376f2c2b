"""A listwise model on the processor, by ONNX Runtime: needs no torch.

The head is linear, so that what it says of the mean of a text's states is the mean of what it says of each:
the graph gives a score a token, and their means are taken here.
"""

from __future__ import annotations

import numpy as np

from tamis.base.arrays import Array
from tamis.infer.onnx_backend import OnnxRuntime, open_session, tokens
from tamis.models.checkpoint import overlaid
from tamis.models.graph import build_token_scores
from tamis.models.lists import HEAD, ListCheckpoint
from tamis.models.templates import Inputs, text_spans
from tamis.models.tokenizer import open_tokenizer


class OnnxListwiseBackend(OnnxRuntime):
    """A listwise model in ONNX Runtime."""

    def __init__(
        self, checkpoint: ListCheckpoint, precision: str = "auto", workers: int | None = None
    ) -> None:
        super().__init__(checkpoint.start.config, precision, workers)
        self.special = open_tokenizer(checkpoint.start).special
        tensors = overlaid(checkpoint.start.tensors, checkpoint.head)
        graph = build_token_scores(self.config, tensors, self.precision, HEAD)
        self._session = open_session(graph.SerializeToString())

    def margins(self, inputs: Inputs) -> Array:
        """The scores of each input's texts, float32[inputs, n]; 0 where an input has fewer."""
        (scores,) = self._session.run(None, tokens(inputs))
        starts, counts, owners, numbers = text_spans(inputs, self.special)
        found = np.zeros((len(inputs), self.config.texts), np.float32)
        found[owners, numbers] = span_means(scores.ravel(), starts, counts)
        return found


def span_means(values: Array, starts: Array, counts: Array) -> Array:
    """The mean of each span of values, which may be any but empty.

    >>> span_means(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 2]), np.array([1, 2])).tolist()
    [1.0, 6.0]
    """
    offsets = np.stack([starts, starts + counts], axis=1).ravel()
    # what lies between two spans is added up too; the last may end where the values do
    sums = (
        np.add.reduceat(np.append(values.astype(np.float64), 0.0), offsets)[::2]
        if len(offsets)
        else np.empty(0)
    )
    return np.asarray(sums / counts)
