"""Networks for long documents: an encoder that reads passages, and a head that makes one score of what it
finds.

    OfScores     the passages' scores                             MaxP, Birch-Passage
    OfVectors    the passages' [CLS] vectors                      Vanilla BERT, PARADE, PCGM: `pooling`
    OfTerms      matrices of similar terms, one a layer, [CLS]    CEDR: `interaction`
    OfWords      one matrix, of embeddings without context        KNRM, PACRR, DRMM: `interaction`

Each takes documents made by `tamis.models.documents.read` and gives each its score, which depends on nothing
else in the batch.
"""

from __future__ import annotations

from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from tamis.base.arrays import Array, ranges
from tamis.models.architecture import margin
from tamis.models.checkpoint import Checkpoint
from tamis.models.documents import Layout
from tamis.models.encoder import Encoder
from tamis.models.interaction import cosines
from tamis.models.network import Network
from tamis.models.pooling import CumulativeGain, pooled
from tamis.models.states import first_states, token_states
from tamis.models.templates import Inputs, Special
from tamis.models.tokenizer import open_tokenizer


class DocumentNetwork(Network):
    """Scores documents. With `frozen` the encoder stays as it is when the head is trained."""

    head: nn.Module
    scores_passages = False  # whether the encoder's own head takes part

    def __init__(
        self, encoder: Encoder | None, head: nn.Module, special: Special, *, frozen: bool = False
    ) -> None:
        super().__init__(encoder)
        self.head, self.special, self.frozen = head, special, frozen

    @classmethod
    def of(cls, checkpoint: Checkpoint, *arguments: Any, **options: Any) -> Self:
        """With a head as its one argument."""
        return super().of(checkpoint, *arguments, open_tokenizer(checkpoint).special, **options)

    def head_state(self) -> dict[str, Tensor]:
        return {f"{self.prefix}.{name}": x for name, x in self.head.state_dict().items()}

    def freeze(self) -> None:
        if self.encoder is not None:
            self.encoder.requires_grad_(not self.frozen)
            self.encoder.head.requires_grad_(self.scores_passages)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen and self.encoder is not None:
            self.encoder.eval()  # nothing in it learns to do without what dropout takes away
        return self


class OfScores(DocumentNetwork):
    """MaxP and Birch-Passage: the encoder's own head scores each passage, as in mono.

    >>> from tamis.models.config import EncoderConfig
    >>> from tamis.models.documents import DocumentSettings, read
    >>> from tamis.models.pooling import BestScore
    >>> from tamis.models.templates import Tokenised
    >>> config = EncoderConfig("bert", vocabulary=20, hidden=8, layers=1, heads=2, feed_forward=16)
    >>> settings, special = DocumentSettings(window=2, stride=2), Special(1, 2)
    >>> network = OfScores(Encoder(config), BestScore(), special).eval()
    >>> texts = Tokenised.of([[7, 8, 9], [5]])
    >>> network(read(Tokenised.of([[6]]), np.zeros(2, int), texts, special, settings, config).inputs).shape
    torch.Size([2])
    """

    encoder: Encoder
    scores_passages = True

    def forward(self, inputs: Inputs) -> Tensor:
        layout = Layout.of(inputs, self.special)
        logits = self.encoder.head(first_states(self.encoder, layout.passages, self.packed)).float()
        return _exactly(self.head, *_by_document(margin(logits), layout.offsets))


class OfVectors(DocumentNetwork):
    """Vanilla BERT, PARADE and PCGM."""

    encoder: Encoder

    def forward(self, inputs: Inputs) -> Tensor:
        return _exactly(self.head, *self.vectors(inputs))

    def vectors(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The passages' [CLS] vectors [B, P, H] and their mask [B, P]."""
        layout = Layout.of(inputs, self.special)
        return _by_document(first_states(self.encoder, layout.passages, self.packed).float(), layout.offsets)

    def with_gains(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Of PCGM: the documents' scores, and the logits [B, P, gains] behind them."""
        passages, mask = self.vectors(inputs)
        head = cast(CumulativeGain, self.head)
        with torch.autocast(passages.device.type, enabled=False):
            logits = head.logits(passages)
            return head.score(logits, mask), logits


class OfTerms(DocumentNetwork):
    """For every layer, the embeddings' included, the cosines between the terms of the query, as the first
    chunk has them, and the terms of all chunks. [CLS] is the average over the chunks, of the last layer;
    `cls` says whether it takes part."""

    encoder: Encoder
    cls = True

    def forward(self, inputs: Inputs) -> Tensor:
        layout = Layout.of(inputs, self.special)
        states = token_states(self.encoder, layout.passages, self.packed)
        device = states[0].device
        starts, firsts = layout.passages.offsets[:-1], layout.offsets[:-1]
        query, query_mask = _rows(starts[firsts] + 1, layout.query_counts[firsts], device)
        text, text_mask = _rows(layout.text_starts, layout.text_counts, device, layout.offsets)
        both = query_mask[:, :, None] & text_mask[:, None]
        with torch.autocast(device.type, enabled=False):  # see `_exactly`
            similarity = torch.stack([cosines(_at(x, query), _at(x, text)) * both for x in states], 1)
        cls = None
        if self.cls:
            firsts_of_all = states[-1][torch.from_numpy(starts).to(device)].float()
            cls = pooled(*_by_document(firsts_of_all, layout.offsets), "avg")
        return _exactly(self.head, similarity, query_mask, text_mask, cls)


class OfWords(DocumentNetwork):
    """An interaction model on a table of embeddings [V, E], which stays as it is. A word is like itself, even
    where the table has no vector for it; row 0 is no word ([PAD], or here [UNK]) and like nothing."""

    def __init__(self, embeddings: Tensor, head: nn.Module, special: Special) -> None:
        super().__init__(None, head, special)
        self.embeddings: Tensor
        self.register_buffer("embeddings", embeddings.float())

    @classmethod
    def of(cls, checkpoint: Checkpoint, *arguments: Any, **options: Any) -> Self:
        table = torch.tensor(checkpoint.tensors["embeddings.word"])
        network = cls(table, arguments[0], open_tokenizer(checkpoint).special)
        network.prefix = checkpoint.architecture.prefix
        if checkpoint.head:
            network.load_head(checkpoint)
        return network.eval()

    def forward(self, inputs: Inputs) -> Tensor:
        layout = Layout.of(inputs, self.special)
        device = self.embeddings.device
        ids = torch.from_numpy(inputs.ids).to(device)
        firsts = layout.offsets[:-1]
        query, query_mask = _rows(
            layout.passages.offsets[:-1][firsts] + 1, layout.query_counts[firsts], device
        )
        text, text_mask = _rows(layout.text_starts, layout.text_counts, device, layout.offsets)
        asked, read = ids[query], ids[text]
        similarity = cosines(self.embeddings[asked], self.embeddings[read])
        same = asked[:, :, None] == read[:, None]
        similarity = torch.where(same, (asked != 0)[:, :, None].to(similarity.dtype), similarity)
        both = query_mask[:, :, None] & text_mask[:, None]
        return _exactly(self.head, (similarity * both)[:, None], query_mask, text_mask)


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
