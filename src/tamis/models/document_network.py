"""Networks for long documents: an encoder reads passages, and a head combines its outputs into one score.

    OfScores     the passages' scores                             MaxP, Birch-Passage
    OfVectors    the passages' [CLS] vectors                      Vanilla BERT, PARADE, PCGM: `pooling`
    OfTerms      one matrix of similarities per layer, [CLS]      CEDR: `interaction`
    OfWords      one matrix, of embeddings without context        KNRM, PACRR, DRMM: `interaction`

Each takes documents made by `tamis.models.documents.read` and returns one score per document, which does not
depend on the rest of the batch.
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
    """Scores documents. With `frozen` the encoder does not change when the head is trained."""

    head: nn.Module
    scores_passages = False  # whether the encoder's own head is used

    def __init__(
        self, encoder: Encoder | None, head: nn.Module, special: Special, *, frozen: bool = False
    ) -> None:
        super().__init__(encoder)
        self.head, self.special, self.frozen = head, special, frozen

    @classmethod
    def of(cls, checkpoint: Checkpoint, *arguments: Any, **options: Any) -> Self:
        """The network around a checkpoint's encoder; the only positional argument is the head."""
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
            self.encoder.eval()  # dropout is useless in an encoder that does not learn
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
        """For PCGM: the documents' scores, and the logits [B, P, gains] that they are computed from."""
        passages, mask = self.vectors(inputs)
        head = cast(CumulativeGain, self.head)
        with torch.autocast(passages.device.type, enabled=False):
            logits = head.logits(passages)
            return head.score(logits, mask), logits


class OfTerms(DocumentNetwork):
    """For every layer, including the embeddings, the cosines between the terms of the query, taken from the
    first chunk, and the terms of all chunks. With `cls`, the head also gets the [CLS] of the last layer,
    averaged over the chunks."""

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
    """An interaction model on a fixed table of embeddings [V, E]. The similarity of a word to itself is 1,
    even if the table has no vector for it. Row 0 is not a word ([PAD], or here [UNK]); its similarity to
    everything is 0."""

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
    """Compute a head's scores in float32, even in mixed-precision training: eight bits are too few for a
    kernel of width 0.001, or to order a thousand candidates."""
    present = [each for each in arguments if each is not None]
    with torch.autocast(present[0].device.type, enabled=False):
        return cast(Tensor, head(*arguments))


def _at(states: Tensor, places: Tensor) -> Tensor:
    """The rows of [T, H] at indices [B, L], as [B, L, H] in float32. Plain indexing returns the same, but on
    a GPU its gradient adds all contributions to one row sequentially, here those of all padding.

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
    """The indices start, start + 1, ... of each document as a rectangle, padded with 0, and the mask of the
    valid ones. With `offsets`, a document has several such ranges.

    >>> rows, mask = _rows(np.array([5, 0, 8]), np.array([2, 1, 1]), torch.device("cpu"), np.array([0, 2, 3]))
    >>> rows.tolist(), mask.tolist()
    ([[5, 6, 0], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    of_each = counts if offsets is None else np.add.reduceat(counts, offsets[:-1])
    mask = np.arange(int(of_each.max(initial=0))) < of_each[:, None]
    rows = np.zeros(mask.shape, np.int64)
    rows[mask] = ranges(starts, counts)
    return torch.from_numpy(rows).to(device), torch.from_numpy(mask).to(device)
