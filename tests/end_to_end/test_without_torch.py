"""Models with exits and listwise models where torch cannot be imported: they rank as they do beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.cli import main
from tamis.models.architectures.cascade import Cascade, CascadeSettings
from tamis.models.architectures.listwise import Listwise, ListwiseSettings
from tamis.models.checkpoint import load_checkpoint, save_checkpoint

WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle"]

WITHOUT_TORCH = """
import sys
blocked = ("torch", "transformers", "sentence_transformers")
sys.modules.update(dict.fromkeys(blocked))  # an import of what is None there fails
from tamis.cli import main
assert main() == 0
assert not [name for name in sys.modules if name.startswith("torch") and name != "torch"]
"""


@pytest.fixture(scope="module")
def place(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without-torch")
    plain = load_checkpoint(tiny_checkpoint(folder / "plain", layers=3, positions=96))
    exits = Cascade(CascadeSettings(exits=(1, 2), heads="trained"))
    save_checkpoint(exits.begin(plain), folder / "exits")
    save_checkpoint(Listwise(ListwiseSettings(n=4)).begin(plain, seed=1), folder / "lists")
    texts = [" ".join(WORDS[n % 10 :] + WORDS[: n % 7]) for n in range(30)]
    Index.build([Document(f"d{n:02}", text) for n, text in enumerate(texts)], folder / "idx")
    (folder / "queries.tsv").write_text("1\tcastle song\n2\tthe river war\n")
    return folder


def without_torch(place: Path, *command: str) -> str:
    line = [sys.executable, "-c", WITHOUT_TORCH, *command]
    done = subprocess.run(line, capture_output=True, text=True, cwd=place, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


STAGES = [
    "cascade(model=exits, alpha=0.5)",
    "cascade(model=exits, entropy=0.6)",
    "cascade(model=exits, precision=fp32)",
    "listwise(model=lists, k=10)",
    "listwise(model=lists, k=10, precision=fp32)",
]


@pytest.mark.parametrize("stage", STAGES)
def test_it_ranks_as_beside_torch(
    stage: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    command = ["run", "idx", "queries.tsv", "-p", f"bm25 % 20 >> {stage}", "--device", "cpu", "--json"]
    alone = json.loads(without_torch(place, *command, "-o", "alone.run"))
    assert main([*command, "-o", "beside.run"]) == 0
    beside = json.loads(capsys.readouterr().out)
    assert (place / "alone.run").read_text() == (place / "beside.run").read_text() != ""
    assert alone["models"] == beside["models"]
    (model,) = alone["models"]
    assert model["runs_on"].startswith(f"ONNX Runtime, {'fp32' if 'fp32' in stage else 'int8'}, ")


@pytest.mark.parametrize("stage", STAGES[::3])
def test_what_else_is_asked_of_a_model(stage: str, place: Path) -> None:
    pipeline = f"bm25 % 20 >> {stage}"
    assert "castle" in without_torch(place, "search", "idx", "castle song", "-p", pipeline, "--explain")
    planned = ["run", "idx", "queries.tsv", "-o", "no.run", "-p", pipeline, "--dry-run", "--json"]
    assert json.loads(without_torch(place, *planned))["inferences"]["all"] > 0
