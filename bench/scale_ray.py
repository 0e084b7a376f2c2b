"""Reranking on Ray: two workers compared with one, each with one core, and the overhead of the driver.

Two clusters, with one and with two workers, run side by side; the same batches go to one and then to the
other, `--rounds` times. Starting clusters and loading models is not timed. For each round:

- `speedup`: the time with one worker / the time with two. Where other programs run, this says little;
  `others` is how many cores they kept busy;
- `alone`: an estimate of the same on an idle machine, from the processor time of the workers (c1, c2) and the
  time that each worker waits for the driver (w1, w2): (c1 + w1) / (c2 / 2 + w2);
- `driver`: the processor time of the driver (this process, and the one that runs Ray) / that of the workers:
  looking up and sending texts, receiving rankings. A driver can keep about 1 / driver workers busy;
- `waits`: the time that the one worker waits for the driver / the time that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tamis
from tamis import Index, Query, Ranking, RayRuntime
from tamis.base.processes import session
from tamis.core.remote import Remote, remote
from tamis.core.stage import Stage
from tamis.formats import read_corpus, read_queries
from tamis.rank.given_run import GivenRun

DEMO = Path(tamis.__file__).parent / "demo_data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DEMO, help="a collection in the BEIR layout (the demo)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=96)
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--model", default="mono")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    queries = read_queries(arguments.data / "queries.jsonl")[: arguments.queries]
    with tempfile.TemporaryDirectory() as place:
        (corpus,) = arguments.data.glob("corpus.jsonl*")  # it may be compressed
        index = Index.build(read_corpus(corpus), Path(place) / "idx")
        first = (index.bm25() % arguments.candidates).run(queries)
        stages = [GivenRun(first, index), index.pipeline(f"mono(model={arguments.model})")]
        with cluster(stages, 1) as one, cluster(stages, 2) as two:
            for each in (one, two):  # every worker loads its model
                each.timed(queries[:48])
            rounds = [(one.timed(queries), two.timed(queries)) for _ in range(arguments.rounds)]
    figures = [
        {
            "one_s": a.seconds,
            "two_s": b.seconds,
            "speedup": a.seconds / b.seconds,
            "alone": (a.cpu + a.waiting(1)) / (b.cpu / 2 + b.waiting(2)),
            "driver": (a.driver + b.driver) / (a.cpu + b.cpu),
            "driver_ms_per_batch": 1000 * (a.driver + b.driver) / (a.batches + b.batches),
            "worker_ms_per_batch": 1000 * (a.cpu + b.cpu) / (a.batches + b.batches),
            "waits": a.waiting(1) / a.working,
            "others": (a.others + b.others) / 2,
        }
        for a, b in rounds
    ]
    for each in figures:
        print("  ".join(f"{name} {value:.3f}" for name, value in each.items()), flush=True)
    medians = {name: statistics.median(each[name] for each in figures) for name in figures[0]}
    print("median:", "  ".join(f"{name} {value:.3f}" for name, value in medians.items()))
    return {
        "collection": arguments.data.name,
        "queries": len(queries),
        "candidates": arguments.candidates,
        "model": arguments.model,
        "rounds": figures,
        "median": medians,
    }


class Timed(NamedTuple):
    """A round: its seconds, the seconds that the workers were at work, the processor time of the workers and
    of the driver, and how many cores other programs kept busy meanwhile."""

    seconds: float
    working: float
    cpu: float
    driver: float
    batches: int
    others: float

    def waiting(self, workers: int) -> float:
        """Seconds that a worker waits for the driver."""
        return max(0.0, self.seconds - self.working / workers)


class Cluster(NamedTuple):
    place: Remote
    driver: int  # the process that has Ray
    workers: int

    def timed(self, queries: list[Query]) -> Timed:
        working, batches = self._work()
        cpu, busy, driver, started = self._cpu_s(), busy_s(), self._driver_s(), time.perf_counter()
        waiting = [Ranking(query) for query in queries]
        for _ in self.place.batches(waiting, self.place.stage.queries_at_once):
            pass
        seconds, now_busy, now_driver = time.perf_counter() - started, busy_s(), self._driver_s()
        now_working, now_batches = self._work()
        used, own = self._cpu_s() - cpu, now_driver - driver
        others = max(0.0, (now_busy - busy - used - own) / seconds)
        return Timed(seconds, now_working - working, used, own, now_batches - batches, others)

    def _work(self) -> tuple[float, int]:
        workers = self.place.about()["cluster"]["workers"]
        return sum(each["seconds"] for each in workers), sum(each["batches"] for each in workers)

    def _driver_s(self) -> float:
        return time.process_time() + cpu_s(self.driver)

    def _cpu_s(self) -> float:
        """Processor time of the workers, which are in the session of the driver."""
        members = session(self.driver)
        return sum(cpu_s(pid) for pid in members if "::Actor" in Path(f"/proc/{pid}/cmdline").read_text())


@contextmanager
def cluster(stages: list[Stage], workers: int) -> Iterator[Cluster]:
    before = children()
    with remote(stages, RayRuntime(workers=workers, cores=1)) as place:
        place.prepare()
        (driver,) = children() - before
        yield Cluster(place, driver, workers)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children() -> set[int]:
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def busy_s() -> float:
    """Processor time of everything on this machine."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
