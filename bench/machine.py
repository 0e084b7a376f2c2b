"""What the benchmarks share: one core, a process of its own for what is measured, and where that was."""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from queue import Empty
from typing import Any

#: For what benchmarks make on the way.
SCRATCH = Path(tempfile.gettempdir()) / "tamis-bench"


def one_core() -> None:
    """Pin this process to one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def in_a_process(work: Callable[..., None], *arguments: Any) -> Any:
    """What `work` puts into the queue that it is given last."""
    process, results = started(work, *arguments)
    result = next_result(process, results)
    process.join()
    return result


def started(work: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """A new process that does `work`, and the queue that it is given last."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    # a daemon does not outlive a benchmark that is given up
    process = context.Process(target=work, args=(*arguments, results), name=work.__name__, daemon=True)
    process.start()
    return process, results


def next_result(process: Any, results: Any) -> Any:
    """What a process puts next; one that ends without it would be waited for in vain."""
    while True:
        try:
            return results.get(timeout=0.2)
        except Empty:
            if not process.is_alive() and results.empty():
                raise SystemExit(f"error: {process.name} ended without a result: see above") from None


def peak_mib() -> float:
    """This process's own: `getrusage` would count what its parent held when it was forked."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def processor() -> str:
    """Its name, and whether it has the instructions that int8 is fast by."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor() or platform.machine()
    lines = information.read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return f"{model}, avx512_vnni" if "avx512_vnni" in flags else model


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Those that are installed.

    >>> versions(["no-such-package"])
    {'no-such-package': 'not installed'}
    """
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
