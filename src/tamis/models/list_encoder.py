"""A listwise encoder in torch: see `tamis.models.lists`."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from tamis.base.arrays import Array
from tamis.models.config import EncoderConfig
from tamis.models.encoder import Attend, Encoder
from tamis.models.lists import ListCheckpoint
from tamis.models.templates import Inputs, Special, text_spans

_LISTWISE = "listwise."


class ListEncoder(Encoder):
    """An encoder that scores the texts of its inputs, each by the mean of its own states. The head on the
    [CLS] is there, as in any checkpoint, and takes no part.

    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16, texts=2)
    >>> encoder = ListEncoder(config).eval()
    >>> ids, lengths = torch.tensor([[1, 5, 2, 6, 2, 7, 2]]), torch.tensor([7])
    >>> rows, counts = torch.tensor([[3, 4], [5, 6]]), torch.tensor([2, 2])
    >>> encoder.padded_texts(ids, torch.zeros_like(ids), lengths, rows, counts).shape
    torch.Size([2])
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        # under the name `head`, by which the optimiser knows what has a learning rate of its own
        self.listwise = nn.ModuleDict({"head": nn.Linear(config.hidden, 1)})
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def from_lists(cls, checkpoint: ListCheckpoint) -> ListEncoder:
        """The encoder with a checkpoint's weights, in evaluation mode."""
        with torch.device("meta"):
            encoder = cls(checkpoint.start.config)
        weights = Encoder.from_checkpoint(checkpoint.start).state_dict()
        weights |= {name: torch.tensor(values) for name, values in checkpoint.head.items()}
        encoder.load_state_dict(weights, assign=True)
        return encoder.eval()

    def tensors(self) -> dict[str, Array]:
        """The weights of the encoder without the head of its texts, under the names of a checkpoint."""
        found = super().tensors().items()
        return {name: values for name, values in found if not name.startswith(_LISTWISE)}

    def head_tensors(self) -> dict[str, Array]:
        """The weights of the head of its texts, as a `ListCheckpoint` has them."""
        return {name: values for name, values in super().tensors().items() if name.startswith(_LISTWISE)}

    @property
    def text_head(self) -> nn.Linear:
        return cast(nn.Linear, self.listwise["head"])

    def padded_texts(
        self, ids: Tensor, segments: Tensor, lengths: Tensor, rows: Tensor, counts: Tensor
    ) -> Tensor:
        """The scores [M] of texts whose tokens are these rows [M, K] of the flattened ids [B, L], the first
        `counts` of each; inputs are as `padded` takes them."""
        states = self._through(*self._padded(ids, segments, lengths))
        return self._scores(states.flatten(0, 1), rows, counts)

    def packed_texts(
        self, ids: Tensor, segments: Tensor, offsets: Tensor, max_length: int, rows: Tensor, counts: Tensor
    ) -> Tensor:
        """The scores [M] of texts whose tokens are these rows [M, K] of ids [T], the first `counts` of each;
        inputs are as `packed` takes them."""
        return self._scores(self._through(*self._packed(ids, segments, offsets, max_length)), rows, counts)

    def _through(self, x: Tensor, attend: Attend) -> Tensor:
        for number in range(self.config.layers):
            x = self._layer(number)(x, attend)
        return x

    def _scores(self, states: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
        head = self.text_head
        with torch.autocast(states.device.type, enabled=False):  # as in `Head`: eight bits would tie texts
            # a rectangle: sums over rows of an index have no fixed order on a card
            there = torch.arange(rows.shape[1], device=rows.device) < counts[:, None]
            own = states[rows].to(head.weight.dtype) * there[..., None]
            means = own.sum(dim=1) / counts[:, None]
            return cast(Tensor, head(self.dropout(means))).squeeze(1)


def text_rows(inputs: Inputs, special: Special, *, packed: bool) -> tuple[Tensor, Tensor]:
    """Which rows of what the encoder takes are the tokens of each text, filled up with 0, and how many it
    has: rows of the tokens laid end to end, or of the inputs filled up to the longest and then laid end to
    end.

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
