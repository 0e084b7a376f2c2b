"""KNRM, PACRR and DRMM in their original form, before BERT: on embeddings without context.

Such a model has no encoder: its checkpoint is a table of words of the family `static` (see
`tamis.models.config`), from a file of vectors (`tamis.models.static`) or from any checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from tamis.models.architectures.documents import DocumentArchitecture
from tamis.models.documents import ChunkSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork

Kind = Literal["knrm", "pacrr", "drmm"]


class InteractionSettings(ChunkSettings):
    """The interaction model, and how much of a document is read: all of it, as one chunk."""

    kind: Kind = "knrm"  # the interaction model


class Interaction(DocumentArchitecture):
    """KNRM, PACRR or DRMM on static embeddings, without an encoder."""

    name, stage = "interaction", "cedr"
    Settings = InteractionSettings
    settings: InteractionSettings

    @property
    def kind(self) -> str:
        return self.settings.kind

    def most_inferences(self) -> int:
        return 1

    def check_config(self, config: EncoderConfig) -> None:
        """Accept any checkpoint: only its table of words is read."""

    def begin(self, start: Checkpoint, seed: int = 0) -> Checkpoint:
        """Start from any checkpoint; only the table of words of an encoder is used."""
        from tamis.models.config import static_config

        if not start.config.static:
            word = start.tensors["embeddings.word"]
            config = static_config(*word.shape)
            start = replace(start, config=config, tensors={"embeddings.word": word}, raw_config={})
        return super().begin(start, seed)

    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        from tamis.models.interaction import interaction

        return interaction(self.settings.kind, 1, self.settings.query, 0)

    def over(self) -> type[DocumentNetwork]:
        from tamis.models.document_network import OfWords

        return OfWords
