"""Workers elsewhere: the seam between tamis and whatever runs its batches on other cores and machines.

A `Job` is what workers do with tasks: plain data, sent to each worker once, which makes a function of it. A
`Cluster` starts workers for a job and gives them tasks. It need know nothing of rankings, and a job nothing
of where it is done: `tamis.core.ray_runtime` is one cluster, an executor of `concurrent.futures` another
(docs/how-to/ray.md has it, in 20 lines), and one for Dask or Spark would be no longer.
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
Made = TypeVar("Made")


class Job(Protocol):
    """What workers do. It is pickled, and so are the tasks and what becomes of them."""

    @property
    def uses_gpu(self) -> bool:
        """Whether a worker is faster with a GPU of its own."""
        ...

    def start(self, cores: int) -> Callable[[Any], Any]:
        """What a worker does with a task, on so many cores; called once in each worker."""
        ...


class Done(NamedTuple):
    """What became of a task: what the job made of it, which worker did it, how many seconds it took there,
    and how many workers it took; all but the last of them died."""

    value: Any
    worker: str
    seconds: float
    attempts: int = 1


class WorkerLost(TamisError):
    """A task that no worker survives: raised in the place of what becomes of it."""


class Workers(Protocol):
    """The workers of a job."""

    def map(self, tasks: Iterable[Any]) -> Iterator[Done]:
        """What became of each task, in the tasks' order. No more than a few tasks for each worker are taken
        ahead; what a job raises is raised here."""
        ...


class Cluster(Protocol):
    """Where workers are."""

    @property
    def on_this_machine(self) -> bool:
        """Whether workers can use this machine's files, such as a cache of scores."""
        ...

    def start(self, job: Job) -> AbstractContextManager[Workers]:
        """Workers for a job, until the block ends."""
        ...


class Worker:
    """A worker of a job, in whatever process a cluster has for it. It starts with its first task, so that
    what goes wrong then is an error of this task.

    >>> from types import SimpleNamespace
    >>> job = SimpleNamespace(uses_gpu=False, start=lambda cores: str.upper)
    >>> Worker(job, cores=1, name="n1").do("sieve")._replace(seconds=0.5)
    Done(value='SIEVE', worker='n1', seconds=0.5, attempts=1)
    """

    def __init__(self, job: Job, cores: int, name: str = "") -> None:
        self.name = name or f"{platform.node()}:{os.getpid()}"
        self._job, self._cores = job, cores
        self._work: Callable[[Any], Any] | None = None

    def do(self, task: Any) -> Done:
        if self._work is None:
            self._work = self._job.start(self._cores)
        started = time.perf_counter()
        value = self._work(task)
        return Done(value, self.name, time.perf_counter() - started)


_own = threading.local()


def begin(job: Job, cores: int) -> None:
    """Make this thread a worker of a job: the `initializer` of an executor of `concurrent.futures`."""
    _own.worker = Worker(job, cores, f"{platform.node()}:{os.getpid()}:{threading.get_native_id()}")


def work(task: Any) -> Done:
    """What becomes of a task in a thread that has begun.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from types import SimpleNamespace
    >>> job = SimpleNamespace(uses_gpu=False, start=lambda cores: str.upper)
    >>> with ThreadPoolExecutor(2, initializer=begin, initargs=(job, 1)) as pool:
    ...     [pool.submit(work, task).result().value for task in ("a", "b")]
    ['A', 'B']
    """
    worker: Worker = _own.worker
    return worker.do(task)


def in_order(submit: Callable[[Task], Future[Made]], tasks: Iterable[Task], under_way: int) -> Iterator[Made]:
    """The results of tasks in their order, no more than `under_way` of which are waited for at a time: the
    tasks are taken as they are needed, and one that takes long holds up the next.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     list(in_order(lambda task: pool.submit(str.upper, task), "abc", under_way=2))
    ['A', 'B', 'C']
    """
    waiting: deque[Future[Made]] = deque()
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
