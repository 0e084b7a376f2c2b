"""Runs models on the processor with ONNX Runtime, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tamis.base.arrays import Array, Layout, batches
from tamis.base.errors import CorruptError, InputError
from tamis.base.processes import available_cores
from tamis.infer.engine import Check, no_check, side_by_side
from tamis.infer.graph_cache import kept_graph
from tamis.infer.walk import Keep, exit_margins
from tamis.models.architecture import margin
from tamis.models.bundled import BUNDLED
from tamis.models.checkpoint import Checkpoint
from tamis.models.templates import Inputs
from tamis.models.tokenizer import open_tokenizer
from tamis.storage.files import atomic_write, unreadable

if TYPE_CHECKING:
    from tamis.models.graph import Precision

#: Tokens per batch: small enough that the activations of a layer fit into a core's cache.
TOKEN_BUDGET = 512
#: Increased whenever graphs are built differently, so that neither old files nor old scores are used.
FORMAT = "6"
_MADE_FROM, _FORMAT, _CHECKSUM = "tamis.checkpoint", "tamis.format", "tamis.checksum"
_DIGITS = 32  # of a checksum


class OnnxBackend:
    """A checkpoint in ONNX Runtime: from the exported graph if its folder has one, else from its weights.

    Every worker runs its own batches on one thread: batches are small, and scores do not depend on the number
    of workers. For a model with exits, the layers between two exits are a separate graph. Between exits, the
    states of the live candidates stay in memory, and new batches of inputs of one length are formed from
    them.
    """

    layout: Layout = "equal"
    token_budget = TOKEN_BUDGET
    on_torch_threads = False

    def __init__(self, checkpoint: Checkpoint, precision: str = "auto", workers: int | None = None) -> None:
        if precision == "auto":
            precision = "int8"
        if precision not in ("int8", "fp32"):
            raise InputError(f"no precision {precision!r} on the processor", remedy="use int8 or fp32")
        self.precision: Precision = precision  # type: ignore[assignment]
        self.workers = workers or available_cores()
        self.architecture, self._special = checkpoint.architecture, open_tokenizer(checkpoint).special
        exported = checkpoint.folder / f"model.{self.precision}.onnx"
        found = self.architecture.plain and exported.exists()
        session = _exported_session(exported, checkpoint) if found else None
        self._parts = [session] if session is not None else _sessions(checkpoint, self.precision)
        self._names = _input_names(self._parts[0], self.architecture.kind)

    @property
    def description(self) -> str:
        cores = "1 core" if self.workers == 1 else f"{self.workers} cores"
        return f"ONNX Runtime, {self.precision}, {cores}"

    @property
    def numerics(self) -> str:
        return f"onnx-{self.precision}-{FORMAT}"

    def margins(self, inputs: Inputs) -> Array:
        """The scores of each input, in the form of its architecture; with exits, those of the last exit."""
        if len(self._parts) > 1:
            margins: Array = self.walk(inputs, lambda live, margins: live, self.token_budget)[:, -1]
            return margins
        outputs, *_ = self._parts[0].run(None, self._taken(tokens(inputs)))
        scores = self.architecture.scores(outputs, inputs, self._special)
        return self.architecture.rows(scores, inputs, self._special)

    def _taken(self, feed: dict[str, Array]) -> dict[str, Array]:
        """The inputs of the (first) graph, converted to its types."""
        return {name: feed[name].astype(dtype, copy=False) for name, dtype in self._names.items()}

    def walk(self, inputs: Inputs, keep: Keep, token_budget: int, wanted: Check = no_check) -> Array:
        """See `tamis.infer.engine.Backend`."""
        from tamis.models.graph import BEFORE

        states: dict[int, Array] = {}  # float32[length, hidden] of each live candidate

        def ask(exit: int, live: Array) -> Array:
            for left in states.keys() - set(live.tolist()):
                del states[left]

            def score(batch: Array) -> Array:
                wanted()
                numbers = live[batch].tolist()
                if exit == 0:
                    feed = self._taken(tokens(inputs.take(numbers)))
                else:
                    feed = {BEFORE: np.stack([states.pop(number) for number in numbers])}
                logits, *after = self._parts[exit].run(None, feed)
                for each in after:  # all parts except the last return states
                    states.update(zip(numbers, each, strict=True))
                found: Array = margin(logits)
                return found

            together = batches(inputs.lengths[live], token_budget, self.layout)
            margins = np.empty(len(live), np.float32)
            for batch, scores in zip(together, side_by_side(score, together, self.workers), strict=True):
                margins[batch] = scores
            return margins

        return exit_margins(len(inputs), len(self._parts), ask, keep, self.description)


def tokens(inputs: Inputs) -> dict[str, Array]:
    """The inputs of graphs, from inputs of one length.

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
    """Write the checkpoint's graph to its folder (or another), so that the model loads faster."""
    if not checkpoint.architecture.plain:
        raise InputError(
            f"a {checkpoint.architecture.kind} model is not a single graph", remedy="export a mono or a duo"
        )
    path = (folder or checkpoint.folder) / f"model.{precision}.onnx"
    with atomic_write(path, "wb") as stream:
        (graph,) = _graphs(checkpoint, precision)
        stream.write(graph + _seal(graph))
    return path


def _seal(graph: bytes) -> bytes:
    """The checksum of a graph as an additional entry of its metadata (`metadata_props`, field 14 of ONNX's
    ModelProto). Protocol buffers can be concatenated, so the graph followed by the seal is a valid graph."""
    key, value = _CHECKSUM.encode(), xxhash.xxh3_128_hexdigest(graph).encode()
    entry = bytes([0x0A, len(key)]) + key + bytes([0x12, len(value)]) + value
    return bytes([0x72, len(entry)]) + entry


def _exported_session(path: Path, checkpoint: Checkpoint) -> Any | None:
    """Open an exported graph; returns None if it has other weights, or if another version wrote it in another
    format or without a checksum."""
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
    """Open a graph; `path` is the file that it was read from."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # the graph is already optimised: higher levels fuse additions and norms, which is slower
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no common base
        if path is None:
            raise
        raise _damaged(path, str(error).splitlines()[0]) from error


def _made_from(session: Any, checkpoint: Checkpoint) -> bool:
    """Whether an exported graph has the weights of this checkpoint, which may have changed since the
    export."""
    made = session.get_modelmeta().custom_metadata_map
    return (made.get(_MADE_FROM), made.get(_FORMAT)) == (checkpoint.fingerprint, _format())


def _format() -> str:
    """The format of graphs on this processor: those for another type of processor would be slow, or wrong."""
    from tamis.models.saturation import products_saturate

    return f"{FORMAT}-unsigned" if products_saturate() else FORMAT


def _input_names(session: Any, kind: str) -> dict[str, type]:
    """The inputs of a graph, which must be some of `tokens`, and their types."""
    found: dict[str, type] = {
        each.name: np.int64 if "int64" in each.type else np.int32 for each in session.get_inputs()
    }
    if other := found.keys() - {"ids", "segments"}:
        raise InputError(
            f"the graph of a {kind} model takes {', '.join(sorted(other))}",
            remedy="let it take ids and segments, whole numbers [batch, length]",
        )
    return found


def _sessions(checkpoint: Checkpoint, precision: Precision) -> list[Any]:
    return [open_session(graph) for graph in _graphs(checkpoint, precision)]


def _graphs(checkpoint: Checkpoint, precision: Precision) -> list[bytes]:
    """The graphs of a checkpoint; those of the bundled models are cached."""
    if checkpoint.folder.parent != BUNDLED:
        return _written(checkpoint, precision)
    key = f"{checkpoint.folder.name}-{checkpoint.fingerprint}-{precision}-{_format()}"
    return [kept_graph(key, lambda: _written(checkpoint, precision)[0])]


def _written(checkpoint: Checkpoint, precision: Precision) -> list[bytes]:
    from onnx.helper import set_model_props

    found = []
    for model in checkpoint.architecture.graphs(checkpoint, precision):
        set_model_props(model, {_MADE_FROM: checkpoint.fingerprint, _FORMAT: _format()})
        found.append(model.SerializeToString())
    return found
