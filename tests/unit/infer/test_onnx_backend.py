"""The encoder in ONNX Runtime: a score depends on its input alone, a graph on its weights alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tamis.base.errors import CorruptError, InputError
from tamis.infer.engine import Engine
from tamis.infer.onnx_backend import OnnxBackend, export
from tamis.models import saturation
from tamis.models.checkpoint import load_checkpoint
from tamis.models.graph import Precision, per_row
from tamis.models.saturation import products_saturate
from tamis.models.templates import Inputs

FAMILIES = ("bert", "roberta", "electra", "albert", "distilbert")


def some_inputs(count: int = 60, longest: int = 40, seed: int = 0) -> Inputs:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, longest, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Inputs(
        generator.integers(5, 300, offsets[-1]).astype(np.int32), np.zeros(offsets[-1], np.uint8), offsets
    )


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_does_not_depend_on_its_batch_in_a_single_bit(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str, precision: Precision
) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / family, family))
    engine = Engine(OnnxBackend(checkpoint, precision, workers=1))
    inputs = some_inputs()
    together = engine.margins(inputs)
    alone = [engine.margins(inputs.take([number]))[0] for number in range(len(inputs))]
    assert together.tolist() == alone
    chosen = np.random.default_rng(1).permutation(len(inputs))[:23]
    assert engine.margins(inputs.take(chosen)).tolist() == together[chosen].tolist()
    assert Engine(OnnxBackend(checkpoint, precision, workers=2)).margins(inputs).tolist() == together.tolist()
    assert len(set(together.tolist())) > 50  # not all alike, or all this would say nothing


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_is_close_to_fp32(tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / family, family, hidden=64))
    inputs = some_inputs()
    exact, small = (Engine(OnnxBackend(checkpoint, p)).margins(inputs) for p in ("fp32", "int8"))
    assert not np.array_equal(exact, small)
    assert np.corrcoef(exact, small)[0, 1] > 0.97


def test_the_model_that_is_tried_for_cut_sums_is_as_written() -> None:
    size, largest = (saturation.INNER, saturation.OUTER), saturation.LARGEST
    model = onnx.load_from_string(saturation.MODEL)
    onnx.checker.check_model(model, full_check=True)
    (node,), (weights,) = model.graph.node, model.graph.initializer
    assert (node.op_type, node.domain, list(node.input)) == ("MatMulInteger", "", ["x", "weights"])
    assert np.array_equal(onnx.numpy_helper.to_array(weights), np.full(size, largest, np.int8))


def test_unsigned_weights_give_the_same_scores_on_every_processor(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where signed products are cut; where they are not, both are exact and equal."""
    saturates = products_saturate()
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / "bert", hidden=64))
    found = {}
    for unsigned in (False, True):
        monkeypatch.setattr("tamis.models.graph.products_saturate", lambda unsigned=unsigned: unsigned)
        found[unsigned] = Engine(OnnxBackend(checkpoint, "int8")).margins(some_inputs())
    exact = Engine(OnnxBackend(checkpoint, "fp32")).margins(some_inputs())
    assert np.corrcoef(exact, found[True])[0, 1] > 0.97
    assert saturates or found[True].tolist() == found[False].tolist()


def test_layers_that_share_weights_score_as_layers_with_the_same_weights(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """A matrix is quantised for what it is multiplied with: one that comes out of the projection, or out of a
    norm."""
    shared = load_checkpoint(tiny_checkpoint(tmp_path / "albert", "albert", layers=3))
    layers = {f"layers.{n}.{part}": f"layers.0.{part}" for n in range(3) for part in _parts(shared.tensors)}
    repeated = {name: shared.tensors[layers.get(name, name)] for name in (*shared.tensors, *layers)}
    unshared = replace(shared, config=replace(shared.config, layer_groups=3), tensors=repeated)
    inputs = some_inputs()
    one, other = (Engine(OnnxBackend(each, "int8")).margins(inputs) for each in (shared, unshared))
    assert one.tolist() == other.tolist()


def _parts(names: Iterable[str]) -> list[str]:
    """What a layer has: `attention.query.weight`, ..."""
    return [name.removeprefix("layers.0.") for name in names if name.startswith("layers.0.")]


def test_two_labels_give_the_difference(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / "two", labels=2))
    backend = OnnxBackend(checkpoint, "fp32")
    inputs = some_inputs(1)
    feed = {"ids": inputs.ids[None], "segments": inputs.segments[None].astype(np.int32)}
    (session,) = backend._parts
    (logits,) = session.run(None, feed)
    assert backend.margins(inputs).tolist() == [logits[0, 1] - logits[0, 0]]


def test_quantised_rows_are_within_half_a_step() -> None:
    matrix = np.random.default_rng(0).normal(size=(30, 50)).astype(np.float32)
    matrix[3] = 0
    quantised, scales = per_row(matrix)
    assert quantised.dtype == np.int8 and np.abs(quantised).max() == 127
    assert (np.abs(quantised * scales[:, None] - matrix) <= scales[:, None] * 0.5001).all()


def test_an_exported_graph_is_used_while_it_fits_the_weights(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    inputs = some_inputs(5)
    before = OnnxBackend(load_checkpoint(folder))
    path = export(load_checkpoint(folder))
    assert path == folder / "model.int8.onnx"
    from_file = Engine(OnnxBackend(load_checkpoint(folder))).margins(inputs)
    assert from_file.tolist() == Engine(before).margins(inputs).tolist()
    kept = path.read_bytes()
    tiny_checkpoint(folder, seed=1)  # other weights in the same folder
    path.write_bytes(kept)
    other = Engine(OnnxBackend(load_checkpoint(folder))).margins(inputs)
    assert other.tolist() != from_file.tolist()


def test_a_damaged_graph_is_reported(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    path = export(load_checkpoint(folder))
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CorruptError, match=r"model\.int8\.onnx: .*: delete it, or run `tamis export` again"):
        OnnxBackend(load_checkpoint(folder))


def test_an_unknown_precision(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no precision 'bf16' on the processor: use int8 or fp32"):
        OnnxBackend(load_checkpoint(tiny_checkpoint(tmp_path / "model")), "bf16")
