"""A listwise model ready to score: `CrossEncoder` with another model inside. It needs torch, which is loaded
with the model."""

from __future__ import annotations

from importlib.util import find_spec

from tamis.columns import Array
from tamis.errors import MissingDependencyError
from tamis.infer.cores import cores
from tamis.infer.cross_encoder import CrossEncoder
from tamis.infer.engine import Engine, Progress
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
                if find_spec("torch") is None:
                    raise MissingDependencyError(
                        "a listwise model needs torch, which is not installed",
                        remedy="pip install 'tamis[torch]'",
                    )
                from tamis.infer.listwise_backend import ListwiseBackend, listwise_engine

                self._engine = listwise_engine(ListwiseBackend(lists, self.device, self.precision))
            return self._engine

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """The scores of each input's texts, float32[inputs, n]; 0 where an input has fewer."""
        with cores(self.workers):
            return super().margins(inputs, progress)
