"""Reads files in a separate process: a hostile file that crashes a parser, never ends or uses up the memory
only ends that process and is left out; the next file gets a new process."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from tamis.base.errors import InputError
from tamis.formats.pages import LARGEST_FILE, Page

SECONDS = 60.0  # maximum time for a file
MEMORY = 1 << 31  # maximum address space of the process in bytes, if the system can limit it
_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from tamis.formats.apart import work; work()"


class Reader:
    """Reads files in a separate process, one at a time.

    >>> file = getfixture("tmp_path") / "a.html"
    >>> _ = file.write_text("<title>Sieve</title><p>Fine.")
    >>> with Reader() as reader:
    ...     reader.read(file, "html")
    Page(title='Sieve', text='Fine.', url='')
    """

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._seconds, self._memory = seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, path: Path, kind: str) -> Page:
        """The content of a file. Raises an `InputError` if it cannot be read, even if it crashes the
        process."""
        process = self._process or self._start()
        assert process.stdin is not None
        request = json.dumps([os.fsdecode(path.absolute()), kind]).encode()
        try:
            process.stdin.write(request + b"\n")
            process.stdin.flush()
            line = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            self.close()
            problem = f"takes longer than {self._seconds:g} seconds to read"
            raise InputError(problem, remedy="split it, or convert it to text", path=path) from None
        except OSError:
            line = b""
        if not line.endswith(b"\n"):  # the process ended
            self.close()
            raise InputError("crashes its parser", remedy="convert it to text", path=path)
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise InputError(answer["problem"], remedy=answer["remedy"], path=path)
        return Page(answer["title"], answer["text"], answer["url"])

    def _start(self) -> subprocess.Popen[bytes]:
        apart: dict[str, Any] = {"process_group": 0} if os.name != "nt" else {"creationflags": 0x200}
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # messages of parsers: the errors come as answers
            **apart,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(self._memory).encode() + b"\n")
        self._answers = queue.SimpleQueue()
        threading.Thread(target=_pass_on, args=(process.stdout, self._answers.put), daemon=True).start()
        self._process = process
        return process

    def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()


def _pass_on(stream: IO[bytes], say: Callable[[bytes], None]) -> None:
    with stream:
        while line := stream.readline():
            say(line)
    say(b"")


def read_file(path: Path, kind: str) -> Page:
    """Read a file in this process; called in the separate process."""
    if kind == "html":
        from tamis.formats.lines import LONGEST_RECORD, read_bytes
        from tamis.formats.web import read_html

        return read_html(read_bytes(path, LONGEST_RECORD))
    if kind == "pdf":
        from tamis.formats.pdf import read_pdf

        return read_pdf(path)
    from tamis.formats.office import read_office

    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"a file of over {LARGEST_FILE >> 20} MiB", remedy="split it")
    return read_office(path)


def work() -> None:
    """The main loop of the separate process: one line per file, until its pipe closes."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # printed output must not mix with the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    _limit_memory(json.loads(sys.stdin.buffer.readline()))

    def hear(line: bytes) -> None:
        if not line:  # the parent has ended: exit at once, even in the middle of a file
            os._exit(0)
        requests.put(line)

    threading.Thread(target=_pass_on, args=(sys.stdin.buffer, hear), daemon=True).start()
    while True:
        path, kind = json.loads(requests.get())
        try:
            answer = read_file(Path(path), kind)._asdict()
        except InputError as error:
            answer = {"problem": error.problem.removeprefix(f"{path}: "), "remedy": error.remedy}
        except OSError as error:
            answer = {
                "problem": f"cannot be read ({error.strerror or error})",
                "remedy": "check its permissions",
            }
        except MemoryError:
            answer = {"problem": "takes too much memory to read", "remedy": "split it, or convert it to text"}
        except RecursionError:
            answer = {"problem": "nested too deeply", "remedy": "convert it to text"}
        except Exception as error:  # an error of a library for an unexpected file
            answer = {"problem": f"cannot be read ({type(error).__name__})", "remedy": "convert it to text"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
