"""PARADE (Li et al. 2020): the passages' [CLS] vectors are combined into one vector, which is scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tamis.models.architectures.documents import DocumentArchitecture
from tamis.models.documents import DocumentSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork

Kind = Literal["avg", "sum", "max", "attn", "cnn", "transformer"]


class ParadeSettings(DocumentSettings):
    """How the passages are combined into one vector, and how much of a document is read."""

    kind: Kind = "transformer"  # how the vectors of the passages are combined


class Parade(DocumentArchitecture):
    """PARADE-Avg, -Sum, -Max, -Attn, -CNN and PARADE-Transformer."""

    name = "parade"
    Settings = ParadeSettings
    settings: ParadeSettings

    @property
    def kind(self) -> str:
        return f"parade-{self.settings.kind}"

    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        import torch

        from tamis.models import pooling

        hidden, kind = config.hidden, self.settings.kind
        if kind == "attn":
            return pooling.Attentive(hidden)
        if kind == "cnn":
            return pooling.Convolutional(hidden)
        if kind == "transformer":
            begin = torch.zeros(hidden) if cls is None else cls
            return pooling.Transformer(config, begin, self.settings.passages)
        return pooling.Pool(hidden, kind)

    def over(self) -> type[DocumentNetwork]:
        from tamis.models.document_network import OfVectors

        return OfVectors
