"""The encoder on the processor, by ONNX Runtime: needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError
from tamis.base.processes import available_cores
from tamis.infer.engine import Layout
from tamis.infer.graph_cache import kept_graph
from tamis.models.checkpoint import Checkpoint
from tamis.models.config import EncoderConfig
from tamis.models.templates import Inputs
from tamis.storage.files import atomic_write, unreadable

if TYPE_CHECKING:
    from tamis.models.graph import Precision

#: Tokens a batch: as many as keep what a layer computes inside a core's cache.
TOKEN_BUDGET = 512
#: Goes up when graphs are written otherwise, so that neither old files nor old scores are used.
FORMAT = "6"
_MADE_FROM, _FORMAT, _CHECKSUM = "tamis.checkpoint", "tamis.format", "tamis.checksum"
_DIGITS = 32  # of a checksum


class OnnxRuntime:
    """What all models have in common that run in ONNX Runtime.

    Every worker runs batches of its own on one thread: batches are small, and scores do not depend on how
    many workers there are.
    """

    layout: Layout = "equal"
    token_budget = TOKEN_BUDGET

    def __init__(self, config: EncoderConfig, precision: str = "auto", workers: int | None = None) -> None:
        if precision == "auto":
            precision = "int8"
        if precision not in ("int8", "fp32"):
            raise InputError(f"no precision {precision!r} on the processor", remedy="use int8 or fp32")
        self.precision: Precision = precision  # type: ignore[assignment]
        self.config = config
        self.workers = workers or available_cores()

    @property
    def description(self) -> str:
        cores = "1 core" if self.workers == 1 else f"{self.workers} cores"
        return f"ONNX Runtime, {self.precision}, {cores}"

    @property
    def numerics(self) -> str:
        return f"onnx-{self.precision}-{FORMAT}"

    def _margins(self, logits: Array) -> Array:
        margins: Array = logits[:, 0] if self.config.labels == 1 else logits[:, 1] - logits[:, 0]
        return margins


class OnnxBackend(OnnxRuntime):
    """A checkpoint in ONNX Runtime: from its exported graph where the folder has one, else from its
    weights."""

    def __init__(self, checkpoint: Checkpoint, precision: str = "auto", workers: int | None = None) -> None:
        super().__init__(checkpoint.config, precision, workers)
        exported = checkpoint.folder / f"model.{self.precision}.onnx"
        session = _exported_session(exported, checkpoint) if exported.exists() else None
        self._session = open_session(_graph(checkpoint, self.precision)) if session is None else session

    def margins(self, inputs: Inputs) -> Array:
        (logits,) = self._session.run(None, tokens(inputs))
        return self._margins(logits)


def tokens(inputs: Inputs) -> dict[str, Array]:
    """What graphs take of inputs of one length.

    >>> inputs = Inputs(np.array([1, 7, 2, 1, 8, 2]), np.zeros(6, np.uint8), np.array([0, 3, 6]))
    >>> tokens(inputs)["ids"].tolist()
    [[1, 7, 2], [1, 8, 2]]
    """
    count = len(inputs)
    return {
        "ids": np.ascontiguousarray(inputs.ids, np.int32).reshape(count, -1),
        "segments": inputs.segments.astype(np.int32).reshape(count, -1),
    }


def export(checkpoint: Checkpoint, precision: Precision = "int8", folder: Path | None = None) -> Path:
    """Write the checkpoint's graph into its folder (or another), where it is found and loads faster."""
    path = (folder or checkpoint.folder) / f"model.{precision}.onnx"
    with atomic_write(path, "wb") as stream:
        graph = _graph(checkpoint, precision)
        stream.write(graph + _seal(graph))
    return path


def _seal(graph: bytes) -> bytes:
    """The checksum of a graph as one more entry of its metadata (`metadata_props`, field 14 of ONNX's
    ModelProto): protocol buffers may be written one after the other, so that graph and seal are a graph."""
    key, value = _CHECKSUM.encode(), xxhash.xxh3_128_hexdigest(graph).encode()
    entry = bytes([0x0A, len(key)]) + key + bytes([0x12, len(value)]) + value
    return bytes([0x72, len(entry)]) + entry


def _exported_session(path: Path, checkpoint: Checkpoint) -> Any | None:
    """An exported graph, ready to run; None where it is of other weights, or of another version that writes
    graphs otherwise or without a checksum."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    size = len(_seal(b""))
    graph, seal = content[:-size], content[-size:]
    sealed = seal[:-_DIGITS] == _seal(b"")[:-_DIGITS]
    if sealed and seal != _seal(graph):
        raise _damaged(path, "its checksum is wrong")
    session = open_session(content, path)
    return session if sealed and _made_from(session, checkpoint) else None


def _damaged(path: Path, reason: str) -> CorruptError:
    return CorruptError(f"{path}: {reason}", remedy="delete it, or run `tamis export` again")


def open_session(graph: bytes, path: Path | None = None) -> Any:
    """A graph ready to run; `path` is the file that it comes from."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # the graph is written as it should run: higher levels join additions and norms, which is slower
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no common base
        if path is None:
            raise
        raise _damaged(path, str(error).splitlines()[0]) from error


def _made_from(session: Any, checkpoint: Checkpoint) -> bool:
    """Whether an exported graph is of these very weights: the folder's may have changed since."""
    made = session.get_modelmeta().custom_metadata_map
    return (made.get(_MADE_FROM), made.get(_FORMAT)) == (checkpoint.fingerprint, _format())


def _format() -> str:
    """How graphs are written here: those of another kind of processor would be slow, or wrong."""
    from tamis.models.saturation import products_saturate

    return f"{FORMAT}-unsigned" if products_saturate() else FORMAT


def _graph(checkpoint: Checkpoint, precision: Precision) -> bytes:
    """The graph of a checkpoint; those of the models that come with tamis are kept for the next process."""
    from tamis.infer.scorer import BUNDLED

    if checkpoint.folder.parent != BUNDLED:
        return _written(checkpoint, precision)
    key = f"{checkpoint.folder.name}-{checkpoint.fingerprint}-{precision}-{_format()}"
    return kept_graph(key, lambda: _written(checkpoint, precision))


def _written(checkpoint: Checkpoint, precision: Precision) -> bytes:
    from onnx.helper import set_model_props

    from tamis.models.graph import build_graph

    model = build_graph(checkpoint.config, checkpoint.tensors, precision)
    set_model_props(model, {_MADE_FROM: checkpoint.fingerprint, _FORMAT: _format()})
    graph: bytes = model.SerializeToString()
    return graph
