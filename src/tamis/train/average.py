"""Model soups (Wortsman et al. 2022): the mean of the weights of models trained from one start, which differ
in their seed, say. It costs no more to run than one of them, and does better where texts differ from those of
the training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xxhash

from tamis.columns import Array
from tamis.errors import InputError
from tamis.models.checkpoint import Checkpoint
from tamis.models.weights import LazyTensors


def averaged(models: Sequence[Checkpoint]) -> Checkpoint:
    """A checkpoint whose every weight is the mean of theirs; config and tokenizer are the first's.

    >>> averaged([])
    Traceback (most recent call last):
    tamis.errors.InputError: the mean of no models: name at least one
    """
    if not models:
        raise InputError("the mean of no models", remedy="name at least one")
    first, *others = models
    for other in others:
        if other.config != first.config:
            raise InputError(
                f"{other.folder} has another shape than {first.folder}", remedy="average models of one start"
            )

    def mean(name: str) -> Array:
        every = np.stack([model.tensors[name] for model in models])
        values: Array = every.mean(axis=0, dtype=np.float64).astype(np.float32)
        return values

    names = " ".join(model.fingerprint for model in models)
    return replace(
        first,
        tensors=LazyTensors({name: partial(mean, name) for name in first.tensors}),
        fingerprint=xxhash.xxh3_64(f"mean of {names}".encode()).hexdigest(),
    )
