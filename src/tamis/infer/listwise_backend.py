"""A listwise model by torch: a group of texts is one input, and has a score for each of its texts."""

from __future__ import annotations

import numpy as np

from tamis.base.arrays import Array
from tamis.infer.torch_backend import (
    PRECISIONS,
    TOKEN_BUDGETS,
    TorchBackend,
    check,
    device_of,
    has_packed_attention,
    precision_of,
)
from tamis.models.list_encoder import ListEncoder, text_rows
from tamis.models.lists import ListCheckpoint
from tamis.models.templates import Inputs, text_spans
from tamis.models.tokenizer import open_tokenizer


class ListwiseBackend(TorchBackend):
    """A listwise model on a device; the options are `TorchBackend`'s."""

    def __init__(self, checkpoint: ListCheckpoint, device: str = "auto", precision: str = "auto") -> None:
        self.device = device_of(device)
        self.precision = precision_of(precision, self.device)
        self.config = checkpoint.start.config
        self.special = open_tokenizer(checkpoint.start).special
        self.layout = "packed" if has_packed_attention(self) else "padded"
        self.token_budget = TOKEN_BUDGETS[self.device.type]
        self.compiled = False
        encoder = ListEncoder.from_lists(checkpoint).to(self.device, PRECISIONS[self.precision])
        encoder.text_head.float()
        self._forward = encoder.packed_texts if self.layout == "packed" else encoder.padded_texts

    def margins(self, inputs: Inputs) -> Array:
        """The scores of each input's texts, float32[inputs, n]; 0 where an input has fewer."""
        check(inputs, self.config)
        _, _, owners, numbers = text_spans(inputs, self.special)
        found = np.zeros((len(inputs), self.config.texts), np.float32)
        texts = text_rows(inputs, self.special, packed=self.layout == "packed")

        def score() -> Array:
            there = (each.to(self.device) for each in texts)
            values: Array = self._forward(*self._arguments(inputs), *there).cpu().numpy()
            return values

        found[owners, numbers] = self._fitting(score)
        return found
