"""Workers on Ray: on a cluster of this machine that is started for a job, or on a running cluster.

Ray runs in a separate process (`tamis.infer.ray_driver`), which ends when its connection to this process is
closed, even if this process is killed. So Ray is not imported here, nothing that it prints reaches the
terminal, Ctrl-C does not reach it, and if it stops responding, that is an error after a limited time.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tamis.base.errors import InputError, MissingDependencyError, TamisError
from tamis.base.extras import install
from tamis.base.processes import end_others, end_session
from tamis.core.cluster import Done, Job, in_order

LOCAL = "local"
_AHEAD = 3  # tasks per worker: one in work, one that waits for it, one that is done and waits for its turn
PATIENCE = 20.0  # seconds until a process that was told to end is killed
_MAIN = "import sys; sys.path[:] = sys.argv[2:]; from tamis.infer.ray_driver import main; main()"


@dataclass(frozen=True)
class RayRuntime:
    """Where `Stage.run` and `build_tokens` find workers.

    `address` is `local` for a cluster of this machine, which is started for a job and stopped after it, or
    `ray://HOST:10001` for a running cluster; on one of its machines also `auto` or `HOST:6379`. Each of the
    `workers` has its own model and so many `cores`; by default there is one worker per GPU, or else per core.
    `timeout` is how many seconds the cluster has to respond, and its first worker to start.

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
        if not is_address(self.address):
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
        shown = (f"{name}={value!r}" for name, value in set_here if value != getattr(RayRuntime, name))
        return f"RayRuntime({', '.join(shown)})"

    def __str__(self) -> str:
        """As it is written on the command line.

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
        """Start workers for a job, and stop them when the block ends."""
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


def is_address(address: str) -> bool:
    """Whether `RayRuntime` accepts an address.

    >>> is_address("auto"), is_address("ray://head:10001"), is_address("head")
    (True, True, False)
    """
    return address in (LOCAL, "auto") or place_of(address) is not None


def place_of(address: str) -> tuple[str, int] | None:
    """The host and the port of a cluster's address.

    >>> place_of("ray://head:10001"), place_of("[::1]:6379"), place_of("head")
    (('head', 10001), ('::1', 6379), None)
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # around an IPv6 address
    return (host, int(port)) if host and port.isascii() and port.isdigit() and int(port) < 1 << 16 else None


class RayWorkers:
    """The workers of a job on Ray: a connection to the process that runs Ray."""

    def __init__(self, connection: Connection, log: Path) -> None:
        self._connection, self._log = connection, log
        self._submitted = 0
        self._futures: dict[int, Future[Done]] = {}
        self._lock = threading.Lock()
        self._fault: Exception | None = None  # of the process: no task will be done
        self.workers: int = self._received()
        self._reader = threading.Thread(target=self._read, name="tamis-ray", daemon=True)
        self._reader.start()

    def map(self, tasks: Iterable[Any]) -> Iterator[Done]:
        """See `tamis.core.cluster.Workers`."""
        return in_order(self._submit, tasks, _AHEAD * self.workers)

    def close(self) -> None:
        """Close the connection, which ends the process and the thread that reads. It may be closed within a
        message, if Ctrl-C came while it was sent."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as same, suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)
        self._reader.join()

    def _submit(self, task: Any) -> Future[Done]:
        future: Future[Done] = Future()
        with self._lock:
            number = self._submitted
            self._submitted += 1
            self._futures[number] = future
            if self._fault is not None:
                future.set_exception(self._fault)
                return future
        with suppress(OSError):  # which is a fault for the reader too
            self._connection.send_bytes(pickle.dumps((number, pickle.dumps(task))))
        return future

    def _received(self) -> Any:
        try:
            message = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            problem = f"the process that runs Ray has ended{self._last_line()}"
            remedy = "check that there is enough memory, or run without Ray"
            raise TamisError(problem, remedy=remedy) from error
        if isinstance(message, Exception):
            raise message
        return message

    def _last_line(self) -> str:
        """The last line of the log, in parentheses."""
        with suppress(OSError):
            if last := self._log.read_text(errors="replace").strip().rpartition("\n")[2]:
                return f" ({last[:200]})"
        return ""

    def _read(self) -> None:
        try:
            while True:
                number, attempts, result = self._received()
                with self._lock:
                    future = self._futures.pop(number)
                if not future.set_running_or_notify_cancel():
                    continue
                done = pickle.loads(result)
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


class Request(NamedTuple):
    """What the process is started with."""

    runtime: RayRuntime
    job: bytes  # pickled, for the workers
    uses_gpu: bool
    folder: str  # of temporary files


@contextmanager
def _driver(runtime: RayRuntime, job: Job) -> Iterator[tuple[Connection, Path]]:
    """Start the process, and end it with the block: the connection to it, and its log. All files are in a
    temporary folder."""
    # Ray has sockets in it, whose paths may have about a hundred characters
    base = tempfile.gettempdir() if len(tempfile.gettempdir()) < 30 else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="tamis-ray-", dir=base))
    ours, theirs = socket.socketpair()
    connection = Connection(ours.detach())
    process = None
    try:
        path = folder / "driver.log"
        with theirs, path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C in a terminal does not reach it
            )
        request = Request(runtime, pickle.dumps(job), job.uses_gpu, str(folder))
        with suppress(OSError):  # if it has ended, the first message tells
            connection.send_bytes(pickle.dumps(request))
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
    """Wait for the end of the process, whose connection is closed."""
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        process.wait()
    else:
        end_others(process.pid)  # it may have been killed
