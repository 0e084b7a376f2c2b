"""MaxP trained on passages (Dai & Callan 2019): the best passage's score is the document's.

Training produces an ordinary pointwise checkpoint, for `maxp(mono(model=...))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tamis.models.architectures.documents import DocumentArchitecture
from tamis.models.architectures.mono import Mono
from tamis.models.documents import DocumentSettings
from tamis.models.settings import Share

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tamis.models.checkpoint import Checkpoint
    from tamis.models.config import EncoderConfig
    from tamis.models.document_network import DocumentNetwork


class MaxPSettings(DocumentSettings):
    """How much of a document is read: the first windows."""

    first_only: ClassVar[bool] = True

    keep: Share = 0.1  # in training, the probability of keeping each window after the first


class MaxP(DocumentArchitecture):
    """The score of the best passage; the encoder's own head scores passages, as in mono."""

    name, stage = "maxp", "parade"
    Settings = MaxPSettings
    learning = "tamis.train.passage_learning:MaxPLearning"

    def head(self, config: EncoderConfig, cls: Tensor | None = None) -> nn.Module:
        from tamis.models.pooling import BestScore

        return BestScore()

    def saved(self, checkpoint: Checkpoint) -> Checkpoint:
        return Mono.adopted(checkpoint)

    def pipeline(self, query_limit: int, limit: int) -> str:
        settings = self.settings
        mono = f"mono(model={{model}}, query_limit={settings.query}, limit={settings.sequence})"
        cut = f"window={settings.window}, stride={settings.stride}, unit=tokens, title=once"
        return f"maxp({mono}, {cut}, passages={settings.passages})"

    def over(self) -> type[DocumentNetwork]:
        from tamis.models.document_network import OfScores

        return OfScores
