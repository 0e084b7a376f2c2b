"""Requests made up from the server's own OpenAPI schema: whatever comes, it is no fault of the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

import tamis as package
from tamis import Index
from tamis.formats import read_corpus

schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")
pytest.importorskip("fastapi")

DEMO = Path(package.__file__).parent / "demo_data"
POSSIBLE = {200, 400, 401, 404, 405, 406, 408, 413, 422, 503}


@pytest.fixture(scope="module")
def url(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve-schema")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    Index.build(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 100), folder / "idx")
    command = [sys.executable, "-m", "tamis", "serve", "idx", "--port", "0", "--workers", "1"]
    command += [
        "-p",
        "bm25 % 5 >> mono(model=m)",
        "--deadline",
        "60s",
        "--no-tokens",
    ]  # on a machine however busy
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        yield process.stderr.readline().rpartition(" ")[2].strip()
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""  # no traceback in the log
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_request_is_too_much(url: str, mode: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}openapi.json")
    seen: set[tuple[str, int]] = set()
    with requests.Session() as session:
        for found in schema.get_all_operations():
            operation = found.ok()
            strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode])

            @given(case=strategy)
            @settings(
                max_examples=8,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Any) -> None:
                answer = case.call(session=session)
                assert answer.status_code in POSSIBLE, answer.text
                if answer.status_code >= 400:
                    assert list(answer.json()) == ["error", "request_id"]
                seen.add((case.operation.label, answer.status_code))

            with suppress(Unsatisfiable):  # nothing can be wrong with this operation
                ask()
    if mode == "POSITIVE":
        assert {("POST /search", 200), ("POST /rerank", 200), ("GET /info", 200)} <= seen
    else:
        assert {("POST /search", 422), ("POST /v1/rerank", 422)} <= seen
