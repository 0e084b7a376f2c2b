"""The encoder as an ONNX graph, in fp32 or int8, built directly from the weights, without torch or tracing.

The graph takes inputs of one length, `ids` and `segments` [batch, length], so it has neither padding nor a
mask, and returns `logits` [batch, labels]. The last layer computes only the [CLS] row, since the head reads
nothing else: this is exact, and saves ten twelfths of that layer.

A model with exits has one graph for each part between two exits: each part passes `states` [batch, length,
hidden] to the next part, and returns the `logits` of its exit. A listwise model returns `scores` [batch,
length].

int8: weights have one scale per output channel, activations one scale per token, computed at run time. The
more usual single scale per batch makes a score depend on the other texts in its batch, and is coarser. Sums
of products of small integers are exact, so the int8 scores are bit-identical for every batch and processor:
where sums of signed products saturate, weights are unsigned too (`tamis.models.saturation`). Two methods keep
the rounding of activations small. The output of a norm has a few channels that are far larger than the
others: they are divided by a factor, and the weights are multiplied by it (SmoothQuant, Xiao et al. 2023;
here computed from the norm's own weights, without calibration texts). And the output of the activation
function is hardly ever negative, so its zero point is near the end of the scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from tamis.base.arrays import Array
from tamis.models.config import EncoderConfig
from tamis.models.quantise import Rounded, channel_factors, per_row
from tamis.models.saturation import products_saturate

Precision = Literal["fp32", "int8"]
OPSET = 21
#: onnxruntime's own operators: fused attention, and integer products with a scaled output.
_EXTENSIONS = "com.microsoft"
#: Activations are unsigned with this zero point: the fast products of processors need one unsigned operand.
_MIDDLE = 128
_NEAR_END = 16  # the zero point of values that are hardly ever negative
#: The names of the input and output states of a part of the layers.
BEFORE, _AFTER = "states_before", "states"
_Shape = Sequence[str | int | None]
_TOKENS: _Shape = ("batch", "length")
_LOWEST = {"gelu": 0.17005, "gelu_tanh": 0.17005, "relu": 0.0}  # minus the minimum of the activation function


def build_graph(config: EncoderConfig, tensors: Mapping[str, Array], precision: Precision) -> onnx.ModelProto:
    """Build an ONNX model that contains the weights."""
    return build_part(config, tensors, precision, 0, config.layers, "head")


def build_part(
    config: EncoderConfig,
    tensors: Mapping[str, Array],
    precision: Precision,
    start: int,
    stop: int,
    head: str,
) -> onnx.ModelProto:
    """Build layers `start` to `stop` - 1 and the head with this name. The input is tokens if the part begins
    with the first layer, else the states of the part below. The output is the logits, and the states if there
    are layers above."""
    g = _writer(config, tensors, precision)
    x, rows = _begun(g, config, start)
    x = _layers(g, config, x, rows, start, stop, first_only=stop == config.layers)
    made: dict[str, _Shape] = {"logits": ["batch", config.labels]}
    if stop < config.layers:
        g.node("Reshape", x, rows.sequences, name=_AFTER)
        x, made = _first(g, x, rows, config), made | {_AFTER: [*_TOKENS, config.hidden]}
    _logits(g, config, x, rows, head)
    return _model(g, config, start, made)


def build_token_scores(
    config: EncoderConfig, tensors: Mapping[str, Array], precision: Precision, head: str
) -> onnx.ModelProto:
    """Build all layers, and a linear head with one output that scores each token: `scores` [batch,
    length]."""
    g = _writer(config, tensors, precision)
    x, rows = _begun(g, config, 0)
    x = _layers(g, config, x, rows, 0, config.layers)
    # row by row: a matrix product would round differently for a batch of one row, see below
    x = g.node("ReduceSum", g.node("Mul", x, g.weight(f"{head}.weight")), g.numbers(1), keepdims=0)
    scores = g.node("Add", x, g.weight(f"{head}.bias"))
    g.node("Reshape", scores, g.node("Shape", "ids"), name="scores")
    return _model(g, config, 0, {"scores": _TOKENS})


def _writer(config: EncoderConfig, tensors: Mapping[str, Array], precision: Precision) -> _Writer:
    # rounded as in an int8 checkpoint, so that the graph is the same from that checkpoint and from the
    # original
    return _Quantised(Rounded(config, tensors)) if precision == "int8" else _Writer(tensors)


def _model(g: _Writer, config: EncoderConfig, start: int, made: Mapping[str, _Shape]) -> onnx.ModelProto:
    taken = {"ids": _TOKENS, "segments": _TOKENS}
    if start:
        taken = {BEFORE: [*_TOKENS, config.hidden]}
    kind = TensorProto.FLOAT if start else TensorProto.INT32
    graph = helper.make_graph(
        g.nodes,
        "tamis",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in taken.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in made.items()],
        g.initializers,
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(_EXTENSIONS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="tamis")


class _Writer:
    """Collects nodes and weights; every method returns the name of what it computes."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = tensors
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: set[str] = set()

    def node(self, operator: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> str:
        output = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], domain=domain, **attributes))
        return output

    def constant(self, name: str, value: ArrayLike) -> str:
        """A weight by name, written only once even if it is used several times (ALBERT's layers share
        theirs)."""
        if name not in self._constants:
            self._constants.add(name)
            self.initializers.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, np.asarray(self.tensors[name], dtype=np.float32))

    def numbers(self, *values: int) -> str:
        """Whole numbers as a vector: shapes, axes, indices."""
        return self.constant("numbers_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def rows(self, table: str, places: str) -> str:
        return self.node("Gather", self.weight(table), places)

    def operand(self, x: str, norm: str = "", activation: str = "") -> Any:
        """Prepare a matrix [rows, width] for products; one operand can be used for several products. `norm`
        or `activation` names what has computed it."""
        return x

    def product(self, x: Any, name: str) -> str:
        """x W^T for an operand."""
        weights = np.asarray(self.tensors[f"{name}.weight"], np.float32)
        return self.node("MatMul", x, self.constant(f"{name}.weight", weights.T))

    def linear(self, x: Any, name: str) -> str:
        """x W^T + b for an operand."""
        return self.node("Add", self.product(x, name), self.weight(f"{name}.bias"))

    def plain_linear(self, x: str, name: str) -> str:
        """The same in fp32, where int8 gains little."""
        return self.node("Add", _Writer.product(self, x, name), self.weight(f"{name}.bias"))

    def rows_changed(self) -> None:
        """Called when the number of rows changes."""

    def norm(self, x: str, name: str, epsilon: float) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def activation(self, x: str, name: str) -> str:
        if name == "gelu_tanh":
            return self.node("Gelu", x, approximate="tanh")
        return self.node({"gelu": "Gelu", "relu": "Relu", "tanh": "Tanh"}[name], x)


class _Quantised(_Writer):
    """The same with products of integers."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        super().__init__(tensors)
        self._zeros: dict[int, str] = {}  # one zero point per row

    def rows(self, table: str, places: str) -> str:
        if table != "embeddings.word":
            return super().rows(table, places)
        quantised, scales = per_row(np.asarray(self.tensors[table], np.float32))
        small = self.node("Gather", self.constant(table, quantised), places)
        scale = self.node("Gather", self.constant(f"{table}.scale", scales[:, None]), places)
        return self.node("Mul", self.node("Cast", small, to=TensorProto.FLOAT), scale)

    def operand(self, x: str, norm: str = "", activation: str = "") -> _Operand:
        factors = None
        if activation:
            zero, steps, least = _NEAR_END, 255 - _NEAR_END, _LOWEST[activation] / _NEAR_END
            largest = self.node("ReduceMax", x, self.numbers(1), keepdims=0)
        else:
            zero, steps, least = _MIDDLE, 127, 1e-20  # a row of zeros must not divide by zero
            if norm:
                factors = channel_factors(self.tensors[f"{norm}.weight"], self.tensors[f"{norm}.bias"])
                x = self.node("Mul", x, self.constant(f"{norm}.smooth", 1 / factors))
            largest = self.node("ReduceMax", self.node("Abs", x), self.numbers(1), keepdims=0)
        step = self.node("Mul", largest, self.constant(f"step_{steps}", np.float32(1 / steps)))
        scale = self.node("Max", step, self.constant(f"least_{least:.3g}", np.float32(max(least, 1e-20))))
        middle = self.constant(f"zero_{zero}", np.uint8(zero))
        if zero not in self._zeros:
            self._zeros[zero] = self.node("Expand", middle, self.node("Shape", scale))
        quantised = self.node("QuantizeLinear", x, scale, self._zeros[zero], axis=0)
        return _Operand(quantised, self.node("Unsqueeze", scale, self.numbers(1)), middle, norm, factors)

    def product(self, x: Any, name: str) -> str:
        weights = np.asarray(self.tensors[f"{name}.weight"], np.float32)
        quantised, scales = per_row(weights if x.factors is None else weights * x.factors)
        # a layer of ALBERT is multiplied with the outputs of several norms
        own = f"{name}.{x.norm}" if x.norm else name
        steps, zero = quantised.T, []
        if products_saturate():
            steps = (steps.astype(np.int16) + _MIDDLE).astype(np.uint8)
            zero = [self.constant(f"zero_{_MIDDLE}", np.uint8(_MIDDLE))]
        product = self.node(
            "MatMulIntegerToFloat",
            x.quantised,
            self.constant(f"{own}.weight", steps),
            self.constant("one", np.float32(1)),
            self.constant(f"{own}.scale", scales),
            x.zero,
            *zero,
            domain=_EXTENSIONS,
        )
        return self.node("Mul", product, x.scale)

    def rows_changed(self) -> None:
        self._zeros.clear()


class _Operand(NamedTuple):
    """A quantised matrix: its rows' scales, its zero point, the norm that it is the output of, and the
    factors that its channels were divided by."""

    quantised: str
    scale: str
    zero: str
    norm: str
    factors: Array | None


class _Rows(NamedTuple):
    """The number of inputs, and the shape [batch, length, hidden] of all their rows."""

    batch: str
    sequences: str


def _begun(g: _Writer, config: EncoderConfig, start: int) -> tuple[str, _Rows]:
    """The input of a layer, one row per token."""
    shape = g.node("Shape", BEFORE if start else "ids")
    batch = g.node("Gather", shape, g.numbers(0))
    sequences = g.node("Concat", batch, g.numbers(-1), g.numbers(config.hidden), axis=0)
    x = BEFORE if start else _embeddings(g, config, g.node("Gather", shape, g.numbers(1)))
    return _flat(g, config, x), _Rows(batch, sequences)


def _layers(
    g: _Writer,
    config: EncoderConfig,
    x: str,
    rows: _Rows,
    start: int,
    stop: int,
    first_only: bool = False,
) -> str:
    """The output of layers `start` to `stop` - 1 for the rows `x`; with `first_only`, the last of them
    computes only the [CLS] rows."""
    for number in range(start, stop):
        layer, norm = f"layers.{config.group(number)}", _norm_before(config, number)
        whole = g.operand(x, norm=norm)
        key, value = (g.product(whole, f"{layer}.attention.{which}") for which in ("key", "value"))
        if first_only and number == stop - 1:
            x = _first(g, x, rows, config)
            g.rows_changed()
            whole = g.operand(x, norm=norm)
        query = g.linear(whole, f"{layer}.attention.query")
        parts = [g.node("Reshape", part, rows.sequences) for part in (query, key, value)]
        seen = g.node("MultiHeadAttention", *parts, domain=_EXTENSIONS, num_heads=config.heads)
        seen = g.product(g.operand(_flat(g, config, seen)), f"{layer}.attention.output")
        seen = g.node("Add", seen, g.constant(f"{layer}.attention.bias", _attention_bias(g.tensors, layer)))
        norm = f"{layer}.attention.norm"
        x = g.norm(g.node("Add", seen, x), norm, config.norm_epsilon)
        up = g.linear(g.operand(x, norm=norm), f"{layer}.feed_forward.up")
        up = g.operand(g.activation(up, config.activation), activation=config.activation)
        x = g.node("Add", g.linear(up, f"{layer}.feed_forward.down"), x)
        x = g.norm(x, f"{layer}.feed_forward.norm", config.norm_epsilon)
    return x


def _norm_before(config: EncoderConfig, number: int) -> str:
    """The norm whose output is the input of a layer, if there is one."""
    if number:
        return f"layers.{config.group(number - 1)}.feed_forward.norm"
    return "" if config.projected else "embeddings.norm"


def _flat(g: _Writer, config: EncoderConfig, x: str) -> str:
    return g.node("Reshape", x, g.numbers(-1, config.hidden))


def _first(g: _Writer, x: str, rows: _Rows, config: EncoderConfig) -> str:
    """The rows of the first tokens."""
    place = g.constant("first", np.int64(0))
    return _flat(g, config, g.node("Gather", g.node("Reshape", x, rows.sequences), place, axis=1))


def _logits(g: _Writer, config: EncoderConfig, x: str, rows: _Rows, head: str) -> None:
    # the library computes the product of a single row differently, with other rounding: never pass one row
    x = g.node("Concat", x, x, axis=0)
    dense = g.activation(g.plain_linear(x, f"{head}.dense"), config.head_activation)
    logits = g.plain_linear(dense, f"{head}.output")  # small, so fp32, as the projection of embeddings
    g.node("Slice", logits, g.numbers(0), rows.batch, g.numbers(0), name="logits")


def _attention_bias(tensors: Mapping[str, Array], layer: str) -> Array:
    """The biases of value and output combined; the keys need none. Attention computes a mean of values with
    weights that sum to one, so a value's bias passes through to the output. A key's bias adds the same number
    to all scores of a token, which does not change the softmax."""
    of = f"{layer}.attention"
    gathered = np.asarray(tensors[f"{of}.output.weight"], np.float64) @ tensors[f"{of}.value.bias"]
    return np.asarray(tensors[f"{of}.output.bias"] + gathered, dtype=np.float32)


def _embeddings(g: _Writer, config: EncoderConfig, length: str) -> str:
    first = g.numbers(config.first_position)
    last = g.node("Add", length, first)
    x = g.rows("embeddings.word", "ids")
    x = g.node("Add", x, g.node("Slice", g.weight("embeddings.position"), first, last, g.numbers(0)))
    if config.segments:
        x = g.node("Add", x, g.rows("embeddings.segment", "segments"))
    x = g.norm(x, "embeddings.norm", config.norm_epsilon)
    return g.plain_linear(x, "embeddings.project") if config.projected else x
