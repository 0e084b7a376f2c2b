"""A checkpoint's weights in another type, in a folder of their own."""

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
    stored_beside,
)
from tamis.models.names import RANKING_HEADS
from tamis.models.weights import LazyTensors, WeightType
from tamis.storage.files import make_folder, storage_errors

#: A model's card, the log of its training, and what makes a model of long documents of an encoder.
_BESIDE = ("README.md", "training.jsonl", "tamis.json", "tamis.safetensors")


def convert(checkpoint: Checkpoint, folder: str | Path, weights: WeightType) -> Path:
    """Write a checkpoint with its weights in another type; returns the file of weights. The heads of exits
    and of lists, the card and the log come along, exported graphs do not.

    >>> from tamis.infer.scorer import CrossEncoder
    >>> path = convert(CrossEncoder("mono-tiny").checkpoint, getfixture("tmp_path") / "half", "float16")
    >>> path.name
    'model.safetensors'
    """
    folder = Path(folder)
    for name in (CONFIG, WEIGHTS, TOKENIZER, TOKENIZER_CONFIG, *_BESIDE):
        if (folder / name).exists():
            raise InputError(f"has a {name} already", remedy="give a new folder", path=folder)
    heads = {
        name: tensor.read
        for prefix in RANKING_HEADS
        for name, tensor in stored_beside(checkpoint.folder, prefix).items()
    }
    with storage_errors(folder):
        make_folder(folder)
        for name in _BESIDE:
            if (checkpoint.folder / name).is_file():
                copy_file(checkpoint.folder / name, folder / name)
    save_checkpoint(checkpoint, folder, weights, LazyTensors(heads))
    return folder / WEIGHTS
