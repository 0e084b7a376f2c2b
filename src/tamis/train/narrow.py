"""A narrower and shallower student: another model's table of words in fewer dimensions, under new layers.

Layers of another width cannot be copied, but what a model knows of words can: its word, position and segment
vectors are projected on the directions along which its words differ most. The layers and the head are drawn,
so that such a student needs many examples. It is a plain BERT, which any library loads.
"""

from __future__ import annotations

import numpy as np
import xxhash

from tamis.columns import Array
from tamis.errors import InputError
from tamis.models.checkpoint import Checkpoint
from tamis.models.weights import LazyTensors
from tamis.train.factorise import principal_axes
from tamis.train.scratch import from_scratch

_TABLES = ("embeddings.word", "embeddings.position", "embeddings.segment")


def narrowed(
    checkpoint: Checkpoint, *, layers: int, hidden: int, heads: int, feed_forward: int, seed: int = 0
) -> Checkpoint:
    """A BERT of these sizes with the checkpoint's tokenizer and its tables of embeddings, projected."""
    config = checkpoint.config
    if config.family != "bert" or not 1 <= hidden < config.hidden:
        raise InputError(
            f"hidden states of {hidden} for a {config.family} model with {config.hidden}",
            remedy="start from a BERT or MiniLM model, with fewer than it has",
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

    def table(name: str) -> Array:
        projected: Array = np.ascontiguousarray(checkpoint.tensors[name] @ axes, dtype=np.float32)
        return projected

    readers = {name: (lambda name=name: drawn.tensors[name]) for name in drawn.tensors}
    readers |= {name: (lambda name=name: table(name)) for name in _TABLES}
    name = xxhash.xxh3_64(f"{checkpoint.fingerprint} {drawn.fingerprint}".encode()).hexdigest()
    return Checkpoint(
        drawn.folder,
        drawn.config,
        LazyTensors(readers),
        name,
        drawn.raw_config,
        drawn=drawn.drawn - set(_TABLES),
    )
