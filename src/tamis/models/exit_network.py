"""The network of a cascade: an encoder with heads after some of its layers, see
`tamis.models.architectures.cascade`.

Training runs a batch up to one exit (`at`). Ranking runs from exit to exit with fewer and fewer inputs, and
reuses the states computed by the layers below (`Walk`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from tamis.models import feed
from tamis.models.encoder import Attend, Encoder, Head
from tamis.models.network import Network, margins
from tamis.models.templates import Inputs


class ExitNetwork(Network):
    """An encoder with heads after some layers; after the last layer it has its own head, as any encoder.

    >>> import numpy as np
    >>> from tamis.models.config import EncoderConfig
    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=4, heads=2, feed_forward=16)
    >>> network = ExitNetwork(Encoder(config), (2, 3, 4)).eval()
    >>> inputs = Inputs(np.array([1, 5, 2, 6, 2]), np.zeros(5, np.uint8), np.array([0, 5]))
    >>> walk = network.begin(inputs)
    >>> [walk.scores().shape for exit in range(3)]
    [torch.Size([1]), torch.Size([1]), torch.Size([1])]
    """

    encoder: Encoder
    prefix = "exits"

    def __init__(self, encoder: Encoder, exits: Sequence[int]) -> None:
        super().__init__(encoder)
        self.exit_layers = tuple(exits)
        self.exits = nn.ModuleDict(
            {str(layer): nn.ModuleDict({"head": Head(encoder.config)}) for layer in self.exit_layers[:-1]}
        )

    def head_state(self) -> dict[str, Tensor]:
        """`4.head.dense.weight` of the module is `exits.4.dense.weight` in a checkpoint."""
        own = self.exits.state_dict().items()
        return {f"{self.prefix}.{name.replace('.head.', '.', 1)}": x for name, x in own}

    def exit_head(self, number: int) -> Head:
        """The head of an exit, numbered from 0."""
        if number == len(self.exit_layers) - 1:
            return self.encoder.head
        return cast(Head, cast(nn.ModuleDict, self.exits[str(self.exit_layers[number])])["head"])

    def forward(self, inputs: Inputs) -> Tensor:
        """The scores of the last exit."""
        return self.at(len(self.exit_layers) - 1, inputs)

    def at(self, number: int, inputs: Inputs) -> Tensor:
        """The scores of an exit, numbered from 0: those of an encoder that ends at its layer, with its
        head."""

        def logits(x: Tensor, attend: Attend) -> Tensor:
            firsts = self.encoder.through(x, attend, 0, self.exit_layers[number], first_only=True)
            return cast(Tensor, self.exit_head(number)(firsts)).reshape(-1, self.encoder.config.labels)

        if self.packed:
            found = logits(*self.encoder.begin_packed(*feed.packed(inputs, self.device)))
        else:
            begin = self.encoder.begin_padded
            found = feed.by_rectangle(lambda *some: logits(*begin(*some)), inputs, self.device)
        return margins(found)

    def begin(self, inputs: Inputs) -> Walk:
        """Start a walk over inputs; padded ones are one rectangle."""
        if self.packed:
            return Walk(self, *self.encoder.begin_packed(*feed.packed(inputs, self.device)))
        return Walk(self, *self.encoder.begin_padded(*feed.padded(inputs, self.device)))


class Walk:
    """The state of inputs that go from exit to exit."""

    def __init__(self, network: ExitNetwork, x: Tensor, attend: Attend) -> None:
        self.network, self._x, self._attend = network, x, attend
        self.passed = 0  # exits passed so far

    def scores(self) -> Tensor:
        """Continue to the next exit, and return its scores: one number per input."""
        network, number = self.network, self.passed
        start, stop = (0, *network.exit_layers)[number : number + 2]
        last = number == len(network.exit_layers) - 1
        self._x = network.encoder.through(self._x, self._attend, start, stop, first_only=last)
        self.passed += 1
        firsts = self._x if last else self._attend.first(self._x)
        logits = cast(Tensor, network.exit_head(number)(firsts)).reshape(-1, network.encoder.config.labels)
        return margins(logits)

    def keep(self, inputs: Tensor) -> None:
        """Continue with these inputs only, given by their current indices."""
        self._x, self._attend = self._attend.take(self._x, inputs)
