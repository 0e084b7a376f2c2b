"""A server on one core under many clients: what it answers, how soon, and with how much memory.

    python bench/serve.py [--model mono] [--seconds 30] [--clients 32] [--out bench/results/serve.json]

The bundled collection is indexed, tokenised for the pipeline's models (`tamis tokens`) and served by `tamis
serve`, a process of its own pinned to one core; the clients are connections of this process, pinned to the
others. Each sends its next question as soon as the last is answered. These things are measured:

- start: from the start of the process to its first answer, and until its models are loaded;
- load: so many clients for so many seconds: answers by status, how many were complete, how many came after
  their deadline, latency as the clients see it, and the resident memory at the start, in the middle and at
  the end;
- patient: the same with clients that wait as long as Retry-After says before they ask again;
- streamed: the same by server-sent events, with the time to the ranking of the first stage;
- bars: of these, what a server is judged by: complete answers in a second, answers of all three that came
  after their deadline, and the median time to the first streamed stage;
- sharing: questions answered completely in a second with one client, which is one at a time; with all clients
  and calls shared between requests; and with all clients and calls not shared (`--one-at-a-time`). With a
  deadline of a minute, so that nothing is left out. Once with the pipeline, once with few short candidates of
  the clients' own (`/rerank`);
- bm25 alone.

`--load-only` leaves out the last two. `--checkout DIR` has the server of another checkout measured by the
same clients, which talk HTTP alone, so that two versions can be compared in one sitting;
what an old one does not do is left out.

`--tiny` measures a model of mono-tiny's shape, 4 layers of 384, with random weights instead of a bundled one:
how long a model takes does not depend on what its weights are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from machine import processor
from random_model import SHAPES, write_model

import tamis
from tamis import Index
from tamis.cli import status_of
from tamis.core.plan import rerankers
from tamis.core.registry import build
from tamis.formats import read_corpus, read_queries
from tamis.infer.tokens import build_tokens

DEMO = Path(tamis.__file__).parent / "demo_data"
MINUTE = 60_000  # milliseconds
CHECKOUT: Path | None = None  # whose server is measured; None: the one that is imported here


# -- clients
# ------------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)  # seconds to the ranking of the first stage
    deadline: float = float("inf")
    complete: int = 0
    elapsed: float = 0.0
    processor: float = 0.0  # seconds that the server used

    def report(self) -> dict[str, Any]:
        late = sum(seconds > self.deadline for seconds in self.seconds)
        return {
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "complete": self.complete,
            **({} if self.deadline == float("inf") else {"late": late}),
            "answers_per_s": round(self.statuses[200] / self.elapsed, 2),
            "complete_per_s": round(self.complete / self.elapsed, 2),
            "complete_per_processor_s": round(self.complete / self.processor, 2),
            "processor_s": round(self.processor, 2),
            **_quantiles(self.seconds, ""),
            **(_quantiles(self.first, "first_stage_") if self.first else {}),
        }


def _quantiles(seconds: Sequence[float], prefix: str) -> dict[str, float]:
    at = np.quantile(seconds, [0.5, 0.95, 0.99, 1.0]) * 1000
    names = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    return {prefix + name: round(value, 1) for name, value in zip(names, at.tolist(), strict=True)}


@dataclass
class Answered:
    """An answer, or the last event of a stream."""

    status: int
    body: bytes
    retry_after: float  # seconds
    first: float | None  # seconds to the first event


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes, *, stream: bool
) -> Answered:
    """One request on an open connection."""
    asked = time.perf_counter()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    head += "accept: text/event-stream\r\n" if stream else ""
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status, wait = int(lines[0].split()[1]), float(headers.get("retry-after", 0))
    if "content-length" in headers:
        return Answered(status, await reader.readexactly(int(headers["content-length"])), wait, None)
    first, events = None, b""
    while size := int(await reader.readline(), 16):
        events += (await reader.readexactly(size + 2))[:-2]
        if first is None and b"\n\n" in events:
            first = time.perf_counter() - asked
    await reader.readline()
    last = events.rstrip(b"\n").rpartition(b"\ndata: ")[2]
    return Answered(status, last, json.loads(last).get("retry_after") or 0.0, first)


async def load(
    server: Server,
    clients: int,
    seconds: float,
    path: str,
    bodies: Sequence[bytes],
    watch: Callable[[], object] = lambda: None,
    *,
    deadline: float = float("inf"),
    patient: bool = False,
    stream: bool = False,
) -> Seen:
    """So many clients, each with one question after the other."""
    seen, waiting = Seen(deadline=deadline), cycle(bodies)
    started, used = time.perf_counter(), server.processor

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while time.perf_counter() - started < seconds:
            asked = time.perf_counter()
            answer = await ask(reader, writer, path, next(waiting), stream=stream)
            seen.seconds.append(time.perf_counter() - asked)
            seen.statuses[answer.status] += 1
            if answer.first is not None:
                seen.first.append(answer.first)
            seen.complete += b'"complete":true' in answer.body
            # a client that is told to come back does not come back at once
            wait = answer.retry_after if patient else 0.05 if answer.status == 503 else 0
            await asyncio.sleep(min(wait, max(started + seconds - time.perf_counter(), 0)))
            if wait >= 1:  # the server does not keep a connection that is not used
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()

    async def watching() -> None:
        for _ in range(3):
            watch()
            await asyncio.sleep(seconds / 2)

    watcher = asyncio.create_task(watching())
    await asyncio.gather(*(client() for _ in range(clients)))
    seen.elapsed, seen.processor = time.perf_counter() - started, server.processor - used
    await watcher
    return seen


# -- the server
# ------------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    port: int
    process: subprocess.Popen[str]
    answering: float  # seconds after its start
    ready: float

    @property
    def processor(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def megabytes(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return round(int(line.split()[1]) / 1000, 1)


@contextmanager
def serving(index: Path, pipeline: str, *options: str) -> Iterator[Server]:
    """A server that is ready, pinned to the first core."""
    command = [sys.executable, "-m", "tamis", "serve", str(index), "--port", "0", "-p", pipeline, *options]
    started = time.perf_counter()
    environment = os.environ if CHECKOUT is None else os.environ | {"PYTHONPATH": str(CHECKOUT / "src")}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=lambda: pin(first=True)
    ) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            port = int(line.rstrip("/\n").rpartition(":")[2])
            search = json.dumps({"query": "sieve", "pipeline": "bm25"}).encode()
            asyncio.run(until(port, "POST", "/search", search))
            answering = time.perf_counter() - started
            asyncio.run(until(port, "GET", "/readyz"))
            yield Server(port, process, answering, time.perf_counter() - started)
        finally:
            process.terminate()


async def until(port: int, method: str, path: str, body: bytes = b"") -> None:
    """Ask until the answer is 200."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        if answer.split()[1] == b"200":
            return
        await asyncio.sleep(0.02)


def pin(*, first: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]} if first else set(cores[1:]) or {cores[0]})


# -- the measurements
# ------------------------------------------------------------------------------------------------------------


def under_load(
    index: Path, pipeline: str, bodies: Sequence[bytes], options: argparse.Namespace
) -> dict[str, Any]:
    with serving(index, pipeline, "--deadline", f"{options.deadline}ms") as server:
        memory: list[float] = []

        def seen(seconds: float, **how: Any) -> Seen:
            how |= {"deadline": options.deadline / 1000}
            return asyncio.run(load(server, options.clients, seconds, "/search", bodies, **how))

        # as long again before it is measured: caches fill once
        seen(options.seconds / 3)
        found = {
            "load": seen(options.seconds, watch=lambda: memory.append(server.megabytes)),
            "patient": seen(options.seconds, patient=True),
            "streamed": seen(options.seconds, patient=True, stream=True),
        }
        reports = {name: each.report() for name, each in found.items() if name != "streamed" or each.first}
        return {
            "start": {"answering_s": round(server.answering, 2), "ready_s": round(server.ready, 2)},
            "deadline_ms": options.deadline,
            **reports,
            "bars": {
                "complete_per_s": {name: each["complete_per_s"] for name, each in reports.items()},
                "late": sum(each["late"] for each in reports.values()),
                "first_stage_p50_ms": reports.get("streamed", {}).get("first_stage_p50_ms"),
            },
            "rss_mb": memory,
        }


def sharing(
    index: Path, pipeline: str, path: str, bodies: Sequence[bytes], options: argparse.Namespace
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, clients, extra in (
        ("one client", 1, ()),
        ("shared", options.clients, ()),
        ("not shared", options.clients, ("--one-at-a-time",)),
    ):
        with serving(index, pipeline, *extra) as server:
            asyncio.run(load(server, clients, 1.0, path, bodies))
            seen = asyncio.run(load(server, clients, options.seconds / 3, path, bodies))
            found[name] = seen.report()
    # by the time of the processor: other work on the machine does not count
    rate = {name: each["complete_per_processor_s"] for name, each in found.items()}
    found["shared_over_one_client"] = round(rate["shared"] / rate["one client"], 2)
    found["shared_over_not_shared"] = round(rate["shared"] / rate["not shared"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mono", help="a bundled model or a folder (mono)")
    parser.add_argument("--tiny", action="store_true", help="a model of random weights instead")
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="of the load; the others take a third of it (30)"
    )
    parser.add_argument("--clients", type=int, default=32, help="how many (32)")
    parser.add_argument(
        "--deadline", type=int, default=2000, help="of a request under load, in milliseconds (2000)"
    )
    parser.add_argument("--candidates", type=int, default=100, help="that the model reads (100)")
    parser.add_argument("--pipeline", help="the stages, instead of those that --model and --candidates make")
    parser.add_argument("--load-only", action="store_true", help="leave out sharing, and bm25 alone")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="measure the server of another checkout")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    options = parser.parse_args()
    global CHECKOUT
    CHECKOUT = options.checkout and options.checkout.resolve()
    documents = list(read_corpus(DEMO / "corpus.jsonl.gz"))
    queries = [query.text for query in read_queries(DEMO / "queries.jsonl")]
    with tempfile.TemporaryDirectory() as folder:
        index, model = Path(folder) / "idx", options.model
        Index.build(documents, index)
        if options.tiny:
            SHAPES["tiny"] = (4, 384, 12)
            model = str(Path(folder) / "tiny")
            write_model(Path(model), (document.text for document in documents), "tiny")
        pipeline = options.pipeline or f'bm25 % {options.candidates} >> mono(model="{model}") % 10'
        # or the server would make them while it is measured
        for reranker in rerankers(build(pipeline, Index.open(index))):
            build_tokens(Index.open(index), reranker.scorer.tokenizer)
        pin(first=False)
        questions = [_json(query=query) for query in queries]
        patient = [_json(query=query, deadline_ms=MINUTE) for query in queries]
        short = [" ".join(document.text.split()[:20]) for document in documents[:200]]
        few = [
            _json(query=query, documents=short[place % 190 : place % 190 + 3], deadline_ms=MINUTE)
            for place, query in enumerate(queries)
        ]
        result = {
            "machine": f"{processor()}, one core for the server",
            "python": platform.python_version(),
            "tamis": tamis.__version__,
            "model": "4 layers of 384, random" if options.tiny else model,
            "pipeline": options.pipeline or f"bm25 % {options.candidates} >> mono % 10",
            "clients": options.clients,
            "seconds": options.seconds,
            **under_load(index, pipeline, questions, options),
        }
        if not options.load_only:
            result |= {
                "sharing": sharing(index, pipeline, "/search", patient, options),
                "sharing_3_short_candidates": sharing(index, pipeline, "/rerank", few, options),
                "bm25": sharing(index, "bm25 % 10", "/search", patient, options)["shared"],
            }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def _json(**body: Any) -> bytes:
    return json.dumps(body).encode()


if __name__ == "__main__":
    sys.exit(status_of(main))
