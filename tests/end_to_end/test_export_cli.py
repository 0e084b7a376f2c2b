"""`tamis export` of a bundled model: nothing is written into the installed package unasked. Weights in
another type: to a new folder, with all that belongs to the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis.cli import export, main
from tamis.models import bundled as models
from tamis.models.architectures.cascade import Cascade, CascadeSettings
from tamis.models.architectures.listwise import Listwise, ListwiseSettings
from tamis.models.checkpoint import load_checkpoint, save_checkpoint

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def bundled(tmp_path: Path, tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a bundled model, which is elsewhere: a test that fails must not write there either."""
    folder = tmp_path / "package" / "models_data"
    for module in (models, export):
        monkeypatch.setattr(module, "BUNDLED", folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tiny_checkpoint(folder / "mono")


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_a_bundled_model_needs_a_folder(bundled: Path, precision: str, capsys: Capture) -> None:
    before = sorted(bundled.iterdir())
    arguments = ["export", "mono", "--precision", precision]
    assert main(arguments) == 2
    assert capsys.readouterr().err == (
        "error: mono is a bundled model, inside the installed package: "
        "give a folder to write to (-o mono-onnx)\n"
    )
    assert main([*arguments, "-o", "mono-onnx"]) == 0
    assert sorted(bundled.iterdir()) == before
    assert [path.name for path in Path("mono-onnx").iterdir()] == [f"model.{precision}.onnx"]


def test_a_graph_that_is_there_is_written_again(bundled: Path) -> None:
    graph = bundled / "model.fp32.onnx"
    graph.write_bytes(b"old")
    assert main(["export", "mono", "--precision", "fp32"]) == 0
    assert graph.stat().st_size > 1000
    assert main(["export", "mono", "--precision", "int8"]) == 2, "that one is not there"


def test_a_folder_of_the_same_name_is_ones_own(bundled: Path, tiny_checkpoint: Callable[..., Path]) -> None:
    tiny_checkpoint(Path("mono"))
    assert main(["export", "mono", "--precision", "fp32"]) == 0
    assert Path("mono/model.fp32.onnx").exists()
    assert not (bundled / "model.fp32.onnx").exists()


# Weights in another type.


def test_weights_to_int8_and_back(bundled: Path, capsys: Capture) -> None:
    (bundled / "README.md").write_text("a card")
    (bundled / "model.int8.onnx").write_bytes(b"a graph of other weights")
    assert main(["export", "mono", "--weights", "int8", "-o", "new/small"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("new/small/model.safetensors: int8, ")
    assert second.startswith("against mono, both in fp32, over 64 pairs of a query and a text: scores differ")
    names = sorted(path.name for path in Path("new/small").iterdir())
    assert names == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert main(["export", "new/small", "--weights", "float16", "-o", "half", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    size = Path("half/model.safetensors").stat().st_size
    assert {key: said[key] for key in ("folder", "model", "weights", "bytes", "pairs")} == {
        "folder": "half",
        "model": "new/small",
        "weights": "float16",
        "bytes": size,
        "pairs": 64,
    }
    assert said["largest_difference"] < 0.02 * said["spread"]
    assert main(["export", "half", "--weights", "int8", "-o", "again"]) == 0
    small, again = (Path(name) / "model.safetensors" for name in ("new/small", "again"))
    assert small.stat().st_size == again.stat().st_size < size


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no output folder for the int8 weights: give a new one with -o"),
        (["-o", "own"], "own is inside own, which is an input: write it to another folder"),
        (
            ["-o", "new", "--precision", "int8"],
            "--precision applies to a graph, and --weights writes none: give one of them",
        ),
    ],
)
def test_weights_are_written_to_a_new_folder(
    arguments: list[str], said: str, bundled: Path, tiny_checkpoint: Callable[..., Path], capsys: Capture
) -> None:
    before = (tiny_checkpoint(Path("own")) / "model.safetensors").read_bytes()
    assert main(["export", "own", "--weights", "int8", *arguments]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
    assert Path("own/model.safetensors").read_bytes() == before
    assert not Path("new").exists()


def test_heads_beside_an_encoder_come_along(bundled: Path) -> None:
    start = load_checkpoint(bundled)
    save_checkpoint(Cascade(CascadeSettings(exits=(1,))).begin(start, seed=1), Path("exits"))
    save_checkpoint(Listwise(ListwiseSettings(n=3)).begin(start, seed=1), Path("lists"))
    # which has its head in a file beside the weights, as an older version wrote it
    older = Path(__file__).parents[1] / "assets" / "checkpoints" / "parade-max"
    for model in ("exits", "lists", str(older)):
        assert main(["export", model, "--weights", "int8", "-o", f"small-{Path(model).name}"]) == 0
        whole, small = load_checkpoint(model), load_checkpoint(f"small-{Path(model).name}")
        assert small.architecture == whole.architecture
        assert sorted(small.head) == sorted(whole.head) != []
        for name in whole.head:
            assert np.array_equal(small.head[name], whole.head[name].astype(np.float16)), "not in 8 bits"
