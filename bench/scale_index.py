"""Large indexes: building with several processes, and beside tantivy.

    python bench/scale_index.py [--documents 8800000] [--rounds 3] [--out results.json]
    python bench/scale_index.py --documents 1000000 --builds 3 --workers 1 2     # workers side by side

Generated passages (see synthetic.py), read from a TSV file by `tamis index`. With several numbers of
`--workers` they take turns, `--builds` times, and the files that they write are compared: they must be the
same. Times are of the clock and of the processors. Where other programs run, the clock says little: `others`
is how many cores they kept busy meanwhile. Memory is the sum of the peaks of all the processes. Then tantivy
builds with as many threads as tamis had processes at last, and both answer the same queries as in
first_stage.py, in turns, one core each.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from first_stage import COLUMNS, Tantivy, latencies, read, synthetic_files
from machine import SCRATCH, in_a_process, peak_mib, processor, versions


def build_tamis(corpus: Path, folder: Path, workers: int) -> dict[str, Any]:
    """Build by the command, and watch its processes."""
    command = [sys.executable, "-m", "tamis", "index", corpus, "-o", folder, "--overwrite", "--no-tokens"]
    before, busy, started = children_s(), busy_s(), time.perf_counter()
    peaks: dict[int, float] = {}
    process = subprocess.Popen([*command, "--workers", str(workers), "--json"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    watcher = threading.Thread(target=watch, args=(process, peaks))
    watcher.start()
    with process.stdout as out:
        said = json.loads(out.read())
    watcher.join()
    if process.returncode:
        raise SystemExit(f"error: tamis index ended with status {process.returncode}")
    used = children_s() - before
    return {
        "workers": workers,
        "build_s": said["seconds"],
        "cpu_s": used,
        "processes": len(peaks),
        "peak_mib": sum(peaks.values()),
        "index_mb": said["bytes"] / 1e6,
        "others": (busy_s() - busy - used) / (time.perf_counter() - started),
    }


def children_s() -> float:
    """Processor time of the processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def busy_s() -> float:
    """Processor time of all programs since the machine was started."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def watch(process: subprocess.Popen[bytes], peaks: dict[int, float]) -> None:
    """Keep the peak memory, in MiB, of a process and of those that it starts."""
    while process.poll() is None:
        parents = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            except (OSError, ValueError):  # it has ended
                continue
            parents[int(fields["Pid"])] = (int(fields["PPid"]), fields.get("VmHWM", "0").split()[0])
        for pid, (parent, peak) in parents.items():
            if process.pid in (pid, parent):
                peaks[pid] = max(peaks.get(pid, 0.0), int(peak) / 1024)
        time.sleep(0.05)


def digest(folder: Path) -> str:
    """Of the files of all segments: their names are drawn, what is in them is not."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("segments/*/*"), key=lambda path: path.name):
        with path.open("rb") as file:
            whole.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def build_tantivy(corpus: Path, folder: Path, threads: int, results: Any) -> None:
    started = time.perf_counter()
    Tantivy.build(corpus, folder, threads)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    used = resource.getrusage(resource.RUSAGE_SELF)
    results.put(
        {
            "build_s": seconds,
            "cpu_s": used.ru_utime + used.ru_stime,
            "peak_mib": peak_mib(),
            "index_mb": size,
        }
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    corpus, queries_file = synthetic_files(options.documents, options.data)
    queries = [text for _, text in read(queries_file)]
    report: dict[str, Any] = {
        "documents": options.documents,
        "queries": len(queries),
        "rounds": options.rounds,
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": versions(["numpy", "numba", "tantivy"]),
        "builds": [],
        "engines": {},
    }
    with tempfile.TemporaryDirectory(dir=options.data) as place:
        folders = {"tamis": Path(place) / "tamis", "tantivy": Path(place) / "tantivy"}
        digests = set()
        for _ in range(options.builds):
            for workers in options.workers:
                built = build_tamis(corpus, folders["tamis"], workers)
                digests.add(digest(folders["tamis"]))
                report["builds"].append(built)
                print(", ".join(f"{name} {value:,.1f}" for name, value in built.items()), flush=True)
        report["same_files"] = len(digests) == 1
        if options.alone:
            return report
        report["engines"]["tamis"] = report["builds"][-1]
        report["engines"]["tantivy"] = in_a_process(
            build_tantivy, corpus, folders["tantivy"], options.workers[-1]
        )
        print(f"tantivy: built in {report['engines']['tantivy']['build_s']:.1f} s", flush=True)
        for name, figures in latencies(folders, queries, options.rounds).items():
            report["engines"][name] |= figures
    return report


def show(report: dict[str, Any]) -> None:
    print(f"\n{report['documents']:,} passages; files the same whatever --workers: {report['same_files']}")
    by_workers: dict[int, list[dict[str, Any]]] = {}
    for built in report["builds"]:
        by_workers.setdefault(built["workers"], []).append(built)
    first = next(iter(by_workers.values()))
    for workers, builds in by_workers.items():
        ratios = [one["build_s"] / other["build_s"] for one, other in zip(first, builds, strict=True)]
        others = [f"{each['others']:.1f}" for each in builds]
        median = {key: float(np.median([each[key] for each in builds])) for key in ("build_s", "cpu_s")}
        print(
            f"--workers {workers}: {median['build_s']:.1f} s, {median['cpu_s']:.1f} s of processors, "
            f"{max(each['peak_mib'] for each in builds):,.0f} MiB, "
            f"times as fast as the first: {', '.join(f'{ratio:.2f}' for ratio in ratios)} "
            f"(others kept {', '.join(others)} cores busy)"
        )
    if report["engines"]:
        print(f"{'':9}" + "".join(f"{title:>12}" for _, title in COLUMNS))
        for name, values in report["engines"].items():
            print(f"{name:9}" + "".join(f"{values[key]:12.2f}" for key, _ in COLUMNS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=8_800_000, help="passages (8800000)")
    parser.add_argument("--builds", type=int, default=1, help="turns of all --workers (1)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="numbers of processes (2)")
    parser.add_argument("--rounds", type=int, default=3, help="of all queries an engine (3)")
    parser.add_argument("--alone", action="store_true", help="only build with tamis, no queries")
    parser.add_argument("--data", type=Path, default=SCRATCH, help="a folder for what is generated")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    options = parser.parse_args()
    if options.documents < 1000:
        parser.error("--documents must be 1,000 or more: so many results are asked for")
    if not options.alone and importlib.util.find_spec("tantivy") is None:
        parser.error("tantivy is not installed: pip install '.[bench]', or --alone")
    report = measure(options)
    show(report)
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    from tamis.cli import status_of

    sys.exit(status_of(main))
