"""`tamis serve` when what it was started with changes, or is not there: as a real process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.cli import main
from tamis.rank.groupwise import GroupwiseModel

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an index that has positions."""
    monkeypatch.chdir(tmp_path)
    Path("docs.jsonl").write_text('{"id": "d1", "text": "a fine sieve"}\n{"id": "d2", "text": "soup"}\n')
    Path("more.jsonl").write_text('{"id": "d3", "text": "a fine sieve"}\n')
    assert main(["index", "docs.jsonl", "-o", "idx", "--positions"]) == 0
    return tmp_path


class Client:
    def __init__(self, line: str) -> None:
        self.client = httpx.Client(base_url=line.rpartition(" ")[2].strip(), timeout=60)

    def found(self, **body: Any) -> list[str]:
        answer = self.client.post("/search", json={"query": "fine sieve", "deadline_ms": 60_000, **body})
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["results"]]

    def wait(self, path: str, words: str) -> None:
        until = time.monotonic() + 60
        while words not in self.client.get(path).text:
            self.client.get("/info")  # the index is looked at as requests come
            assert time.monotonic() < until
            time.sleep(0.01)


def test_an_index_rebuilt_so_that_the_own_pipeline_cannot_run(folder: Path) -> None:
    command = [sys.executable, "-m", "tamis", "serve", "idx", "--port", "0", "-p", "sdm"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        client = Client(process.stderr.readline())
        client.wait("/readyz", "ready")
        assert main(["index", "more.jsonl", "-o", "idx", "--overwrite"]) == 0
        client.wait("/metrics", 'tamis_index_reloads_total{outcome="failed"} 1')
        for _ in range(3):
            assert client.found() == client.found(pipeline="bm25") == ["d1"]
            time.sleep(0.3)  # longer than it is between two looks at the index
        assert client.client.get("/documents/d2").json()["text"] == "soup"
        assert client.client.get("/readyz").status_code == 200
        assert main(["index", "more.jsonl", "-o", "idx", "--overwrite", "--positions"]) == 0
        client.wait("/info", '"documents":1')
        assert client.found() == ["d3"]
        process.terminate()
        assert process.wait(60) == 0
        why = "sdm needs positions: build the index with positions (--positions)"
        logged = f"the index has changed, and sdm cannot run over it ({why}): the previous state is served\n"
        assert process.stderr.read() == logged
    finally:
        process.kill()
        process.wait()


def test_a_model_of_groupwise_is_looked_at_when_the_server_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["serve", "idx", "--port", "0", "--deadline", "60s"]  # on a machine however busy
    capsys.readouterr()
    assert main([*start, "-p", "bm25 % 5 >> groupwise"]) == 2
    assert capsys.readouterr().err.startswith("error: groupwise.json: no such file: check the path")
    GroupwiseModel(("score",), [(np.eye(2), np.zeros(2))], texts=2).save("gsf.json")
    command = [sys.executable, "-m", "tamis", *start, "-p", "bm25 % 5", "--model", "gsf.json"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        client = Client(process.stderr.readline())
        assert client.found(pipeline='bm25 >> groupwise(model="gsf.json")') == ["d1"]
        assert client.client.get("/info").json()["models"]["gsf.json"] == "groupwise"
        # a client of others means a model that ranks texts: this one is as good as unknown
        body = {"model": "gsf.json", "query": "sieve", "documents": ["soup", "a sieve"]}
        assert client.client.post("/v2/rerank", json=body).json()["model"] == "mono"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
