"""A model with exits ready to score: `CrossEncoder` with another model inside. It needs torch, which is
loaded with the model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.columns import Array
from tamis.errors import InputError, MissingDependencyError
from tamis.infer.cross_encoder import CrossEncoder
from tamis.infer.runtime import Device, Precision
from tamis.models.checkpoint import Checkpoint
from tamis.models.exits import ExitCheckpoint, load_exits
from tamis.models.templates import Inputs

if TYPE_CHECKING:
    from tamis.infer.cascade_backend import CascadeEngine, Keep

NAME = "cascade"  # of the stage, and of the model that it would have if one were bundled


class CascadeEncoder(CrossEncoder):
    """A model with exits, ready to score; loaded when first used."""

    _engine: CascadeEngine | None

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        device: Device = "auto",
        precision: Precision = "auto",
    ) -> None:
        super().__init__(model, revision=revision, device=device, precision=precision)
        self._exits: ExitCheckpoint | None = None

    @property
    def exits(self) -> ExitCheckpoint:
        """The model, whose weights are read when they are needed."""
        with self._lock:
            if self._exits is None:
                if self.model == NAME and not Path(NAME).exists():
                    remedy = (
                        "name one: cascade(model=FOLDER), which `tamis train` makes, or a name on the hub"
                    )
                    raise InputError(f"no model is bundled under the name {NAME!r}", remedy=remedy)
                self._exits = load_exits(self.model, self.revision)
            return self._exits

    @property
    def layers(self) -> tuple[int, ...]:
        """After which layers there is an exit."""
        return self.exits.layers

    @property
    def checkpoint(self) -> Checkpoint:
        return self.exits.start

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
        return self.engine.walk(inputs, keep)
