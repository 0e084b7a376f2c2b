"""Weights kept as 8 bits: the layout of the file, what is refused, and who reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from tamis import Mono
from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.models.architectures.cascade import Cascade, CascadeSettings
from tamis.models.architectures.listwise import Listwise, ListwiseSettings
from tamis.models.checkpoint import load_checkpoint, save_checkpoint, with_third_segment
from tamis.models.weights import CHECKSUM, stored_tensors
from tamis.train.recipe import Model
from tamis.train.start import load_start

FAMILIES = ["bert", "roberta", "electra", "albert", "distilbert"]
LAYOUT = {"format": "pt", "tamis.layout": "int8-rows", "tamis.version": "1"}
WORD = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
TEXTS = ["one text", "another", "a third one that is longer"]


@pytest.fixture
def folder(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Path:
    """An int8 checkpoint; beside it `float`, which it was made from."""
    checkpoint = load_checkpoint(tiny_checkpoint(tmp_path / "float", labels=2))
    save_checkpoint(checkpoint, tmp_path / "int8", "int8")
    return tmp_path / "int8"


def raw(folder: Path) -> dict[str, Array]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def rewrite(folder: Path, tensors: dict[str, Array], **said: str) -> None:
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata=LAYOUT | said)


# The layout.


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_is_number_times_scale_times_column(
    family: str, tmp_path: Path, tiny_checkpoint: Callable[..., Path]
) -> None:
    given = load_checkpoint(tiny_checkpoint(tmp_path / "float", family))
    save_checkpoint(given, tmp_path / "int8", "int8")
    parts, read = raw(tmp_path / "int8"), stored_tensors(tmp_path / "int8" / "model.safetensors")
    floats = raw(tmp_path / "float")
    assert read.keys() == floats.keys()
    for name, values in floats.items():
        kept = parts[name]
        if values.ndim == 1 or "token_type" in name or name.startswith(("classifier.w", "classifier.out")):
            assert kept.dtype == np.float16
            assert np.array_equal(read[name].read(), kept.astype(np.float32))
            continue
        assert kept.dtype == np.int8 and kept.shape == values.shape
        scale, columns = parts[f"{name}.scale"], parts.get(f"{name}.columns", np.ones(1, np.float32))
        assert scale.dtype == columns.dtype == np.float32
        assert np.array_equal(read[name].read(), kept * scale[:, None] * columns)
        steps = scale[:, None] * columns
        assert (np.abs(read[name].read() - values) <= steps * 0.502).all()
    # of two layers, query, key, value and up; what comes out of a projection is multiplied as it is
    counts = {"electra": 8 - 3, "albert": 1}
    assert sum(name.endswith(".columns") for name in parts) == counts.get(family, 8)


def test_the_layout_is_named_and_a_float_file_names_none(folder: Path) -> None:
    for kind, wanted in (("int8", LAYOUT), ("float", {"format": "pt"})):
        with safetensors.safe_open(folder.parent / kind / "model.safetensors", "np") as file:
            assert file.metadata().items() - wanted.items() == {(CHECKSUM, file.metadata()[CHECKSUM])}
    config = json.loads((folder / "config.json").read_text())
    assert config["quantization_config"] == {"layout": "int8-rows", "version": 1}
    assert config["dtype"] == "float16"
    save_checkpoint(load_checkpoint(folder), folder.parent / "back", "float16")
    assert "quantization_config" not in json.loads((folder.parent / "back" / "config.json").read_text())


def test_it_is_about_a_quarter_of_float32_and_scores_alike(folder: Path) -> None:
    sizes = [(path / "model.safetensors").stat().st_size for path in (folder, folder.parent / "float")]
    assert sizes[0] < 0.4 * sizes[1]  # rows of 32 numbers have much in scales; of 384, 0.26
    exact, small = (
        [each.score for each in Mono(str(path), score="logit", precision="fp32").rank("query", TEXTS)]
        for path in (folder.parent / "float", folder)
    )
    np.testing.assert_allclose(small, exact, atol=0.1)


# What is refused. Each is one line that names the file.


def damaged(folder: Path, change: Callable[[dict[str, Array]], object], **said: str) -> str:
    tensors = raw(folder)
    change(tensors)
    rewrite(folder, tensors, **said)
    with pytest.raises(InputError) as refused:
        dict(load_checkpoint(folder).tensors)  # which reads them all
    message = str(refused.value)
    assert message.startswith(f"{folder / 'model.safetensors'}: ") and "\n" not in message
    return message.removeprefix(f"{folder / 'model.safetensors'}: ")


AGAIN = "fetch or save the model again"


def test_a_scale_that_is_missing(folder: Path) -> None:
    message = damaged(folder, lambda tensors: tensors.pop(f"{WORD}.scale"))
    assert message == f"no {WORD}.scale beside the int8 tensor {WORD}: {AGAIN}"


@pytest.mark.parametrize(
    ("part", "value", "what"),
    [
        ("scale", np.ones(399, np.float32), "F32[399]"),
        ("scale", np.ones((400, 1), np.float32), "F32[400, 1]"),
        ("scale", np.ones(400, np.float16), "F16[400]"),
        ("columns", np.ones(400, np.float32), "F32[400]"),
    ],
)
def test_factors_that_are_misshaped(folder: Path, part: str, value: Array, what: str) -> None:
    message = damaged(folder, lambda tensors: tensors.update({f"{WORD}.{part}": value}))
    assert message == f"{WORD}.{part} is {what} beside the int8 tensor {WORD} [400, 32]: {AGAIN}"


@pytest.mark.parametrize("part", ["scale", "columns"])
@pytest.mark.parametrize("value", [0.0, -0.5])
def test_factors_that_are_not_above_zero(folder: Path, part: str, value: float) -> None:
    message = damaged(folder, lambda tensors: tensors[f"{QUERY}.{part}"].__setitem__(3, value))
    assert message == f"the tensor {QUERY}.{part} holds values that are not above 0: {AGAIN}"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_factors_that_are_not_finite(folder: Path, value: float) -> None:
    message = damaged(folder, lambda tensors: tensors[f"{QUERY}.scale"].__setitem__(3, value))
    assert message.startswith(f"the tensor {QUERY}.scale holds values that are not finite: ")


def test_a_product_that_is_not_finite(folder: Path) -> None:
    message = damaged(folder, lambda tensors: tensors[f"{QUERY}.scale"].__setitem__(3, 3e38))
    assert message.startswith(f"the tensor {QUERY} holds values that are not finite: ")


def test_a_vector_is_no_matrix(folder: Path) -> None:
    name = "bert.pooler.dense.bias"
    change = {name: np.ones(32, np.int8), f"{name}.scale": np.ones(32, np.float32)}
    message = damaged(folder, lambda tensors: tensors.update(change))
    assert message == f"{name}.scale is F32[32] beside the int8 tensor {name} [32]: {AGAIN}"


def test_a_layout_or_a_version_that_is_not_known(folder: Path) -> None:
    remedy = "use a newer tamis, or fetch the model again"
    message = damaged(folder, lambda tensors: None, **{"tamis.version": "2"})
    assert message == f"its weights are in a layout that is not known (int8-rows, 2): {remedy}"
    message = damaged(folder, lambda tensors: None, **{"tamis.layout": "int4-rows"})
    assert message == f"its weights are in a layout that is not known (int4-rows, 1): {remedy}"


def test_int8_without_a_layout(folder: Path) -> None:
    safetensors.numpy.save_file(raw(folder), folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r" is int8, and the file names no layout: use weights in float16"):
        load_checkpoint(folder)


def test_a_scale_of_nothing_is_an_unexpected_tensor(folder: Path) -> None:
    tensors = raw(folder)
    tensors["bert.pooler.dense.bias.scale"] = np.ones(32, np.float32)
    del tensors[WORD]
    rewrite(folder, tensors)
    with pytest.raises(InputError, match=r"1 missing: .*; 1 unexpected: bert\.embeddings.*\.scale"):
        load_checkpoint(folder)


def test_weights_that_are_not_finite_are_not_written(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    tensors = {name: checkpoint.tensors[name] for name in checkpoint.tensors}
    tensors["embeddings.word"][3, 3] = np.inf
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"word_embeddings.weight.scale does not fit into float32"):
        save_checkpoint(replace(checkpoint, tensors=tensors), folder, "int8")
    assert (folder / "model.safetensors").read_bytes() == before


# Who reads it.


def test_shards(folder: Path) -> None:
    whole = load_checkpoint(folder).tensors
    tensors = raw(folder)
    weight_map = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    weight_map |= {name: weight_map[name.removesuffix(".scale").removesuffix(".columns")] for name in tensors}
    for shard in set(weight_map.values()):
        chosen = {name: tensors[name] for name in tensors if weight_map[name] == shard}
        safetensors.numpy.save_file(chosen, folder / shard, metadata=LAYOUT)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()
    again = load_checkpoint(folder).tensors
    assert all(np.array_equal(again[name], whole[name]) for name in whole)


def test_exits_and_lists_lie_beside_it_as_floats(folder: Path, tmp_path: Path) -> None:
    start = load_checkpoint(folder)
    for kind in (Cascade(CascadeSettings(exits=(1,))), Listwise(ListwiseSettings(n=3))):
        made = kind.begin(start, 1)
        save_checkpoint(made, tmp_path / kind.name, "int8")
        again = load_checkpoint(tmp_path / kind.name)
        assert again.architecture == kind and again.head.keys() == made.head.keys()
        for name, head in made.head.items():
            assert raw(tmp_path / kind.name)[name].dtype == np.float16
            assert np.array_equal(again.head[name], head.astype(np.float16).astype(np.float32))


def test_training_starts_from_it_and_saves_floats(folder: Path, tmp_path: Path) -> None:
    begun = load_start(Model(str(folder), layers=(1,)), seed=0)
    save_checkpoint(with_third_segment(begun, seed=0), tmp_path / "out")
    trained = load_checkpoint(tmp_path / "out")
    assert (trained.config.layers, trained.config.segments) == (1, 3)
    assert "quantization_config" not in trained.raw_config
    assert {each.dtype for each in stored_tensors(tmp_path / "out" / "model.safetensors").values()} == {"F32"}
    name = "attention.query.weight"
    one, other = trained.tensors[f"layers.0.{name}"], load_checkpoint(folder).tensors[f"layers.1.{name}"]
    assert np.array_equal(one, other)
