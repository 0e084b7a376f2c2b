"""Graphs that are kept between processes: the same scores with them and without, in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tamis.infer.graph_cache import MOST, VARIABLE, cache_folder, kept_graph
from tamis.models.bundled import bundled_models
from tamis.rank.mono import Mono


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert cache_folder() is None
    assert kept_graph("a", lambda: b"1") + kept_graph("a", lambda: b"2") == b"12"
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "tamis"


def test_what_is_damaged_is_made_again(folder: Path) -> None:
    assert kept_graph("a", lambda: b"graph") == b"graph"
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:], whole + b"x"):
        path.write_bytes(damaged)
        assert kept_graph("a", lambda: b"graph") == b"graph"
        assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_is_no_error(folder: Path) -> None:
    folder.write_text("a file")
    assert kept_graph("a", lambda: b"graph") == b"graph"


def test_old_ones_go(folder: Path) -> None:
    for number in range(MOST + 3):
        kept_graph(f"{number}", lambda: b"graph")
        os.utime(folder / f"{number}.graph", (number, number))
    kept_graph("last", lambda: b"graph")
    left = {path.stem for path in folder.iterdir()}
    assert len(left) == MOST and "last" in left and not left & {"0", "1", "2", "3"}


def test_graphs_of_others_stay(folder: Path) -> None:
    folder.mkdir()
    (folder / "mine.graph").write_text("nodes and edges")
    os.utime(folder / "mine.graph", (0, 0))
    for number in range(MOST + 3):
        kept_graph(f"{number}", lambda: b"graph")
    assert (folder / "mine.graph").read_text() == "nodes and edges"


@pytest.mark.parametrize("model", [each for each in bundled_models() if each != "duo"])
def test_scores_are_the_same_from_the_cache(
    model: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores() -> np.ndarray:
        ranked = Mono(model, score="logit", device="cpu", workers=1).rank("a sieve", ["a fine sieve", "soup"])
        return np.array([each.score for each in ranked])

    first = scores()
    assert len(list(folder.iterdir())) == 1
    assert np.array_equal(scores(), first)
    monkeypatch.setenv(VARIABLE, "")
    assert np.array_equal(scores(), first)


def test_a_kept_graph_needs_no_onnx(folder: Path) -> None:
    code = (
        "import sys; from tamis.rank.mono import Mono; Mono('mono', device='cpu').prepare(); "
        "sys.exit('onnx' in sys.modules)"
    )
    said = [subprocess.run([sys.executable, "-c", code], timeout=300).returncode for _ in range(2)]
    assert said == [1, 0]
