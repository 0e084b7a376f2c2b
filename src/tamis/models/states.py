"""What an encoder makes of passages: the vectors of all tokens in every layer, or of each [CLS] in the last.

Passages are packed where the device has a kernel for that, and elsewhere padded in rectangles of about one
length, so that a long one does not fill up the short.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import Array, ranges
from tamis.infer.engine import batches
from tamis.models.encoder import Encoder
from tamis.models.templates import Inputs

#: Tokens that are padded together: few, so that long inputs do not fill up short ones, and enough to keep a
#: device busy.
_RECTANGLES = {"cuda": 1 << 15, "mps": 1 << 14, "cpu": 1 << 12}


def token_states(encoder: Encoder, passages: Inputs, packed: bool) -> list[Tensor]:
    """What goes into the first layer and what comes out of each, [T, H], in the order of the tokens.

    >>> from tamis.models.config import EncoderConfig
    >>> encoder = Encoder(EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16))
    >>> two = Inputs(np.array([1, 7, 1, 8, 5]), np.zeros(5, np.uint8), np.array([0, 2, 5]))
    >>> [tuple(states.shape) for states in token_states(encoder, two, packed=False)]
    [(5, 8), (5, 8), (5, 8)]
    """
    device = encoder.embeddings.word.device
    if packed:
        return _packed(encoder, passages, device)
    parts, places = [], []
    for some in padded_together(passages, device):
        inside, (ids, segments, lengths) = _padded(passages.take(some), device)
        parts.append([states[inside] for states in encoder.hidden_states(ids, segments, lengths)])
        places.append(ranges(passages.offsets[some], passages.lengths[some]))
    back = torch.from_numpy(np.argsort(np.concatenate(places))).to(device)
    return [torch.cat(layer)[back] for layer in zip(*parts, strict=True)]


def first_states(encoder: Encoder, passages: Inputs, packed: bool) -> Tensor:
    """What comes out of the last layer in the first place of each passage, [passages, H]."""
    device = encoder.embeddings.word.device
    if packed:
        firsts = torch.from_numpy(passages.offsets[:-1]).to(device)
        return _packed(encoder, passages, device)[-1][firsts]
    rectangles = padded_together(passages, device)
    found = []
    for some in rectangles:
        _, (ids, segments, lengths) = _padded(passages.take(some), device)
        found.append(encoder.hidden_states(ids, segments, lengths)[-1][:, 0])
    back = torch.from_numpy(np.argsort(np.concatenate(rectangles))).to(device)
    return torch.cat(found)[back]


def padded_together(inputs: Inputs, device: torch.device) -> list[Array]:
    """Which inputs go through an encoder as one rectangle.

    >>> inputs = Inputs(np.ones(5, np.int32), np.zeros(5, np.uint8), np.array([0, 2, 5]))
    >>> [some.tolist() for some in padded_together(inputs, torch.device("cpu"))]
    [[1, 0]]
    """
    return batches(inputs.lengths, _RECTANGLES[device.type], "padded")


def _packed(encoder: Encoder, passages: Inputs, device: torch.device) -> list[Tensor]:
    numbers = (passages.ids, passages.segments, passages.offsets)
    ids, segments, offsets = (torch.from_numpy(np.asarray(part, np.int32)).to(device) for part in numbers)
    return encoder.packed_hidden_states(ids, segments, offsets, int(passages.lengths.max()))


def _padded(passages: Inputs, device: torch.device) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Where there are tokens [B, L]; the tokens, their segments, and the passages' lengths."""
    lengths = passages.lengths
    inside = np.arange(int(lengths.max())) < lengths[:, None]
    ids, segments = np.zeros(inside.shape, np.int64), np.zeros(inside.shape, np.int64)
    ids[inside], segments[inside] = passages.ids, passages.segments
    there, *rectangle = (torch.from_numpy(part).to(device) for part in (inside, ids, segments, lengths))
    return there, (rectangle[0], rectangle[1], rectangle[2])
