"""A narrower and shallower student: another model's word embeddings in fewer dimensions, under new layers.

Layers of another width cannot be copied, but a model's embeddings can: its word, position and segment vectors
are projected on the directions along which its words differ most. The layers and the head are drawn at
random, but so that the student can compare words from the first step; two layers initialised as BERT's would
need millions of examples to learn this:

- The weights of query and key start as the same orthogonal matrix, so that a token attends to equal and
  similar tokens (a form of the mimetic initialisation of Trockman & Kolter 2023).
- The vectors of the two segments, which the projection reduces to almost nothing, start far apart. A word of
  the query that is also in the text then attends to both segments, another word only to its own.
- All other weights preserve the size of their inputs: their standard deviation is 1 / sqrt(inputs).

The result is a plain BERT, which any library loads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.checkpoint import Checkpoint
from tamis.models.weights import LazyTensors
from tamis.train.factorise import principal_axes
from tamis.train.scratch import from_scratch

_TABLES = ("embeddings.word", "embeddings.position", "embeddings.segment")
_LOOK = 5.0  # the attention score of two equal tokens; that of different ones is near 0


def narrowed(
    checkpoint: Checkpoint,
    *,
    layers: int,
    hidden: int,
    heads: int,
    feed_forward: int,
    positions: int | None = None,
    seed: int = 0,
) -> Checkpoint:
    """A BERT of these sizes with the checkpoint's tokenizer and its projected embeddings. With `positions` it
    reads at most that many tokens: for training on short texts, further positions are useless."""
    config = checkpoint.config
    if config.family != "bert" or not 1 <= hidden < config.hidden:
        raise InputError(
            f"hidden states of {hidden} for a {config.family} model with {config.hidden}",
            remedy="start from a BERT or MiniLM model, with fewer than it has",
        )
    positions = config.positions if positions is None else positions
    if positions > config.positions:
        raise InputError(
            f"{positions} positions for a model with {config.positions}", remedy="use as many or fewer"
        )
    drawn = from_scratch(
        checkpoint.folder,
        layers=layers,
        hidden=hidden,
        heads=heads,
        feed_forward=feed_forward,
        labels=config.labels,
        seed=seed,
    )
    axes = principal_axes(checkpoint.tensors["embeddings.word"], hidden)
    rng = np.random.default_rng(seed)
    tensors = {name: _sized(drawn.tensors[name]) for name in drawn.tensors}
    tensors |= {name: _float32(checkpoint.tensors[name] @ axes) for name in _TABLES}
    tensors |= _comparing(layers, hidden, hidden // heads, rng)
    tensors["embeddings.segment"] = _apart(tensors, rng)
    tensors["embeddings.position"] = tensors["embeddings.position"][:positions]
    described = f"{checkpoint.fingerprint} {drawn.fingerprint} {positions} 2"
    name = xxhash.xxh3_64(described.encode()).hexdigest()
    readers = {name: (lambda values=values: values) for name, values in tensors.items()}
    return Checkpoint(
        drawn.folder,
        replace(drawn.config, positions=positions),
        LazyTensors(readers),
        name,
        {**drawn.raw_config, "max_position_embeddings": positions},
        drawn=drawn.drawn - set(_TABLES),
        architecture=drawn.architecture,
    )


def _sized(values: Array) -> Array:
    """Scale a drawn matrix so that its products are as large as its inputs."""
    if values.ndim < 2:
        return values
    return _float32(values / values.std() / math.sqrt(values.shape[1]))


def _comparing(layers: int, hidden: int, head_size: int, rng: np.random.Generator) -> dict[str, Array]:
    """Query and key weights. The squares of normalised vectors sum to `hidden`; a head sees `head_size` of
    it, and divides by the square root of `head_size`."""
    found: dict[str, Array] = {}
    for layer in range(layers):
        orthogonal, _ = np.linalg.qr(rng.normal(size=(hidden, hidden)))
        weights = _float32(orthogonal * math.sqrt(_LOOK / math.sqrt(head_size)))
        found |= {f"layers.{layer}.attention.{part}.weight": weights for part in ("query", "key")}
    return found


def _apart(tensors: Mapping[str, Array], rng: np.random.Generator) -> Array:
    """The segments' vectors; the first two are moved to opposite sides by the length of a word vector."""
    words, segments = tensors["embeddings.word"], tensors["embeddings.segment"].copy()
    direction = rng.normal(size=words.shape[1])
    step = direction / np.linalg.norm(direction) * np.linalg.norm(words, axis=1).mean()
    segments[:1] += step
    segments[1:2] -= step
    return _float32(segments)


def _float32(values: Array) -> Array:
    converted: Array = np.ascontiguousarray(values, dtype=np.float32)
    return converted
