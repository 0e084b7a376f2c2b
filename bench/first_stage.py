"""The first stage beside bm25s and tantivy: one core, one machine, one run.

    python bench/first_stage.py [--passages 1000000] [--out results.json]

Generated passages of about 60 tokens with a Zipfian vocabulary, 500 queries of 3 to 6 terms (see
synthetic.py). Every engine builds its index in a process of its own, with the text stored, without positions,
pinned to one core; its peak memory and its size on disk are measured. Then one process an engine answers the
same queries, in turns, a round each, so that noise meets all alike; a query's time is from its text to a list
of ids and scores. For tantivy the ids come from a fast field, its quickest way. Reported are medians over the
rounds. Results of tamis are compared with exhaustive scoring, and its throughput with two reader threads (two
cores) to one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import synthetic
from machine import SCRATCH, in_a_process, next_result, one_core, peak_mib, started

KS = (10, 1000)


def read(path: Path) -> Iterator[tuple[str, str]]:
    with path.open() as file:
        for line in file:
            identity, text = line.rstrip("\n").split("\t")
            yield identity, text


class Tamis:
    name = "tamis"

    @staticmethod
    def build(corpus: Path, folder: Path) -> None:
        import tamis

        tamis.Index.build((tamis.Document(i, text) for i, text in read(corpus)), folder)

    def __init__(self, folder: Path) -> None:
        import tamis

        self.index = tamis.Index.open(folder)
        self.bm25 = {k: self.index.bm25(1.2, 0.75, backend="numba") % k for k in KS}

    def warm(self) -> None:
        self.bm25[10].prepare()

    def search(self, query: str, k: int) -> tuple[list[str], Any]:
        ranking = self.bm25[k](query)
        return ranking.ids, ranking.scores


class Tantivy:
    name = "tantivy"

    @staticmethod
    def _schema() -> Any:
        import tantivy

        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", stored=True, tokenizer_name="default", index_option="freq")
        builder.add_integer_field("id", fast=True)
        return builder.build()

    @staticmethod
    def build(corpus: Path, folder: Path, threads: int = 1) -> None:
        import tantivy

        folder.mkdir()
        index = tantivy.Index(Tantivy._schema(), str(folder))
        writer = index.writer(heap_size=300_000_000, num_threads=threads)
        for identity, text in read(corpus):
            writer.add_document(tantivy.Document(text=text, id=int(identity[1:])))
        writer.commit()
        writer.wait_merging_threads()

    def __init__(self, folder: Path) -> None:
        import tantivy

        self.index = tantivy.Index(self._schema(), str(folder))
        self.index.reload()
        self.searcher = self.index.searcher()

    def warm(self) -> None:
        pass

    def search(self, query: str, k: int) -> tuple[list[int], list[float]]:
        hits = self.searcher.search(self.index.parse_query(query, ["text"]), k).hits
        ids = self.searcher.fast_field_values("id", [address for _, address in hits])
        return ids, [score for score, _ in hits]


class Bm25s:
    name = "bm25s"

    @staticmethod
    def build(corpus: Path, folder: Path) -> None:
        import bm25s

        ids, texts = zip(*read(corpus), strict=True)
        tokens = bm25s.tokenize(list(texts), stopwords=None, show_progress=False)
        engine = bm25s.BM25(k1=1.2, b=0.75, backend="numba")
        engine.index(tokens, show_progress=False)
        engine.save(str(folder), corpus=[{"id": i, "text": t} for i, t in zip(ids, texts, strict=True)])
        (folder / "ids.txt").write_text("\n".join(ids))

    def __init__(self, folder: Path) -> None:
        import bm25s

        self.tokenize = bm25s.tokenize
        self.engine = bm25s.BM25.load(str(folder), mmap=True, backend="numba")
        self.ids = np.array((folder / "ids.txt").read_text().split("\n"))

    def warm(self) -> None:
        pass

    def search(self, query: str, k: int) -> tuple[list[str], Any]:
        tokens = self.tokenize(query, stopwords=None, show_progress=False, return_ids=False)
        found, scores = self.engine.retrieve(tokens, corpus=self.ids, k=k, show_progress=False, n_threads=0)
        return found[0].tolist(), scores[0]


ENGINES: dict[str, Any] = {engine.name: engine for engine in (Tamis, Tantivy, Bm25s)}


def build(name: str, corpus: Path, folder: Path, results: Any) -> None:
    one_core()
    started = time.perf_counter()
    ENGINES[name].build(corpus, folder)
    seconds = time.perf_counter() - started
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    results.put({"build_s": seconds, "peak_mib": peak_mib(), "index_mb": size})


def serve(name: str, folder: Path, queries: list[str], commands: Any, results: Any) -> None:
    """Answer commands: k -> the seconds of each query; None -> stop. The first result is the seconds to
    open."""
    one_core()
    engine = ENGINES[name](folder)  # imports
    started = time.perf_counter()
    engine = ENGINES[name](folder)
    results.put(time.perf_counter() - started)
    engine.warm()
    while (k := commands.get()) is not None:
        seconds = []
        for query in queries:
            started = time.perf_counter()
            engine.search(query, k)
            seconds.append(time.perf_counter() - started)
        results.put(seconds)


def check(folder: Path, queries: list[str], results: Any) -> None:
    """Pruned against exhaustive, and two threads against one."""
    import tamis

    index = tamis.Index.open(folder)
    differences = 0
    for k in KS:
        fast, slow = (index.bm25(1.2, 0.75, backend=backend) % k for backend in ("numba", "numpy"))
        fast.prepare()
        differences += sum(fast(query) != slow(query) for query in queries)
    stage = index.bm25(backend="numba") % 1000

    def answer(part: list[str]) -> None:
        for query in part:
            stage(query)

    def queries_per_second(threads: int) -> float:
        parts = [queries for _ in range(threads)]
        workers = [threading.Thread(target=answer, args=(part,)) for part in parts]
        started = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return threads * len(queries) / (time.perf_counter() - started)

    answer(queries)
    rounds = [(queries_per_second(1), queries_per_second(2)) for _ in range(5)]
    results.put((differences, float(np.median([two / one for one, two in rounds]))))


def measure(passages: int, rounds: int, names: list[str], data: Path) -> dict[str, Any]:
    corpus, queries_file = synthetic_files(passages, data)
    queries = [text for _, text in read(queries_file)]
    report: dict[str, Any] = {"passages": passages, "queries": len(queries), "rounds": rounds, "engines": {}}
    with tempfile.TemporaryDirectory(dir=data) as place:
        folders = {name: Path(place) / name for name in names}
        for name in names:
            report["engines"][name] = in_a_process(build, name, corpus, folders[name])
            print(f"{name}: built in {report['engines'][name]['build_s']:.1f} s", flush=True)
        for name, figures in latencies(folders, queries, rounds).items():
            report["engines"][name] |= figures
        unlike, threads = in_a_process(check, folders["tamis"], queries)
        report |= {"queries_unlike_exhaustive": unlike, "two_threads_to_one": threads}
    return report


def latencies(folders: dict[str, Path], queries: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each engine to open its index and to answer, in turns."""
    figures: dict[str, dict[str, float]] = {name: {} for name in folders}
    workers = {}
    for name, folder in folders.items():
        commands = multiprocessing.get_context("spawn").Queue()
        process, results = started(serve, name, folder, queries, commands)
        figures[name]["open_ms"] = 1000 * next_result(process, results)
        workers[name] = (process, commands, results)
    for k in KS:
        times: dict[str, list[list[float]]] = {name: [] for name in folders}
        for turn in range(rounds + 1):
            for name, (process, commands, results) in workers.items():
                commands.put(k)
                seconds = next_result(process, results)
                if turn:  # the first round warms caches
                    times[name].append(seconds)
        for name in folders:
            per_round = 1000 * np.percentile(np.array(times[name]), [50, 99], axis=1)
            p50, p99 = np.median(per_round, axis=1)
            figures[name] |= {f"p50_ms_k{k}": p50, f"p99_ms_k{k}": p99}
    for process, commands, _ in workers.values():
        commands.put(None)
        process.join()
    return figures


def synthetic_files(passages: int, data: Path) -> tuple[Path, Path]:
    """The generated collection, made once and kept in `data`."""
    folder = data / f"synthetic-{passages}"
    if not (folder / "queries.tsv").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (
            ("corpus.tsv", synthetic.passages(passages)),
            ("queries.tsv", synthetic.queries()),
        ):
            with (folder / f"{name}.part").open("w") as file:
                file.writelines(f"{identity}\t{text}\n" for identity, text in rows)
            (folder / f"{name}.part").rename(folder / name)
    return folder / "corpus.tsv", folder / "queries.tsv"


COLUMNS = (
    ("build_s", "build s"),
    ("peak_mib", "peak MiB"),
    ("index_mb", "index MB"),
    ("open_ms", "open ms"),
    ("p50_ms_k10", "p50 k=10"),
    ("p99_ms_k10", "p99 k=10"),
    ("p50_ms_k1000", "p50 k=1000"),
    ("p99_ms_k1000", "p99 k=1000"),
)


def show(report: dict[str, Any]) -> None:
    print(f"\n{report['passages']:,} passages, {report['queries']} queries, {report['rounds']} rounds, ms")
    print(f"{'':9}" + "".join(f"{title:>12}" for _, title in COLUMNS))
    for name, values in report["engines"].items():
        print(f"{name:9}" + "".join(f"{values[key]:12.2f}" for key, _ in COLUMNS))
    for name, values in report["engines"].items():
        if name != "tamis":
            ours = report["engines"]["tamis"]
            ratios = "".join(f"{ours[key] / values[key]:12.2f}" for key, _ in COLUMNS)
            print(f"{'/ ' + name:9}{ratios}")
    print(f"queries whose results differ from exhaustive scoring: {report['queries_unlike_exhaustive']}")
    print(f"throughput of two reader threads to one: {report['two_threads_to_one']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--passages", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes (100000 1000000)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="of all queries an engine (7)")
    others = [name for name in ENGINES if name != "tamis"]
    parser.add_argument("--engines", nargs="*", choices=others, default=others, help="beside tamis (all)")
    parser.add_argument(
        "--data",
        type=Path,
        default=SCRATCH,
        help="a folder for what is generated, which is kept (tamis-bench where temporary files are)",
    )
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    arguments = parser.parse_args()
    if min(arguments.passages) < max(KS):
        parser.error(f"--passages must be {max(KS):,} or more: so many results are asked for")
    missing = [name for name in arguments.engines if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"{missing[0]} is not installed: pip install '.[bench]', or name others after --engines")
    engines = ["tamis", *arguments.engines]
    reports = [measure(n, arguments.rounds, engines, arguments.data) for n in arguments.passages]
    for report in reports:
        show(report)
    if arguments.out:
        arguments.out.write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    from tamis.cli import status_of  # here: the processes of other engines do without

    sys.exit(status_of(main))
