"""Work shared between this process and worker processes: the results of calls of one object's methods, in
order.

The others are plain Python processes that import only what the object needs, so that no program that uses
them needs `if __name__ == "__main__"`. Tasks and results are files in a folder that the caller gives, and the
pipes carry only their names: neither side ever waits for the other to read. A worker ends when its pipe
closes, that is with this process, however it ends.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, Self, TypeVar

from tamis.base.errors import TamisError
from tamis.storage.files import storage_errors

Member = TypeVar("Member")

# tasks that another process has: the one that it does, and what keeps it busy while we do one of our own
_AT_A_TIME = 3
_BACKLOG = 6  # tasks a process that may be under way, or done and waiting for an earlier one
_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from tamis.index.crew import work; work()"


class Result(NamedTuple):
    process: int  # which one did it; 0 is this one
    value: Any


class Crew(Generic[Member]):
    """Calls methods of an object here and, in other processes, of copies of it. The copies are made by
    `start`, or else with the first task; each lives as long as its process, so it may keep state.

    >>> folder = getfixture("tmp_path")
    >>> with Crew("a,b", processes=1) as crew:
    ...     crew.submit(folder, "split", ",")
    ...     crew.submit(folder, "upper")
    ...     [result.value for result in crew.results()]
    [['a', 'b'], 'A,B']
    """

    def __init__(self, member: Member, processes: int) -> None:
        self.member = member
        self._processes = processes
        self._others: list[_Other] = []
        self._messages: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._count = 0
        self._order: deque[int] = deque()  # tasks whose results were not requested yet
        self._tasks: dict[int, Path] = {}  # those that others have, as far as we know
        self._done: dict[int, Result | tuple[int, Path]] = {}  # what came of the others, or where it lies

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the other processes, if they are not there: they take a moment until they can do a task."""
        if self._others:
            return
        for number in range(1, self._processes):
            try:
                self._others.append(_Other(number, self._messages))
            except OSError as error:
                problem = f"cannot start process {number + 1} of {self._processes} ({error.strerror})"
                raise TamisError(problem, remedy="use fewer workers (--workers)") from error
            self._others[-1].tell(self.member)

    def submit(self, folder: Path, method: str, *arguments: Any, here: bool = False) -> None:
        """Give a task to the least busy process, or do it here if all are busy."""
        if not here:
            self.start()
        self._collect()
        number = self._count
        self._count += 1
        other = min(self._others, key=lambda each: len(each.tasks), default=None)
        if here or other is None or len(other.tasks) >= _AT_A_TIME:
            self._done[number] = Result(0, getattr(self.member, method)(*arguments))
        else:
            self._tasks[number] = _write(folder / f"task-{number}", (method, arguments))
            other.tasks.append(number)
            other.tell((number, self._tasks[number]))
        self._order.append(number)

    def ready(self) -> Iterator[Result]:
        """The available results, in the order of the tasks; waits if too many would pile up behind a missing
        one."""
        while self._order:
            self._collect()
            if self._order[0] not in self._done and len(self._order) <= _BACKLOG * self._processes:
                break
            yield self._next()

    def results(self) -> Iterator[Result]:
        """The results of all tasks, in their order. While waiting, this process does tasks that have not
        started."""
        while self._order:
            yield self._next()

    def _next(self) -> Result:
        number = self._order[0]
        while number not in self._done:
            self._collect()
            if number not in self._done and not self._take_back():
                self._collect(wait=True)
        self._order.popleft()
        done = self._done.pop(number)
        return done if isinstance(done, Result) else Result(done[0], _read(done[1]))

    def close(self) -> None:
        """End the other processes, whatever they do."""
        for other in self._others:
            other.end()
        self._others = []

    def _collect(self, wait: bool = False) -> None:
        """Take in what the others say."""
        while wait or not self._messages.empty():
            process, message = self._messages.get()
            other = self._others[process - 1]
            if message is None:
                raise other.ended()
            number, path, fault = message
            other.tasks.remove(number)
            del self._tasks[number]
            if fault is not None:
                raise fault
            self._done[number] = (process, path)
            wait = False

    def _take_back(self) -> bool:
        """Do one of the tasks that have not started, if there is one."""
        for other in self._others:
            number = other.tasks[-1] if other.tasks else None
            if number is None or (task := _claim(self._tasks[number])) is None:
                continue
            other.tasks.remove(number)
            del self._tasks[number]
            method, arguments = _read(task)
            self._done[number] = Result(0, getattr(self.member, method)(*arguments))
            return True
        return False


class _Other:
    """Another process, as this one sees it."""

    def __init__(self, number: int, messages: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self.tasks: list[int] = []
        # not in our group of processes: a Ctrl-C at the terminal is for us, and ends the others with us
        apart: dict[str, Any] = {"process_group": 0} if os.name != "nt" else {"creationflags": 0x200}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **apart
        )
        assert self._process.stdout is not None
        hear: Callable[[Any], None] = lambda message: messages.put((number, message))  # noqa: E731
        self._listener = threading.Thread(target=_listen, args=(self._process.stdout, hear), daemon=True)
        self._listener.start()

    def tell(self, message: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
        except OSError:
            raise self.ended() from None

    def ended(self) -> TamisError:
        """The error for one that has ended before us."""
        self._process.kill()
        status = self._process.wait()
        names = {each.value: each.name for each in signal.Signals}
        how = f"with status {status}" if status >= 0 else f"by signal {names.get(-status, -status)}"
        remedy = "the last commit is complete; if memory ran out, use fewer workers (--workers)"
        return TamisError(f"a worker process was ended {how}", remedy=remedy)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):  # unsent messages no longer matter
            self._process.stdin.close()
        self._process.stdout.close()


def _listen(stream: IO[bytes], hear: Callable[[Any], None]) -> None:
    """Pass on messages, and None when the worker ends."""
    try:
        while True:
            hear(pickle.load(stream))
    except (EOFError, OSError, pickle.UnpicklingError, ValueError):  # killed before or within a message
        hear(None)


def _write(path: Path, value: Any) -> Path:
    with storage_errors(path), path.open("wb") as file:
        pickle.dump(value, file, protocol=5)
    return path


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        value = pickle.load(file)
    path.unlink()
    return value


def _claim(task: Path) -> Path | None:
    """The process that renames a task first does it."""
    begun = task.with_name(f"begun-{task.name}")
    try:
        return task.rename(begun)
    except FileNotFoundError:
        return None


def work() -> None:
    """The main loop of a worker: tasks, until its pipe closes."""
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # printed output must not mix with the answers

    def hear(message: Any) -> None:
        if message is None:  # at once, even in the middle of a task: the parent is gone
            os._exit(0)
        said.put(message)

    threading.Thread(target=_listen, args=(sys.stdin.buffer, hear), daemon=True).start()
    member = said.get()
    while True:
        number, task = said.get()
        begun = _claim(task)
        if begun is None:
            continue
        fault: Exception | None = None
        done = task.with_name(f"done-{number}")
        try:
            method, arguments = _read(begun)
            _write(done, getattr(member, method)(*arguments))
        except TamisError as error:
            fault = error
        except MemoryError:
            fault = TamisError("a worker process ran out of memory", remedy="use fewer workers (--workers)")
        except BaseException:  # a fault of ours
            traceback.print_exc()
            os._exit(1)  # the thread that listens cannot be stopped in another way
        pickle.dump((number, done, fault), answers)
        answers.flush()
