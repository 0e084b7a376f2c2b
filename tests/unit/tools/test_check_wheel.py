"""tools/check_wheel.py: which Pythons it takes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"
HERE = "{}.{}".format(*sys.version_info)


def script(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{content}\n")
    path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="scripts of sh")
def test_pythons_that_work_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    import check_wheel  # type: ignore[import-not-found]

    script(tmp_path / "bin" / "python3.12", "echo no such command >&2; exit 127")  # a version manager's name
    script(tmp_path / "bin" / "python3.13", "echo 3.13")
    script(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python3.12", "echo 3.12")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    found = check_wheel.found([])
    assert found == {
        "3.12": str(tmp_path / "pyenv/versions/3.12.1/bin/python3.12"),
        "3.13": str(tmp_path / "bin/python3.13"),
    }
    assert check_wheel.found([sys.executable])[HERE] == sys.executable
    with pytest.raises(SystemExit, match="nothing is no Python with venv and ensurepip: name another"):
        check_wheel.found(["nothing"])
