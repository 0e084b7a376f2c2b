"""Workers on Ray: a cluster of this machine that lives as long as a job, or one that is there.

Ray runs in a process of its own (`tamis.core.ray_driver`), which ends with its connection to this one,
however this one ends. So nothing of Ray is imported here, nothing that it prints reaches a terminal, no
Ctrl-C reaches it before us, and whatever stops it from answering is an error in bounded time.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError, MissingDependencyError, TamisError
from tamis.base.extras import install
from tamis.base.processes import end_others, end_session
from tamis.base.version import __version__
from tamis.core.cluster import Done, Job, in_order

LOCAL = "local"
_AHEAD = 3  # tasks a worker: one that it does, one that waits there, one that is done and waits for its turn
PATIENCE = 20.0  # seconds until a process that was told to end is ended
_MAIN = "import sys; sys.path[:] = sys.argv[2:]; from tamis.core.ray_driver import main; main()"


@dataclass(frozen=True)
class RayRuntime:
    """Where `Stage.run` and `build_tokens` find workers.

    `address` is `local` for a cluster of this machine, which is started for a job and stopped after it;
    `ray://HOST:10001` for one that is there; from one of its machines also `auto` or `HOST:6379`. There are
    as many `workers` as the cluster has GPUs, or else cores for, unless told; each has a model of its own,
    and so many `cores`. `timeout` is how many seconds the cluster has to answer, and its first worker to
    start.

    >>> RayRuntime(workers=2)
    RayRuntime(workers=2)
    >>> RayRuntime("somewhere")
    Traceback (most recent call last):
    tamis.base.errors.InputError: 'somewhere' is not the address of a Ray cluster: use local, auto, HOST:PORT
    or ray://HOST:PORT
    """

    address: str = LOCAL
    workers: int | None = None
    cores: int | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.address not in (LOCAL, "auto") and place_of(self.address) is None:
            raise InputError(
                f"{self.address!r} is not the address of a Ray cluster",
                remedy="use local, auto, HOST:PORT or ray://HOST:PORT",
            )
        for name, number in (("workers", self.workers), ("cores", self.cores)):
            if number is not None and number < 1:
                raise InputError(f"{number} {name}", remedy="use at least 1")

    def __repr__(self) -> str:
        defaults = RayRuntime.__dataclass_fields__.values()
        set_here = [(each.name, getattr(self, each.name)) for each in defaults]
        told = (f"{name}={value!r}" for name, value in set_here if value != getattr(RayRuntime, name))
        return f"RayRuntime({', '.join(told)})"

    def __str__(self) -> str:
        """As a command line has it.

        >>> print(RayRuntime(), RayRuntime("ray://head:10001"), RayRuntime("auto"))
        ray ray://head:10001 ray:auto
        """
        if self.address == LOCAL:
            return "ray"
        return self.address if self.address.startswith("ray://") else f"ray:{self.address}"

    @property
    def on_this_machine(self) -> bool:
        return self.address == LOCAL

    @contextmanager
    def start(self, job: Job) -> Iterator[RayWorkers]:
        """Workers for a job, until the block ends."""
        if os.name == "nt":
            raise TamisError("workers on Ray need Linux or macOS", remedy="run it without Ray")
        if find_spec("ray") is None:
            raise MissingDependencyError("Ray is not installed", remedy=install("ray"))
        if self.address.startswith("ray://") and find_spec("grpc") is None:
            problem = f"the address {self.address} needs Ray's client, which is not installed"
            raise MissingDependencyError(problem, remedy="pip install 'ray[client]'")
        with _driver(self, job) as (connection, log):
            workers = RayWorkers(connection, log)
            try:
                yield workers
            finally:
                workers.close()


def place_of(address: str) -> tuple[str, int] | None:
    """The host and the port of a cluster's address.

    >>> place_of("ray://head:10001"), place_of("10.0.0.7:6379"), place_of("head")
    (('head', 10001), ('10.0.0.7', 6379), None)
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host, int(port)) if host and port.isascii() and port.isdigit() and int(port) < 1 << 16 else None


class RayWorkers:
    """The workers of a job on Ray, behind a connection to the process that has them."""

    def __init__(self, connection: Connection, log: Path) -> None:
        self._connection, self._log = connection, log
        self._count = 0
        self._futures: dict[int, Future[Done]] = {}
        self._lock = threading.Lock()
        self._fault: Exception | None = None
        self.workers: int = self._received()
        self._reader = threading.Thread(target=self._read, name="tamis-ray", daemon=True)
        self._reader.start()

    def map(self, tasks: Iterable[Any]) -> Iterator[Done]:
        """See `tamis.core.cluster.Workers`."""
        return in_order(self._submit, tasks, _AHEAD * self.workers)

    def close(self) -> None:
        """Tell the process to end."""
        with suppress(OSError):
            self._connection.send_bytes(pickle.dumps(None))
        self._reader.join(PATIENCE)

    def _submit(self, task: Any) -> Future[Done]:
        future: Future[Done] = Future()
        with self._lock:
            number = self._count
            self._count += 1
            self._futures[number] = future
            if self._fault is not None:
                future.set_exception(self._fault)
                return future
        with suppress(OSError):  # the reader has the reason
            self._connection.send_bytes(pickle.dumps((number, pickle.dumps(task))))
        return future

    def _received(self) -> Any:
        try:
            message = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            problem = f"the process that runs Ray has ended{self._last_words()}"
            raise TamisError(problem, remedy="see that there is memory enough, or run without Ray") from error
        if isinstance(message, Exception):
            raise message
        return message

    def _last_words(self) -> str:
        """The last line of the log, with what goes around it."""
        with suppress(OSError):
            if last := self._log.read_text(errors="replace").strip().rpartition("\n")[2]:
                return f" ({last[:200]})"
        return ""

    def _read(self) -> None:
        try:
            while True:
                number, attempts, answer = self._received()
                with self._lock:
                    future = self._futures.pop(number)
                if not future.set_running_or_notify_cancel():
                    continue
                done = pickle.loads(answer)
                if isinstance(done, Exception):
                    future.set_exception(done)
                else:
                    future.set_result(done._replace(attempts=attempts))
        except Exception as error:
            with self._lock:
                self._fault = error
                left = list(self._futures.values())
            for future in left:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)


# -- the process
# ------------------------------------------------------------------------------------------------------------


@contextmanager
def _driver(runtime: RayRuntime, job: Job) -> Iterator[tuple[Connection, Path]]:
    """The connection to the process that runs Ray, until the block ends, and its log. All its files lie in a
    folder that goes with it."""
    # Ray has sockets in it, whose paths may have about a hundred characters
    base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 30 else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="tamis-ray-", dir=base))
    connection, theirs = Pipe()
    process = None
    try:
        command = [sys.executable, "-c", _MAIN, str(theirs.fileno()), *sys.path]
        path = folder / "driver.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's Ctrl-C is for us
            )
        theirs.close()
        settings = {
            "address": runtime.address,
            "workers": runtime.workers,
            "cores": runtime.cores,
            "timeout": runtime.timeout,
            "uses_gpu": job.uses_gpu,
            "job": pickle.dumps(job),
            "tamis": __version__,
            "folder": str(folder),
            "path": sys.path,
        }
        connection.send_bytes(pickle.dumps(settings))
        if not connection.poll(2 * runtime.timeout + PATIENCE):
            problem = f"Ray has not started at {runtime.address}"
            raise TamisError(problem, remedy="check the address, and the cluster with `ray status`")
        yield connection, path
    finally:
        connection.close()
        if process is not None:
            _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It ends by itself once its connection is closed."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        process.wait()
    else:
        end_others(process.pid)  # if it was killed
