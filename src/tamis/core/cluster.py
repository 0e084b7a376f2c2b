"""Clusters: the interface between tamis and an engine that runs batches of work on other cores or machines.

A `Job` is what workers do with tasks: plain data that is sent to each worker once. A `Cluster` starts workers
for a job and gives them tasks. It needs to know nothing of rankings, and a job nothing of where it runs.
`tamis.infer.ray_runtime` is one cluster, a pool of `concurrent.futures` another (20 lines, in
docs/how-to/ray.md); Dask or Spark fit in the same way.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from tamis.base.errors import TamisError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Job(Protocol):
    """What workers do. It is pickled, and so are its tasks and their results."""

    @property
    def uses_gpu(self) -> bool:
        """Whether each worker should have a GPU, where there are any."""
        ...

    def start(self, cores: int) -> Callable[[Any], Any]:
        """The function that a worker with so many cores applies to tasks; called once in each worker."""
        ...


class Done(NamedTuple):
    """A finished task: its result, the worker that did it, the seconds that it took there, and the number of
    attempts; in all but the last of them the worker died."""

    value: Any
    worker: str
    seconds: float
    attempts: int = 1


class WorkerLost(TamisError):
    """Raised for a task at which several workers have died."""


class Workers(Protocol):
    """The workers of a job."""

    def map(self, tasks: Iterable[Any]) -> Iterator[Done]:
        """The results, in the order of the tasks. Only a few tasks per worker are taken in advance. An
        exception of the job is raised here."""
        ...


class Cluster(Protocol):
    """Starts workers."""

    @property
    def on_this_machine(self) -> bool:
        """Whether workers can use files of this machine, such as a score cache."""
        ...

    def start(self, job: Job) -> AbstractContextManager[Workers]:
        """Start workers for a job, and stop them when the block ends."""
        ...


class Worker:
    """A worker of a job, in the process that a cluster has started for it. It starts the job with its first
    task, so that an exception while starting is one of this task.

    >>> from types import SimpleNamespace
    >>> job = SimpleNamespace(uses_gpu=False, start=lambda cores: str.upper)
    >>> Worker(job, cores=1, name="n1").do("sieve")._replace(seconds=0.5)
    Done(value='SIEVE', worker='n1', seconds=0.5, attempts=1)
    """

    def __init__(self, job: Job, cores: int, name: str) -> None:
        self.name = name
        self._job, self._cores = job, cores
        self._function: Callable[[Any], Any] | None = None

    def do(self, task: Any) -> Done:
        if self._function is None:
            self._function = self._job.start(self._cores)
        started = time.perf_counter()
        value = self._function(task)
        return Done(value, self.name, time.perf_counter() - started)


_of_thread = threading.local()


def begin(job: Job, cores: int) -> None:
    """Make this thread a worker of a job: the `initializer` of an executor of `concurrent.futures`."""
    name = f"{platform.node()}:{os.getpid()}:{threading.get_native_id()}"
    _of_thread.worker = Worker(job, cores, name)


def work(task: Any) -> Done:
    """Do a task in a thread for which `begin` was called.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from types import SimpleNamespace
    >>> job = SimpleNamespace(uses_gpu=False, start=lambda cores: str.upper)
    >>> with ThreadPoolExecutor(2, initializer=begin, initargs=(job, 1)) as pool:
    ...     [pool.submit(work, task).result().value for task in ("a", "b")]
    ['A', 'B']
    """
    worker: Worker = _of_thread.worker
    return worker.do(task)


def in_order(
    submit: Callable[[Task], Future[Result]], tasks: Iterable[Task], under_way: int
) -> Iterator[Result]:
    """The results of tasks, in the order of the tasks. At most `under_way` tasks are submitted and not yet
    returned; further tasks are taken only when a result has been returned.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(in_order(lambda task: pool.submit(str.upper, task), "abc", under_way=2))
    ['A', 'B', 'C']
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(submit(task))
            while waiting and (waiting[0].done() or len(waiting) >= under_way):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for each in waiting:
            each.cancel()
