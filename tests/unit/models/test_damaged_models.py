"""A byte that is not what was written, in a graph or in weights: an error, never other scores."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Mono
from tamis.base.arrays import Array
from tamis.base.errors import CorruptError, InputError, TamisError
from tamis.cli import main
from tamis.infer.onnx_backend import OnnxBackend, export
from tamis.models import bundled
from tamis.models.bundled import BUNDLED, FINGERPRINT, bundled_folder, bundled_models, load_bundled
from tamis.models.checkpoint import load_checkpoint, save_checkpoint
from tamis.models.templates import Inputs
from tamis.models.weights import verify_tensors
from tamis.train.recipe import Model
from tamis.train.start import load_start

INPUTS = Inputs(np.array([2, 7, 3, 8, 9, 3]), np.array([0, 0, 0, 1, 1, 1], np.uint8), np.array([0, 6]))


def scores(folder: Path) -> Array:
    return OnnxBackend(load_checkpoint(folder), "int8").margins(INPUTS)


def damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)


def places(path: Path, count: int) -> list[int]:
    """All over a file, its ends among them."""
    size = path.stat().st_size
    drawn = np.random.default_rng(0).integers(0, size, count).tolist()
    return [0, 7, 8, 20, size // 2, size - 60, size - 40, size - 1, *drawn]


def test_a_damaged_graph_never_scores_otherwise(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model")
    path = export(load_checkpoint(folder))
    whole, right = path.read_bytes(), scores(folder).tolist()
    refused = 0
    for place in places(path, 30):
        path.write_bytes(whole)
        damage(path, place)
        try:
            assert scores(folder).tolist() == right
        except CorruptError as error:
            refused += 1
            assert "delete it, or run `tamis export` again" in str(error)
    assert refused > 30  # but where the checksum itself is damaged, and the weights are read instead


def test_a_graph_without_a_checksum_is_not_used(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """An older tamis wrote such graphs: they are made again from the weights, as those of other weights."""
    folder = tiny_checkpoint(tmp_path / "model")
    path = export(load_checkpoint(folder))
    right = scores(folder).tolist()
    import onnx

    model = onnx.load(str(path))
    model.graph.initializer[-1].raw_data = bytes(len(model.graph.initializer[-1].raw_data))
    del model.metadata_props[-1]
    path.write_bytes(model.SerializeToString())
    assert scores(folder).tolist() == right


def test_an_exported_graph_is_one_for_other_programs(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    import onnx

    model = onnx.load(str(export(load_checkpoint(tiny_checkpoint(tmp_path / "model")))))
    onnx.checker.check_model(model)
    assert [entry.key for entry in model.metadata_props][-1] == "tamis.checksum"


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_damaged_weights_are_refused(
    dtype: str, tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    save_checkpoint(load_checkpoint(tiny_checkpoint(tmp_path / "tiny")), folder, dtype)  # type: ignore[arg-type]
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for place in places(path, 30):
        path.write_bytes(whole)
        damage(path, place)
        with pytest.raises((CorruptError, InputError)):
            load_checkpoint(folder)
    path.write_bytes(whole)
    load_checkpoint(folder)


def test_weights_from_elsewhere_have_no_checksum(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "model.safetensors"
    save_file({"a": np.ones(3, np.float32)}, path)
    verify_tensors(path)
    assert load_file(path)["a"].tolist() == [1, 1, 1]


# -- the models that come with tamis


def test_every_bundled_model_is_what_it_was() -> None:
    """Where this fails because a model was changed, run `python tools/bundled_fingerprints.py`."""
    for name in bundled_models():
        assert (BUNDLED / name / FINGERPRINT).is_file()
        load_bundled(BUNDLED / name)


def test_a_damaged_bundled_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "BUNDLED", tmp_path / "models_data")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(BUNDLED / "mono-nano", tmp_path / "models_data" / "mono-nano")
    Mono("mono-nano").prepare()
    damage(tmp_path / "models_data" / "mono-nano" / "model.safetensors", 1_000_000)
    for use in (
        lambda: Mono("mono-nano").prepare(),
        lambda: load_start(Model("mono-nano"), seed=0),
        lambda: Mono("mono-nano").rank("a", ["b"]),
    ):
        with pytest.raises(CorruptError, match=r"models_data/mono-nano is damaged: install tamis again"):
            use()


@pytest.mark.parametrize("what", ["folder", "file", "folder of something else", "link to nothing"])
def test_what_is_no_model_hides_no_bundled_one(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mono"
    if what == "file":
        path.write_text("a")
    elif what == "link to nothing":
        path.symlink_to(tmp_path / "nothing")
    else:
        path.mkdir()
    if what == "folder of something else":
        (path / "notes.txt").write_text("a")
    assert bundled_folder("mono") == BUNDLED / "mono"
    assert load_start(Model("mono"), seed=0).folder == BUNDLED / "mono"


@pytest.mark.parametrize("name", ["config.json", "tamis.json", "best/config.json", "last/config.json"])
def test_a_model_of_the_same_name_is_ones_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mono" / name
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert bundled_folder("mono") is None


def test_a_training_run_of_the_same_name_says_which_model_to_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mono" / "best").mkdir(parents=True)
    (tmp_path / "mono" / "best" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="mono: has a training run in it: give mono/best"):
        Mono("mono").prepare()


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 100_000, "a\0b"])
def test_names_that_no_model_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert bundled_folder(name) is None
    with pytest.raises(TamisError) as caught:
        Mono(name).prepare()
    assert len(str(caught.value)) < 5000


def test_a_folder_called_as_a_bundled_recipe_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "monobert").mkdir()
    assert main(["train", "monobert", "-o", "out"]) == 2
    assert "is a folder" not in capsys.readouterr().err
