"""`tamis export` of a bundled model: nothing is written into the installed package unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tamis.cli import export, main
from tamis.infer import cross_encoder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def bundled(tmp_path: Path, tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a bundled model, which is elsewhere: a test that fails must not write there either."""
    folder = tmp_path / "package" / "models_data"
    for module in (cross_encoder, export):
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
