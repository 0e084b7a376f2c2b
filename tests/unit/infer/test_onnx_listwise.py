"""A listwise model in ONNX Runtime: its scores are those of torch, and depend on their own group alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Listwise
from tamis.infer.engine import Engine
from tamis.infer.onnx_backend import OnnxBackend
from tamis.models.architectures.listwise import Listwise as Architecture
from tamis.models.architectures.listwise import ListwiseSettings, span_means
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tamis.models.graph import Precision
from tamis.models.templates import Inputs, Tokenised, listwise
from tamis.models.tokenizer import open_tokenizer
from tests.unit.models.builders import FAMILIES, larger

N = 4
Model = Callable[..., Checkpoint]


@pytest.fixture
def model(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Model:
    """Writes a model of groups of four, whose head is so large that scores differ clearly."""

    def made(family: str = "bert", **options: int) -> Checkpoint:
        start = load_checkpoint(tiny_checkpoint(tmp_path / family, family, **options))
        return larger(Architecture(ListwiseSettings(n=N)).begin(start, seed=1), 20)

    return made


def some_inputs(checkpoint: Checkpoint, count: int = 30) -> Inputs:
    """Groups of one to four texts of various lengths, some of them empty."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(20, 300, rng.integers(1, 9)).tolist() for _ in range(9)] + [[]]
    groups = np.full((count, N), -1)
    for row in groups:
        size = rng.integers(1, N + 1)
        row[:size] = rng.choice(len(texts), size, replace=False)
    special, segments = open_tokenizer(checkpoint).special, checkpoint.config.segments
    return listwise([30, 31], Tokenised.of(texts), groups, special, segment_types=segments)[0]


def margins(checkpoint: Checkpoint, inputs: Inputs, precision: str, workers: int = 1) -> np.ndarray:
    return Engine(OnnxBackend(checkpoint, precision, workers), (N,)).margins(inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_torchs_in_fp32(family: str, model: Model) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    from tamis.infer.torch_backend import TorchBackend

    checkpoint = model(family)
    inputs = some_inputs(checkpoint)
    ours, theirs = margins(checkpoint, inputs, "fp32"), TorchBackend(checkpoint, "cpu").margins(inputs)
    assert np.allclose(ours, theirs, atol=1e-4) and np.array_equal(ours == 0, theirs == 0)
    assert ours[ours != 0].std() > 0.05, "far more than the tolerance"


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_is_close_to_fp32(family: str, model: Model) -> None:
    checkpoint = model(family, hidden=64)
    inputs = some_inputs(checkpoint)
    exact, small = (margins(checkpoint, inputs, precision) for precision in ("fp32", "int8"))
    assert not np.array_equal(exact, small)
    assert np.corrcoef(exact[exact != 0], small[exact != 0])[0, 1] > 0.97


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_does_not_depend_on_its_batch_in_a_single_bit(
    family: str, precision: Precision, model: Model
) -> None:
    checkpoint = model(family)
    inputs = some_inputs(checkpoint)
    together = margins(checkpoint, inputs, precision)
    alone = [margins(checkpoint, inputs.take([number]), precision) for number in range(0, len(inputs), 5)]
    assert np.concatenate(alone).tolist() == together[::5].tolist()
    chosen = np.random.default_rng(1).permutation(len(inputs))[:13]
    assert margins(checkpoint, inputs.take(chosen), precision, 2).tolist() == together[chosen].tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6), st.booleans())
def test_means_of_spans(parts: list[tuple[int, int]], more: bool) -> None:
    """With gaps between them or none, and something behind the last or not."""
    starts = [sum(gap + count for gap, count in parts[:n]) + gap for n, (gap, _) in enumerate(parts)]
    counts = [count for _, count in parts]
    values = np.random.default_rng(0).normal(size=sum(map(sum, parts)) + more).astype(np.float32)
    found = span_means(values, np.array(starts, np.int64), np.array(counts, np.int64))
    wanted = [
        values[start : start + count].mean(dtype=np.float64)
        for start, count in zip(starts, counts, strict=True)
    ]
    assert found.shape == (len(parts),) and np.allclose(found, wanted, rtol=1e-12)


def test_precisions_are_told_apart(model: Model, tmp_path: Path) -> None:
    folder = str(tmp_path / "lists")
    save_checkpoint(model(), folder)
    stages = [Listwise(folder, device="cpu", precision=p, workers=1) for p in ("auto", "int8", "fp32")]
    auto, int8, fp32 = (stage.scorer.fingerprint for stage in stages)
    assert auto == int8 != fp32, "or scores of one would be found in the cache for the other"
    assert stages[0].description == "ONNX Runtime, int8, 1 core"
