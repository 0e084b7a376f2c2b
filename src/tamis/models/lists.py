"""Listwise models: one input has a query and several texts, and the model scores each beside the others
(Zhang et al. 2020; the input is `tamis.models.templates.listwise`).

The survey does not tell the head. Here it is a linear layer on the mean of a text's last states, those of its
tokens and of the [SEP] that ends it (so that an empty text has one), and one layer for all places. Two other
readings are worse. The [SEP] alone tells nothing to begin with: in `mono-tiny` the [SEP]s of one input have
almost the same state, whichever text they end. And a layer from the [CLS] to n scores would have weights for
each place, where a place shall mean nothing.

A folder is an ordinary checkpoint, whose config.json says how many texts an input has, and the layer lies
beside the encoder in model.safetensors, as `listwise.head.weight` and `.bias`. The head on the [CLS] that
every checkpoint has is not trained here, so `mono` refuses such a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.checkpoint import (
    Checkpoint,
    checked_beside,
    load_checkpoint,
    save_checkpoint,
    stored_beside,
)
from tamis.models.config import EncoderConfig
from tamis.models.names import Shape
from tamis.models.weights import LazyTensors, StoredTensor, WeightType

_PREFIX = "listwise."
HEAD = f"{_PREFIX}head"  # the layer that scores texts
_DEVIATION = 0.02  # BERT's initializer_range


@dataclass(frozen=True)
class ListCheckpoint:
    """A listwise model: a checkpoint, and the layer that scores texts by names such as
    `listwise.head.weight`."""

    start: Checkpoint  # its config says how many texts an input has
    head: Mapping[str, Array]
    fingerprint: str  # changes whenever the scores could

    @property
    def texts(self) -> int:
        """The n of its groups."""
        return self.start.config.texts


def begin_lists(start: Checkpoint, texts: int, seed: int = 0) -> ListCheckpoint:
    """A model to be trained for groups of so many texts, from any checkpoint. Its head is drawn from `seed`,
    or is that of a start that has one."""
    grouped = replace(start, config=replace(start.config, texts=texts))
    digest = xxhash.xxh3_64_hexdigest(f"{start.fingerprint} {texts} {seed}".encode())
    found = stored_beside(start.folder, _PREFIX)
    return ListCheckpoint(grouped, _checked(start, found) if found else _drawn(start.config, seed), digest)


def load_lists(name_or_folder: str | Path, revision: str | None = None) -> ListCheckpoint:
    """A listwise model, from a folder or from the hub.

    >>> load_lists(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    return lists_of(load_checkpoint(name_or_folder, revision), name_or_folder)


def lists_of(start: Checkpoint, name: str | Path) -> ListCheckpoint:
    """A checkpoint with the head that lies beside it; `name` is what an error calls it."""
    if not start.config.texts:
        raise InputError(
            f"{name} is no listwise model",
            remedy=f'rank with mono(model="{name}"), or train one from it by a recipe with [listwise]',
        )
    return ListCheckpoint(start, _checked(start, stored_beside(start.folder, _PREFIX)), start.fingerprint)


def save_lists(checkpoint: ListCheckpoint, folder: str | Path, dtype: WeightType = "float32") -> None:
    """Write a listwise model as a Hugging Face folder."""
    save_checkpoint(checkpoint.start, folder, dtype, checkpoint.head)


def _shapes(config: EncoderConfig) -> dict[str, Shape]:
    return {f"{HEAD}.weight": (1, config.hidden), f"{HEAD}.bias": (1,)}


def _checked(start: Checkpoint, stored: Mapping[str, StoredTensor]) -> LazyTensors:
    return checked_beside(stored, _shapes(start.config), partial(_wrong, start.folder))


def _wrong(folder: Path, problem: str) -> InputError:
    return InputError(
        f"its listwise head is damaged: {problem}", remedy="save or fetch the model again", path=folder
    )


def _drawn(config: EncoderConfig, seed: int) -> dict[str, Array]:
    drawn = np.random.default_rng(seed).normal(0.0, _DEVIATION, (1, config.hidden)).astype(np.float32)
    return {f"{HEAD}.weight": drawn, f"{HEAD}.bias": np.zeros(1, np.float32)}
