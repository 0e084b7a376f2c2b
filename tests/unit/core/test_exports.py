"""What `import tamis` gives."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import tamis
from tamis.core.registry import BUILT_IN, declared


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_stage_of_the_language_is_there(name: str) -> None:
    found = declared(name)
    assert found.name == name
    assert getattr(tamis, found.__name__) is found
    assert found.__name__ in tamis.__all__


def test_every_name_is_there() -> None:
    assert dir(tamis) == sorted(tamis.__all__)
    assert [name for name in tamis.__all__ if not hasattr(tamis, name)] == []
    assert inspect.isclass(tamis.SDM) and inspect.isclass(tamis.Cedr) and inspect.isclass(tamis.Parade)


def test_stages_of_long_documents_come_without_torch() -> None:
    """It is loaded with the model."""
    code = "import sys, tamis; tamis.Cedr('a'), tamis.Parade('b'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
