"""Networks for torch: inputs in, scores out. The base class, and the pointwise network.

A network of your own needs only a `forward`, and an `__init__` that creates its modules outside the encoder.
Their weights are drawn, saved and loaded under their names in the network:

    class Mean(Network):
        def __init__(self, encoder: Encoder) -> None:
            super().__init__(encoder)
            self.output = nn.Linear(encoder.config.hidden, 1)

        def forward(self, inputs: Inputs) -> Tensor:
            return self.output(self.first_states(inputs)).squeeze(1)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError
from tamis.models import feed, states
from tamis.models.architecture import Architecture, margin
from tamis.models.checkpoint import Checkpoint
from tamis.models.encoder import Encoder
from tamis.models.templates import Inputs

__all__ = ["Encoder", "Network", "Pointwise", "open_network"]


class Network(nn.Module):
    """An encoder, and the modules that compute scores from its outputs. `packed` says whether inputs are
    packed or padded, depending on the kernels of the device. A module called `head` has a separate learning
    rate."""

    #: The prefix in a checkpoint of the names of its tensors outside the encoder.
    prefix = ""

    def __init__(self, encoder: Encoder | None) -> None:
        super().__init__()
        self.encoder, self.packed = encoder, False

    @classmethod
    def of(cls, checkpoint: Checkpoint, *arguments: Any, **options: Any) -> Self:
        """The network around a checkpoint's encoder, `cls(encoder, *arguments, **options)`, with the weights
        of its head if there are any, in evaluation mode."""
        network = cls(Encoder.from_checkpoint(checkpoint), *arguments, **options)
        network.prefix = checkpoint.architecture.prefix
        if checkpoint.head:
            network.load_head(checkpoint)
        return network.eval()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    def forward(self, inputs: Inputs) -> Tensor:
        """One float32 per scored item."""
        raise InputError(
            f"{type(self).__name__} does not say what it makes of inputs",
            remedy=f"define forward(self, inputs) in {type(self).__name__}",
        )

    # -- the encoder's outputs

    def first_states(self, inputs: Inputs) -> Tensor:
        """The output of the last layer at the first token of each input, [inputs, hidden], float32."""
        return states.first_states(self._encoder, inputs, self.packed).float()

    def token_states(self, inputs: Inputs) -> Tensor:
        """The output of the last layer for each token, [tokens, hidden], float32, in the order of
        `inputs.ids`."""
        return states.token_states(self._encoder, inputs, self.packed)[-1].float()

    @property
    def _encoder(self) -> Encoder:
        assert self.encoder is not None
        return self.encoder

    # -- precision and compilation

    def in_precision(self, dtype: torch.dtype) -> None:
        """Convert the encoder to this type. Heads stay in float32: eight bits of a score would tie
        candidates."""
        if self.encoder is not None:
            self.encoder.to(dtype=dtype)
            self.encoder.head.float()

    def compile(self, **options: object) -> None:
        """Compile the encoder, which takes most of the time."""
        for way in ("packed", "padded"):
            setattr(self.encoder, way, torch.compile(getattr(self._encoder, way), dynamic=True))

    # -- its weights

    def head_state(self) -> dict[str, Tensor]:
        """The weights outside the encoder, under their names in a checkpoint."""
        own = self.state_dict().items()
        return {f"{self.prefix}.{name}": x for name, x in own if not name.startswith("encoder.")}

    def head_tensors(self) -> dict[str, Array]:
        """The same as arrays."""
        return {name: x.detach().float().cpu().numpy() for name, x in self.head_state().items()}

    def load_head(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint's weights outside the encoder; their names and shapes must match."""
        kind = checkpoint.architecture
        own, stored = self.head_state(), dict(checkpoint.head)
        if problem := _difference(own, stored):
            raise CorruptError(
                f"{checkpoint.folder} does not hold the head of a {kind.kind} model with its settings "
                f"({problem})",
                remedy="copy the model again, or train it again",
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(torch.tensor(stored[name]))

    def trained(self, start: Checkpoint) -> Checkpoint:
        """The checkpoint `start` with the current weights of the network."""
        tensors = start.tensors if self.encoder is None else self.encoder.tensors()
        return replace(start, tensors=tensors, head=self.head_tensors())

    def freeze(self) -> None:
        """Exclude from training the weights that no score depends on, or that must not change."""


def _difference(own: Mapping[str, Tensor], stored: Mapping[str, Array]) -> str:
    """The first difference between stored tensors and a network's own; empty if there is none."""
    for name in sorted(own.keys() | stored.keys()):
        wanted = list(own[name].shape) if name in own else "expected"
        if name not in stored:
            return f"{name} is missing"
        if (there := list(stored[name].shape)) != wanted:
            return f"{name} is {there}, not {wanted}"
    return ""


def open_network(checkpoint: Checkpoint) -> Network:
    """The network of a checkpoint with all its weights, in evaluation mode."""
    network = built(checkpoint.architecture, checkpoint)
    network.load_head(checkpoint)
    return network.eval()


def built(kind: Architecture, checkpoint: Checkpoint) -> Network:
    """The network of an architecture; raises an `InputError` if it is not a `Network`."""
    network = kind.network(checkpoint)
    if not isinstance(network, Network):
        raise InputError(
            f"network of {type(kind).__name__} gives {type(network).__name__}",
            remedy="return a tamis.models.network.Network",
        )
    network.prefix = kind.prefix
    return network


class Pointwise(Network):
    """The encoder's own head, on the [CLS] of each input: mono, and duo for pairs.

    >>> import numpy as np
    >>> from tamis.models.config import EncoderConfig
    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16)
    >>> inputs = Inputs(np.array([1, 5, 2, 1, 2]), np.zeros(5, np.uint8), np.array([0, 3, 5]))
    >>> Pointwise(Encoder(config)).eval()(inputs).shape
    torch.Size([2])
    """

    encoder: Encoder
    without: str | None = None  # the table of embeddings that its inputs do not use

    @classmethod
    def of(cls, checkpoint: Checkpoint, *arguments: Any, **options: Any) -> Self:
        network = super().of(checkpoint, *arguments, **options)
        network.without = checkpoint.architecture.without
        return network

    def freeze(self) -> None:
        for name, parameter in self.encoder.named_parameters():
            parameter.requires_grad_(name != self.without)  # it is zero, and must stay zero

    def forward(self, inputs: Inputs) -> Tensor:
        if self.packed:
            logits = self.encoder.packed(*feed.packed(inputs, self.device))
        else:
            logits = feed.by_rectangle(self.encoder.padded, inputs, self.device)
        return margins(logits)


def margins(logits: Tensor) -> Tensor:
    """One number per input, in at least float32: eight bits of a score would tie candidates.

    >>> margins(torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16))
    tensor([2.])
    """
    numbers: Tensor = margin(logits)
    return numbers.to(torch.promote_types(numbers.dtype, torch.float32))
