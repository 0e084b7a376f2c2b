"""An encoder with exits, in torch: see `tamis.models.exits`.

Training reads a batch as far as one exit (`at`). Ranking goes from exit to exit with ever fewer inputs, and
what the layers below have computed for them is never computed again (`Walk`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from tamis.base.arrays import Array
from tamis.models.config import EncoderConfig
from tamis.models.encoder import Attend, Embeddings, Encoder, Head
from tamis.models.exits import ExitCheckpoint

_EXITS = "exits."


class ExitEncoder(Encoder):
    """An encoder with heads after some layers; after the last one it has `head`, as any encoder.

    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=4, heads=2, feed_forward=16)
    >>> encoder = ExitEncoder(config, (2, 3, 4)).eval()
    >>> ids, lengths = torch.tensor([[1, 5, 2, 6, 2]]), torch.tensor([5])
    >>> walk = encoder.walk_padded(ids, torch.zeros_like(ids), lengths)
    >>> [walk.logits().shape for exit in range(3)]
    [torch.Size([1, 1]), torch.Size([1, 1]), torch.Size([1, 1])]
    """

    def __init__(self, config: EncoderConfig, exits: Sequence[int]) -> None:
        super().__init__(config)
        self.exit_layers = tuple(exits)
        # each under the name `head`, by which the optimiser knows what has a learning rate of its own
        self.exits = nn.ModuleDict(
            {str(layer): nn.ModuleDict({"head": Head(config)}) for layer in self.exit_layers[:-1]}
        )

    @classmethod
    def from_exits(cls, checkpoint: ExitCheckpoint) -> ExitEncoder:
        """The encoder with a checkpoint's weights, in evaluation mode."""
        with torch.device("meta"):
            encoder = cls(checkpoint.start.config, checkpoint.layers)
        weights = Encoder.from_checkpoint(checkpoint.start).state_dict()
        for name in checkpoint.heads:
            exits, layer, rest = name.split(".", 2)
            weights[f"{exits}.{layer}.head.{rest}"] = torch.tensor(checkpoint.heads[name])
        encoder.load_state_dict(weights, assign=True)
        return encoder.eval()

    def tensors(self) -> dict[str, Array]:
        """The weights of the encoder without its exits, under the names of a checkpoint."""
        return {name: values for name, values in super().tensors().items() if not name.startswith(_EXITS)}

    def exit_tensors(self) -> dict[str, Array]:
        """The weights of the exits before the last, as an `ExitCheckpoint` has them."""
        return {
            name.replace(".head.", ".", 1): values
            for name, values in super().tensors().items()
            if name.startswith(_EXITS)
        }

    def heads_at_full_precision(self) -> None:
        """Keep all heads in float32: eight bits of a logit would tie candidates."""
        for number in range(len(self.exit_layers)):
            self.exit_head(number).float()

    def exit_head(self, number: int) -> Head:
        """The head of an exit, numbered from 0."""
        if number == len(self.exit_layers) - 1:
            return self.head
        return cast(Head, cast(nn.ModuleDict, self.exits[str(self.exit_layers[number])])["head"])

    def at(self, number: int) -> Exit:
        """The encoder as far as an exit, numbered from 0."""
        return Exit(self, number)

    def walk_padded(self, ids: Tensor, segments: Tensor, lengths: Tensor) -> Walk:
        """Begin with inputs as `padded` takes them."""
        return Walk(self, *self._padded(ids, segments, lengths))

    def walk_packed(self, ids: Tensor, segments: Tensor, offsets: Tensor, max_length: int) -> Walk:
        """Begin with inputs as `packed` takes them."""
        return Walk(self, *self._packed(ids, segments, offsets, max_length))

    def through(self, x: Tensor, attend: Attend, start: int, stop: int, first_only: bool = False) -> Tensor:
        """What layers `start` to `stop` - 1 make of `x`; of the last of them, if so wanted, the [CLS] rows
        alone."""
        for number in range(start, stop):
            x = self._layer(number)(x, attend, first_only and number == stop - 1)
        return x


class Exit:
    """An encoder as far as one of its exits: the same as an encoder of so many layers with that head."""

    def __init__(self, encoder: ExitEncoder, number: int) -> None:
        self.encoder, self.number = encoder, number

    @property
    def embeddings(self) -> Embeddings:
        return self.encoder.embeddings

    def padded(self, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
        """As `Encoder.padded`."""
        return self._logits(*self.encoder._padded(ids, segments, lengths)).squeeze(1)

    def packed(self, ids: Tensor, segments: Tensor, offsets: Tensor, max_length: int) -> Tensor:
        """As `Encoder.packed`."""
        return self._logits(*self.encoder._packed(ids, segments, offsets, max_length))

    def _logits(self, x: Tensor, attend: Attend) -> Tensor:
        layer = self.encoder.exit_layers[self.number]
        firsts = self.encoder.through(x, attend, 0, layer, first_only=True)
        return cast(Tensor, self.encoder.exit_head(self.number)(firsts))


class Walk:
    """Some inputs on their way from exit to exit."""

    def __init__(self, encoder: ExitEncoder, x: Tensor, attend: Attend) -> None:
        self.encoder, self._x, self._attend = encoder, x, attend
        self.passed = 0  # exits

    def logits(self) -> Tensor:
        """[B, labels]: go on to the next exit, and ask its head."""
        encoder, number = self.encoder, self.passed
        start, stop = (0, *encoder.exit_layers)[number : number + 2]
        last = number == len(encoder.exit_layers) - 1
        self._x = encoder.through(self._x, self._attend, start, stop, first_only=last)
        self.passed += 1
        firsts = self._x if last else self._attend.first(self._x)
        return cast(Tensor, encoder.exit_head(number)(firsts)).reshape(-1, encoder.config.labels)

    def keep(self, inputs: Tensor) -> None:
        """Go on with these inputs alone, numbered as they are now."""
        self._x, self._attend = self._attend.take(self._x, inputs)
