"""Computes a document's score from its passages: PARADE (Li et al. 2020), Birch-Passage, PCGM (Wu et al.
2020).

Each takes the passages' [CLS] vectors [B, P, H], or for `TopScores` and `BestScore` their scores [B, P], and
a mask [B, P], True where there is a passage; a document's passages come first. Padding does not influence the
scores, whatever its values and its size.

Names in comments: B documents of at most P passages, H values a vector.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.models.config import EncoderConfig
from tamis.models.encoder import Layer

Pooling = Literal["avg", "sum", "max"]
_HALVINGS = 4  # convolutions that halve the sequence: 16 passages become one
_GAIN_WIDTH = 32  # width of PCGM's embeddings of gains


class Pool(nn.Module):
    """PARADE-Avg, -Sum and -Max: d = (1/n) sum p_i, sum p_i, or the element-wise maximum; rel = w . d. With
    avg, over chunks, it is CEDR's Vanilla BERT.

    >>> vectors = torch.tensor([[[1.0, -2.0], [3.0, 4.0], [9.0, 9.0]]])
    >>> mask = torch.tensor([[True, True, False]])
    >>> [pooled(vectors, mask, how).tolist() for how in ("avg", "sum", "max")]
    [[[2.0, 1.0]], [[4.0, 2.0]], [[3.0, 4.0]]]
    """

    def __init__(self, hidden: int, pooling: Pooling) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, passages: Tensor, mask: Tensor) -> Tensor:
        return cast(Tensor, self.score(pooled(passages, mask, self.pooling))).squeeze(1)


def pooled(passages: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """One vector per document, [B, H]."""
    if pooling == "max":
        return passages.masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    total = (passages * mask[:, :, None]).sum(1)
    return total if pooling == "sum" else total / mask.sum(1, keepdim=True)


class Attentive(nn.Module):
    """PARADE-Attn: a = softmax(w . p_1, ..., w . p_n); d = sum a_i p_i.

    >>> Attentive(4)(torch.rand(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).shape
    torch.Size([2])
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weigh = nn.Linear(hidden, 1, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, passages: Tensor, mask: Tensor) -> Tensor:
        weights = self.weigh(passages).masked_fill(~mask[:, :, None], -torch.inf).softmax(1)
        return cast(Tensor, self.score((weights * passages).sum(1))).squeeze(1)


class Convolutional(nn.Module):
    """PARADE-CNN: four layers, each of which combines two neighbours into one vector; a network with one
    hidden layer scores the remaining vectors, and the document's score is the sum.

    >>> Convolutional(4)(torch.rand(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).shape
    torch.Size([2])
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(hidden, hidden, 2, stride=2) for _ in range(_HALVINGS))
        self.score = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, passages: Tensor, mask: Tensor) -> Tensor:
        missing = -passages.shape[1] % (1 << _HALVINGS)
        mask = F.pad(mask, (0, missing))
        x = F.pad(passages, (0, 0, 0, missing)) * mask[:, :, None]
        for convolution in self.convolutions:
            mask = mask[:, 0::2] | mask[:, 1::2]
            # for two masked neighbours the convolution would still return its bias
            x = F.relu(convolution(x.transpose(1, 2)).transpose(1, 2)) * mask[:, :, None]
        return cast(Tensor, (self.score(x).squeeze(2) * mask).sum(1))


class Transformer(nn.Module):
    """Full PARADE: two new layers of the encoder's shape over (emb_[CLS], p_1, ..., p_n), with positions; d
    is the output at the first position. `cls` is the encoder's own embedding of its own [CLS], [H].

    >>> config = EncoderConfig("bert", vocabulary=9, hidden=4, layers=1, heads=2, feed_forward=8)
    >>> Transformer(config, torch.zeros(4), passages=3)(torch.rand(2, 3, 4), torch.ones(2, 3).bool()).shape
    torch.Size([2])
    """

    def __init__(self, config: EncoderConfig, cls: Tensor, passages: int, layers: int = 2) -> None:
        super().__init__()
        self.cls = nn.Parameter(cls.clone())
        self.positions = nn.Parameter(torch.empty(passages + 1, config.hidden).normal_(std=0.02))
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):  # initialised as BERT's own layers
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        self.score = nn.Linear(config.hidden, 1, bias=False)

    def forward(self, passages: Tensor, mask: Tensor) -> Tensor:
        count, there = passages.shape[:2]
        x = torch.cat([self.cls.expand(count, 1, -1), passages], 1) + self.positions[: there + 1]
        attend = _Masked(F.pad(mask, (1, 0), value=True))
        for layer in self.layers:
            x = layer(x, attend)
        return cast(Tensor, self.score(x[:, 0])).squeeze(1)


class _Masked:
    """Attention for [B, L, ...] with a mask [B, L]: `tamis.models.encoder` supports only lengths."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask[:, None, None]

    def first(self, x: Tensor) -> Tensor:
        return x[:, :1]

    def all_to_all(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, dropout_p=dropout)
        return mixed.transpose(1, 2)

    first_to_all = all_to_all


class TopScores(nn.Module):
    """Birch-Passage: one layer over the best three scores; its initial weights are 1. A missing score counts
    as 0, even if the others are far below 0.

    >>> TopScores()(torch.tensor([[-1.0, 2.0, 9.0]]), torch.tensor([[True, True, False]])).tolist()
    [1.0]
    """

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.count = count
        self.score = nn.Linear(count, 1)
        nn.init.ones_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        missing = max(self.count - scores.shape[1], 0)
        there = F.pad(scores.masked_fill(~mask, -torch.inf), (0, missing), value=-torch.inf)
        best = there.topk(self.count, dim=1).values
        return cast(Tensor, self.score(best.masked_fill(best.isneginf(), 0.0))).squeeze(1)


class BestScore(nn.Module):
    """MaxP: the best passage's score.

    >>> BestScore()(torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[True, True, False]])).tolist()
    [-1.0]
    """

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        return scores.masked_fill(~mask, -torch.inf).amax(1)


class CumulativeGain(nn.Module):
    """PCGM: an LSTM reads the passages in order, each with an embedding of the gain predicted after the
    previous passage, and predicts the gain so far. The document's gain is the one after its last passage. A
    gain is one of `gains` grades; the score is the expected gain.

    >>> CumulativeGain(4, gains=3)(torch.rand(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)).shape
    torch.Size([2])
    """

    def __init__(self, hidden: int, gains: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(gains, _GAIN_WIDTH)
        self.cell = nn.LSTMCell(hidden + _GAIN_WIDTH, hidden)
        self.gain = nn.Linear(hidden, gains)

    def forward(self, passages: Tensor, mask: Tensor) -> Tensor:
        return self.score(self.logits(passages), mask)

    def score(self, logits: Tensor, mask: Tensor) -> Tensor:
        """The expected gain after the last passage, [B]."""
        last = mask.sum(1) - 1
        final = logits[torch.arange(len(last), device=last.device), last].softmax(1)
        return final @ torch.arange(final.shape[1], dtype=final.dtype, device=final.device)

    def logits(self, passages: Tensor) -> Tensor:
        """The logits of each gain after each passage, [B, P, gains]. A passage does not see later ones, so
        masked passages, which come last, need no mask."""
        count, hidden = len(passages), self.cell.hidden_size
        state = passages.new_zeros(count, hidden), passages.new_zeros(count, hidden)
        before = torch.zeros(count, dtype=torch.long, device=passages.device)  # no gain before any passage
        found = []
        for passage in passages.unbind(1):
            state = self.cell(torch.cat([passage, self.embedding(before)], 1), state)
            found.append(self.gain(state[0]))
            before = found[-1].argmax(1)
        return torch.stack(found, 1)


def gain_loss(logits: Tensor, gains: Tensor) -> Tensor:
    """The mean cross-entropy of the known gains; unknown ones are -1 in `gains` [B, P].

    >>> gain_loss(torch.zeros(1, 2, 4), torch.tensor([[3, -1]])).item()  # log 4
    1.386...
    """
    known = gains >= 0
    if not known.any():
        return logits.sum() * 0  # so that every parameter has a gradient
    return F.cross_entropy(logits[known], gains[known])
