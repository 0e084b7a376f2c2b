"""Work shared between processes: results in order, whoever does it, and errors that say what happened."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.base.errors import StorageError, TamisError
from tamis.index.crew import Crew
from tamis.index.parcels import Builder
from tamis.text.analyze import get_analyzer

DEAF = "import sys; sys.stdin.read()"  # a process that never begins a task, and ends with us
DYING = "import os, signal, sys; sys.stdin.buffer.read(1); os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the others: else this process may have done all before they have started."""
    monkeypatch.setattr(Crew, "_take_back", lambda self: False)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_the_order_of_the_tasks(tmp_path: Path, waiting: None, count: int) -> None:
    with Crew("abc", processes=count) as crew:
        seen = []
        for n in range(40):
            crew.submit(tmp_path, "center", n, "-")
            seen += crew.ready()
        seen += crew.results()
        assert [result.value for result in seen] == ["abc".center(n, "-") for n in range(40)]
        assert {result.process for result in seen} == set(range(count))
        crew.submit(tmp_path, "upper")  # and it goes on
        assert [result.value for result in crew.results()] == ["ABC"]
    assert list(tmp_path.iterdir()) == []


def test_whoever_waits_does_what_nobody_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.index.crew._MAIN", DEAF)
    with Crew("abc", processes=3) as crew:
        for n in range(10):
            crew.submit(tmp_path, "center", n)
        assert len(list(tmp_path.glob("task-*"))) == 6  # three for each of the others
        assert [result.value for result in crew.results()] == ["abc".center(n) for n in range(10)]
    assert list(tmp_path.iterdir()) == []


def test_no_process_is_started_for_what_is_to_be_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with Crew("abc", processes=8) as crew:
        crew.submit(tmp_path, "upper", here=True)
        assert next(crew.results()).value == "ABC"


def test_processes_are_started_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.index.crew._MAIN", DEAF)
    started = []
    popen = subprocess.Popen

    def count(*arguments: Any, **options: Any) -> Any:
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", count)
    with Crew("abc", processes=3) as crew:
        crew.start()
        assert len(started) == 2
        crew.start()
        crew.submit(tmp_path, "upper")
        assert len(started) == 2
    assert [process.poll() is None for process in started] == [False, False]


def test_an_error_of_another_process_is_ours(tmp_path: Path, waiting: None) -> None:
    with Crew(Builder(get_analyzer("english"), positions=False), processes=2) as crew:
        lengths = np.array([0, 5, 0], np.uint32)
        crew.submit(tmp_path, "parcel", tmp_path / "missing", "run-1", lengths, b"sieve")
        with pytest.raises(StorageError, match=r"cannot write .*missing.run-1 \(No such file") as raised:
            list(crew.results())
        assert raised.value.remedy == "create the folder first"


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_is_killed(tmp_path: Path, waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.index.crew._MAIN", DYING)
    expected = "a worker process was ended by signal SIGKILL: the last commit is complete; if memory ran out"
    with Crew("abc", processes=2) as crew, pytest.raises(TamisError, match=re.escape(expected)):
        crew.submit(tmp_path, "upper")
        list(crew.results())


def test_a_process_that_fails(tmp_path: Path, waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.index.crew._MAIN", "raise SystemExit(3)")
    with Crew("abc", processes=2) as crew, pytest.raises(TamisError, match="was ended with status 3"):
        crew.submit(tmp_path, "upper")
        list(crew.results())


def test_a_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with Crew("abc", processes=3) as crew, pytest.raises(TamisError) as raised:
        crew.submit(tmp_path, "upper")
    assert str(raised.value) == (
        "cannot start process 2 of 3 (No such file or directory): use fewer workers (--workers)"
    )
