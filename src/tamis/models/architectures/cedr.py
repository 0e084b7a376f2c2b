"""CEDR (MacAvaney et al. 2019): an interaction model on the vectors of every layer, combined with the [CLS].

Training starts from Vanilla BERT, which uses the averaged [CLS] only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tamis.models.architectures.documents import DocumentArchitecture
from tamis.models.documents import ChunkSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork

Kind = Literal["vanilla", "knrm", "pacrr", "drmm"]


class CedrSettings(ChunkSettings):
    """The interaction model, and how much of a document is read."""

    kind: Kind = "knrm"  # the interaction model; vanilla: the averaged [CLS] only
    cls: bool = True  # whether to use the averaged [CLS] in addition to the signals of the matrices
    frozen: bool = False  # whether training keeps the encoder unchanged


class Cedr(DocumentArchitecture):
    """CEDR-KNRM, -PACRR and -DRMM, and Vanilla BERT."""

    name = "cedr"
    Settings = CedrSettings
    settings: CedrSettings

    @property
    def kind(self) -> str:
        kind = self.settings.kind
        return kind if kind == "vanilla" else f"cedr-{kind}"

    @property
    def frozen(self) -> bool:
        # histograms have no gradient: CEDR's second step keeps BERT unchanged
        return self.settings.frozen or self.settings.kind == "drmm"

    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        from tamis.models.interaction import interaction
        from tamis.models.pooling import Pool

        settings = self.settings
        if settings.kind == "vanilla":
            return Pool(config.hidden, "avg")
        wide = config.hidden if settings.cls else 0
        return interaction(settings.kind, config.layers + 1, settings.query, wide)

    def over(self) -> type[DocumentNetwork]:
        from tamis.models.document_network import OfTerms, OfVectors

        return OfVectors if self.settings.kind == "vanilla" else OfTerms

    def network(self, checkpoint: Checkpoint) -> DocumentNetwork:
        from tamis.models.document_network import OfTerms

        network = super().network(checkpoint)
        if isinstance(network, OfTerms):
            network.cls = self.settings.cls
        return network
