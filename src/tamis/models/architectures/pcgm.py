"""PCGM (Wu et al. 2020): models how the gain of a document accumulates, passage after passage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tamis.models.architectures.documents import DocumentArchitecture
from tamis.models.documents import DocumentSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork


class PcgmSettings(DocumentSettings):
    """The number of grades of gain, and how much of a document is read."""

    gains: Annotated[int, Field(ge=2, le=1 << 10)] = 4  # number of grades, from 0


class Pcgm(DocumentArchitecture):
    """PCGM: an LSTM over the passages' [CLS] vectors predicts the reader's gain after each passage."""

    name, stage = "pcgm", "parade"
    Settings = PcgmSettings
    settings: PcgmSettings
    learning = "tamis.train.passage_learning:PcgmLearning"
    learns_gains = True

    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        from tamis.models.pooling import CumulativeGain

        return CumulativeGain(config.hidden, self.settings.gains)

    def over(self) -> type[DocumentNetwork]:
        from tamis.models.document_network import OfVectors

        return OfVectors
