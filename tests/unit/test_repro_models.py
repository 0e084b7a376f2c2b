"""What repro/models does to a model after its training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.rank.mono import Mono

REPRO = Path(__file__).resolve().parents[2] / "repro" / "models"
TEXTS = ["one text", "another", "a third one that is longer"]


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(REPRO), *sys.path])


def test_even_odds_are_where_both_kinds_are_as_dense() -> None:
    from calibrate import fitted  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    # normal with unit spread around 3 and 1, of which there are ten times as many: the odds are exp(2 m - 4)
    margins = np.concatenate([rng.normal(3, 1, 20_000), rng.normal(1, 1, 200_000)])
    scale, shift = fitted(margins, np.arange(len(margins)) < 20_000)
    assert (scale, shift) == pytest.approx((2, -4), abs=0.1)


@pytest.mark.parametrize("labels", [1, 2])
def test_margins_are_scaled_and_shifted(
    labels: int, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    from calibrate import calibrated

    folder = tiny_checkpoint(tmp_path / "before", labels=labels)
    save_checkpoint(calibrated(load_checkpoint(folder), 2.5, -0.75), tmp_path / "after")
    before, after = (
        [each.score for each in Mono(str(path), score="logit", precision="fp32").rank("query", TEXTS)]
        for path in (folder, tmp_path / "after")
    )
    np.testing.assert_allclose(after, 2.5 * np.array(before) - 0.75, atol=1e-4)
