"""A model of long documents ready to score: `CrossEncoder` with another model inside. It needs torch, which
is loaded with the model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.base.arrays import Array
from tamis.base.errors import InputError, MissingDependencyError
from tamis.core.runtime import Device, Precision
from tamis.infer.cores import cores
from tamis.infer.engine import Engine, Progress
from tamis.infer.scorer import CrossEncoder
from tamis.models.long_plan import LongDoc, read_plan
from tamis.models.templates import Inputs
from tamis.models.tokenizer import Tokenizer
from tamis.storage.files import is_there

if TYPE_CHECKING:
    from tamis.models.long_checkpoint import LongCheckpoint


class LongEncoder(CrossEncoder):
    """A folder's model of long documents, ready to score; loaded when first used."""

    def __init__(
        self,
        model: str | Path,
        *,
        device: Device = "auto",
        precision: Precision = "auto",
        workers: int | None = None,
    ) -> None:
        super().__init__(model, device=device, precision=precision, workers=workers)
        self._long: LongCheckpoint | None = None
        self._plan: LongDoc | None = None

    @property
    def plan(self) -> LongDoc:
        """What the model is, which is read without its weights."""
        with self._lock:
            if self._plan is None:
                if not is_there(self.model) or not Path(self.model).is_dir():
                    remedy = "name the folder of a trained model: model=FOLDER (`tamis train` makes one)"
                    raise InputError(f"no folder {self.model}", remedy=remedy)
                self._plan = read_plan(self.model)
            return self._plan

    @property
    def long(self) -> LongCheckpoint:
        with self._lock:
            if self._long is None:
                _ = self.plan
                if find_spec("torch") is None:
                    raise MissingDependencyError(
                        f"a {self.plan.kind} model needs torch, which is not installed",
                        remedy="pip install 'tamis[torch]'",
                    )
                from tamis.models.long_checkpoint import load_long

                self._long = load_long(self.model)
            return self._long

    @property
    def tokenizer(self) -> Tokenizer:
        return self.long.tokenizer

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None:
                long = self.long
                from tamis.infer.longdoc_backend import LongBackend

                self._engine = Engine(LongBackend(long, self.device, self.precision))
            return self._engine

    @property
    def fingerprint(self) -> str:
        return f"{self.long.fingerprint} {self.engine.backend.numerics}"

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        with cores(self.workers):
            return super().margins(inputs, progress)
