"""A checkpoint ready to score: its tokenizer, its weights on a device, and the tally of the work done.

Which device and precision, unless told: a CUDA card in bf16 where there is one and torch is installed, else
the processor in int8 by ONNX Runtime, which needs no torch.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError, MissingDependencyError
from tamis.core.runtime import Device, Precision
from tamis.infer.engine import Backend, Engine, Progress
from tamis.models.checkpoint import CONFIG, Checkpoint, load_checkpoint
from tamis.models.long_plan import PLAN, is_long, read_plan
from tamis.models.templates import ABLATED, Form, Inputs, Truncation, ablated
from tamis.models.tokenizer import Tokenizer, open_tokenizer
from tamis.storage.files import is_there

BUNDLED = Path(__file__).parents[1] / "models_data"
#: In the folder of a bundled model: what `Checkpoint.fingerprint` was when it was bundled.
FINGERPRINT = "fingerprint.txt"


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


class CrossEncoder:
    """Scores inputs; loaded when first used, and safe to share between threads."""

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        form: Form | None = "default",
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
        # as it was asked for: None is the model's own, which is known when it is loaded
        self.model, self.revision, self.form = str(model), revision, form
        self.device, self.precision, self.workers = device, precision, workers
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._checkpoint: Checkpoint | None = None
        self._tokenizer: Tokenizer | None = None

    @property
    def checkpoint(self) -> Checkpoint:
        with self._lock:
            if self._checkpoint is None:
                self._checkpoint = _load(self.model, self.revision)
            return self._checkpoint

    @property
    def input_form(self) -> Form:
        """The form that is asked for, or else the one that the model was trained in."""
        return self.checkpoint.config.form if self.form is None else self.form

    @property
    def scoring(self) -> Checkpoint:
        """The checkpoint as it scores: without the table of embeddings that its form does without."""
        checkpoint, form = self.checkpoint, self.input_form
        if checkpoint.config.texts:  # its head on the [CLS] was never trained
            raise InputError(
                f"{self.model} is a listwise model", remedy=f'write listwise(model="{self.model}")'
            )
        if form not in ABLATED:
            return checkpoint
        return replace(
            checkpoint,
            tensors=ablated(checkpoint.tensors, form),
            fingerprint=f"{checkpoint.fingerprint}-{form}",
        )

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
                backend = open_backend(self.scoring, self.device, self.precision, self.workers)
                self._engine = Engine(backend)
            return self._engine

    @property
    def fingerprint(self) -> str:
        """The weights, the tokenizer, the form of the inputs and the arithmetic: what a score depends on."""
        return f"{self.checkpoint.fingerprint} {self.input_form} {self.engine.backend.numerics}"

    @property
    def description(self) -> str:
        return self.engine.backend.description

    @property
    def positions(self) -> int:
        """How many tokens an input may have."""
        return self.checkpoint.config.max_length

    def margins(self, inputs: Inputs, progress: Progress | None = None) -> Array:
        """The margin of each input: its logit, or with two labels the second less the first."""
        return self.engine.margins(inputs, progress)


def open_backend(
    checkpoint: Checkpoint, device: Device = "auto", precision: Precision = "auto", workers: int | None = None
) -> Backend:
    """The backend that a device and a precision ask for."""
    place = torch_device(device, precision)
    if place is None:
        from tamis.infer.onnx_backend import OnnxBackend

        return OnnxBackend(checkpoint, precision, workers)
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
            f"{device} in {precision} needs torch, which is not installed",
            remedy="pip install 'tamis[torch]', or use device=cpu with int8 or fp32",
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


def bundled_models() -> list[str]:
    """The models that come with tamis.

    >>> bundled_models()
    ['duo', 'mono', 'mono-nano', 'mono-tiny']
    """
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


@lru_cache(maxsize=1)
def bundled_tokenizer() -> Tokenizer:
    """The tokenizer that the models share which come with tamis: one store of tokens serves them all.

    >>> bundled_tokenizer().encode(["a sieve"]).ids.tolist()
    [1037, 9033, 18697]
    """
    return Tokenizer(BUNDLED / "mono")


def bundled_folder(model: str) -> Path | None:
    """The folder of a bundled model, unless the working directory has a model of that name. A file, or a
    folder of something else, is none.

    >>> bundled_folder("mono").name, bundled_folder("cross-encoder/ms-marco-MiniLM-L6-v2")
    ('mono', None)
    """
    bundled = BUNDLED / model
    named = "/" not in model and "\\" not in model and not holds_model(model)
    return bundled if named and is_there(bundled / CONFIG) else None


def holds_model(folder: str | Path) -> bool:
    """Whether a folder has a model in it, or a training run, of which one of the models can be named.

    >>> holds_model(getfixture("tmp_path")), holds_model(BUNDLED / "mono")
    (False, True)
    """
    return any(is_there(Path(folder, name)) for name in (CONFIG, PLAN, f"best/{CONFIG}", f"last/{CONFIG}"))


def load_bundled(folder: Path) -> Checkpoint:
    """A bundled model, which is refused unless it is what it was when it was bundled."""
    checkpoint, path = load_checkpoint(folder), folder / FINGERPRINT
    if is_there(path) and path.read_text(encoding="utf-8").strip() != checkpoint.fingerprint:
        raise CorruptError(f"the bundled model in {folder} is damaged", remedy="install tamis again")
    return checkpoint


def _load(model: str, revision: str | None) -> Checkpoint:
    bundled = bundled_folder(model)
    if bundled is not None:
        return load_bundled(bundled)
    if model in ("cascade", "listwise") and not holds_model(model):
        raise InputError(
            f"no model is bundled under the name {model!r}",
            remedy=f"name one: {model}(model=FOLDER), or a name on the hub",
        )
    if is_long(model):
        kind = read_plan(model).kind
        raise InputError(
            f"{model} is a model of long documents ({kind})",
            remedy="use parade(model=FOLDER) or cedr(model=FOLDER)",
        )
    return load_checkpoint(model, revision)
