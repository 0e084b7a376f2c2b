"""Runs on Ray: the run file of one process, to the byte, whoever is killed; and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import tamis
from tamis.base.processes import end_session
from tamis.cli import main
from tamis.core.journal import count
from tamis.core.registry import build
from tamis.core.remote import Reranking
from tamis.formats import read_corpus
from tamis.infer import ray_driver
from tamis.infer.ray_runtime import RayRuntime, Request

pytest.importorskip("ray", reason="Ray is not installed")
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
pytestmark = needs_proc

DEMO = Path(tamis.__file__).parent / "demo_data"
PIPELINE = "bm25 % 20 >> mono(model=mono-nano)"
MARK = "TAMIS_TEST_RAY"
HEADER = 1000  # bytes, more than the first line of a journal and less than a batch

#: Stages that order nothing: one ends its process when it gets a query, so many times; the other waits for
#: ever when it gets the query that a file names.
STAGES = """
import os, signal, time
from pathlib import Path
from tamis import Role, Stage, stage

@stage("stumble", role=Role.ORDERS)
class Stumble(Stage):
    def __init__(self, at: str, marks: str, times: int) -> None:
        self.at, self.marks, self.times = at, marks, times

    def apply(self, rankings, depth=None):
        died = len(list(Path(self.marks).iterdir()))
        if died < self.times and self.at in [ranking.query.id for ranking in rankings]:
            Path(self.marks, str(died)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return list(rankings)

@stage("stall", role=Role.ORDERS)
class Stall(Stage):
    def __init__(self, file: str) -> None:
        self.file = file

    def apply(self, rankings, depth=None):
        while Path(self.file).read_text() in [ranking.query.id for ranking in rankings]:
            time.sleep(1)
        return list(rankings)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, the run of one process, and a package with a stage that kills."""
    folder = tmp_path_factory.mktemp("ray")
    tamis.Index.build(read_corpus(DEMO / "corpus.jsonl.gz"), folder / "idx")
    assert main(arguments(folder, folder / "local.run")) == 0
    package = folder / "package" / "stumble-0.1.dist-info"
    package.mkdir(parents=True)
    (folder / "package" / "stumble.py").write_text(STAGES)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: stumble\nVersion: 0.1\n")
    (package / "entry_points.txt").write_text(
        "[tamis.stages]\nstumble = stumble:Stumble\nstall = stumble:Stall\n"
    )
    return folder


@pytest.fixture
def tamis_process(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command in a process of its own, and sees that it leaves no processes and no files."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join([str(folder / "package"), *filter(None, sys.path)])
    scratch = Path(tempfile.mkdtemp(dir="/tmp"))  # short, as Ray's sockets want it

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tamis", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch), MARK: mark},
            start_new_session=True,  # as a shell does it, so that a Ctrl-C can be sent to all
        )

    yield start
    wait_until(lambda: not with_mark(mark))
    wait_until(lambda: not any(scratch.glob("tamis-ray-*")))
    shutil.rmtree(scratch)


def with_mark(mark: str) -> list[str]:
    """The processes that a command has started, however they were started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended
            continue
    return found


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def without_progress(err: str) -> list[str]:
    """The lines of standard error, without those that tell of the progress of a slow machine."""
    return [line for line in err.splitlines() if not line.startswith(("Searching ", "Tokenising "))]


def arguments(folder: Path, run: Path, *more: str, pipeline: str = PIPELINE) -> list[str]:
    queries = str(DEMO / "queries.jsonl")
    return ["run", str(folder / "idx"), queries, "-o", str(run), "-p", pipeline, *more]


def stumbling(marks: Path, times: int) -> str:
    marks.mkdir()
    return f'{PIPELINE} >> stumble(at="{query(10)}", marks="{marks}", times={times})'


def query(number: int) -> str:
    return str(json.loads((DEMO / "queries.jsonl").read_text("utf-8").splitlines()[number])["_id"])


def test_a_worker_that_is_killed_twice_changes_nothing(
    folder: Path, tmp_path: Path, tamis_process: Callable[..., subprocess.Popen[str]]
) -> None:
    run, cache = tmp_path / "a.run", tmp_path / "scores.db"
    pipeline = stumbling(tmp_path / "marks", times=2)
    more = ["--on", "ray", "--workers", "2", "--cache", str(cache), "--json"]
    done = tamis_process(*arguments(folder, run, *more, pipeline=pipeline))
    out, err = done.communicate(timeout=300)
    assert (done.returncode, without_progress(err)) == (0, [])
    about = json.loads(out)  # nothing of Ray's is between
    assert run.read_bytes() == (folder / "local.run").read_bytes()
    assert about["cluster"]["restarts"] == 2 == len(list((tmp_path / "marks").iterdir()))
    assert sum(each["queries"] for each in about["cluster"]["workers"]) == 140
    assert all(each["queries_per_second"] > 0 for each in about["cluster"]["workers"])
    assert cache.exists() and not run.with_name("a.run.journal").exists()


def test_a_batch_that_kills_every_worker_is_an_error(
    folder: Path, tmp_path: Path, tamis_process: Callable[..., subprocess.Popen[str]]
) -> None:
    run, pipeline = tmp_path / "a.run", stumbling(tmp_path / "marks", times=9)
    done = tamis_process(*arguments(folder, run, "--on", "ray", "--workers", "2", pipeline=pipeline))
    out, err = done.communicate(timeout=300)
    assert (done.returncode, out) == (2, "")
    assert err.startswith("error: 3 workers were ended by the batch of the queries ")
    assert err.count("\n") == 1
    assert count(tmp_path / "a.run.journal") == 8  # the batch before


def test_interrupted_killed_and_resumed(
    folder: Path, tmp_path: Path, tamis_process: Callable[..., subprocess.Popen[str]]
) -> None:
    run, journal, stalls = tmp_path / "a.run", tmp_path / "a.run.journal", tmp_path / "stalls"
    pipeline = f'{PIPELINE} >> stall(file="{stalls}")'
    size = 0
    for kill, at in ((signal.SIGINT, 10), (signal.SIGKILL, 70)):
        stalls.write_text(query(at))
        more = ["--on", "ray", *(["--resume"] if size else [])]
        process = tamis_process(*arguments(folder, run, *more, pipeline=pipeline))
        wait_until(lambda: process.poll() is not None or size_of(journal) > size + HEADER)  # noqa: B023
        if kill is signal.SIGINT:
            os.killpg(process.pid, kill)  # as a terminal does it
        else:
            process.kill()
        _, err = process.communicate(timeout=120)
        assert process.returncode == (130 if kill is signal.SIGINT else -kill), err
        assert "Traceback" not in err
        size = size_of(journal)
    stalls.write_text("")
    more = ["--on", "ray", "--resume", "--json"]
    done = tamis_process(*arguments(folder, run, *more, pipeline=pipeline))
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert 8 < json.loads(out)["resumed"] < 72
    assert run.read_bytes() == (folder / "local.run").read_bytes()


def test_the_process_that_runs_ray_is_killed(
    folder: Path, tmp_path: Path, tamis_process: Callable[..., subprocess.Popen[str]]
) -> None:
    run, journal, stalls = tmp_path / "a.run", tmp_path / "a.run.journal", tmp_path / "stalls"
    stalls.write_text(query(10))
    pipeline = f'{PIPELINE} >> stall(file="{stalls}")'
    process = tamis_process(*arguments(folder, run, "--on", "ray", pipeline=pipeline))
    wait_until(lambda: process.poll() is not None or size_of(journal) > HEADER)
    for driver in children(process.pid):
        os.kill(driver, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert err.startswith("error: the process that runs Ray has ended") and err.count("\n") == 1
    assert count(journal) == 8  # for --resume


def children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in lists for child in each.read_text().split()]


def test_a_connection_that_ends_within_a_message_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C leaves it that comes while a task is sent."""
    monkeypatch.setattr("tamis.infer.ray_runtime.PATIENCE", 1000.0)
    ended = threading.Event()

    def interrupted() -> None:
        with RayRuntime(workers=1).start(Reranking.of([build("normalise")])) as workers:
            os.write(workers._connection.fileno(), struct.pack("!i", 100) + b"the beginning")
        ended.set()

    threading.Thread(target=interrupted, daemon=True).start()
    wait_until(ended.is_set)


def size_of(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


def test_tokens_are_those_of_one_process(
    folder: Path, tmp_path: Path, tamis_process: Callable[..., subprocess.Popen[str]]
) -> None:
    for name in ("local", "ray"):
        shutil.copytree(folder / "idx", tmp_path / name)
        shutil.rmtree(tmp_path / name / "tokens", ignore_errors=True)
    assert main(["tokens", str(tmp_path / "local")]) == 0
    done = tamis_process("tokens", str(tmp_path / "ray"), "--on", "ray")
    _, err = done.communicate(timeout=300)
    assert (done.returncode, without_progress(err)) == (0, [])
    kept = files(tmp_path / "local" / "tokens")
    assert len(kept) > 4 and kept == files(tmp_path / "ray" / "tokens")


def files(folder: Path) -> dict[str, bytes]:
    drawn = ("lock", "tamis.marker")  # which has the name of the folder while it was written
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in drawn)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_error_in_a_worker_is_one_line(
    folder: Path, tmp_path: Path, tamis_process: Callable[..., subprocess.Popen[str]]
) -> None:
    errors = []
    for more in ([], ["--on", "ray", "--workers", "1"]):
        wrong = "bm25 >> duo(model=mono-nano)"
        done = tamis_process(*arguments(folder, tmp_path / "a.run", *more, pipeline=wrong))
        errors.append((done.communicate(timeout=300), done.wait()))
    assert errors[0] == errors[1]
    assert errors[0][1] == 2 and errors[0][0][1].startswith("error: duo needs three segment types")


#: Without it, about one in fifteen of the servers that a cluster starts for its clients dies (ray#63202).
NO_FORK_HANDLERS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}


@pytest.fixture
def running_cluster() -> Iterator[tuple[str, str]]:
    """The addresses of a cluster that was started before: for its own machine, and for others."""
    if " " in sys.prefix:
        pytest.skip("`ray start` cannot serve its clients from an environment whose path has a space")
    scratch, ports = Path(tempfile.mkdtemp(dir="/tmp")), free_ports(4)
    kinds = ("port", "ray-client-server-port", "runtime-env-agent-port", "metrics-export-port")
    options = {
        **dict(zip(kinds, ports, strict=True)),
        **{"num-cpus": 2, "object-store-memory": 96 << 20, "include-dashboard": "false", "temp-dir": scratch},
    }
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    started = subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in options.items())],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", **NO_FORK_HANDLERS},
        start_new_session=True,
    )
    try:
        for port in ports[:2]:
            wait_until(lambda: listens(port))  # noqa: B023
        yield f"ray:127.0.0.1:{ports[0]}", f"ray://127.0.0.1:{ports[1]}"
    finally:
        end_session(started.pid)
        started.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_cluster_that_runs_already(
    folder: Path,
    tmp_path: Path,
    running_cluster: tuple[str, str],
    tamis_process: Callable[..., subprocess.Popen[str]],
) -> None:
    for number, address in enumerate(running_cluster):
        run = tmp_path / f"{number}.run"
        done = tamis_process(*arguments(folder, run, "--on", address, "--json"))
        out, err = done.communicate(timeout=300)
        assert (done.returncode, without_progress(err)) == (0, [])
        assert json.loads(out)["cluster"]["on"] == address
        assert run.read_bytes() == (folder / "local.run").read_bytes()
    done = tamis_process(*arguments(folder, run, "--on", address, "--workers", "3"))
    _, err = done.communicate(timeout=300)
    assert without_progress(err) == [
        "error: the cluster (CPU cores: 2) is too small for the workers (number: 3, cores for each: 1): "
        "use fewer workers or cores"
    ]


def test_a_server_of_the_cluster_that_dies_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [
        "Starting Ray client server failed. See a.err",
        "Proxy failed to Connect to backend! Check a.err",
    ]

    def init(address: str, **options: object) -> None:
        if remaining:
            raise ConnectionAbortedError("Initialization failure from server:\n" + remaining.pop())

    monkeypatch.setattr("ray.init", init)
    with socket.create_server(("127.0.0.1", 0)) as server:
        runtime = RayRuntime(f"ray://127.0.0.1:{server.getsockname()[1]}")
        request = Request(runtime, b"", False, "")
        remaining = errors[:]
        ray_driver.connect(request)
        assert not remaining
        remaining = [errors[0]] * 4
        with pytest.raises(ConnectionAbortedError):
            ray_driver.connect(request)
        assert len(remaining) == 1
        remaining = ["no such user", errors[0]]
        with pytest.raises(ConnectionAbortedError, match="no such user"):
            ray_driver.connect(request)
        assert not remaining


def test_no_cluster_at_the_address(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(folder, tmp_path / "a.run", "--on", "ray:127.0.0.1:1")) == 2
    assert "nothing answers at 127.0.0.1:1 (Connection refused)" in capsys.readouterr().err
    assert main(arguments(folder, tmp_path / "a.run", "--on", "ray", "--dry-run")) == 2
    assert "--dry-run measures this machine" in capsys.readouterr().err


def test_without_ray(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.infer.ray_runtime.find_spec", lambda name: None)
    assert main(arguments(folder, tmp_path / "a.run", "--on", "ray")) == 2
    assert capsys.readouterr().err.startswith("error: Ray is not installed: pip install")
