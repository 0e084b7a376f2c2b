"""Exits of an encoder: after some layers a head of its own says how relevant a text is, so that not every
text need go through all of them (cascade transformers, Soldaini & Moschitti 2020; DeeBERT, Xin et al. 2020).

At each exit the best (1 - alpha) of a query's live candidates go on, or those of which it is not sure. An
exit's head is the encoder's head once more, on the [CLS] of that layer and with weights of its own: of BERT,
a pooler and a classifier. The last exit is after the last layer, and its head is the one that every
checkpoint has. So a model with exits is an ordinary checkpoint: `mono`, transformers and whatever starts from
a checkpoint read it as one without. The other heads lie beside it in model.safetensors, as
`exits.4.dense.weight` for the exit after the fourth layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError, quoted
from tamis.models.checkpoint import (
    CONFIG,
    Checkpoint,
    checked_beside,
    load_checkpoint,
    save_checkpoint,
    stored_beside,
)
from tamis.models.config import EncoderConfig, parse_config
from tamis.models.names import Shape, shapes
from tamis.models.weights import LazyTensors, StoredTensor, WeightType

#: Heads to begin with: drawn at random, or copies of the start's own.
Heads = Literal["new", "trained"]

_PREFIX = "exits."
_DEVIATION = 0.02  # BERT's initializer_range


# -- who goes on, and what that costs
# ------------------------------------------------------------------------------------------------------------


def exit_layers(layers: int, first: int = 4, step: int = 2) -> tuple[int, ...]:
    """After which of so many layers there is an exit: the first (lambda_0), every `step` (lambda_1) from
    there on, and the last.

    >>> exit_layers(12), exit_layers(6, first=2, step=3)
    ((4, 6, 8, 10, 12), (2, 5, 6))
    """
    if not 1 <= first < layers or step < 1:
        raise InputError(
            f"exits after layer {first} and every {step} from there on, in a model of {layers} layers",
            remedy="begin before its last layer, and use a step of at least 1",
        )
    return (*range(first, layers, step), layers)


def kept(live: int, alpha: float) -> int:
    """How many of so many candidates go on: (1 - alpha) of them to the nearest, a half up, and at least one.

    >>> kept(128, 0.3), kept(45, 0.3), kept(1, 0.9)
    (90, 32, 1)
    """
    # by the decimal that was written: 0.7 * 45 is below 31.5 in double precision
    share = (1 - Fraction(str(alpha))) * live
    return min(live, max(1, math.floor(share + Fraction(1, 2))))


def live_at(candidates: int, exits: int, alpha: float) -> list[int]:
    """How many candidates reach each exit.

    >>> live_at(128, 5, 0.3)
    [128, 90, 63, 44, 31]
    """
    live = [candidates]
    while len(live) < exits:
        live.append(kept(live[-1], alpha))
    return live


def layers_run(candidates: int, layers: Sequence[int], alpha: float) -> int:
    """Through how many layers so many candidates go in all, with exits after these layers.

    >>> layers_run(128, (4, 6, 8, 10, 12), 0.3)  # 4 * 128 + 2 * (90 + 63 + 44 + 31)
    968
    """
    counts = live_at(candidates, len(layers), alpha)
    return sum(
        count * (to - since) for count, (since, to) in zip(counts, pairwise((0, *layers)), strict=True)
    )


def cost(layers: Sequence[int], alpha: float) -> float:
    """The share of the whole model's work, for candidates without number: with exits after every step of
    lambda_1 layers, (lambda_0 + lambda_1 * sum of (1 - alpha)^i) / L.

    >>> [f"{1 - cost((4, 6, 8, 10, 12), alpha):.1%}" for alpha in (0, 0.3, 0.4, 0.5)]
    ['0.0%', '37.1%', '44.9%', '51.0%']
    """
    since = enumerate(pairwise((0, *layers)))
    return math.fsum((to - after) * (1 - alpha) ** number for number, (after, to) in since) / layers[-1]


def check_alpha(alpha: float) -> None:
    """Whether it is a share of candidates that an exit can discard."""
    if not 0 <= alpha < 1:
        raise InputError(f"a cascade with alpha={alpha}", remedy="use an alpha of at least 0 and below 1")


def entropies(margins: Array) -> Array:
    """How unsure predictions are: -p ln p - (1 - p) ln (1 - p), where p is the sigmoid of the margin, which
    is the softmax of a head with two labels. From ln 2 at a margin of 0 down to 0, whichever label it is.

    >>> entropies(np.array([0.0, math.log(3), -math.log(3), 1000.0])).round(4).tolist()  # p of 1/2, 3/4, 1/4
    [0.6931, 0.5623, 0.5623, 0.0]
    """
    size = np.abs(margins.astype(np.float64))
    odds = np.exp(-size)  # of the label that is the less probable: no logarithm of a p that is 0
    return np.asarray(np.log1p(odds) + size * odds / (1 + odds))


def check_entropy(entropy: float) -> None:
    """Whether it is a threshold of entropy; one above ln 2 lets every candidate leave at the first exit."""
    if not 0 <= entropy < math.inf:
        raise InputError(f"a cascade with entropy={entropy}", remedy="use a number of at least 0")


# -- models with exits
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExitCheckpoint:
    """A model with exits: a checkpoint, whose head is the last exit's, and the other exits' heads, by names
    such as `exits.4.dense.weight`."""

    start: Checkpoint
    layers: tuple[int, ...]  # after which there is an exit; the last is the model's last
    heads: Mapping[str, Array]
    fingerprint: str  # changes whenever the scores could


def begin_exits(
    start: Checkpoint, layers: Sequence[int], heads: Heads = "new", seed: int = 0
) -> ExitCheckpoint:
    """A model to be trained, from any checkpoint. The heads before the last are drawn from `seed`, or are
    copies of the start's; those of a start that has exits after the same layers stay, unless it is to have
    another number of labels."""
    found = _stored(start.folder)
    labels = parse_config(start.raw_config, start.folder / CONFIG).labels
    if tuple(sorted(found)) == tuple(layers[:-1]) and start.config.labels == labels:
        own = _checked(start, found)
        return ExitCheckpoint(start, tuple(layers), own, start.fingerprint)
    wanted = _shapes(start.config, layers[:-1])
    if heads == "trained":
        head = {name: start.tensors[f"head.{name}"] for name in _head(start.config)}
        tensors = {name: head[name.split(".", 2)[2]] for name in wanted}
    else:
        tensors = {name: _drawn(name, shape, seed) for name, shape in wanted.items()}
    digest = xxhash.xxh3_64_hexdigest(f"{start.fingerprint} {tuple(layers)} {heads} {seed}".encode())
    return ExitCheckpoint(start, tuple(layers), tensors, digest)


def load_exits(name_or_folder: str | Path, revision: str | None = None) -> ExitCheckpoint:
    """A model with exits, from a folder or from the hub.

    >>> load_exits(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    return exits_of(load_checkpoint(name_or_folder, revision), name_or_folder)


def exits_of(start: Checkpoint, name: str | Path) -> ExitCheckpoint:
    """A checkpoint with the exits that lie beside it; `name` is what an error calls it."""
    found = _stored(start.folder)
    if not found:
        raise InputError(
            f"{name} has no exits",
            remedy=f'rank with mono(model="{name}"), or train some by a recipe with [cascade]',
        )
    heads = _checked(start, found)
    return ExitCheckpoint(start, (*sorted(found), start.config.layers), heads, start.fingerprint)


def save_exits(checkpoint: ExitCheckpoint, folder: str | Path, dtype: WeightType = "float32") -> None:
    """Write a model with exits as a Hugging Face folder."""
    save_checkpoint(checkpoint.start, folder, dtype, checkpoint.heads)


def has_exits(folder: str | Path) -> bool:
    """Whether a folder holds a model with exits.

    >>> has_exits(getfixture("tmp_path"))
    False
    """
    return bool(_stored(Path(folder)))


def _stored(folder: Path) -> dict[int, dict[str, StoredTensor]]:
    """The tensors of each exit, by its layer."""
    found: dict[int, dict[str, StoredTensor]] = {}
    for name, tensor in stored_beside(folder, _PREFIX).items():
        layer = name.split(".")[1]
        if not layer.isascii() or not layer.isdigit() or len(layer) > 9:
            raise _wrong(folder, f"the tensor {quoted(name)} is of no layer")
        found.setdefault(int(layer), {})[name] = tensor
    return found


def _checked(start: Checkpoint, found: Mapping[int, Mapping[str, StoredTensor]]) -> LazyTensors:
    """The heads: every tensor is there in its shape, and the layers are there too."""
    folder, layers = start.folder, start.config.layers
    if max(found) >= layers or min(found) < 1:
        raise _wrong(folder, f"exits after layers {_listed(found)} of a model that has {layers}")
    stored = {name: tensor for tensors in found.values() for name, tensor in tensors.items()}
    return checked_beside(stored, _shapes(start.config, found), partial(_wrong, folder))


def _wrong(folder: Path, problem: str) -> InputError:
    return InputError(
        f"its exits are damaged: {problem}", remedy="save or fetch the model again", path=folder
    )


def _listed(layers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(layers)))


def _head(config: EncoderConfig) -> dict[str, Shape]:
    """A head's tensors by their own names: `dense.weight`."""
    every = shapes(config).items()
    return {name.removeprefix("head."): shape for name, shape in every if name.startswith("head.")}


def _shapes(config: EncoderConfig, layers: Iterable[int]) -> dict[str, Shape]:
    head = _head(config).items()
    return {f"{_PREFIX}{layer}.{name}": shape for layer in layers for name, shape in head}


def _drawn(name: str, shape: Shape, seed: int) -> Array:
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    # by its name, so that a head is the same whatever other exits there are
    generator = np.random.default_rng([seed, xxhash.xxh3_64_intdigest(name.encode())])
    return generator.normal(0.0, _DEVIATION, shape).astype(np.float32)
