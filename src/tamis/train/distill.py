"""Distillation: a small student learns to imitate its teacher.

It learns from a teacher's scores only, which can come from any stage (see `teacher_scores`), or also from the
teacher's internal states, with the objective of TinyBERT (Jiao et al. 2020):

    L = L_pred + L_emb + sum over the student's layers m of L_hid(m) + L_attn(m)

with Eq. 39 as the prediction loss, L_pred = alpha L_CE + (1 - alpha) ||r_t - r_s||^2, and with mean squared
errors for the others: between the embeddings' outputs, between hidden states, and between attention matrices,
which are the scores before the softmax (Jiao et al. find that students learn faster from them than from the
weights after it). Student layer m learns from teacher layer g(m). Padding is ignored.

Layers are numbered like hidden states: 0 is the embeddings' output, m the output of the m-th layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.core.stage import Stage
from tamis.models.checkpoint import Checkpoint
from tamis.models.encoder import Encoder
from tamis.models.feed import padded
from tamis.train import losses
from tamis.train.masked import MaskedBatch, Sentences, Vocabulary, masked_batch
from tamis.train.objective import Loss, Objective, margins
from tamis.train.start import keep_layers


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of each term of the objective; a term with weight 0 is not computed. `alpha` divides the
    prediction loss between the labels (1) and the teacher's logits (0)."""

    embedding: float = 1.0
    hidden: float = 1.0
    attention: float = 1.0
    prediction: float = 1.0
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if min(self.embedding, self.hidden, self.attention, self.prediction) < 0 or not 0 <= self.alpha <= 1:
            raise InputError(f"{self}", remedy="use weights of at least 0, and alpha from 0 to 1")

    def of(self, term: str) -> float:
        """The factor of a term, by its name in `Distiller.loss`.

        >>> Weights(prediction=2.0, alpha=0.25).of("logits")
        1.5
        """
        own = {
            "embedding": self.embedding,
            "hidden": self.hidden,
            "attention": self.attention,
            "labels": self.prediction * self.alpha,
            "logits": self.prediction * (1 - self.alpha),
        }
        return own[term]


# The initial student.


def uniform_map(student_layers: int, teacher_layers: int) -> tuple[int, ...]:
    """g(m) = m L_T / L_S for m = 1 .. L_S: the teacher layer from which each student layer learns. If this is
    not a whole number it is rounded, a half up.

    >>> uniform_map(3, 6), uniform_map(4, 6)
    ((2, 4, 6), (2, 3, 5, 6))
    """
    if not 1 <= student_layers <= teacher_layers:
        problem = f"a student of {student_layers} layers for a teacher of {teacher_layers}"
        raise InputError(problem, remedy="a student has at least 1 layer, and no more than its teacher")
    doubled = [2 * m * teacher_layers + student_layers for m in range(1, student_layers + 1)]
    return tuple(each // (2 * student_layers) for each in doubled)


def student_from(teacher: Checkpoint, layers: int | Sequence[int]) -> Checkpoint:
    """A student with some of the teacher's layers, its embeddings and its head. `layers` are the numbers of
    the teacher's layers, from 0, as in their tensors; a single number is how many, chosen by `uniform_map`.

    A student may also start from any other checkpoint with the same tokenizer, or from scratch."""
    if isinstance(layers, int):
        layers = [number - 1 for number in uniform_map(layers, teacher.config.layers)]
    return keep_layers(teacher, layers)


# The differences between the two: pure functions of tensors.


def embedding_loss(student: Tensor, teacher: Tensor, lengths: Tensor) -> Tensor:
    """Mean squared error between the outputs [B, L, H] of the embeddings, over all values of all tokens.

    >>> student, teacher = torch.tensor([[[1.0, 2.0], [9.0, 9.0]]]), torch.zeros(1, 2, 2)
    >>> embedding_loss(student, teacher, lengths=torch.tensor([1])).item()  # (1 + 4) / 2; the rest is padding
    2.5
    """
    return _masked_mse(student, teacher, _is_token(lengths, student.shape[1])[:, :, None])


def hidden_loss(student: Tensor, teacher: Tensor, lengths: Tensor) -> Tensor:
    """Mean squared error between hidden states [B, L, H], over all values of all tokens. The states of a
    student with another width are projected to the teacher's width before.

    >>> hidden_loss(torch.full((1, 1, 2), 3.0), torch.zeros(1, 1, 2), torch.tensor([1])).item()
    9.0
    """
    return embedding_loss(student, teacher, lengths)


def attention_loss(student: Tensor, teacher: Tensor, lengths: Tensor) -> Tensor:
    """Mean squared error between attention scores [B, N, L, L] before the softmax, over all heads and all
    pairs of tokens of an input.

    >>> student = torch.tensor([[[[1.0, 5.0], [7.0, 7.0]]]])
    >>> attention_loss(student, torch.zeros(1, 1, 2, 2), lengths=torch.tensor([1])).item()
    1.0
    """
    seen = _is_token(lengths, student.shape[-1])
    return _masked_mse(student, teacher, (seen[:, :, None] & seen[:, None, :])[:, None])


def _is_token(lengths: Tensor, width: int) -> Tensor:
    """The mask [B, L] of positions that are not padding."""
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def _masked_mse(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """The error over the values that the mask, broadcast over all dimensions, keeps; in single precision."""
    # replaced, not multiplied by 0: padding may have any value, even infinite
    errors = torch.where(mask, student.float() - teacher.float(), 0.0)
    return errors.square().sum() / mask.expand_as(errors).sum().clamp(min=1)


# The comparison of the two.


class Projections(nn.Module):
    """The learned W_e and W_h of TinyBERT, from a student's width to its teacher's; all layers share one W_h.
    Equal widths need no projection.

    >>> Projections(8, 8).hidden, Projections(8, 12).hidden
    (Identity(), Linear(in_features=8, out_features=12, bias=False))
    """

    def __init__(self, student_width: int, teacher_width: int) -> None:
        super().__init__()
        equal = student_width == teacher_width
        self.embedding: nn.Module = (
            nn.Identity() if equal else nn.Linear(student_width, teacher_width, bias=False)
        )
        self.hidden: nn.Module = (
            nn.Identity() if equal else nn.Linear(student_width, teacher_width, bias=False)
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """A student and its teacher on one batch: the margins of both, and their internal differences by term."""

    student: Tensor  # [B]
    teacher: Tensor  # [B]
    terms: Mapping[str, Tensor]


class Distiller(nn.Module):
    """A student that learns together with its teacher. Only the student and the projections have parameters
    to train; the teacher is fixed, and runs without dropout.

    >>> from tamis.models.config import EncoderConfig
    >>> deep, shallow = (EncoderConfig("bert", 9, 8, layers, heads=2, feed_forward=16) for layers in (4, 2))
    >>> distiller = Distiller(Encoder(shallow), Encoder(deep))
    >>> ids, lengths = torch.tensor([[1, 5, 2, 6, 2]]), torch.tensor([5])
    >>> terms = distiller.loss(ids, torch.zeros_like(ids), lengths, labels=torch.tensor([1.0]))
    >>> sorted(terms), distiller.total(terms).shape
    (['attention', 'embedding', 'hidden', 'labels', 'logits'], torch.Size([]))
    """

    def __init__(
        self,
        student: Encoder,
        teacher: Encoder,
        projections: Projections | None = None,
        mapping: Sequence[int] | None = None,
        weights: Weights | None = None,
    ) -> None:
        super().__init__()
        own, theirs = student.config, teacher.config
        self.student = student
        # In a tuple, where torch does not look for modules: so the teacher is not trained, not set to
        # training mode and not saved with the state of a run. It moves to the device of the batches.
        self._teacher = (teacher.requires_grad_(False).eval(),)
        self.projections = projections or Projections(own.hidden, theirs.hidden)
        self.mapping = tuple(uniform_map(own.layers, theirs.layers) if mapping is None else mapping)
        self.weights = weights or Weights()
        _check(student, teacher, self.mapping, self.weights)

    @property
    def teacher(self) -> Encoder:
        return self._teacher[0]

    def compare(self, ids: Tensor, segments: Tensor, lengths: Tensor) -> Compared:
        """Let both read padded inputs and compare them. A caller with another prediction loss, over groups or
        pairs, uses the terms and margins of this method."""
        own = self.student.hidden_states(ids, segments, lengths)
        with torch.no_grad():
            theirs = self.teacher.to(ids.device).hidden_states(ids, segments, lengths)
            wanted = _margins(self.teacher, theirs)
        terms: dict[str, Tensor] = {}
        if self.weights.embedding:
            terms["embedding"] = embedding_loss(self.projections.embedding(own[0]), theirs[0], lengths)
        layers = list(enumerate(self.mapping, start=1))
        if self.weights.hidden:
            pairs = [(self.projections.hidden(own[m]), theirs[g]) for m, g in layers]
            terms["hidden"] = torch.stack([hidden_loss(*pair, lengths) for pair in pairs]).sum()
        if self.weights.attention:
            each = [self._attention_loss(own, theirs, m - 1, g - 1, lengths) for m, g in layers]
            terms["attention"] = torch.stack(each).sum()
        return Compared(_margins(self.student, own), wanted, terms)

    def _attention_loss(
        self, own: Sequence[Tensor], theirs: Sequence[Tensor], layer: int, teacher_layer: int, lengths: Tensor
    ) -> Tensor:
        with torch.no_grad():
            wanted = self.teacher.attention_scores(teacher_layer, theirs[teacher_layer])
        return attention_loss(self.student.attention_scores(layer, own[layer]), wanted, lengths)

    def loss(
        self, ids: Tensor, segments: Tensor, lengths: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The terms by name: embedding, hidden, attention (the last two summed over the layers), logits (the
        squared error) and, with labels of 1 and 0, labels (the cross-entropy).

        The logits of Eq. 39 are margins here, for one label or two: a softmax depends only on the difference
        of two logits, and student and teacher may have different numbers of logits."""
        compared = self.compare(ids, segments, lengths)
        terms = dict(compared.terms)
        if self.weights.of("logits"):
            terms["logits"] = F.mse_loss(compared.student.float(), compared.teacher.float())
        if labels is not None and self.weights.of("labels"):
            terms["labels"] = losses.pointwise(compared.student, labels)
        if not terms:
            raise InputError(f"nothing to learn with {self.weights}", remedy="give labels or other weights")
        return terms

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The objective to minimise: the weighted sum of the terms."""
        return torch.stack([self.weights.of(name) * term for name, term in terms.items()]).sum()


class CorpusDistillation(Objective[MaskedBatch]):
    """The student of a language model: it learns from the teacher's internal states, on any text, masked as
    in pretraining, because the teacher was trained on such inputs. The parts are the distiller's terms."""

    def __init__(
        self,
        distiller: Distiller,
        corpus: Sentences,
        vocabulary: Vocabulary,
        *,
        size: int = 32,
        length: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.distiller, self.corpus, self.vocabulary = distiller, corpus, vocabulary
        self.size, self.seed = size, seed
        both = (distiller.student.config, distiller.teacher.config)
        self.length = min(length, *(config.max_length for config in both))
        # a model without segments ignores them
        self.segment_types = min((config.segments for config in both if config.segments), default=2)

    def batch(self, number: int) -> MaskedBatch:
        return masked_batch(
            self.corpus,
            self.vocabulary,
            size=self.size,
            length=self.length,
            seed=self.seed,
            number=number,
            segment_types=self.segment_types,
        )

    def lengths(self, batch: MaskedBatch) -> Array:
        return batch.inputs.lengths

    def take(self, batch: MaskedBatch, examples: Array) -> MaskedBatch:
        return batch.take(examples)

    def loss(self, batch: MaskedBatch) -> Loss:
        terms = self.distiller.loss(*padded(batch.inputs, self.device))
        return Loss(self.distiller.total(terms), terms)


def _margins(encoder: Encoder, states: Sequence[Tensor]) -> Tensor:
    return margins(encoder.head(states[-1][:, 0]))


def _check(student: Encoder, teacher: Encoder, mapping: Sequence[int], weights: Weights) -> None:
    own, theirs = student.config, teacher.config
    if own.vocabulary != theirs.vocabulary:
        raise InputError(
            f"a student of {own.vocabulary:,} tokens for a teacher of {theirs.vocabulary:,}",
            remedy="use a student with the teacher's tokenizer, or learn from its scores only",
        )
    if len(mapping) != own.layers or not all(1 <= layer <= theirs.layers for layer in mapping):
        raise InputError(
            f"{own.layers} layers cannot learn from layers {', '.join(map(str, mapping))} of {theirs.layers}",
            remedy="give each of the student's a layer of the teacher's, counted from 1",
        )
    if weights.attention and own.heads != theirs.heads:
        raise InputError(
            f"{own.heads} heads cannot learn attention from {theirs.heads}",
            remedy="use as many heads, or an attention weight of 0",
        )


# Any stage as a teacher.


def teacher_scores(stage: Stage, rankings: Sequence[Ranking]) -> list[Array]:
    """A stage's scores of the candidates of each ranking, float32, in the ranking's order.

    Probabilities are converted to their margins, whose differences do not vanish near 0 and 1;
    `Mono(score="logit")` avoids this rounding. Scores that are comparable only within one list (BM25, sums,
    fusions) are returned unchanged: they suit losses over lists.
    """
    stage.prepare()
    found = []
    for start in range(0, len(rankings), stage.queries_at_once):
        given = list(rankings[start : start + stage.queries_at_once])
        found += [_in_order(*pair) for pair in zip(given, stage.apply(given), strict=True)]
    return found


def _in_order(given: Ranking, scored: Ranking) -> Array:
    scores = dict(zip(scored.ids, scored.log_odds().tolist(), strict=True))
    missing = next((doc_id for doc_id in given.ids if doc_id not in scores), None)
    if missing is not None:
        raise InputError(
            f"the teacher gave {missing!r}, a candidate of query {given.query.id!r}, no score",
            remedy="use a teacher that reranks all candidates it is given",
        )
    return np.array([scores[doc_id] for doc_id in given.ids], np.float32)
