"""The plain path: a process in which numba cannot be imported indexes and searches all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tamis import Document, Index

SCRIPT = """
import json, sys
sys.modules["numba"] = None  # an import of it now fails
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else found(name, *rest)
from tamis import Document, Index
from tamis.base.errors import MissingDependencyError
documents = (Document(f"d{n}", f"tamis sieve{n % 7} cook{n % 5}") for n in range(30_000))
index = Index.build(documents, sys.argv[1])
run = index.bm25() % 20
run.prepare()
ranking = run("sieve3 cook1")
try:
    (index.bm25(backend="numba") % 20)("sieve3")
except MissingDependencyError as error:
    refused = str(error)
print(json.dumps([list(ranking.ids), ranking.scores.tolist(), refused, "numba" in str(sys.modules["numba"])]))
"""


def test_indexing_and_searching_without_numba_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr("tamis.index.invert.COMPILE_AFTER", 0)  # here both compiled parts run
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "plain")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ids, scores, refused, imported = json.loads(done.stdout)
    assert refused.startswith("numba is not installed") and not imported
    documents = (Document(f"d{n}", f"tamis sieve{n % 7} cook{n % 5}") for n in range(30_000))
    index = Index.build(documents, tmp_path / "compiled")
    ranking = (index.bm25(backend="numba") % 20)("sieve3 cook1")
    assert (list(ranking.ids), ranking.scores.tolist()) == (ids, scores)
