"""A listwise model ready to score: `CrossEncoder` with another model inside."""

from __future__ import annotations

from tamis.base.arrays import Array
from tamis.core.runtime import Device, Precision
from tamis.infer.engine import Backend, Engine, Progress
from tamis.infer.scorer import CrossEncoder, torch_device
from tamis.models.lists import ListCheckpoint, lists_of
from tamis.models.templates import Inputs


class ListwiseEncoder(CrossEncoder):
    """A listwise model, ready to score; loaded when first used."""

    _lists: ListCheckpoint | None = None

    @property
    def lists(self) -> ListCheckpoint:
        """The model, whose weights are read when they are needed."""
        with self._lock:
            if self._lists is None:
                self._lists = lists_of(self.checkpoint, self.model)
            return self._lists

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None:
                lists = self.lists
                backend = open_lists(lists, self.device, self.precision, self.workers)
                self._engine = Engine(backend, (lists.texts,))
            return self._engine

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """The scores of each input's texts, float32[inputs, n]; 0 where an input has fewer."""
        return super().margins(inputs, progress)


def open_lists(
    checkpoint: ListCheckpoint,
    device: Device = "auto",
    precision: Precision = "auto",
    workers: int | None = None,
) -> Backend:
    """The backend that a device and a precision ask for, as `open_backend` has it for other models."""
    place = torch_device(device, precision)
    if place is None:
        from tamis.infer.onnx_listwise import OnnxListwiseBackend

        return OnnxListwiseBackend(checkpoint, precision, workers)
    from tamis.infer.listwise_backend import ListwiseBackend

    return ListwiseBackend(checkpoint, place, precision)
