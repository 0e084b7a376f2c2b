"""Figures of the papers that are nowhere else in the tests: a default that drifts is another experiment."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Duo


def test_duo_settles_the_first_fifty() -> None:
    """k1 of the duoBERT papers: 2,450 ordered pairs."""
    assert Duo().inferences(1000) == 50 * 49 == 2450
    assert Duo().inferences(7) == 7 * 6


def test_a_dev_run_settles_the_first_twenty_by_pairs(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """k1 = 20, 380 pairs: nearly as good as 50, at a seventh of the cost."""
    pytest.importorskip("torch")
    from tamis.infer.scorer import Scorer
    from tamis.train.dev import dev_stage, open_dev
    from tamis.train.recipe import Dev, Limits

    folder = tiny_checkpoint(tmp_path / "model", layers=1, hidden=16, heads=2, segments=3)
    records = [json.dumps({"_id": f"d{n}", "text": f"soup {n}"}) + "\n" for n in range(30)]
    (tmp_path / "c.jsonl").write_text("".join(records))
    (tmp_path / "q.jsonl").write_text('{"_id": "q1", "text": "soup"}\n')
    (tmp_path / "qrels.txt").write_text("q1 0 d3 1\n")
    (tmp_path / "run.txt").write_text("".join(f"q1 Q0 d{n} {n + 1} {40 - n} x\n" for n in range(30)))
    paths = {name: str(tmp_path / f"{name}.txt") for name in ("qrels", "run")}
    dev = Dev(queries=str(tmp_path / "q.jsonl"), corpus=(str(tmp_path / "c.jsonl"),), **paths)
    found = open_dev(dev)
    stage = dev_stage(Scorer(folder, architectures=("duo",)), Limits())
    assert isinstance(stage, Duo)
    (inputs,), _, _ = stage.build_inputs(found.rankings)
    assert len(inputs) == 20 * 19 == 380
    assert [len(ranking) for ranking in found.rankings] == [30]  # the others stay below


def test_rops_language_model() -> None:
    """Dirichlet smoothing with mu = 1,000, sets of 3 words on average."""
    pytest.importorskip("torch")
    from tamis.train.rop import MEAN_SIZE, query_likelihood

    found = query_likelihood(np.array([2, 0]), np.array([40, 20]), length=10, tokens=1000)
    assert found == pytest.approx(
        math.log((2 + 1000 * 0.04) / 1010) + math.log(1000 * 0.02 / 1010), rel=1e-12
    )
    assert MEAN_SIZE == 3
