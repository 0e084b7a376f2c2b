"""A model with exits ready to score: `CrossEncoder` with another model inside. It needs torch, which is
loaded with the model."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tamis.columns import Array
from tamis.errors import MissingDependencyError
from tamis.infer.cores import cores
from tamis.infer.cross_encoder import CrossEncoder
from tamis.models.exits import ExitCheckpoint, exits_of
from tamis.models.templates import Inputs

if TYPE_CHECKING:
    from tamis.infer.cascade_backend import CascadeEngine, Keep


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
                exits = self.exits
                if find_spec("torch") is None:
                    raise MissingDependencyError(
                        "a model with exits needs torch, which is not installed",
                        remedy=f"pip install 'tamis[torch]', or use mono(model=\"{self.model}\")",
                    )
                from tamis.infer.cascade_backend import CascadeBackend, CascadeEngine

                self._engine = CascadeEngine(CascadeBackend(exits, self.device, self.precision))
            return self._engine

    def walk(self, inputs: Inputs, keep: Keep) -> Array:
        """The margins of one query's candidates at each exit: see `CascadeBackend.walk`."""
        with cores(self.workers):
            return self.engine.walk(inputs, keep)
