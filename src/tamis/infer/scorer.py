"""Scorers: a model's tokenizer, its weights on a device, and the tally of its work.

The default device is a CUDA GPU in bf16 if there is one and torch is installed, else the processor in int8
with ONNX Runtime, which does not need torch. A model without an ONNX graph needs torch.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self, get_args

from tamis.base.arrays import Array
from tamis.base.errors import InputError, MissingDependencyError
from tamis.base.extras import install
from tamis.core.runtime import Device, Precision
from tamis.infer.cores import cores
from tamis.infer.engine import Backend, Engine, Progress
from tamis.infer.walk import Keep
from tamis.models.architecture import Architecture, Reading, architecture
from tamis.models.architectures.mono import Mono, form_of, in_form
from tamis.models.bundled import open_model
from tamis.models.checkpoint import Checkpoint
from tamis.models.templates import Form, Inputs, Truncation
from tamis.models.tokenizer import Tokenizer, open_tokenizer


@dataclass(frozen=True, slots=True)
class Tally:
    """The work of scoring: the number of inferences and of inputs found in a cache, and the truncation."""

    inferences: int = 0
    cached: int = 0
    truncation: Truncation = field(default_factory=Truncation)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.inferences + other.inferences,
            self.cached + other.cached,
            self.truncation + other.truncation,
        )

    def __str__(self) -> str:
        cached = f", {self.cached:,} from the cache" if self.cached else ""
        return f"{self.inferences:,} inferences{cached}; {self.truncation}"


class Scorer:
    """Scores inputs with a model of one of `architectures`. It is loaded when it is first used, and can be
    shared between threads."""

    def __init__(
        self,
        model: str | Path,
        *,
        architectures: Sequence[str] = ("mono",),
        revision: str | None = None,
        form: Form | None = None,
        device: Device = "auto",
        precision: Precision = "auto",
        workers: int | None = None,
    ) -> None:
        for name, value, choices in (
            ("device", device, Device),
            ("precision", precision, Precision),
            ("form", "default" if form is None else form, Form),
        ):
            if value not in get_args(choices):
                raise InputError(f"no {name} {value!r}", remedy=f"use {', '.join(get_args(choices))}")
        if workers is not None and workers < 1:
            raise InputError(f"{workers} processor cores", remedy="use at least 1")
        # as requested: None is the model's own form, which is known only after loading
        self.model, self.revision, self.form = str(model), revision, form
        self.device, self.precision, self.workers = device, precision, workers
        self.architectures = tuple(architectures)
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._checkpoint: Checkpoint | None = None
        self._tokenizer: Tokenizer | None = None
        self._fingerprint = ""  # of the stored checkpoint

    @classmethod
    def over(cls, checkpoint: Checkpoint, backend: Backend) -> Self:
        """A scorer with weights in memory, for use during training."""
        scorer = cls(checkpoint.folder, architectures=(checkpoint.architecture.name,))
        scorer._checkpoint, scorer._fingerprint = checkpoint, checkpoint.fingerprint
        scorer._engine = Engine(backend, checkpoint.architecture.shape())
        return scorer

    @property
    def checkpoint(self) -> Checkpoint:
        """The model, read as one of the requested architectures."""
        with self._lock:
            if self._checkpoint is None:
                stored = open_model(self.model, self.revision)
                self._fingerprint = stored.fingerprint
                self._checkpoint = self._as_asked(stored)
            return self._checkpoint

    def _as_asked(self, stored: Checkpoint) -> Checkpoint:
        kind = stored.architecture
        if kind.name not in self.architectures:
            able = (architecture(name) for name in self.architectures)
            wanted = next((each for each in able if kind.name in each.reads), None)
            if wanted is None:
                raise InputError(
                    f"{self.model} holds a {kind.kind} model",
                    remedy=f'write {kind.stage}(model="{self.model}")',
                )
            stored = wanted.adopted(stored)
        if type(stored.architecture) is Mono:
            return in_form(stored, self.form or stored.architecture.form)
        return stored

    @property
    def architecture(self) -> Architecture:
        return self.checkpoint.architecture

    @property
    def tokenizer(self) -> Tokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = open_tokenizer(self.checkpoint)
            return self._tokenizer

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._engine is None:
                backend = open_backend(self.checkpoint, self.device, self.precision, self.workers)
                self._engine = Engine(backend, self.architecture.shape())
            return self._engine

    @property
    def fingerprint(self) -> str:
        """Identifies everything that a score depends on: weights, tokenizer, form of the inputs and
        arithmetic."""
        form, numerics = form_of(self.checkpoint), self.engine.backend.numerics  # loads the checkpoint
        return f"{self._fingerprint} {form} {numerics}"

    @property
    def description(self) -> str:
        return self.engine.backend.description

    def reading(self, query_limit: int, limit: int) -> Reading:
        """What the model's inputs are built with, for these limits."""
        return Reading(self.tokenizer.special, self.checkpoint.config, query_limit, limit, self.tokenizer)

    def inferences(self, inputs: Inputs) -> Array:
        """How many inferences each input counts as: for a document, one per passage."""
        return self.architecture.inferences(inputs, self.tokenizer.special)

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """The scores of each input: one number, or one per text of the input."""
        with cores(self.workers if self.engine.backend.on_torch_threads else None):
            return self.engine.margins(inputs, progress)

    def walk(self, inputs: Inputs, keep: Keep) -> Array:
        """The margins of one query's candidates at each exit: see `tamis.infer.engine.Engine.walk`."""
        return self.engine.walk(inputs, keep)


def open_backend(
    checkpoint: Checkpoint, device: Device = "auto", precision: Precision = "auto", workers: int | None = None
) -> Backend:
    """Open the backend for a device and a precision."""
    kind = checkpoint.architecture
    place = device if kind.needs_torch else torch_device(device, precision)
    if place is None:
        from tamis.infer.onnx_backend import OnnxBackend

        return OnnxBackend(checkpoint, precision, workers)
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"a {kind.kind} model needs torch, which is not installed", remedy=install("torch")
        )
    from tamis.infer.torch_backend import TorchBackend

    return TorchBackend(checkpoint, device=place, precision=precision)


def torch_device(device: Device, precision: Precision) -> Device | None:
    """The device for torch, or None for the processor with ONNX Runtime, which does not need torch.

    >>> torch_device("cpu", "auto") is torch_device("cpu", "fp32") is torch_device("auto", "int8") is None
    True
    """
    if device == "auto":
        device = "cuda" if cuda_present() and precision != "int8" else "cpu"
    if device == "cpu" and precision in ("auto", "int8", "fp32"):
        return None
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"device {device} with precision {precision} needs torch, which is not installed",
            remedy=f"{install('torch')}, or use device=cpu with int8 or fp32",
        )
    return device


@lru_cache(maxsize=1)
def cuda_present() -> bool:
    """Whether torch can use a CUDA GPU; torch is not imported on a machine without the driver."""
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError:
        return False
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
