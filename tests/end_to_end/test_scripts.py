"""The scripts of bench/ and repro/ say in one line what is missing, and do not wait in vain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEAD = """
import machine

def work(results):
    raise SystemExit(3)

if __name__ == "__main__":
    machine.in_a_process(work)
"""


def called(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize(
    "script", ["repro/models/evaluate.py mono", "bench/parity_anserini.py", "bench/passages.py"]
)
def test_data_that_are_not_there_are_one_line(script: str, tmp_path: Path) -> None:
    name, *arguments = script.split()
    done = called(REPOSITORY / name, *arguments, "--data", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}") and done.stderr.count("\n") == 1


def test_a_process_that_ends_without_a_result_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text(DEAD, encoding="utf-8")
    done = called(tmp_path / "dead.py", path=REPOSITORY / "bench")
    assert done.returncode == 1
    assert done.stderr == "error: work ended without a result: see above\n"
