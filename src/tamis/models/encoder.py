"""The BERT family in torch: BERT, RoBERTa, ELECTRA, ALBERT, DistilBERT, MiniLM.

One network, post-norm as in Vaswani et al. 2017 and Devlin et al. 2019; the families differ in a few numbers
of `EncoderConfig`. It has two modes. *Padded* takes a rectangle of tokens and masks the padding. *Packed*
takes the tokens of all inputs end to end and computes nothing for padding. Both apply dropout to hidden
states; only padded inputs have dropout of attention weights, because the attention kernel for packed inputs
has none.

Names in comments: B inputs of at most L tokens, T tokens in all, N heads of D values, H = N D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.base.arrays import Array
from tamis.models.checkpoint import Checkpoint
from tamis.models.config import EncoderConfig

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": torch.tanh,
}
_QKV = ("query", "key", "value")  # one matrix here, three in a checkpoint
_POOLED = ("bert", "albert")  # families whose heads begin with the pooler of pretraining


class Encoder(nn.Module):
    """A cross-encoder: tokens in, logits out. In training mode dropout is active.

    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=2, heads=2, feed_forward=16)
    >>> encoder = Encoder(config).eval()
    >>> ids, segments = torch.tensor([[1, 5, 2, 6, 2]]), torch.tensor([[0, 0, 0, 1, 1]])
    >>> encoder.padded(ids, segments, lengths=torch.tensor([5])).shape
    torch.Size([1, 1])
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layer_groups))
        self.head = Head(config)
        self.pooled = config.family in _POOLED  # whether the head's first layer is pretrained

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Encoder:
        """The encoder with a checkpoint's weights, in evaluation mode."""
        with torch.device("meta"):  # allocate no weights that are replaced at once
            encoder = cls(checkpoint.config)
        encoder.load_state_dict(_fused(checkpoint), assign=True)
        encoder.pooled = encoder.pooled and "head.dense.weight" not in checkpoint.drawn
        return encoder.eval()

    @property
    def pooler(self) -> nn.Linear | None:
        """The head's first layer if it is pretrained; the heads of the other families are entirely new."""
        return self.head.dense if self.pooled else None

    def tensors(self) -> dict[str, Array]:
        """The weights under the names of a checkpoint (see `tamis.models.names`), float32."""
        found: dict[str, Array] = {}
        for name, tensor in self.state_dict().items():
            values = tensor.detach().float().cpu().numpy()
            before, qkv, after = name.partition(".qkv.")
            if qkv:
                parts = np.split(values, len(_QKV))
                found |= {f"{before}.{part}.{after}": rows for part, rows in zip(_QKV, parts, strict=True)}
            else:
                found[name] = values
        return found

    def padded(self, ids: Tensor, segments: Tensor, lengths: Tensor) -> Tensor:
        """Logits [B, labels] of inputs ids [B, L], of which the first `lengths` tokens are not padding."""
        return self._logits(*self.begin_padded(ids, segments, lengths)).squeeze(1)

    def packed(self, ids: Tensor, segments: Tensor, offsets: Tensor, max_length: int) -> Tensor:
        """Logits [B, labels] of inputs laid end to end: input i is ids[ends[i] : ends[i + 1]], `offsets` is
        int32 [B + 1], and `max_length` is at least the longest length."""
        return self._logits(*self.begin_packed(ids, segments, offsets, max_length))

    def hidden_states(self, ids: Tensor, segments: Tensor, lengths: Tensor) -> list[Tensor]:
        """The input of the first layer and the output of each layer, [B, L, H], for padded inputs. The logits
        are `head(states[-1][:, 0])`."""
        return self._states(*self.begin_padded(ids, segments, lengths))

    def packed_hidden_states(
        self, ids: Tensor, segments: Tensor, offsets: Tensor, max_length: int
    ) -> list[Tensor]:
        """The same for packed inputs, [T, H]."""
        return self._states(*self.begin_packed(ids, segments, offsets, max_length))

    def attention_scores(self, layer: int, x: Tensor) -> Tensor:
        """The attention scores of padded inputs before the softmax: [B, N, L, L], including padding. `x` is
        the input of the layer, numbered from 0: `hidden_states(...)[layer]`."""
        return cast(Layer, self._layer(layer)).attention.scores(x)

    def begin_padded(self, ids: Tensor, segments: Tensor, lengths: Tensor) -> tuple[Tensor, Attend]:
        """The input of the first layer, and its attention, for padded inputs."""
        x = self.embeddings(ids, segments, torch.arange(ids.shape[1], device=ids.device))
        return x, _Padded(lengths, ids.shape[1])

    def begin_packed(
        self, ids: Tensor, segments: Tensor, offsets: Tensor, max_length: int
    ) -> tuple[Tensor, Attend]:
        """The same for packed inputs."""
        starts, lengths = offsets[:-1], offsets.diff()
        # passing the size avoids waiting for the device
        own_start = torch.repeat_interleave(starts, lengths, output_size=len(ids))
        positions = torch.arange(len(ids), device=ids.device) - own_start
        return self.embeddings(ids, segments, positions), _Packed(offsets, max_length)

    def _layer(self, number: int) -> nn.Module:
        return self.layers[self.config.group(number)]

    def through(self, x: Tensor, attend: Attend, start: int, stop: int, first_only: bool = False) -> Tensor:
        """The output of layers `start` to `stop` - 1 for `x`; with `first_only`, the last of them computes
        only the [CLS] rows."""
        for number in range(start, stop):
            x = self._layer(number)(x, attend, first_only and number == stop - 1)
        return x

    def _states(self, x: Tensor, attend: Attend) -> list[Tensor]:
        states = [x]
        for number in range(self.config.layers):
            states.append(self._layer(number)(states[-1], attend))
        return states

    def _logits(self, x: Tensor, attend: Attend) -> Tensor:
        """The logits. The head uses only the [CLS] rows of the last layer, so only these are computed."""
        return cast(Tensor, self.head(self.through(x, attend, 0, self.config.layers, first_only=True)))


class Embeddings(nn.Module):
    """Word, position and segment vectors, summed (Devlin et al. 2019, Figure 2)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.embedding
        self.first_position = config.first_position
        self.word = nn.Parameter(torch.empty(config.vocabulary, width).normal_(std=0.02))
        self.position = nn.Parameter(torch.empty(config.positions, width).normal_(std=0.02))
        self.segment: nn.Parameter | None = None
        if config.segments:
            self.segment = nn.Parameter(torch.empty(config.segments, width).normal_(std=0.02))
        self.norm = nn.LayerNorm(width, config.norm_epsilon)
        self.project = nn.Linear(width, config.hidden) if config.projected else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
        x = F.embedding(ids, self.word) + F.embedding(positions + self.first_position, self.position)
        if self.segment is not None:
            x = x + F.embedding(segments, self.segment)
        return cast(Tensor, self.project(self.dropout(self.norm(x))))


class Layer(nn.Module):
    """Self-attention, then a feed-forward network, each added to its input and normalised."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, attend: Attend, first_only: bool = False) -> Tensor:
        return cast(Tensor, self.feed_forward(self.attention(x, attend, first_only)))


class Attention(nn.Module):
    """Self-attention with N heads; the queries are all tokens, or only the first of each input."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.head_size)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, attend: Attend, first_only: bool) -> Tensor:
        rate = self.dropout.p if self.training else 0.0
        if first_only:
            hidden, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
            asking = attend.first(x)
            (q,) = self._parts(F.linear(asking, weight[:hidden], bias[:hidden]))
            k, v = self._parts(F.linear(x, weight[hidden:], bias[hidden:]))
            mixed = attend.first_to_all(q, k, v, rate)
        else:
            asking = x
            q, k, v = self._parts(self.qkv(x))
            mixed = attend.all_to_all(q, k, v, rate)
        return cast(Tensor, self.norm(asking + self.dropout(self.output(mixed.flatten(-2)))))

    def scores(self, x: Tensor) -> Tensor:
        """The scores [B, N, L, L] of padded x, computed again because the fused kernels above do not return
        them."""
        asking = 2 * x.shape[-1]
        q, k = self._parts(F.linear(x, self.qkv.weight[:asking], self.qkv.bias[:asking]))
        return q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / math.sqrt(self.shape[1])

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """[..., m H] as m tensors [..., N, D], without a copy."""
        return x.view(*x.shape[:-1], -1, *self.shape).unbind(-3)


class FeedForward(nn.Module):
    """Two linear layers, applied to each token independently."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.feed_forward)
        self.down = nn.Linear(config.feed_forward, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, config.norm_epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = _ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(x + self.dropout(self.down(self.activation(self.up(x))))))


class Head(nn.Module):
    """Computes logits from the [CLS] vector."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.output = nn.Linear(config.hidden, config.labels)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = _ACTIVATIONS[config.head_activation]

    def forward(self, x: Tensor) -> Tensor:
        # The head may be in float32 while the layers are in bfloat16: eight bits of a logit are too few to
        # order a thousand candidates.
        with torch.autocast(x.device.type, enabled=False):  # nor may autocast round them
            x = self.activation(self.dense(x.to(self.dense.weight.dtype)))
            return cast(Tensor, self.output(self.dropout(x)))


class Attend(Protocol):
    """Attention in which each token sees only the tokens of its own input."""

    def first(self, x: Tensor) -> Tensor:
        """The rows of the first tokens."""
        ...

    def take(self, x: Tensor, inputs: Tensor) -> tuple[Tensor, Attend]:
        """The rows of the inputs with these indices, in that order, and their attention."""
        ...

    def all_to_all(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor: ...

    def first_to_all(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor: ...


class _Padded:
    """Attention for tensors [B, L, ...]; no token sees what is beyond an input's length."""

    def __init__(self, lengths: Tensor, width: int) -> None:
        self.lengths = lengths
        self.mask = (torch.arange(width, device=lengths.device) < lengths[:, None])[:, None, None]

    def first(self, x: Tensor) -> Tensor:
        return x[:, :1]

    def take(self, x: Tensor, inputs: Tensor) -> tuple[Tensor, _Padded]:
        lengths = self.lengths[inputs]
        width = int(lengths.max())
        return x[inputs, :width], _Padded(lengths, width)

    def all_to_all(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, N, L, D]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, dropout_p=dropout)
        return mixed.transpose(1, 2)

    first_to_all = all_to_all


class _Packed:
    """Attention for tensors [T, ...]; a token sees those between the offsets of its input. No dropout, see
    above."""

    def __init__(self, offsets: Tensor, max_length: int) -> None:
        self.offsets, self.max_length = offsets, max_length
        self.counts = torch.arange(len(offsets), dtype=torch.int32, device=offsets.device)

    def first(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.offsets[:-1])

    def take(self, x: Tensor, inputs: Tensor) -> tuple[Tensor, _Packed]:
        lengths = self.offsets.diff()[inputs]
        offsets = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        moved = torch.repeat_interleave(self.offsets[inputs] - offsets[:-1], lengths)
        rows = x.index_select(0, torch.arange(len(moved), device=x.device) + moved)
        return rows, _Packed(offsets, self.max_length)

    def all_to_all(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return _varlen(q, k, v, self.offsets, self.offsets, self.max_length, self.max_length)

    def first_to_all(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return _varlen(q, k, v, self.counts, self.offsets, 1, self.max_length)


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, q_ends: Tensor, k_ends: Tensor, max_q: int, max_k: int
) -> Tensor:
    """Attention within each input of packed q, k, v [T, N, D]: one flash-attention kernel for all inputs if
    the device has it, else one input after the other."""
    if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        return cast(Tensor, varlen_attn(q, k, v, q_ends, k_ends, max_q, max_k))
    q_sizes, k_sizes = q_ends.diff().tolist(), k_ends.diff().tolist()
    qkv = zip(torch.split(q, q_sizes), torch.split(k, k_sizes), torch.split(v, k_sizes), strict=True)
    inputs = ((q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)) for q, k, v in qkv)  # [N, L, D]
    mixed = [F.scaled_dot_product_attention(q, k, v) for q, k, v in inputs]
    return torch.cat([part.transpose(0, 1) for part in mixed])


def _fused(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """A checkpoint's tensors with query, key and value as one matrix: one product instead of three."""
    fused: dict[str, Tensor] = {}
    for name in checkpoint.tensors:
        before, query, after = name.partition(".query.")
        if query:
            rows = [checkpoint.tensors[f"{before}.{part}.{after}"] for part in _QKV]
            fused[f"{before}.qkv.{after}"] = torch.from_numpy(np.concatenate(rows))
        elif ".key." not in name and ".value." not in name:
            fused[name] = torch.tensor(checkpoint.tensors[name])
    return fused
