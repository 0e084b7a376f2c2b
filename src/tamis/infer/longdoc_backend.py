"""Models of long documents by torch: one backend for all kinds."""

from __future__ import annotations

from tamis.base.arrays import Array
from tamis.infer.torch_backend import (
    PRECISIONS,
    TOKEN_BUDGETS,
    TorchBackend,
    device_of,
    has_packed_attention,
    precision_of,
)
from tamis.models.long_checkpoint import LongCheckpoint
from tamis.models.passages import Encoded
from tamis.models.templates import Inputs


class LongBackend(TorchBackend):
    """A model of long documents on a device; an input is a document. The options are `TorchBackend`'s. The
    checkpoint's own model is moved to the device, and its encoder into the precision."""

    def __init__(self, checkpoint: LongCheckpoint, device: str = "auto", precision: str = "auto") -> None:
        self.device = device_of(device)
        self.precision = precision_of(precision, self.device)
        self.compiled = False
        self.layout = "packed"  # what shares a batch is limited by its tokens alone
        # on a processor a document is longer than what is padded together; on a card every layer is kept
        self.token_budget = 1 << 14 if self.device.type == "cpu" else TOKEN_BUDGETS[self.device.type] // 2
        self.model = checkpoint.model.to(self.device)
        if isinstance(self.model, Encoded):
            self.config = self.model.config
            self.model.packed = has_packed_attention(self)
            encoder = self.model.encoder.to(dtype=PRECISIONS[self.precision])
            encoder.head.float()  # see `TorchBackend`: a score of eight bits ties candidates

    def margins(self, inputs: Inputs) -> Array:
        """One float32 a document."""

        def score() -> Array:
            values: Array = self.model(inputs).float().cpu().numpy()
            return values

        return self._fitting(score)
