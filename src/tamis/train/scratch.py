"""An untrained model: random weights in the shape of another model, or with other sizes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.architectures.mono import Mono
from tamis.models.checkpoint import CONFIG, TOKENIZER, Checkpoint
from tamis.models.config import parse_config, read_raw_config
from tamis.models.names import Shape, shapes
from tamis.models.record import read_record
from tamis.models.weights import LazyTensors

_DEVIATION = 0.02  # BERT's initializer_range
_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "feed_forward": "intermediate_size",
}
_DISTILBERT_SIZES = {"layers": "n_layers", "hidden": "dim", "heads": "n_heads", "feed_forward": "hidden_dim"}


def from_scratch(
    folder: str | Path,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    feed_forward: int | None = None,
    labels: int | None = None,
    seed: int = 0,
) -> Checkpoint:
    """A checkpoint of random weights, drawn from `seed`, with the tokenizer of the model in `folder` and,
    where no size is set, its shape. That model's weights, if any, are not read; the form of its inputs is.

    >>> from_scratch(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    folder = Path(folder)
    raw = read_raw_config(folder / CONFIG)
    model = read_record(raw, parse_config(raw, folder / CONFIG), (), folder)
    names = _DISTILBERT_SIZES if raw.get("model_type") == "distilbert" else _SIZES
    given = {"layers": layers, "hidden": hidden, "heads": heads, "feed_forward": feed_forward}
    raw = raw | {names[size]: value for size, value in given.items() if value is not None}
    if hidden is not None or heads is not None:
        width, count = raw.get(names["hidden"]), raw.get(names["heads"])
        if isinstance(width, int) and isinstance(count, int) and width % count:
            raise InputError(
                f"a hidden size of {width} does not divide into {count} heads",
                remedy="give hidden and heads that go together",
            )
    config = parse_config(raw, folder / CONFIG, labels=labels)
    described = f"{config} {seed} {read_raw_config(folder / TOKENIZER)}"
    readers = {
        name: partial(_drawn, name, shape, seed, number)
        for number, (name, shape) in enumerate(shapes(config).items())
    }
    fingerprint = xxhash.xxh3_64(described.encode()).hexdigest()
    kind = model if isinstance(model, Mono) else Mono()
    return Checkpoint(folder, config, LazyTensors(readers), fingerprint, raw, frozenset(readers), kind)


def _drawn(name: str, shape: Shape, seed: int, number: int) -> Array:
    """Draw a tensor with its own generator, so that it is the same whenever it is read."""
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    if name.endswith("norm.weight"):
        return np.ones(shape, np.float32)
    generator = np.random.default_rng([seed, number])
    return generator.normal(0.0, _DEVIATION, shape).astype(np.float32)
