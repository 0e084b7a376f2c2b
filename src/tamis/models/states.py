"""The states of passages in an encoder: of all tokens in every layer, or of each [CLS] in the last layer.

Passages are packed if the device has a kernel for that, and otherwise padded in rectangles of similar
lengths, so that a long passage does not add padding to short ones.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tamis.base.arrays import ranges
from tamis.models import feed
from tamis.models.encoder import Encoder
from tamis.models.templates import Inputs


def token_states(encoder: Encoder, passages: Inputs, packed: bool) -> list[Tensor]:
    """The input of the first layer and the output of each layer, [T, H], in the order of the tokens.

    >>> from tamis.models.config import EncoderConfig
    >>> encoder = Encoder(EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16))
    >>> two = Inputs(np.array([1, 7, 1, 8, 5]), np.zeros(5, np.uint8), np.array([0, 2, 5]))
    >>> [tuple(states.shape) for states in token_states(encoder, two, packed=False)]
    [(5, 8), (5, 8), (5, 8)]
    """
    device = encoder.embeddings.word.device
    if packed:
        return encoder.packed_hidden_states(*feed.packed(passages, device))
    parts, places = [], []
    for some in feed.rectangles(passages, device):
        ids, segments, lengths = feed.padded(passages.take(some), device)
        there = torch.arange(ids.shape[1], device=device) < lengths[:, None]
        parts.append([states[there] for states in encoder.hidden_states(ids, segments, lengths)])
        places.append(ranges(passages.offsets[some], passages.lengths[some]))
    back = feed.in_order(np.concatenate(places), device)
    return [torch.cat(layer)[back] for layer in zip(*parts, strict=True)]


def first_states(encoder: Encoder, passages: Inputs, packed: bool) -> Tensor:
    """The output of the last layer at the first token of each passage, [passages, H]."""
    device = encoder.embeddings.word.device
    if packed:
        firsts = torch.from_numpy(passages.offsets[:-1]).to(device)
        return encoder.packed_hidden_states(*feed.packed(passages, device))[-1][firsts]
    return feed.by_rectangle(lambda *some: encoder.hidden_states(*some)[-1][:, 0], passages, device)
