"""A real `tamis serve` for tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")


class Served:
    """A server process, and a client of it."""

    def __init__(self, process: subprocess.Popen[str], url: str, key: str | None = None) -> None:
        self.process, self.url = process, url
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=60)

    def post(self, path: str, **body: Any) -> Any:
        return self.client.post(path, json=body)

    def get(self, path: str) -> Any:
        return self.client.get(path)

    def metric(self, line: str) -> float:
        lines = self.get("/metrics").text.splitlines()
        return next((float(each.rpartition(" ")[2]) for each in lines if each.startswith(line)), 0.0)

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.01)


@contextmanager
def serving(
    folder: Path,
    *options: str,
    key: str | None = None,
    ready: bool = True,
    tokens: bool = False,
    index: str | None = "idx",
    quiet: bool = True,
) -> Iterator[Served]:
    """`tamis serve idx` in a folder, until the block ends; a `quiet` one has nothing in its log."""
    command = [sys.executable, "-m", "tamis", "serve", *([index] if index else []), *options]
    command += ["--port", "0", "--workers", "1"]
    command += [] if tokens else ["--no-tokens"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        while not (line := process.stderr.readline()).rstrip().endswith("/"):
            lines.append(line)
            assert line, "".join(lines)
        served = Served(process, line.rpartition(" ")[2].strip(), key)
        if ready:
            served.wait(lambda: served.get("/readyz").status_code == 200)
        yield served
        served.client.close()
        process.terminate()
        assert process.wait(60) == 0
        log = process.stderr.read()
        assert "Traceback" not in log and (not quiet or log == "")
    finally:
        process.kill()
        process.wait()
