"""Dockerfile and compose.yaml, where no container can be built: the steps are carried out in a folder that
stands for the image, and the server is started there without rights, and with nothing to write to but /tmp.

Two things differ from a build: the packages that are installed by their checksums are those of this
environment, and the base image is this machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tamis import Document, Index
from tamis.serve.limits import LONGEST_DEADLINE, SLOW_CLIENT

yaml = pytest.importorskip("yaml")
httpx = pytest.importorskip("httpx")
pytest.importorskip("setuptools")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the image is one of Linux")

ROOT = Path(__file__).parents[2]
#: The folders of the image that the steps name.
FOLDERS = re.compile(r"(?<![\w./-])/(?=(?:opt/tamis|src|tmp|index)\b)")
LOCKED = re.compile(r"(\S+) .*--require-hashes -r (constraints/\w+\.txt)")
#: For root: without its capabilities, so that what is read-only is so for it too.
POWERLESS = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]


class Step(NamedTuple):
    name: str
    words: str

    @property
    def arguments(self) -> list[str]:
        """Of the form that no shell reads."""
        return list(map(str, json.loads(self.words)))


def steps() -> list[Step]:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Step(*line.split(maxsplit=1)) for line in joined.splitlines() if line]


def only(name: str) -> Step:
    (found,) = (step for step in steps() if step.name == name)
    return found


def context(folder: Path) -> Path:
    """What a builder would be sent."""
    first, *patterns = [
        line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")
    ]
    assert first == "*"
    left_out = shutil.ignore_patterns(*(each[3:] for each in patterns if each.startswith("**/")))
    folder.mkdir()
    for each in (each[1:] for each in patterns if each.startswith("!")):
        copy(ROOT / each, folder / each, left_out)
    return folder


def copy(source: Path, target: Path, ignore: Any = None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=ignore)
    else:
        shutil.copy2(source, target)


class Image:
    """The file system of the stage that is built, in a folder; all stages have the same one, because what is
    installed names its own place."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "image"
        self.built: dict[str, Path] = {}
        self.context = context(folder / "context")

    def placed(self, words: str) -> str:
        return FOLDERS.sub(f"{self.root}/", words)

    def build(self) -> None:
        for step in steps():
            getattr(self, f"do_{step.name.lower()}", lambda words: None)(step.words)

    def do_from(self, words: str) -> None:
        if self.root.exists():
            self.root.rename(self.built["build"])
        if " AS " in words:
            self.built[words.rpartition(" ")[2]] = self.root.with_name("built")
        (self.root / "tmp").mkdir(parents=True)
        self.place = self.root
        self.environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self.root)}

    def do_workdir(self, words: str) -> None:
        self.place = Path(self.placed(words))
        self.place.mkdir(parents=True, exist_ok=True)

    def do_env(self, words: str) -> None:
        for each in shlex.split(self.placed(words)):
            name, _, value = each.partition("=")
            self.environment[name] = value.replace("$PATH", self.environment["PATH"])

    def do_copy(self, words: str) -> None:
        *options, target = words.split()
        if options[0].startswith("--from="):
            source = self.built[options[0].partition("=")[2]] / options[1].lstrip("/")
            copy(source, Path(self.placed(target)))
            for path in Path(self.placed(target)).rglob("*"):  # as the layers of an image have them
                if not path.is_symlink():
                    os.utime(path, (int(path.stat().st_mtime),) * 2)
        else:
            for each in options:
                copy(self.context / each, self.place / target / (each if target == "./" else ""))

    def do_run(self, words: str) -> None:
        locked = LOCKED.match(words)
        if locked:
            assert "==" in (self.place / locked[2]).read_text()
            if locked[1].startswith("/opt/tamis"):
                (packages,) = self.root.glob("opt/tamis/lib/python*/site-packages")
                (packages / "here.pth").write_text("\n".join(site.getsitepackages()))
            return
        offline = {"PIP_NO_INDEX": "1", "PIP_IGNORE_INSTALLED": "1"}
        self.run(["sh", "-c", self.placed(words)], **offline)

    def run(self, command: list[str], **more: str) -> None:
        environment = self.environment | more
        done = subprocess.run(command, cwd=self.place, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def files(self) -> set[tuple[str, int]]:
        """All that a running container must not change."""
        return {
            (str(path), path.lstat().st_mtime_ns)
            for path in self.root.rglob("*")
            if not path.is_relative_to(self.root / "tmp")
        }

    def protect(self, *, writable: bool = False) -> None:
        for path in [self.root, *self.root.rglob("*")]:
            if not path.is_symlink() and (writable or not path.is_relative_to(self.root / "tmp")):
                mode = path.stat().st_mode & 0o777
                path.chmod(mode | 0o200 if writable else mode & ~0o222)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    made = Image(tmp_path_factory.mktemp("container"))
    made.build()
    Index.build([Document("d1", "a tamis is a sieve"), Document("d2", "soup")], made.root / "index")
    made.protect()
    yield made
    made.protect(writable=True)


def health(image: Image, port: int) -> int:
    """The status of the health check."""
    words = only("HEALTHCHECK").words
    command = list(map(str, json.loads(words[words.index("[") :])))
    assert "8000" in command[-1]
    program = shutil.which(command[0], path=image.environment["PATH"])
    assert program is not None and Path(program).is_relative_to(image.root)
    command = [program, *command[1:-1], command[-1].replace("8000", str(port))]
    return subprocess.run(command, env=image.environment, stderr=subprocess.DEVNULL).returncode


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def compose() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["tamis"]
    return service


def test_the_image_serves_with_nothing_to_write_to(image: Image) -> None:
    port = free_port()
    assert health(image, port) != 0
    before, kernels = image.files(), sorted(p.name for p in image.root.glob("opt/tamis/kernels/*/*"))
    arguments = [*only("ENTRYPOINT").arguments, *compose()["command"], "--port", str(port)]
    assert arguments[: -2 - 2] == only("ENTRYPOINT").arguments + only("CMD").arguments
    command = [*(POWERLESS if os.geteuid() == 0 else []), *map(image.placed, arguments)]
    process = subprocess.Popen(
        command, cwd=image.root, env=image.environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = ""
        while not said.rstrip().endswith(f":{port}/"):
            line = process.stderr.readline()
            assert line, said
            said += line
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            until = time.monotonic() + 300
            while (state := client.get("/readyz")).status_code != 200:
                assert "loading the models" in state.text
                assert time.monotonic() < until
                time.sleep(0.1)
            assert health(image, port) == 0
            body = {"query": "a sieve", "deadline_ms": 60_000}
            found = client.post("/search", json=body).json()
            assert (found["complete"], found["finished"]) == (True, "mono")  # by the bundled models
            assert [each["id"] for each in found["results"]] == ["d1"]
            refused = client.get("/info", headers={"host": "evil.example"})
            assert refused.status_code == 403
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert health(image, port) != 0
    assert image.files() == before
    assert kernels
    assert sorted(p.name for p in image.root.glob("tmp/kernels/*/*")) == kernels  # none was compiled again


def test_a_server_that_is_not_ready_is_not_healthy(image: Image) -> None:
    class Loading(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path == "/readyz" else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Loading) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            assert health(image, server.server_port) == 1
        finally:
            server.shutdown()


def test_the_image_is_small_and_has_no_user_of_power(image: Image) -> None:
    user = only("USER").words.split(":")
    assert all(int(each) > 0 for each in user)
    bases = [step.words for step in steps() if step.name == "FROM"]
    assert [each.partition(" ")[0] for each in bases] == ["python:${PYTHON}"] * 2
    assert re.fullmatch(r"PYTHON=3\.\d+-slim-\w+", only("ARG").words)
    copied = [step.words for step in steps()[len(steps()) - steps()[::-1].index(Step("FROM", bases[1])) :]]
    assert sum(each.startswith("--from=build") for each in copied) == 1
    assert not list(image.root.glob("src"))  # of the first stage, nothing else is there
    locked = (ROOT / "constraints" / "core.txt").read_text()
    assert not re.search(r"^(torch|triton|nvidia)", locked, re.MULTILINE)
    assert list(image.root.glob("opt/tamis/lib/python*/site-packages/tamis/models_data/mono/*.safetensors"))


def test_the_composition_is_as_closed_as_the_image_allows() -> None:
    service = compose()
    assert service["read_only"] is True
    assert [each.partition(":")[0] for each in service["tmpfs"]] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert all(each.endswith(":ro") for each in service["volumes"])
    assert all(each.startswith("127.0.0.1:") for each in service["ports"])
    assert int(service["stop_grace_period"].removesuffix("s")) > LONGEST_DEADLINE + SLOW_CLIENT
