"""The mean of models' weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import InputError
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.train.average import averaged

Tiny = Callable[..., Path]


def test_every_weight_is_the_mean_and_is_saved_as_such(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    models = [load_checkpoint(tiny_checkpoint(tmp_path / str(seed), seed=seed)) for seed in (1, 2, 3)]
    soup = averaged(models)
    save_checkpoint(soup, tmp_path / "soup")
    again = load_checkpoint(tmp_path / "soup")
    for name in models[0].tensors:
        wanted = np.mean([model.tensors[name] for model in models], axis=0)
        np.testing.assert_allclose(again.tensors[name], wanted, atol=1e-7)
    assert soup.fingerprint not in {model.fingerprint for model in models}


def test_models_of_different_shapes_are_refused(tiny_checkpoint: Tiny, tmp_path: Path) -> None:
    one, two = (load_checkpoint(tiny_checkpoint(tmp_path / str(n), layers=n)) for n in (1, 2))
    with pytest.raises(InputError, match="another shape"):
        averaged([one, two])
