"""A search must not wait for what it does not use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tamis import Document, Index

HEAVY = {
    "numba",
    "llvmlite",
    "scipy",
    "pandas",
    "ir_measures",
    "pytrec_eval",
    "pydantic",
    "typer",
    "click",
    "Stemmer",
    "torch",
    "onnx",
    "onnxruntime",
    "tokenizers",
    "huggingface_hub",
    "tamis.rank.mono",
    "tamis.infer.scorer",
}


def imported(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh process has imported after running the code."""
    code += "\nimport json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    assert said.returncode == 0, said.stderr
    return set(json.loads(said.stderr))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("start") / "idx"
    # not all ASCII: splitting that needs patterns which take longer to compile than the search takes
    Index.build([Document("d1", "Un tamis, c’est la crème des sieves."), Document("d2", "Soup")], folder)
    return str(folder)


def test_import_tamis() -> None:
    assert not imported("import sys, tamis") & (HEAVY | {"rich", "tamis.cli"})


@pytest.mark.parametrize("options", [[], ["--json"], ["--explain"], ["--pipeline", "bm25 >> rm3"]])
def test_a_search_without_a_model(index: str, options: list[str]) -> None:
    code = "import sys; from tamis.cli import main; assert main() == 0"
    modules = imported(code, "search", index, "sieve", "--pipeline", "bm25", *options)
    assert "tamis.cli.search" in modules
    unwanted = HEAVY | {"tamis.cli.demo", "tamis.cli.eval", "tamis.index.kernel"}
    assert not modules & unwanted
    if "--json" in options:
        assert "rich" not in modules


def test_highlighting_compiles_no_patterns_for_other_alphabets(index: str) -> None:
    code = (
        "import sys; from tamis.cli import main; from tamis.text import wordbreak\n"
        "assert main() == 0; assert wordbreak._plain.cache_info().currsize == 0"
    )
    imported(code, "search", index, "sieve", "-p", "bm25")
