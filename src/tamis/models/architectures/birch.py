"""Birch-Passage, a baseline of PARADE (Li et al. 2020): one layer over the three best passages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamis.models.architectures.documents import DocumentArchitecture

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork


class Birch(DocumentArchitecture):
    """Combines the scores of the three best passages; the encoder's own head scores them, as in mono."""

    name, stage = "birch", "parade"

    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        from tamis.models.pooling import TopScores

        return TopScores()

    def over(self) -> type[DocumentNetwork]:
        from tamis.models.document_network import OfScores

        return OfScores
