"""Where training starts: the layers that are kept, and what is drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.base.errors import InputError
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.train.recipe import Model
from tamis.train.start import keep_layers, load_start


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(
        tmp_path_factory.mktemp("tiny") / "model", layers=2, hidden=16, heads=2, positions=64
    )


def test_layers_that_are_kept(folder: Path, tmp_path: Path) -> None:
    before = load_checkpoint(folder)
    kept = keep_layers(before, [1])
    assert kept.config.layers == 1 and kept.fingerprint != before.fingerprint
    for name in kept.tensors:
        old = name.replace("layers.0.", "layers.1.")
        assert np.array_equal(kept.tensors[name], before.tensors[old]), name
    save_checkpoint(load_start(Model(str(folder), layers=(1,)), seed=0), tmp_path)
    again = load_checkpoint(tmp_path)
    assert again.config.layers == 1
    assert all(np.array_equal(again.tensors[name], kept.tensors[name]) for name in kept.tensors)
    with pytest.raises(InputError, match="layers 2 of a model that has 2: choose from 0 to 1"):
        keep_layers(before, [2])


def test_a_new_head_is_drawn_from_the_seed(folder: Path) -> None:
    one, again, other = (load_start(Model(str(folder), labels=2), seed).tensors for seed in (1, 1, 2))
    assert one["head.output.weight"].shape[0] == 2
    assert np.array_equal(one["head.output.weight"], again["head.output.weight"])
    assert not np.array_equal(one["head.output.weight"], other["head.output.weight"])
