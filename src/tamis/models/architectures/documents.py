"""The base of the models of long documents: an input is a document, read as passages, each with the query
before it (`tamis.models.documents`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tamis.base.arrays import Array
from tamis.models.architecture import Architecture, Reading
from tamis.models.documents import DocumentSettings, read
from tamis.models.templates import Inputs, Special, Tokenised, Truncation

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork


class DocumentArchitecture(Architecture):
    """A model of long documents. A subclass defines its head, and the network that the head is part of."""

    name = "document"
    Settings: ClassVar[type[DocumentSettings]] = DocumentSettings
    settings: DocumentSettings
    learning = "tamis.train.document_learning:DocumentLearning"
    of_passages = True

    def inputs(
        self, queries: Tokenised, texts: Tokenised, members: Array, query_of: Array, reading: Reading
    ) -> tuple[Inputs, Truncation]:
        texts = texts.take(members[:, 0])
        made = read(queries, query_of, texts, reading.special, self.settings, reading.config)
        return made.inputs, made.truncation

    def room(self, query_tokens: int, reading: Reading) -> int:
        return self.settings.tokens

    def inferences(self, inputs: Inputs, special: Special) -> Array:
        """The passages of each document."""
        starts = np.flatnonzero(inputs.ids == special.cls)
        return np.diff(np.searchsorted(starts, inputs.offsets))

    def most_inferences(self) -> int:
        return self.settings.most_passages

    def pipeline(self, query_limit: int, limit: int) -> str:
        return f"{self.stage}(model={{model}})"

    @abstractmethod
    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        """The module that computes the score, initialised with torch's generator; `cls` is the encoder's
        embedding of [CLS]."""

    @abstractmethod
    def over(self) -> type[DocumentNetwork]:
        """The network that the head is part of."""

    def network(self, checkpoint: Checkpoint) -> DocumentNetwork:
        import torch

        with torch.random.fork_rng(devices=[]):  # the drawn weights are replaced at once
            head = self.head(checkpoint.config)
        return self.over().of(checkpoint, head, frozen=self.frozen)

    @property
    def frozen(self) -> bool:
        """Whether training keeps the encoder unchanged."""
        return False

    def drawn(self, start: Checkpoint, seed: int) -> Mapping[str, Array]:
        import torch

        from tamis.models.tokenizer import open_tokenizer

        cls = start.tensors["embeddings.word"][open_tokenizer(start).special.cls]
        if start.config.projected:  # the embeddings are narrower than the layers
            weight, bias = (start.tensors[f"embeddings.project.{part}"] for part in ("weight", "bias"))
            cls = weight @ cls + bias
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = self.head(start.config, torch.tensor(cls))
        return {f"{self.prefix}.{name}": x.numpy() for name, x in head.state_dict().items()}
