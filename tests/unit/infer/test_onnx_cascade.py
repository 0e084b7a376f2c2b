"""A model with exits in ONNX Runtime: each exit is a model of its own, and a score depends on its input,
whoever goes on beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import Cascade
from tamis.base.errors import InputError
from tamis.infer.engine import Engine
from tamis.infer.onnx_backend import OnnxBackend
from tamis.models.architectures.cascade import Cascade as Architecture
from tamis.models.architectures.cascade import CascadeSettings
from tamis.models.architectures.mono import Mono
from tamis.models.checkpoint import Checkpoint, load_checkpoint, overlaid, save_checkpoint
from tamis.models.graph import Precision
from tamis.models.templates import Inputs
from tests.unit.models.builders import FAMILIES, larger

LAYERS = (1, 3, 4)  # of four
ARCHITECTURE = Architecture(CascadeSettings(exits=LAYERS[:-1]))
Model = Callable[..., Checkpoint]


@pytest.fixture
def model(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Model:
    """Writes a model of four layers with exits after 1, 3 and 4, whose heads are so large that scores differ
    clearly."""

    def made(family: str = "bert", **options: int) -> Checkpoint:
        plain = load_checkpoint(tiny_checkpoint(tmp_path / family, family, layers=4, **options))
        return larger(ARCHITECTURE.begin(plain, seed=1), 10)

    return made


def some_inputs(count: int = 40, longest: int = 40, seed: int = 0) -> Inputs:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, longest, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Inputs(
        generator.integers(5, 300, offsets[-1]).astype(np.int32), np.zeros(offsets[-1], np.uint8), offsets
    )


def all_stay(live: np.ndarray, margins: np.ndarray) -> np.ndarray:
    return live


def best_half(live: np.ndarray, margins: np.ndarray) -> np.ndarray:
    return live[np.argsort(-margins)[: (len(live) + 1) // 2]]


@pytest.mark.parametrize("labels", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_torchs_in_fp32(family: str, labels: int, model: Model) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamis[torch]'")
    from tamis.infer.torch_backend import TorchBackend

    checkpoint, inputs = model(family, labels=labels), some_inputs()
    ours, theirs = OnnxBackend(checkpoint, "fp32"), TorchBackend(checkpoint, "cpu")
    for keep in (all_stay, best_half):
        one, other = (Engine(each).walk(inputs, keep) for each in (ours, theirs))
        assert np.allclose(one, other, atol=1e-4, equal_nan=True)
        assert np.nanstd(one, axis=0).min() > 0.01, "a hundred times the tolerance"
    assert np.count_nonzero(~np.isnan(one), axis=0).tolist() == [40, 20, 10]


def shortened(checkpoint: Checkpoint, number: int) -> Checkpoint:
    """A plain model of the layers as far as an exit, with that exit's head."""
    layer, config = LAYERS[number], checkpoint.config
    exit = {
        name.replace(f"exits.{layer}.", "head."): values
        for name, values in checkpoint.head.items()
        if name.startswith(f"exits.{layer}.")
    }
    return replace(
        checkpoint,
        architecture=Mono(),
        config=replace(config, layers=layer, layer_groups=min(layer, config.layer_groups)),
        tensors=overlaid(checkpoint.tensors, exit),
        head={},
    )


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_exit_is_a_model_of_so_many_layers_with_that_head(
    family: str, precision: Precision, model: Model
) -> None:
    checkpoint, inputs = model(family), some_inputs()
    backend = OnnxBackend(checkpoint, precision)
    reached = backend.walk(inputs, all_stay, 512)
    for number in range(len(LAYERS)):
        alone = Engine(OnnxBackend(shortened(checkpoint, number), precision)).margins(inputs)
        # as int8 a model's own head is rounded too, those of exits are not
        assert np.allclose(reached[:, number], alone, atol=1e-5 if precision == "fp32" else 0.05)
    assert reached[:, -1].tolist() == alone.tolist() == backend.margins(inputs).tolist(), "of the same graph"


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_is_close_to_fp32_at_every_exit(family: str, model: Model) -> None:
    checkpoint, inputs = model(family, hidden=64), some_inputs()
    exact, small = (OnnxBackend(checkpoint, p).walk(inputs, all_stay, 512) for p in ("fp32", "int8"))
    assert not np.array_equal(exact, small)
    for one, other in zip(exact.T, small.T, strict=True):
        assert np.corrcoef(one, other)[0, 1] > 0.97


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_does_not_depend_on_its_batch_in_a_single_bit(
    family: str, precision: Precision, model: Model
) -> None:
    checkpoint, inputs = model(family), some_inputs()
    backend = OnnxBackend(checkpoint, precision, workers=1)
    together = backend.walk(inputs, all_stay, 512)
    for budget in (1, 100, 10_000):
        assert backend.walk(inputs, all_stay, budget).tobytes() == together.tobytes()
    alone = [backend.walk(inputs.take([number]), all_stay, 512) for number in range(len(inputs))]
    assert np.concatenate(alone).tobytes() == together.tobytes()
    two = OnnxBackend(checkpoint, precision, workers=2)
    assert two.walk(inputs, all_stay, 512).tobytes() == together.tobytes()
    thinned = two.walk(inputs, best_half, 512)
    there = ~np.isnan(thinned)
    assert thinned[there].tolist() == together[there].tolist()
    assert len(set(together.ravel().tolist())) > 100  # not all alike, or all this would say nothing


_BACKENDS: list[OnnxBackend] = []


@settings(max_examples=50)
@given(data=st.data())
def test_whoever_goes_on_has_the_scores_that_all_have(
    data: st.DataObject, tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any candidates, in any order, may go on at each exit, or none."""
    if not _BACKENDS:
        plain = load_checkpoint(tiny_checkpoint(tmp_path_factory.mktemp("m"), layers=4, hidden=16, heads=2))
        trained = Architecture(CascadeSettings(exits=LAYERS[:-1], heads="trained"))
        _BACKENDS.append(OnnxBackend(trained.begin(plain), "int8", workers=2))
    inputs = some_inputs(data.draw(st.integers(0, 12)), longest=7)
    everyone = _BACKENDS[0].walk(inputs, all_stay, 512)
    going: list[set[int]] = [set(range(len(inputs)))]

    def keep(live: np.ndarray, margins: np.ndarray) -> np.ndarray:
        assert live.tolist() == sorted(going[-1])
        assert margins.tolist() == everyone[live, len(going) - 1].tolist()
        some = data.draw(st.lists(st.sampled_from(live.tolist()), unique=True) if len(live) else st.just([]))
        going.append(set(some))
        return np.array(some, np.int64)

    reached = _BACKENDS[0].walk(inputs, keep, data.draw(st.sampled_from([1, 8, 512])))
    for number, column in enumerate(reached.T):
        live = sorted(going[number]) if number < len(going) else []
        assert np.flatnonzero(~np.isnan(column)).tolist() == live
        assert column[live].tolist() == everyone[live, number].tolist()


def test_precisions_are_told_apart(model: Model, tmp_path: Path) -> None:
    folder = str(tmp_path / "exits")
    save_checkpoint(model(), folder)
    scorers = [Cascade(folder, device="cpu", precision=p).scorer for p in ("auto", "int8", "fp32")]
    auto, int8, fp32 = (scorer.fingerprint for scorer in scorers)
    assert auto == int8 != fp32, "or scores of one would be found in the cache for the other"
    assert Cascade(folder, device="cpu", workers=2).description == "ONNX Runtime, int8, 2 cores"
    with pytest.raises(InputError, match="no precision 'bf16' on the processor: use int8 or fp32"):
        OnnxBackend(model(), "bf16")
