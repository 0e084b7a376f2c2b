"""The process that runs Ray, which `tamis.infer.ray_runtime` starts and talks to over a connection.

It gives tasks to actors: two at a time to each, so that an actor never waits for the next one. An actor that
dies is replaced, and its tasks are done again; a task at which `_ATTEMPTS` actors have died fails. When the
connection is closed, the actors are stopped, and so is a cluster that was started here, with its files.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
import re
import secrets
import shutil
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

from tamis.base.errors import InputError, TamisError
from tamis.base.processes import available_cores, end_others, end_session
from tamis.base.version import __version__
from tamis.core.cluster import Worker, WorkerLost
from tamis.infer.ray_runtime import LOCAL, PATIENCE, Request, place_of

_ATTEMPTS = 3  # at a task, at starting an actor, and at connecting
_AT_A_TIME = 2  # tasks that an actor has
#: Bytes of the object store of a cluster that is started here: the least, more for each core, and the most.
_STORE, _STORE_PER_CORE, _LARGEST_STORE = 96 << 20, 32 << 20, 1 << 30
#: A race ends about one in fifteen of the servers that a cluster starts for clients (ray-project/ray#63202).
_CLIENT_SERVER_ENDED = re.compile("Starting Ray client server failed|Proxy failed to Connect to backend")
_LONGEST = 300  # characters of an error of Ray's

Event = Callable[[], None]


class Actor:
    """A worker, in a process of Ray's."""

    def __init__(self, version: str, job: bytes, cores: int, number: int) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(cores)  # of the tokenizers, before they start their threads
        self._version, self._job, self._cores = version, job, cores
        self._name = f"{platform.node()}:{number}"
        self._worker: Worker | None = None

    def begin(self) -> None:
        """Returns once the actor runs."""

    def do(self, task: bytes) -> bytes:
        """The result of a task, or the exception that it raised. Exceptions are pickled here, because Ray
        would wrap them in its own."""
        try:
            if self._worker is None:
                if self._version != __version__:
                    problem = f"the worker {self._name} has tamis {__version__}, not {self._version}"
                    raise InputError(problem, remedy="install one version on all machines")
                self._worker = Worker(pickle.loads(self._job), self._cores, self._name)
            return pickle.dumps(self._worker.do(pickle.loads(task)))
        except Exception as error:
            return pickled(error)


def pickled(error: Exception) -> bytes:
    """An exception, with its traceback unless it is a `TamisError`."""
    if not isinstance(error, TamisError):
        error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:  # an exception that cannot be pickled
        return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))


@dataclass
class Started:
    """An actor that was started, its tasks in their order, and whether it runs yet."""

    handle: Any
    tasks: list[int] = field(default_factory=list)
    running: bool = False


@dataclass
class Task:
    """A task, and how many actors have died at it."""

    data: bytes
    deaths: int = 0


class Dispatcher:
    """Gives tasks to actors until the connection is closed. `post` may be called from any thread; everything
    else runs in the thread of `run`."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection, self._request = connection, request
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._actors: dict[int, Started] = {}
        self._actors_made = 0
        self._failed_starts = 0
        self._ready = False  # whether an actor has started
        self._tasks: dict[int, Task] = {}
        self._waiting: deque[int] = deque()  # tasks that no actor has

    def post(self, event: Event | None) -> None:
        """Have `run` call a function, or return if there is none."""
        self._events.put(event)

    def run(self, ray: Any) -> None:
        self._ray = ray
        self._count, self._cores, gpus = resources(ray, self._request)
        options = {"num_cpus": self._cores, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        self._class = ray.remote(**options)(Actor)
        for _ in range(self._count):
            self._start_actor()
        while (event := self._next()) is not None:
            event()
            self._assign()

    def add(self, number: int, data: bytes) -> None:
        """A task has arrived."""
        self._tasks[number] = Task(data)
        self._waiting.append(number)

    def _next(self) -> Event | None:
        timeout = self._request.runtime.timeout
        try:
            return self._events.get(timeout=None if self._ready else timeout)
        except Empty:
            raise TamisError(
                f"no worker has started in {timeout:.0f} seconds",
                remedy="wait until the cluster's cores and GPUs are free, or use fewer workers",
            ) from None

    def _start_actor(self) -> None:
        self._actors_made += 1
        number = self._actors_made
        handle = self._class.remote(__version__, self._request.job, self._cores, number)
        self._actors[number] = Started(handle)
        self._when_done(handle.begin.remote(), number, lambda _: self._begun(number))

    def _assign(self) -> None:
        """Give each waiting task to the actor with the fewest tasks."""
        while self._waiting:
            running = [(len(each.tasks), number) for number, each in self._actors.items() if each.running]
            fewest, actor = min(running, default=(_AT_A_TIME, 0))
            if fewest >= _AT_A_TIME:
                return
            number = self._waiting.popleft()
            self._actors[actor].tasks.append(number)
            reference = self._actors[actor].handle.do.remote(self._tasks[number].data)
            self._when_done(reference, actor, partial(self._done, actor, number))

    def _when_done(self, reference: Any, actor: int, event: Callable[[Any], None]) -> None:
        """Post what becomes of a call to an actor."""

        def post(future: Any) -> None:
            error = future.exception()
            known = partial(event, future.result()) if error is None else partial(self._lost, actor, error)
            self.post(known)

        reference.future().add_done_callback(post)

    def _begun(self, actor: int) -> None:
        if actor not in self._actors:
            return
        self._actors[actor].running = True
        self._failed_starts = 0
        if not self._ready:
            self._ready = True
            self._send(self._count)

    def _done(self, actor: int, number: int, result: bytes) -> None:
        if actor not in self._actors:  # it was lost, and the task is done again
            return
        self._actors[actor].tasks.remove(number)
        self._finish(number, result)

    def _finish(self, number: int, result: bytes) -> None:
        task = self._tasks.pop(number)
        self._send((number, task.deaths + 1, result))

    def _lost(self, number: int, error: Exception) -> None:
        """Replace an actor that died, at the first of its tasks."""
        if number not in self._actors:  # each of its tasks reports it
            return
        exceptions = self._ray.exceptions
        if not isinstance(error, exceptions.RayError) or isinstance(error, exceptions.RayTaskError):
            raise error
        actor = self._actors.pop(number)
        with suppress(Exception):  # it may only be unreachable
            self._ray.kill(actor.handle)
        if not actor.running:
            self._failed_starts += 1
            if self._failed_starts >= _ATTEMPTS:
                remedy = remedy_of(error, "check that the machines have enough memory for so many workers")
                raise TamisError(f"workers end while they start ({one_line(error)})", remedy=remedy)
        self._waiting.extendleft(reversed(actor.tasks))
        if actor.tasks:
            first = self._tasks[actor.tasks[0]]
            first.deaths += 1
            if first.deaths >= _ATTEMPTS:
                remedy = "give workers more memory (fewer workers), or find the query that ends them"
                lost = WorkerLost(f"{_ATTEMPTS} workers were ended", remedy=remedy)
                self._finish(self._waiting.popleft(), pickled(lost))
        self._start_actor()

    def _send(self, message: Any) -> None:
        self._connection.send_bytes(pickle.dumps(message))


# -- the cluster
# ------------------------------------------------------------------------------------------------------------


def resources(ray: Any, request: Request) -> tuple[int, int, int]:
    """The number of actors, and the cores and GPUs of each."""
    owned, runtime = ray.cluster_resources(), request.runtime
    cpus, gpus = int(owned.get("CPU", 0)), int(owned.get("GPU", 0)) if request.uses_gpu else 0
    cores = runtime.cores or (max(1, cpus // min(gpus, runtime.workers or gpus)) if gpus else 1)
    most = min(gpus, cpus // cores) if gpus else cpus // cores
    wanted = runtime.workers or 1
    if most < wanted:
        total = f"CPU cores: {cpus}" + (f", GPUs: {gpus}" if gpus else "")
        each = f"cores for each: {cores}" + (", GPUs: 1" if gpus else "")
        problem = f"the cluster ({total}) is too small for the workers (number: {wanted}, {each})"
        raise InputError(problem, remedy="use fewer workers or cores")
    return runtime.workers or most, cores, 1 if gpus else 0


def connect(request: Request) -> Any:
    """Ray, connected to a cluster that is started here, or to a running one."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if request.runtime.address == LOCAL:
        return start_local(request)
    address = request.runtime.address
    place = place_of(address)
    if place is not None:
        try:
            socket.create_connection(place, timeout=request.runtime.timeout).close()
        except OSError as error:
            problem = f"nothing answers at {address} ({error.strerror or error})"
            raise InputError(problem, remedy="check the address, and the cluster with `ray status`") from None
    import ray

    for attempt in range(_ATTEMPTS):
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)  # it compares the versions
            break
        except ConnectionAbortedError as error:
            if attempt + 1 == _ATTEMPTS or not _CLIENT_SERVER_ENDED.search(str(error)):
                raise
    return ray


def start_local(request: Request) -> Any:
    """Ray, connected to a new cluster of this machine alone."""
    # Ray would end workers when other programs fill the memory; leave that to the system
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    # a secret of this cluster: without it, any program that reaches its ports could use it
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if os.environ["RAY_AUTH_MODE"] == "token":
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    import ray

    runtime = request.runtime
    cpus = max(available_cores(), (runtime.workers or 1) * (runtime.cores or 1))
    ray.init(
        LOCAL,
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=min(_STORE + _STORE_PER_CORE * cpus, _LARGEST_STORE),
        _temp_dir=request.folder,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )
    return ray


def one_line(error: BaseException) -> str:
    """An error of Ray's in one line: the last exception of a traceback in it, if there is one.

    >>> one_line(RuntimeError("The actor died:\\n  Traceback ...\\nModuleNotFoundError: No module named 'x'"))
    "ModuleNotFoundError: No module named 'x'"
    """
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    raised = re.findall(r"^ *(?:\w+\.)*\w+Error: .+$", text, re.MULTILINE)
    text = " ".join((raised[-1] if raised else text).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def remedy_of(error: BaseException, otherwise: str) -> str:
    if "No module named 'tamis" in str(error):
        return f"install tamis {__version__} on all machines of the cluster"
    return otherwise


def explained(error: Exception, address: str) -> TamisError:
    if isinstance(error, TamisError):
        return error
    remedy = remedy_of(error, "check the address, and that Python and Ray are the cluster's versions")
    return TamisError(f"cannot use Ray at {address} ({one_line(error)})", remedy=remedy)


# -- the process
# ------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run Ray for the process at the other end of the connection."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    request: Request = pickle.loads(connection.recv_bytes())
    dispatcher = Dispatcher(connection, request)
    threading.Thread(target=listen, args=(connection, dispatcher), daemon=True).start()
    try:
        dispatcher.run(connect(request))
    except Exception as error:
        traceback.print_exc()
        with suppress(OSError):
            connection.send_bytes(pickled(explained(error, request.runtime.address)))
    finally:
        with suppress(Exception):
            if "ray" in sys.modules:
                sys.modules["ray"].shutdown()
        end_others(os.getpid())
        shutil.rmtree(request.folder, ignore_errors=True)
        os._exit(0)  # do not wait for Ray's threads


def listen(connection: Connection, dispatcher: Dispatcher) -> None:
    """Pass tasks to the dispatcher until the connection is closed. Then everything must end, by force if Ray
    does not respond."""
    try:
        while True:
            dispatcher.post(partial(dispatcher.add, *pickle.loads(connection.recv_bytes())))
    except Exception:  # the end of the connection, or a task that does not fit into memory
        traceback.print_exc()
    dispatcher.post(None)
    time.sleep(PATIENCE)
    end_session(os.getpid())
