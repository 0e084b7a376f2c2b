"""A server under attack: how soon each hostile request is over, and what others see of it meanwhile.

    python bench/attack.py [--only NAME] [--no-slow] [--out bench/results/attack.json]

The bundled collection, with long documents added, is served by `tamis serve` with its default limits, on one
core; the clients have the others. The requests of `tests/attack/hostile.py` are played one after the other,
while /healthz is asked 50 times a second and eight ordinary clients search. The slow ones, which end when the
server's time limits do, are played together at the end.

The bars: a request is answered or closed within the deadline and one second (slow ones within 61 seconds),
/healthz answers within 250 ms, memory grows by less than 300 MB, and no ordinary request is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import processor

import tamis
from tamis import Document, Index
from tamis.formats import read_corpus

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.attack.hostile import EVERYTHING, Hostile, Watch, resident, watching

DEMO = Path(tamis.__file__).parent / "demo_data" / "corpus.jsonl.gz"
DEADLINE = 2.0  # seconds: the server's own
OVER = DEADLINE + 1.0
SLOW = 61.0
HEALTH = 0.25
GROWTH = 300  # MB


@dataclass
class Line:
    """What came of a request. `health_ms` is the longest that /healthz took meanwhile."""

    name: str
    ending: str
    seconds: float
    health_ms: float
    memory_mb: float
    good: bool


def play(attack: Hostile, port: int) -> tuple[str, float]:
    started = time.monotonic()
    try:
        ending = attack.play(port)
    except OSError as error:
        ending = f"not over: {error}"
    return ending, time.monotonic() - started


def measured(attacks: list[Hostile], port: int, pid: int, watch: Watch, before: int) -> list[Line]:
    """These, at once."""
    watch.slowest()
    watch.peak = resident(pid)
    with ThreadPoolExecutor(len(attacks)) as players:
        endings = list(players.map(lambda attack: play(attack, port), attacks))
    time.sleep(0.1)  # so that what was asked for before the end is counted
    health, growth = watch.slowest(), (watch.peak - before) / 1e6
    lines = []
    for attack, (ending, seconds) in zip(attacks, endings, strict=True):
        most = SLOW if attack.slow else OVER
        lingers = 5.0 if ending.endswith(" closed") else 0.0  # answered at once; the descriptor comes later
        good = (
            seconds <= most + lingers and health <= HEALTH and growth <= GROWTH and "not over" not in ending
        )
        lines.append(Line(attack.name, ending, seconds, 1000 * health, growth, good))
        print(
            f"{attack.name:45} {ending:14} {seconds:7.2f} s {1000 * health:7.0f} ms {growth:7.0f} MB"
            f"  {'' if good else 'OVER THE BAR'}",
            flush=True,
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="requests whose name has this in it")
    parser.add_argument("--no-slow", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    attacks = [each for each in EVERYTHING if arguments.only in each.name]
    quick = [each for each in attacks if not each.slow]
    slow = [each for each in attacks if each.slow and not arguments.no_slow]
    with tempfile.TemporaryDirectory() as folder:
        long = [Document(f"l{number}", f"a sieve {number} and soup " * 1000) for number in range(1000)]
        Index.build([*read_corpus(DEMO), *long], Path(folder) / "idx", positions=True)
        command = [sys.executable, "-m", "tamis", "serve", "idx", "--port", "0", "--no-tokens"]
        core, *others = sorted(os.sched_getaffinity(0))
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            os.sched_setaffinity(process.pid, {core})
            os.sched_setaffinity(0, others or {core})
            port = int(process.stderr.readline().rstrip("/\n").rpartition(":")[2])
            try:
                report = run(quick, slow, port, process.pid)
            finally:
                process.terminate()
            log = process.stderr.read()
    print(f"lines in the server's log: {len(log.splitlines())}")
    print(log[:2000], end="")
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


def run(quick: list[Hostile], slow: list[Hostile], port: int, pid: int) -> dict[str, object]:
    with watching(port, pid) as watch:
        while watch.served < 500:  # models are loaded, and all that is loaded on first use
            time.sleep(0.1)
        before = resident(pid)
        quiet = watch.slowest()
        print(f"without an attack: /healthz {1000 * quiet:.0f} ms at most, {before / 1e6:.0f} MB")
        lines = [line for attack in quick for line in measured([attack], port, pid, watch, before)]
        if slow:
            lines += measured(slow, port, pid, watch, before)
    after = resident(pid)
    good = sum(line.good for line in lines)
    print(
        f"{good} of {len(lines)} within the bars; "
        f"{watch.served:,} ordinary requests served, {len(watch.lost)} lost"
    )
    print(
        f"/healthz {max(line.health_ms for line in lines):.0f} ms at most; "
        f"memory {after / 1e6:.0f} MB at the end"
    )
    for lost in watch.lost[:5]:
        print(lost)
    return {
        "processor": processor(),
        "quiet_ms": 1000 * quiet,
        "before_mb": before / 1e6,
        "after_mb": after / 1e6,
        "served": watch.served,
        "lost": watch.lost,
        "requests": [asdict(line) for line in lines],
    }


if __name__ == "__main__":
    main()
