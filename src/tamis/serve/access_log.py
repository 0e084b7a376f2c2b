"""The access log: a line of JSON per request.

Lines are written by a thread of their own, so that a slow disk or an unread pipe does not delay requests.
Lines that do not fit its queue are dropped and counted.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any

from tamis.base.errors import InputError

STDOUT = "-"
_WAITING = 10_000  # lines
_LAST_LINES = 5.0  # seconds that they are waited for at the end
_LOOK = 0.2  # seconds after which an idle log sees that it is to be opened again


class AccessLog:
    """A file (or `-`, the standard output) to append lines to. `queries`: log the queries too.

    >>> log = AccessLog(getfixture("tmp_path") / "access.jsonl")
    >>> log.write({"route": "/search", "status": 200})
    >>> log.close()
    >>> (getfixture("tmp_path") / "access.jsonl").read_text()
    '{"route":"/search","status":200}\\n'
    """

    def __init__(self, path: Path | str, *, queries: bool = False, waiting: int = _WAITING) -> None:
        self.path, self.queries = path, queries
        self.dropped = 0
        self._file = self._open()
        self._lines: Queue[bytes | None] = Queue(waiting)
        self._reopen = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tamis-access-log", daemon=True)
        self._thread.start()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Add a line, as ASCII: characters that end a line for any reader are escaped."""
        line = json.dumps(entry, ensure_ascii=True, separators=(",", ":")) + "\n"
        try:
            self._lines.put_nowait(line.encode())
        except Full:
            self.dropped += 1

    def reopen(self) -> None:
        """Have the file opened by its name again: what rotates logs has moved it away."""
        self._reopen.set()

    def close(self) -> None:
        """Write the remaining lines, if that is possible soon."""
        try:
            self._lines.put(None, timeout=_LAST_LINES)
        except Full:
            return
        self._thread.join(_LAST_LINES)

    def _open(self) -> int:
        if self.path == STDOUT:
            return sys.stdout.fileno()
        try:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        except OSError as error:
            problem = f"cannot write the access log ({error.strerror})"
            raise InputError(problem, path=self.path, remedy="choose another file") from error

    def _run(self) -> None:
        while True:
            try:
                line = self._lines.get(timeout=_LOOK)
            except Empty:
                line = b""
            if self._reopen.is_set():
                self._reopen.clear()
                self._open_again()
            if line is None:
                break
            if line:
                self._append(line)
        if self.path != STDOUT:
            os.close(self._file)

    def _open_again(self) -> None:
        if self.path == STDOUT:
            return
        try:
            new = self._open()
        except InputError:  # the old one is better than none
            return
        os.close(self._file)
        self._file = new

    def _append(self, line: bytes) -> None:
        try:
            while line:  # a pipe may take a part
                line = line[os.write(self._file, line) :]
        except OSError:  # the disk is full, or the pipe is not read: responses matter more
            self.dropped += 1
