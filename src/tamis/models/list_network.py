"""The network of a listwise model: see `tamis.models.architectures.listwise`."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from tamis.models import feed
from tamis.models.encoder import Encoder
from tamis.models.network import Network
from tamis.models.templates import Inputs, Special, text_spans


class ListNetwork(Network):
    """An encoder that scores each text of its inputs from the mean of the text's states. The head on the
    [CLS] exists, as in any checkpoint, but is not used.

    >>> from tamis.models.config import EncoderConfig
    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16)
    >>> inputs = Inputs(np.array([1, 5, 2, 6, 2, 7, 2]), np.zeros(7, np.uint8), np.array([0, 7]))
    >>> ListNetwork(Encoder(config), Special(cls=1, sep=2)).eval()(inputs).shape  # of two texts
    torch.Size([2])
    """

    encoder: Encoder
    prefix = "listwise"

    def __init__(self, encoder: Encoder, special: Special) -> None:
        super().__init__(encoder)
        self.special = special
        self.head = nn.Linear(encoder.config.hidden, 1)
        self.dropout = nn.Dropout(encoder.config.dropout)

    def freeze(self) -> None:
        self.encoder.head.requires_grad_(False)  # the head on the [CLS] is not used

    def forward(self, inputs: Inputs) -> Tensor:
        """One number per text, input after input."""
        encoder, device = self.encoder, self.device
        layers = encoder.config.layers
        if self.packed:
            x, attend = encoder.begin_packed(*feed.packed(inputs, device))
            return self._scores(encoder.through(x, attend, 0, layers), inputs)
        together = feed.rectangles(inputs, device)
        found = []
        for some in together:
            part = inputs.take(some)
            x, attend = encoder.begin_padded(*feed.padded(part, device))
            found.append(self._scores(encoder.through(x, attend, 0, layers).flatten(0, 1), part))
        numbers = np.concatenate(together)
        owners = text_spans(inputs.take(numbers), self.special).owners
        return torch.cat(found)[feed.in_order(numbers[owners], device)]

    def _scores(self, states: Tensor, inputs: Inputs) -> Tensor:
        rows, counts = text_rows(inputs, self.special, packed=self.packed)
        rows, counts = rows.to(states.device), counts.to(states.device)
        with torch.autocast(states.device.type, enabled=False):  # as in `Head`: eight bits would tie texts
            # a rectangle: on a GPU, sums by index have no fixed order
            there = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
            own = states[rows].to(self.head.weight.dtype) * there[..., None]
            means = own.sum(dim=1) / counts[:, None]
            return cast(Tensor, self.head(self.dropout(means))).squeeze(1)


def text_rows(inputs: Inputs, special: Special, *, packed: bool) -> tuple[Tensor, Tensor]:
    """The rows of the encoder's input that are the tokens of each text, padded with 0, and the number of
    tokens of each text. The rows are those of packed tokens, or of padded inputs laid end to end.

    >>> inputs = Inputs(np.array([1, 2, 2, 1, 2, 7, 2]), np.zeros(7, np.uint8), np.array([0, 3, 7]))
    >>> [text_rows(inputs, Special(1, 2), packed=packed)[0].tolist() for packed in (True, False)]
    [[[2, 0], [5, 6]], [[2, 0], [6, 7]]]
    >>> text_rows(inputs, Special(1, 2), packed=True)[1].tolist()
    [1, 2]
    """
    starts, counts, owners, _ = text_spans(inputs, special)
    if not packed:
        starts = owners * int(inputs.lengths.max(initial=0)) + starts - inputs.offsets[owners]
    places = np.arange(int(counts.max(initial=0)))
    rows = np.where(places < counts[:, None], starts[:, None] + places, 0)
    return torch.from_numpy(rows), torch.from_numpy(counts)
