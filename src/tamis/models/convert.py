"""Converts the weights of a checkpoint to another type, in a new folder."""

from __future__ import annotations

from pathlib import Path

from tamis.base.errors import InputError
from tamis.models.checkpoint import (
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Checkpoint,
    copy_file,
    save_checkpoint,
)
from tamis.models.weights import WeightType
from tamis.storage.files import make_folder, storage_errors

#: A model's card and the log of its training.
_BESIDE = ("README.md", "training.jsonl")


def convert(checkpoint: Checkpoint, folder: str | Path, weights: WeightType) -> Path:
    """Write a checkpoint with its weights in another type, and return the path of the weights. The card and
    the log are copied, exported graphs are not.

    >>> from tamis.infer.scorer import Scorer
    >>> path = convert(Scorer("mono-tiny").checkpoint, getfixture("tmp_path") / "half", "float16")
    >>> path.name
    'model.safetensors'
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, *_BESIDE):
        if (folder / name).exists():
            raise InputError(f"has a {name} already", remedy="give a new folder", path=folder)
    with storage_errors(folder):
        make_folder(folder)
        for name in _BESIDE:
            if (checkpoint.folder / name).is_file():
                copy_file(checkpoint.folder / name, folder / name)
    save_checkpoint(checkpoint, folder, weights)
    return folder / WEIGHTS
