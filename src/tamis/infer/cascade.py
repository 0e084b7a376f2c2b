"""A model with exits ready to score: `CrossEncoder` with another model inside."""

from __future__ import annotations

from tamis.base.arrays import Array
from tamis.core.runtime import Device, Precision
from tamis.infer.scorer import CrossEncoder, torch_device
from tamis.infer.walk import CascadeEngine, ExitBackend, Keep
from tamis.models.exits import ExitCheckpoint, exits_of
from tamis.models.templates import Inputs


class CascadeEncoder(CrossEncoder):
    """A model with exits, ready to score; loaded when first used."""

    _engine: CascadeEngine | None
    _exits: ExitCheckpoint | None = None

    @property
    def exits(self) -> ExitCheckpoint:
        """The model, whose weights are read when they are needed."""
        with self._lock:
            if self._exits is None:
                self._exits = exits_of(self.checkpoint, self.model)
            return self._exits

    @property
    def layers(self) -> tuple[int, ...]:
        """After which layers there is an exit."""
        return self.exits.layers

    @property
    def engine(self) -> CascadeEngine:
        with self._lock:
            if self._engine is None:
                backend = open_exits(self.exits, self.device, self.precision, self.workers)
                self._engine = CascadeEngine(backend)
            return self._engine

    def walk(self, inputs: Inputs, keep: Keep) -> Array:
        """The margins of one query's candidates at each exit: see `tamis.infer.walk.ExitBackend`."""
        return self.engine.walk(inputs, keep)


def open_exits(
    checkpoint: ExitCheckpoint,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: int | None = None,
) -> ExitBackend:
    """The backend that a device and a precision ask for, as `open_backend` has it for other models."""
    place = torch_device(device, precision)
    if place is None:
        from tamis.infer.onnx_cascade import OnnxCascadeBackend

        return OnnxCascadeBackend(checkpoint, precision, workers)
    from tamis.infer.cascade_backend import CascadeBackend

    return CascadeBackend(checkpoint, place, precision)
