"""Without a framework its adapter says what to install, and tamis itself imports none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tamis.base.extras import install

PACKAGES = {
    "langchain": ("langchain_core", "langchain-core"),
    "llama_index": ("llama_index", "llama-index-core"),
    "haystack": ("haystack", "haystack-ai"),
    "pyterrier": ("pyterrier", "python-terrier"),
    "rerankers": ("rerankers", "rerankers"),
}


@pytest.mark.parametrize("adapter", PACKAGES)
def test_a_missing_framework_is_one_line(adapter: str) -> None:
    module, package = PACKAGES[adapter]
    code = f"import sys; sys.modules[{module!r}] = None; import tamis.integrations.{adapter}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1] == (
        f"tamis.base.errors.MissingDependencyError: tamis.integrations.{adapter} needs {package}, which is "
        f"not installed: {install(package)}"
    )


def test_ranking_imports_no_framework() -> None:
    frameworks = sorted({module for module, _ in PACKAGES.values()} | {"pandas", "polars", "elasticsearch"})
    code = (
        "import sys, tamis; tamis.Mono('mono-nano').rank('a', [{'_source': {'text': 'b'}}]); "
        f"print([each for each in {frameworks} if each in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
