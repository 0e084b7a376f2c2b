"""OpenSearch beside the index on disk: building, size and time per query, with one shard and with several.

The generated passages of synthetic.py are indexed by `tamis index`, on disk (`--workers 1`) and into the
cluster, once for each number of `--shards`. The queries of first_stage.py then go to each index in turns, one
at a time, by bm25 with k1=1.2 and b=0.75. A query's time is from its text to a list of ids and scores.
`cluster_cpu_s` is processor time of the nodes, `client_cpu_s` that of the command. The indexes in the cluster
are deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from first_stage import KS, read, synthetic_files
from machine import SCRATCH
from parity_opensearch import equal

import tamis
from tamis.index.opensearch.connection import connect

MODEL = "bm25(1.2, 0.75)"
K1, B = 1.2, 0.75


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", required=True, metavar="HOST:PORT", help="a node of the cluster")
    parser.add_argument("--documents", type=int, default=1_000_000, help="passages (1000000)")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 3], help="of the indexes (1 3)")
    parser.add_argument("--rounds", type=int, default=3, help="of all queries for each index (3)")
    parser.add_argument("--data", type=Path, default=SCRATCH, help="a folder for what is generated")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    corpus, queries_file = synthetic_files(arguments.documents, arguments.data)
    queries = [text for _, text in read(queries_file)]
    with tempfile.TemporaryDirectory(dir=arguments.data) as folder, ExitStack() as at_the_end:
        places = {"disk": str(Path(folder) / "idx")}
        commands = {"disk": ["--workers", "1", "--no-tokens"]}
        for shards in arguments.shards:
            name = f"opensearch, {shards} shard{'s' if shards > 1 else ''}"
            places[name] = f"opensearch://{arguments.cluster}/tamis-bench-{secrets.token_hex(4)}"
            commands[name] = ["--shards", str(shards), "--replicas", "0", "--similarity", MODEL]
            at_the_end.callback(delete, places[name])
        engines = {name: build(corpus, place, commands[name]) for name, place in places.items()}
        indexes = {name: tamis.Index.open(place) for name, place in places.items()}
        for name, figures in latencies(indexes, queries, arguments.rounds).items():
            engines[name] |= figures
            print(name, " ".join(f"{key} {value:,.2f}" for key, value in engines[name].items()), flush=True)
        alike = {name: same_tens(indexes["disk"], other, queries) for name, other in indexes.items()}
        print("queries with the first ten of the index on disk:", alike)
        about = connect(places[name]).request("GET", "/")
    return {
        "documents": arguments.documents,
        "queries": len(queries),
        "rounds": arguments.rounds,
        "opensearch": about["version"]["number"],
        "lucene": about["version"]["lucene_version"],
        "engines": engines,
        "same_ten": alike,
    }


def build(corpus: Path, place: str, options: Sequence[str]) -> dict[str, float]:
    """Index by the command."""
    cluster = place if place.startswith("opensearch://") else None
    before, client = cluster_s(cluster), children_s()
    command = [sys.executable, "-m", "tamis", "index", str(corpus), "-o", place, *options, "--json"]
    said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return {
        "build_s": said["seconds"],
        "client_cpu_s": children_s() - client,
        "cluster_cpu_s": cluster_s(cluster) - before,
        "index_mb": said["bytes"] / 1e6,
    }


def latencies(
    indexes: dict[str, tamis.Index], queries: list[str], rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds of a query, in turns: medians of the rounds, after one that does not count."""
    figures: dict[str, dict[str, float]] = {name: {} for name in indexes}
    for k in KS:
        times: dict[str, list[list[float]]] = {name: [] for name in indexes}
        for turn in range(rounds + 1):
            for name, index in indexes.items():
                stage = index.bm25(K1, B) % k
                if not turn:
                    stage.prepare()
                seconds = [timed(stage, query) for query in queries]
                if turn:
                    times[name].append(seconds)
        for name in indexes:
            p50, p99 = np.median(1000 * np.percentile(np.array(times[name]), [50, 99], axis=1), axis=1)
            figures[name] |= {f"p50_ms_k{k}": float(p50), f"p99_ms_k{k}": float(p99)}
    return figures


def timed(stage: tamis.Stage, query: str) -> float:
    started = time.perf_counter()
    ranking = stage(query)
    assert ranking.ids is not None
    return time.perf_counter() - started


def same_tens(disk: tamis.Index, other: tamis.Index, queries: list[str]) -> int:
    """How many queries have the same first ten documents but for ties."""
    mine, theirs = (index.bm25(K1, B) % 10 for index in (disk, other))
    return sum(equal(mine(query), theirs(query)) for query in queries)


def cluster_s(place: str | None) -> float:
    """Processor time of all nodes of a cluster."""
    if place is None:
        return 0.0
    nodes = connect(place).request("GET", "/_nodes/stats/process")["nodes"].values()
    return sum(node["process"]["cpu"]["total_in_millis"] for node in nodes) / 1000


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def delete(place: str) -> None:
    connection = connect(place)
    connection.request("DELETE", f"/{connection.address.index}", params={"ignore_unavailable": "true"})
