"""Pretraining on a target corpus, TCP (Nogueira et al. 2019, §4.1): masked language modelling with next
sentence prediction, and representative words prediction (Ma et al. 2021), alone or together. They need only
texts, without judgments. Start from a checkpoint (`load_pretraining`, `with_new_heads`) or from random
weights (`tamis.train.scratch`).

For BERT models: next sentence prediction needs segments, and the heads are BERT's. The saved folder can be
read by transformers as BertForPreTraining, and by `load_checkpoint(folder, require_head=False)` as the start
of a ranker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.checkpoint import CONFIG, WEIGHTS, Checkpoint, is_output, load_checkpoint, save_checkpoint
from tamis.models.config import EncoderConfig, write_config
from tamis.models.encoder import Encoder, Layer
from tamis.models.names import canonical_name, hugging_face_names
from tamis.models.templates import Inputs, Special
from tamis.models.weights import StoredTensor, stored_tensors, write_tensors
from tamis.storage.files import atomic_write
from tamis.train import losses
from tamis.train.masked import MaskedBatch, Sentences, Vocabulary, masked_batch
from tamis.train.objective import Loss, Objective, final_states, margins
from tamis.train.rop import MEAN_SIZE, MU, Bags, rop_batch

#: Our names of the heads' tensors, and those of transformers. The decoder is the table of word embeddings.
_NAMES = {
    "dense.weight": "cls.predictions.transform.dense.weight",
    "dense.bias": "cls.predictions.transform.dense.bias",
    "norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "bias": "cls.predictions.bias",
    "next.weight": "cls.seq_relationship.weight",
    "next.bias": "cls.seq_relationship.bias",
}
_DEVIATION = 0.02  # BERT's initializer_range


class Heads(nn.Module):
    """BERT's pretraining heads: the token at each hidden state, and whether B follows A.

    >>> config = EncoderConfig("bert", vocabulary=9, hidden=8, layers=1, heads=2, feed_forward=16)
    >>> Heads(config, F.gelu).tokens(torch.zeros(3, 8), torch.zeros(9, 8)).shape
    torch.Size([3, 9])
    """

    def __init__(
        self, config: EncoderConfig, activation: Callable[[Tensor], Tensor], *, seed: int = 0
    ) -> None:
        super().__init__()
        self.activation = activation
        self.dense = nn.Linear(config.hidden, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, config.norm_epsilon)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.next = nn.Linear(config.hidden, 2)
        generator = torch.Generator().manual_seed(seed)
        for linear in (self.dense, self.next):
            nn.init.normal_(linear.weight, std=_DEVIATION, generator=generator)
            nn.init.zeros_(linear.bias)

    def tokens(self, x: Tensor, words: Tensor) -> Tensor:
        """Logits [M, V] of hidden states x [M, H], with the word embeddings [V, H] as the decoder."""
        return F.linear(self.norm(self.activation(self.dense(x))), words, self.bias)

    def is_random(self, pooled: Tensor) -> Tensor:
        """Logits [B, 2]: the second segment follows the first, or comes from another document."""
        return cast(Tensor, self.next(pooled))


class PretrainingModel(nn.Module):
    """An encoder with BERT's pretraining heads besides its ranking head. The first layer of the ranking head
    is also the pooler of next sentence prediction, as in BERT."""

    def __init__(self, encoder: Encoder, *, seed: int = 0) -> None:
        super().__init__()
        config = encoder.config
        if config.family != "bert" or config.segments < 2:
            raise InputError(
                f"pretraining is for BERT models with two segments, not for this {config.family}",
                remedy="start from a BERT or MiniLM model",
            )
        self.encoder = encoder
        self.heads = Heads(config, cast(Layer, encoder.layers[0]).feed_forward.activation, seed=seed)

    def token_logits(self, states: Tensor) -> Tensor:
        """Logits [M, V] of the token at each hidden state [M, H] of the last layer."""
        return self.heads.tokens(states, self.encoder.embeddings.word)

    def next_logits(self, first: Tensor) -> Tensor:
        """Logits [B, 2] of the [CLS] states [B, H]: B follows A, or comes from another document."""
        head = self.encoder.head
        return self.heads.is_random(head.activation(head.dense(first)))


def with_new_heads(checkpoint: Checkpoint, seed: int = 0) -> PretrainingModel:
    """A checkpoint's encoder with new heads, drawn from `seed`, in training mode."""
    return PretrainingModel(Encoder.from_checkpoint(checkpoint), seed=seed).train()


def load_pretraining(
    name_or_folder: str | Path, revision: str | None = None, *, seed: int = 0
) -> tuple[Checkpoint, PretrainingModel]:
    """Load a checkpoint and its model with the stored pretraining heads. Missing ones are drawn from `seed`:
    few encoders are saved with them."""
    checkpoint = load_checkpoint(name_or_folder, revision, require_head=False, seed=seed)
    return checkpoint, with_stored_heads(checkpoint, seed)


def with_stored_heads(checkpoint: Checkpoint, seed: int = 0) -> PretrainingModel:
    """A checkpoint's encoder with the pretraining heads stored in its folder; see `load_pretraining`."""
    model = with_new_heads(checkpoint, seed)
    if checkpoint.raw_config.get("tie_word_embeddings", True) is not True:
        problem = "a decoder of its own in place of the word embeddings"
        raise InputError(problem, remedy="start from another model", path=checkpoint.folder / CONFIG)
    heads = model.heads.state_dict()
    for name, tensor in _stored_heads(checkpoint.folder).items():
        values = tensor.read()
        if values.shape != tuple(heads[name].shape):
            problem = f"{_NAMES[name]} is {list(values.shape)} where {list(heads[name].shape)} is expected"
            raise InputError(problem, remedy="fetch or save the model again", path=tensor.path)
        heads[name] = torch.tensor(values)
    model.heads.load_state_dict(heads)
    return model


def save_pretraining(
    model: PretrainingModel, checkpoint: Checkpoint, folder: str | Path, *, ranks: bool = False
) -> None:
    """Write the model as a folder, with the tokenizer of its start checkpoint. `ranks` means that its ranking
    head is worth keeping: after ROP, which trains it, or if the checkpoint was a ranker."""
    folder, config = Path(folder), checkpoint.config
    tensors = model.encoder.tensors()
    save_checkpoint(replace(checkpoint, tensors=tensors), folder, ranks=ranks)
    # Replaces files that were just written; each is complete at any time, so a kill in between leaves a model
    # without the pretraining heads, not a broken one.
    names = hugging_face_names(config)
    written = {names[name]: tensor for name, tensor in tensors.items() if ranks or not is_output(name)}
    for name, tensor in model.heads.state_dict().items():
        written[_NAMES[name]] = tensor.detach().float().cpu().numpy()
    raw = write_config(checkpoint.raw_config, config, "float32")
    with atomic_write(folder / CONFIG, "w") as file:
        file.write(json.dumps(raw | {"architectures": ["BertForPreTraining"]}, indent=2) + "\n")
    write_tensors(folder / WEIGHTS, written)


def _stored_heads(folder: Path) -> dict[str, StoredTensor]:
    path = folder / WEIGHTS
    stored = stored_tensors(path) if path.exists() else {}
    by_name = {canonical_name(name, "bert", bare=False): tensor for name, tensor in stored.items()}
    return {ours: by_name[theirs] for ours, theirs in _NAMES.items() if theirs in by_name}


# The training objectives.


def token_loss(model: PretrainingModel, states: Tensor, batch: MaskedBatch) -> Tensor:
    """Cross-entropy of the chosen tokens, averaged over the batch; `states` [T, H] are those of all
    tokens."""
    chosen = states[torch.from_numpy(batch.positions).to(states.device)]
    wanted = torch.from_numpy(batch.tokens).to(states.device)
    found = F.cross_entropy(model.token_logits(chosen).float(), wanted, reduction="sum")
    return found / max(len(batch.tokens), 1)


def next_sentence_loss(model: PretrainingModel, states: Tensor, batch: MaskedBatch) -> Tensor:
    """Cross-entropy of whether B follows A, averaged over the batch."""
    first = states[torch.from_numpy(batch.inputs.offsets[:-1]).to(states.device)]
    wanted = torch.from_numpy(batch.is_random).to(states.device)
    return F.cross_entropy(model.next_logits(first).float(), wanted)


class MaskedLanguageModelling(Objective[MaskedBatch]):
    """MLM, by default with NSP: parts `mlm` and `nsp`, summed as in BERT."""

    def __init__(
        self,
        model: PretrainingModel,
        corpus: Sentences,
        vocabulary: Vocabulary,
        *,
        size: int = 32,
        length: int = 128,
        seed: int = 0,
        next_sentence: bool = True,
    ) -> None:
        super().__init__()
        config = model.encoder.config
        if vocabulary.size > config.vocabulary or length > config.max_length:
            problem = (
                f"{vocabulary.size:,} tokens and inputs of {length} for a model of {config.vocabulary:,}"
            )
            raise InputError(
                f"{problem} tokens and {config.max_length} positions",
                remedy="use the model's own tokenizer and limits",
            )
        self.model, self.corpus, self.vocabulary = model, corpus, vocabulary
        self.size, self.length, self.seed, self.next_sentence = size, length, seed, next_sentence

    def batch(self, number: int) -> MaskedBatch:
        return masked_batch(
            self.corpus, self.vocabulary, size=self.size, length=self.length, seed=self.seed, number=number
        )

    def lengths(self, batch: MaskedBatch) -> Array:
        return batch.inputs.lengths

    def take(self, batch: MaskedBatch, examples: Array) -> MaskedBatch:
        return batch.take(examples)

    def loss(self, batch: MaskedBatch) -> Loss:
        states = final_states(self.model.encoder, batch.inputs, self.device)
        parts = {"mlm": token_loss(self.model, states, batch)}
        if self.next_sentence:
            parts["nsp"] = next_sentence_loss(self.model, states, batch)
        return Loss(torch.stack(list(parts.values())).sum(), parts)


class RepresentativeWords(Objective[Inputs]):
    """ROP: the likelier of two sets of a document's words should score higher by 1; part `rop`. The score
    comes from the ranking head, so that the trained head can be kept."""

    def __init__(
        self,
        encoder: Encoder,
        bags: Bags,
        special: Special,
        *,
        size: int = 16,
        length: int = 128,
        seed: int = 0,
        mean_size: float = MEAN_SIZE,
        mu: float = MU,
    ) -> None:
        super().__init__()
        self.encoder, self.bags, self.special = encoder, bags, special
        self.size, self.length, self.seed = size, min(length, encoder.config.max_length), seed
        self.mean_size, self.mu = mean_size, mu

    def batch(self, number: int) -> Inputs:
        return rop_batch(
            self.bags,
            self.special,
            size=self.size,
            length=self.length,
            seed=self.seed,
            number=number,
            mean_size=self.mean_size,
            mu=self.mu,
            segment_types=self.encoder.config.segments,
        )

    def lengths(self, batch: Inputs) -> Array:
        return batch.lengths[0::2] + batch.lengths[1::2]

    def take(self, batch: Inputs, examples: Array) -> Inputs:
        """Some examples; each is a pair of sets."""
        return batch.take(np.stack([2 * examples, 2 * examples + 1], axis=1).ravel())

    def loss(self, batch: Inputs) -> Loss:
        states = final_states(self.encoder, batch, self.device)
        first = states[torch.from_numpy(batch.offsets[:-1]).to(states.device)]
        scores = margins(self.encoder.head(first))
        loss = losses.hinge(scores[0::2], scores[1::2])
        return Loss(loss, {"rop": loss})
