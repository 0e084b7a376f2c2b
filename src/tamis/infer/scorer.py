"""A model ready to score: its tokenizer, its weights on a device, and the tally of the work done.

Which device and precision, unless told: a CUDA card in bf16 where there is one and torch is installed, else
the processor in int8 by ONNX Runtime, which needs no torch. A model that has no ONNX graph needs torch.
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
    """What scoring took: inputs that went through the model, inputs found in a cache, and what was cut."""

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
    """A model of one of some `architectures`, ready to score inputs; loaded when first used, and safe to
    share between threads."""

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
        # as it was asked for: a form of None is the model's own, which is known when it is loaded
        self.model, self.revision, self.form = str(model), revision, form
        self.device, self.precision, self.workers = device, precision, workers
        self.architectures = tuple(architectures)
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._checkpoint: Checkpoint | None = None
        self._tokenizer: Tokenizer | None = None
        self._fingerprint = ""  # of the checkpoint as it is stored

    @classmethod
    def over(cls, checkpoint: Checkpoint, backend: Backend) -> Self:
        """A scorer of weights in memory, as they are while they are trained."""
        scorer = cls(checkpoint.folder, architectures=(checkpoint.architecture.name,))
        scorer._checkpoint, scorer._fingerprint = checkpoint, checkpoint.fingerprint
        scorer._engine = Engine(backend, checkpoint.architecture.shape())
        return scorer

    @property
    def checkpoint(self) -> Checkpoint:
        """The model, read as one of the architectures that were asked for."""
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
        """The weights, the tokenizer, the form of the inputs and the arithmetic: what a score depends on."""
        form, numerics = form_of(self.checkpoint), self.engine.backend.numerics  # which load it
        return f"{self._fingerprint} {form} {numerics}"

    @property
    def description(self) -> str:
        return self.engine.backend.description

    def reading(self, query_limit: int, limit: int) -> Reading:
        """What the model's inputs are made with, at such limits."""
        return Reading(self.tokenizer.special, self.checkpoint.config, query_limit, limit, self.tokenizer)

    def inferences(self, inputs: Inputs) -> Array:
        """How many inferences each input is: of a document one a passage."""
        return self.architecture.inferences(inputs, self.tokenizer.special)

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """What the model says of each input: a number, or for each of the texts that it has one."""
        with cores(self.workers if self.engine.backend.on_torch_threads else None):
            return self.engine.margins(inputs, progress)

    def walk(self, inputs: Inputs, keep: Keep) -> Array:
        """The margins of one query's candidates at each exit: see `tamis.infer.engine.Engine.walk`."""
        return self.engine.walk(inputs, keep)


def open_backend(
    checkpoint: Checkpoint, device: Device = "auto", precision: Precision = "auto", workers: int | None = None
) -> Backend:
    """The backend that a device and a precision ask for."""
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
    """The device that torch is to use; None where it is the processor by ONNX Runtime, which needs no torch.

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
    """Whether torch could use a CUDA card; a machine without the driver is not made to import torch."""
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(driver)
    except OSError:
        return False
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
