"""Models of long documents: an encoder that reads passages, and what makes one score of what it finds.

    maxp, birch                 the passages' scores
    vanilla, parade-*, pcgm     the passages' [CLS] vectors             see `tamis.models.parade`
    cedr-*                      matrices of similar terms, one a layer, and the averaged [CLS]
    knrm, pacrr, drmm           one matrix, of embeddings without context    see `tamis.models.interaction`

Each takes documents made by `tamis.models.longdoc.read` and gives each its score, which depends on nothing
else in the batch. `encoder` and `head` are trained at their own rates: the head is what the encoder did not
bring along.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from tamis.base.arrays import Array, ranges
from tamis.models.config import EncoderConfig
from tamis.models.encoder import Encoder
from tamis.models.interaction import DRMM, KNRM, PACRR, cosines
from tamis.models.long_plan import LongDoc
from tamis.models.longdoc import Layout
from tamis.models.parade import (
    Attentive,
    BestScore,
    Convolutional,
    CumulativeGain,
    Pool,
    Pooling,
    TopScores,
    Transformer,
    pooled,
)
from tamis.models.states import first_states, token_states
from tamis.models.templates import Inputs, Special


class LongModel(nn.Module):
    """Scores documents. `packed` says whether passages are laid end to end or padded: what the device has a
    kernel for."""

    head: nn.Module

    def __init__(self, plan: LongDoc, special: Special) -> None:
        super().__init__()
        self.plan, self.special, self.packed = plan, special, False

    @property
    def config(self) -> EncoderConfig | None:
        """The encoder's, if there is one."""
        return None

    def forward(self, inputs: Inputs) -> Tensor:
        """One score a document, [B], float32."""
        raise NotImplementedError


class Encoded(LongModel):
    """One with an encoder."""

    def __init__(self, plan: LongDoc, special: Special, encoder: Encoder, head: nn.Module) -> None:
        super().__init__(plan, special)
        self.encoder, self.head = encoder, head

    @property
    def config(self) -> EncoderConfig:
        return self.encoder.config


class OfScores(Encoded):
    """MaxP and Birch-Passage: the encoder's own head scores each passage, as in mono.

    >>> from tamis.models.longdoc import read
    >>> from tamis.models.templates import Tokenised
    >>> config = EncoderConfig("bert", vocabulary=20, hidden=8, layers=1, heads=2, feed_forward=16)
    >>> plan = LongDoc("maxp", window=2, stride=2)
    >>> model, special = OfScores(plan, Special(1, 2), Encoder(config), BestScore()).eval(), Special(1, 2)
    >>> texts = Tokenised.of([[7, 8, 9], [5]])
    >>> model(read(Tokenised.of([[6]]), np.zeros(2, int), texts, special, plan, config).inputs).shape
    torch.Size([2])
    """

    def forward(self, inputs: Inputs) -> Tensor:
        there = Layout.of(inputs, self.special)
        logits = self.encoder.head(first_states(self.encoder, there.passages, self.packed)).float()
        scores = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        return _exactly(self.head, *_by_document(scores, there.offsets))


class OfVectors(Encoded):
    """Vanilla BERT, PARADE and PCGM."""

    def forward(self, inputs: Inputs) -> Tensor:
        return _exactly(self.head, *self.vectors(inputs))

    def vectors(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The passages' [CLS] vectors [B, P, H] and their mask [B, P]."""
        there = Layout.of(inputs, self.special)
        return _by_document(first_states(self.encoder, there.passages, self.packed).float(), there.offsets)


class CEDR(Encoded):
    """For every layer, the embeddings' included, the cosines between the terms of the query, as the first
    chunk has them, and the terms of all chunks. [CLS] is the average over the chunks, of the last layer."""

    def forward(self, inputs: Inputs) -> Tensor:
        there = Layout.of(inputs, self.special)
        states = token_states(self.encoder, there.passages, self.packed)
        device = states[0].device
        starts, firsts = there.passages.offsets[:-1], there.offsets[:-1]
        query, query_mask = _rows(starts[firsts] + 1, there.query_counts[firsts], device)
        text, text_mask = _rows(there.text_starts, there.text_counts, device, there.offsets)
        both = query_mask[:, :, None] & text_mask[:, None]
        with torch.autocast(device.type, enabled=False):  # see `_exactly`
            similarity = torch.stack([cosines(_at(x, query), _at(x, text)) * both for x in states], 1)
        cls = None
        if self.plan.cls:
            firsts_of_all = states[-1][torch.from_numpy(starts).to(device)].float()
            cls = pooled(*_by_document(firsts_of_all, there.offsets), "avg")
        return _exactly(self.head, similarity, query_mask, text_mask, cls)


class Static(LongModel):
    """An interaction model on a table of embeddings [V, E], which stays as it is. A word is like itself, even
    where the table has no vector for it; row 0 is no word ([PAD], or here [UNK]) and like nothing."""

    def __init__(self, plan: LongDoc, special: Special, embeddings: Tensor, head: nn.Module) -> None:
        super().__init__(plan, special)
        self.embeddings: Tensor
        self.register_buffer("embeddings", embeddings.float())
        self.head = head

    def forward(self, inputs: Inputs) -> Tensor:
        there = Layout.of(inputs, self.special)
        device = self.embeddings.device
        ids = torch.from_numpy(inputs.ids).to(device)
        firsts = there.offsets[:-1]
        query, query_mask = _rows(there.passages.offsets[:-1][firsts] + 1, there.query_counts[firsts], device)
        text, text_mask = _rows(there.text_starts, there.text_counts, device, there.offsets)
        asked, read = ids[query], ids[text]
        similarity = cosines(self.embeddings[asked], self.embeddings[read])
        same = asked[:, :, None] == read[:, None]
        similarity = torch.where(same, (asked != 0)[:, :, None].to(similarity.dtype), similarity)
        both = query_mask[:, :, None] & text_mask[:, None]
        return _exactly(self.head, (similarity * both)[:, None], query_mask, text_mask)


def new_model(plan: LongDoc, special: Special, encoder: Encoder, seed: int = 0) -> LongModel:
    """A model of this kind on top of an encoder, its head drawn from `seed`. For static embeddings, the
    encoder's table of words is all that is taken of it.

    >>> config = EncoderConfig("bert", vocabulary=20, hidden=8, layers=2, heads=2, feed_forward=16)
    >>> new_model(LongDoc("cedr-knrm"), Special(1, 2), Encoder(config)).head.score  # 3 x 11 kernels, [CLS]
    Linear(in_features=41, out_features=1, bias=True)
    """
    if plan.static:
        return Static(plan, special, encoder.embeddings.word.detach(), new_head(plan, seed=seed))
    config = encoder.config
    with torch.no_grad():  # where embeddings are narrower than layers, a projection lies between
        cls = encoder.embeddings.project(encoder.embeddings.word[special.cls])
    return on_encoder(plan, special, encoder, new_head(plan, config, cls, seed))


def on_encoder(plan: LongDoc, special: Special, encoder: Encoder, head: nn.Module) -> LongModel:
    """The model that this encoder and this head are."""
    if plan.kind.startswith("cedr-"):
        return CEDR(plan, special, encoder, head)
    of = OfScores if plan.kind in ("maxp", "birch") else OfVectors
    return of(plan, special, encoder, head)


def new_head(
    plan: LongDoc, config: EncoderConfig | None = None, cls: Tensor | None = None, seed: int = 0
) -> nn.Module:
    """What makes the score. `cls` is the encoder's embedding of [CLS], from which PARADE's own begins."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _head(plan, config, cls)


def _head(plan: LongDoc, config: EncoderConfig | None, cls: Tensor | None) -> nn.Module:
    family, _, form = plan.kind.partition("-")
    if family == "maxp":
        return BestScore()
    if family == "birch":
        return TopScores()
    if config is None:
        return _interaction(family, 1, plan.query, 0)
    hidden = config.hidden
    if family == "cedr":
        return _interaction(form, config.layers + 1, plan.query, hidden if plan.cls else 0)
    if family == "pcgm":
        return CumulativeGain(hidden, plan.gains)
    if form == "attn":
        return Attentive(hidden)
    if form == "cnn":
        return Convolutional(hidden)
    if form == "transformer":
        return Transformer(config, torch.zeros(hidden) if cls is None else cls, plan.passages)
    return Pool(hidden, cast(Pooling, form or "avg"))


def _interaction(form: str, channels: int, query: int, cls: int) -> nn.Module:
    if form == "pacrr":
        return PACRR(channels, query, cls)
    return KNRM(channels, cls) if form == "knrm" else DRMM(channels, cls)


def _exactly(head: nn.Module, *arguments: Tensor | None) -> Tensor:
    """A head's scores in float32, also where training rounds: eight bits are too few for a kernel of width
    0.001, or to order a thousand candidates."""
    present = [each for each in arguments if each is not None]
    with torch.autocast(present[0].device.type, enabled=False):
        return cast(Tensor, head(*arguments))


def _at(states: Tensor, places: Tensor) -> Tensor:
    """The rows of [T, H] at places [B, L], as [B, L, H] in float32. Indexing is the same, but on a card its
    gradient adds up one after the other whatever falls on one row: here all that fills up.

    >>> _at(torch.tensor([[1.0], [2.0]]), torch.tensor([[1, 0, 0]])).tolist()
    [[[2.0], [1.0], [1.0]]]
    """
    return states.index_select(0, places.flatten()).reshape(*places.shape, states.shape[1]).float()


def _by_document(values: Tensor, offsets: Array) -> tuple[Tensor, Tensor]:
    """Rows of passages [passages, ...] as [B, P, ...], and the mask [B, P].

    >>> _by_document(torch.tensor([1.0, 2.0, 3.0]), np.array([0, 1, 3]))[0].tolist()
    [[1.0, 1.0], [2.0, 3.0]]
    """
    rows, mask = _rows(offsets[:-1], np.diff(offsets), values.device)
    return values[rows], mask


def _rows(
    starts: Array, counts: Array, device: torch.device, offsets: Array | None = None
) -> tuple[Tensor, Tensor]:
    """The places start, start + 1, ... of each document as a rectangle, and a mask of those that there are;
    with `offsets`, a document has several such stretches. What fills up is the first place of all.

    >>> rows, mask = _rows(np.array([5, 0, 8]), np.array([2, 1, 1]), torch.device("cpu"), np.array([0, 2, 3]))
    >>> rows.tolist(), mask.tolist()
    ([[5, 6, 0], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    of_each = counts if offsets is None else np.add.reduceat(counts, offsets[:-1])
    mask = np.arange(int(of_each.max(initial=0))) < of_each[:, None]
    rows = np.zeros(mask.shape, np.int64)
    rows[mask] = ranges(starts, counts)
    return torch.from_numpy(rows).to(device), torch.from_numpy(mask).to(device)
