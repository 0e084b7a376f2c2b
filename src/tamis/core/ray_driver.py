"""The process that runs Ray for another: see `tamis.core.ray_runtime`.

It takes tasks from a connection and gives them to actors: two at a time to each, so that none waits for the
next. An actor that dies is replaced and its tasks are done again; a task at which `_TRIES` actors have died
is an error. When the connection ends, so do the actors, a cluster that was started here, and its files.
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
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from tamis.base.errors import InputError, TamisError
from tamis.base.processes import available_cores, end_others, end_session
from tamis.base.version import __version__
from tamis.core.cluster import Worker, WorkerLost
from tamis.core.ray_runtime import LOCAL, PATIENCE, place_of

_TRIES = 3  # of a task, and of an actor to start
_AT_A_TIME = 2  # tasks that an actor has
#: Bytes of the object store of our own cluster, those more for each core, and the most.
_STORE = 96 << 20, 32 << 20, 1 << 30
_LONGEST = 300  # characters of an error of Ray's


class Actor:
    """A worker in a process of Ray's."""

    def __init__(self, version: str, job: bytes, cores: int, number: int) -> None:
        # the tokenizers' threads, which are counted when they are first used
        os.environ["RAYON_NUM_THREADS"] = str(cores)
        self._version, self._job, self._cores = version, job, cores
        self._name = f"{platform.node()}:{number}"
        self._worker: Worker | None = None

    def begin(self) -> None:
        """Be there."""

    def do(self, task: bytes) -> bytes:
        """What becomes of a task, or the error that it raises: pickled here, because errors of Ray's own are
        several in one."""
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
    """An error, with where it was raised unless it is one of ours."""
    if not isinstance(error, TamisError):
        error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:
        return pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))


class Event(NamedTuple):
    """Something that the loop hears of."""

    kind: str
    number: int = 0  # of a task, or of an actor
    actor: int = 0
    value: Any = None


class Running:
    """An actor, with the tasks that it has in their order, and whether it has begun."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.tasks: list[int] = []
        self.begun = False


class Loop:
    """Tasks to actors, until the connection ends."""

    def __init__(
        self, ray: Any, connection: Connection, events: SimpleQueue[Event], settings: dict[str, Any]
    ) -> None:
        self._ray, self._connection, self._events, self._settings = ray, connection, events, settings
        self._actors: dict[int, Running] = {}
        self._made = 0
        self._failed_starts = 0
        self._announced = False
        self._waiting: deque[int] = deque()
        self._tasks: dict[int, bytes] = {}
        self._deaths: dict[int, int] = {}

    # -- what happens

    def run(self) -> None:
        options = resources(self._ray, self._settings)
        count = options.pop("count")
        self._cores = int(options["num_cpus"])
        self._class = self._ray.remote(**options, max_restarts=0, max_task_retries=0)(Actor)
        for _ in range(count):
            self._start_actor()
        while True:
            try:
                event = self._events.get(timeout=None if self._announced else self._settings["timeout"])
            except Empty:
                raise TamisError(
                    f"no worker has started in {self._settings['timeout']:.0f} seconds",
                    remedy="wait until the cluster's cores and GPUs are free, or use fewer workers",
                ) from None
            if event.kind == "end":
                return
            self._handle(event, count)
            self._give()

    def _handle(self, event: Event, count: int) -> None:
        if event.kind == "task":
            self._tasks[event.number] = event.value
            self._waiting.append(event.number)
        elif event.kind == "begun" and event.actor in self._actors:
            self._actors[event.actor].begun = True
            self._failed_starts = 0
            if not self._announced:
                self._announced = True
                self._send(count)
        elif event.kind == "done" and event.actor in self._actors:
            self._actors[event.actor].tasks.remove(event.number)
            self._finish(event.number, event.value)
        elif event.kind == "lost" and event.actor in self._actors:
            self._replace(event.actor, event.value)

    def _finish(self, number: int, done: bytes) -> None:
        del self._tasks[number]
        self._send((number, self._deaths.pop(number, 0) + 1, done))

    def _replace(self, actor: int, error: Exception) -> None:
        """Of the tasks that a dead actor had, it died at the first."""
        of_ray = self._ray.exceptions
        if not isinstance(error, of_ray.RayError) or isinstance(error, of_ray.RayTaskError):
            raise error
        lost = self._actors.pop(actor)
        with suppress(Exception):  # it may only be out of reach
            self._ray.kill(lost.handle)
        if not lost.begun:
            self._failed_starts += 1
            if self._failed_starts >= _TRIES:
                remedy = remedy_of(error, "see that the machines have memory enough for so many workers")
                raise TamisError(f"workers end while they start ({one_line(error)})", remedy=remedy)
        self._waiting.extendleft(reversed(lost.tasks))
        if lost.tasks:
            first = lost.tasks[0]
            self._deaths[first] = self._deaths.get(first, 0) + 1
            if self._deaths[first] >= _TRIES:
                self._waiting.popleft()
                remedy = "give workers more memory (fewer workers), or find the query that ends them"
                self._finish(first, pickled(WorkerLost(f"{_TRIES} workers were ended", remedy=remedy)))
        self._start_actor()

    # -- what is done

    def _start_actor(self) -> None:
        self._made += 1
        settings = self._settings
        handle = self._class.remote(settings["tamis"], settings["job"], self._cores, self._made)
        self._actors[self._made] = Running(handle)
        self._hear(handle.begin.remote(), "begun", 0, self._made)

    def _give(self) -> None:
        """Each waiting task to the actor that has the least to do."""
        while self._waiting:
            able = [(len(each.tasks), n) for n, each in self._actors.items() if each.begun]
            least, actor = min(able, default=(_AT_A_TIME, 0))
            if least >= _AT_A_TIME:
                return
            number = self._waiting.popleft()
            self._actors[actor].tasks.append(number)
            reference = self._actors[actor].handle.do.remote(self._tasks[number])
            self._hear(reference, "done", number, actor)

    def _hear(self, reference: Any, kind: str, number: int, actor: int) -> None:
        def heard(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._events.put(Event(kind, number, actor, future.result()))
            else:
                self._events.put(Event("lost", number, actor, error))

        reference.future().add_done_callback(heard)

    def _send(self, message: Any) -> None:
        self._connection.send_bytes(pickle.dumps(message))


# -- the cluster
# ------------------------------------------------------------------------------------------------------------


def resources(ray: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """How many actors there are, and what each of them takes."""
    there = ray.cluster_resources()
    cpus, gpus = int(there.get("CPU", 0)), int(there.get("GPU", 0)) if settings["uses_gpu"] else 0
    wanted, cores = settings["workers"], settings["cores"]
    cores = cores or (max(1, cpus // min(gpus, wanted or gpus)) if gpus else 1)
    most = min(gpus, cpus // cores) if gpus else cpus // cores
    if most < (wanted or 1):
        what = f"{wanted or 1} workers with {cores} cores each"
        has = f"{cpus} cores and {gpus} GPUs" if gpus else f"{cpus} cores"
        raise InputError(f"the cluster has {has}, too few for {what}", remedy="use fewer workers or cores")
    return {"count": wanted or most, "num_cpus": cores, "num_gpus": 1 if gpus else 0}


def connect(settings: dict[str, Any]) -> Any:
    """Ray, connected: to a cluster of our own, or to one that is there."""
    address = settings["address"]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray would end workers when other programs fill the memory; the system knows better whom to end
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        # our own secret: else anyone on the network could have the cluster do anything
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        if os.environ["RAY_AUTH_MODE"] == "token":
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        os.environ["PYTHONPATH"] = os.pathsep.join(each for each in settings["path"] if each)
        import ray

        cpus = max(available_cores(), (settings["workers"] or 1) * (settings["cores"] or 1))
        ray.init(
            LOCAL,
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=min(_STORE[0] + _STORE[1] * cpus, _STORE[2]),
            _temp_dir=settings["folder"],
            **quiet,
        )
        return ray
    place = place_of(address)
    if place is not None:
        try:
            socket.create_connection(place, timeout=settings["timeout"]).close()
        except OSError as error:
            problem = f"nothing answers at {address} ({error.strerror or error})"
            raise InputError(problem, remedy="check the address, and the cluster with `ray status`") from None
    import ray

    ray.init(address, **quiet)  # which compares the versions
    return ray


def one_line(error: BaseException) -> str:
    """An error of Ray's in one line: where it has a traceback in it, the last error of that.

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


def listen(connection: Connection, events: SimpleQueue[Event]) -> None:
    """Hear of tasks, until the connection ends, and then end what does not end by itself."""
    with suppress(EOFError, OSError):
        while (message := pickle.loads(connection.recv_bytes())) is not None:
            events.put(Event("task", message[0], value=message[1]))
    events.put(Event("end"))
    time.sleep(PATIENCE)  # Ray may be stuck
    end_session(os.getpid())


def main() -> None:
    """Run Ray for the process at the other end of the connection."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    settings = pickle.loads(connection.recv_bytes())
    events: SimpleQueue[Event] = SimpleQueue()
    threading.Thread(target=listen, args=(connection, events), daemon=True).start()
    try:
        Loop(connect(settings), connection, events, settings).run()
    except Exception as error:
        traceback.print_exc()
        with suppress(OSError):
            connection.send_bytes(pickled(_explained(error, settings["address"])))
    finally:
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        end_others(os.getpid())
        shutil.rmtree(settings["folder"], ignore_errors=True)
        os._exit(0)  # no thread of Ray's keeps it


def _explained(error: Exception, address: str) -> TamisError:
    if isinstance(error, TamisError):
        return error
    remedy = remedy_of(error, "check the address, and that Python and Ray are the cluster's versions")
    return TamisError(f"cannot use Ray at {address} ({one_line(error)})", remedy=remedy)
