"""What training minimises: an objective gives its n-th batch, and the loss of a batch. Also, how inputs are
passed to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from tamis.base.arrays import Array
from tamis.models.encoder import Encoder
from tamis.models.feed import packed, padded
from tamis.models.templates import Inputs

B = TypeVar("B")


class Loss(NamedTuple):
    """The loss to differentiate, and its parts, for a log."""

    total: Tensor
    parts: Mapping[str, Tensor]


class Objective(nn.Module, Generic[B]):
    """A model together with its training data. The n-th batch depends only on the data, a seed and n, and is
    made without a device, so that it can be made in advance. It is a module that returns a batch's loss, so
    that torch can distribute it over several devices."""

    def batch(self, number: int) -> B:
        """The batch with this number."""
        raise NotImplementedError

    def lengths(self, batch: B) -> Array:
        """The number of tokens of each example of a batch."""
        raise NotImplementedError

    def take(self, batch: B, examples: Array) -> B:
        """Some examples of a batch, for a process or a device that handles only a part."""
        raise NotImplementedError

    def loss(self, batch: B) -> Loss:
        """The loss of a batch, in training mode with dropout."""
        raise NotImplementedError

    def forward(self, batch: B) -> Tensor:
        return self.loss(batch).total

    @property
    def device(self) -> torch.device:
        """The device of the weights, on which batches must be."""
        return next(self.parameters()).device


class Together(Objective[tuple[Any, ...]]):
    """Several objectives of one model, such as MLM and ROP, with their losses summed. To be split, their
    batches must have the same size."""

    def __init__(self, objectives: Sequence[Objective[Any]]) -> None:
        super().__init__()
        self.objectives = nn.ModuleList(objectives)

    def batch(self, number: int) -> tuple[Any, ...]:
        return tuple(each.batch(number) for each in self._each())

    def lengths(self, batch: tuple[Any, ...]) -> Array:
        parts = zip(self._each(), batch, strict=True)
        return np.asarray(np.sum([each.lengths(part) for each, part in parts], axis=0))

    def take(self, batch: tuple[Any, ...], examples: Array) -> tuple[Any, ...]:
        return tuple(each.take(part, examples) for each, part in zip(self._each(), batch, strict=True))

    def loss(self, batch: tuple[Any, ...]) -> Loss:
        losses = [each.loss(part) for each, part in zip(self._each(), batch, strict=True)]
        parts = {name: part for loss in losses for name, part in loss.parts.items()}
        return Loss(torch.stack([loss.total for loss in losses]).sum(), parts)

    def _each(self) -> Sequence[Objective[Any]]:
        return [cast(Objective[Any], objective) for objective in self.objectives]


def freeze_unreached(objective: Objective[B]) -> None:
    """Freeze the parameters that the loss does not depend on, such as an unused head: several processes would
    wait for their gradients forever."""
    objective.eval()  # dropout would draw random numbers
    batch = objective.take(objective.batch(0), np.arange(1))
    parameters = [each for each in objective.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(objective(batch), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def final_states(encoder: Encoder, inputs: Inputs, device: torch.device) -> Tensor:
    """The last layer's states of all tokens, [T, H], in the inputs' order: packed if a GPU computes in half
    precision, the only case with a kernel, else padded."""
    if device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        return packed_states(encoder, inputs, device)
    ids, segments, lengths = padded(inputs, device)
    states = encoder.hidden_states(ids, segments, lengths)[-1]
    return states[torch.arange(ids.shape[1], device=device) < lengths[:, None]]


def packed_states(encoder: Encoder, inputs: Inputs, device: torch.device) -> Tensor:
    """The same without padding, on any device."""
    return encoder.packed_hidden_states(*packed(inputs, device))[-1]


def margins(logits: Tensor) -> Tensor:
    """One number per input: its logit, or with two labels the second minus the first.

    >>> margins(torch.tensor([[1.0, 3.0]])).tolist(), margins(torch.tensor([[1.0]])).tolist()
    ([2.0], [1.0])
    """
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
