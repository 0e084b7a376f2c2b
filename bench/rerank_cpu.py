"""Pointwise reranking on one core beside sentence-transformers, rerankers and FlashRank: same weights, same
candidates, one run.

    python bench/rerank_cpu.py [--model FOLDER] [--queries 2] [--rounds 3] [--out results.json]

The candidates are passages of the bundled demo collection with their real lengths, 1,000 unless told
otherwise (`--words 40` cuts them to the length of MS MARCO's), and the queries its questions; the model has
MiniLM-L6's shape and random weights, or is any folder. A query's time is from its text and the candidates'
ids to a ranked list of ids. tamis reads the tokens kept beside its index; the others, which have no such
place, get texts from a dictionary in memory. Every engine has a process of its own with one thread, pinned to
one core; they answer in turns, a query each, so that noise meets all alike.

The engines are used as their documentation says: sentence-transformers by `rank` with its default batch of
32, its int8 graph made by its own `export_dynamic_quantized_onnx_model`. (Its OpenVINO backend needs packages
that cannot be installed beside those of its ONNX backend.) FlashRank takes all passages as one batch, which
for 1,000 of up to 512 tokens needs more than 12 GB for the attention scores alone: it is given 32 at a time.
It knows a fixed set of models: the int8 graph of sentence-transformers is put where it looks for one of them.

Reported are medians and minima of seconds and of processor seconds (on a machine with other work the better
measure), peak memory, and how far the rankings agree. Random weights make scores that lie close together, so
that int8 moves more candidates than it does with trained ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from cpu_rerankers import BATCH, ENGINES, Ranked, SentenceTransformers, Setting
from machine import SCRATCH, in_a_process, next_result, one_core, peak_mib, processor, started, versions

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
DEFAULT, BACKENDS = "st torch", ("st torch", "st onnx", "st onnx int8")


def serve(name: str, setting: Setting, commands: Any, results: Any) -> None:
    """Answer commands: (query, ids) -> seconds, processor seconds, ranking; None -> peak memory, and stop.
    The first result is the seconds to open, or why that failed."""
    one_core()
    try:
        if issubclass(ENGINES[name], SentenceTransformers):
            import torch

            torch.set_num_threads(1)
        started = time.perf_counter()
        engine = ENGINES[name](setting)
        opened = time.perf_counter() - started
        engine.rank("warm", list(islice(setting.texts, 2 * BATCH)))
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")
        return
    results.put(opened)
    while (command := commands.get()) is not None:
        started, used = time.perf_counter(), time.process_time()
        ranked = engine.rank(*command)
        results.put((time.perf_counter() - started, time.process_time() - used, ranked))
    results.put(peak_mib())


def build(names: Sequence[str], setting: Setting, results: Any) -> None:
    one_core()
    errors = {}
    for name in names:
        try:
            ENGINES[name].build(setting)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    results.put(errors)


def demo(candidates: int, queries: int, words: int | None) -> tuple[dict[str, str], list[str]]:
    """The first passages and questions of the bundled collection, passages cut to so many words."""
    import tamis

    folder = Path(tamis.__file__).parent / "demo_data"
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, candidates)]
    with (folder / "queries.jsonl").open(encoding="utf-8") as lines:
        questions = [json.loads(line)["text"] for line in islice(lines, queries)]
    texts = {row["_id"]: f"{row['title']}\n{row['text']}" for row in rows}
    if words is not None:
        texts = {identity: " ".join(text.split()[:words]) for identity, text in texts.items()}
    return texts, questions


def make_model(folder: Path, results: Any) -> None:
    import random_model

    texts, _ = demo(10**6, 0, None)
    random_model.write_model(folder, texts.values())
    results.put(None)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    texts, questions = demo(arguments.candidates, arguments.queries, arguments.words)
    ids = list(texts)
    report: dict[str, Any] = {
        "candidates": len(ids),
        "words": arguments.words,
        "queries": len(questions),
        "rounds": arguments.rounds,
        "machine": processor(),
        "python": platform.python_version(),
        "versions": versions(sorted({each for name in arguments.engines for each in ENGINES[name].packages})),
        "engines": {},
        "not_loaded": {},
    }
    with tempfile.TemporaryDirectory(dir=arguments.data) as place:
        model = arguments.model or Path(place) / "model"
        if arguments.model is None:
            in_a_process(make_model, model)
        setting = Setting(model, Path(place), texts, arguments.quantise)
        report["not_loaded"] |= in_a_process(build, arguments.engines, setting)
        workers, rankings = start(arguments.engines, setting, report), {}
        for turn in range(arguments.rounds):
            for number, question in enumerate(questions):
                for name, (process, commands, results) in workers.items():
                    commands.put((question, ids))
                    seconds, cpu, ranked = next_result(process, results)
                    report["engines"][name]["seconds"].append(seconds)
                    report["engines"][name]["cpu_seconds"].append(cpu)
                    rankings[name, number] = ranked
                    print(f"round {turn + 1}, query {number + 1}, {name}: {seconds:.2f} s", flush=True)
        for name, (process, commands, results) in workers.items():
            commands.put(None)
            report["engines"][name]["peak_mib"] = next_result(process, results)
            process.join()
    for values in report["engines"].values():
        for measure in ("seconds", "cpu_seconds"):
            values[f"median_{measure}"] = float(np.median(values[measure]))
            values[f"least_{measure}"] = min(values[measure])
    report["agreement"] = agreement(rankings, len(questions))
    return report


def start(names: Sequence[str], setting: Setting, report: dict[str, Any]) -> dict[str, Any]:
    workers = {}
    for name in names:
        commands = multiprocessing.get_context("spawn").Queue()
        process, results = started(serve, name, setting, commands)
        opened = next_result(process, results)
        if isinstance(opened, str):
            report["not_loaded"].setdefault(name, opened)
            process.join()
            continue
        report["engines"][name] = {"open_s": opened, "seconds": [], "cpu_seconds": []}
        workers[name] = (process, commands, results)
    return workers


def agreement(rankings: dict[tuple[str, int], Ranked], queries: int) -> dict[str, dict[str, float]]:
    """The least Kendall tau over the queries, and the greatest difference of scores where both are
    probabilities."""
    found = {}
    for first, second in (
        ("tamis fp32", "st torch"),
        ("tamis", "tamis fp32"),
        ("st onnx int8", "st torch"),
        ("rerankers", "st torch"),
        ("flashrank", "st onnx int8"),
    ):
        if (first, 0) in rankings and (second, 0) in rankings:
            pairs = [(dict(rankings[first, n]), dict(rankings[second, n])) for n in range(queries)]
            entry = {"kendall_tau": min(kendall_tau(one, two) for one, two in pairs)}
            if first != "rerankers":  # which gives logits
                entry["score_difference"] = max(abs(one[i] - two[i]) for one, two in pairs for i in one)
            found[f"{first} ~ {second}"] = entry
    return found


def kendall_tau(first: dict[str, float], second: dict[str, float]) -> float:
    """tau-a over all pairs of ids.

    >>> kendall_tau({"a": 3, "b": 2, "c": 1}, {"a": 3, "b": 1, "c": 2})
    0.3333333333333333
    """
    x = np.array(list(first.values()))
    y = np.array([second[identity] for identity in first])
    signs = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    return float(signs.sum() / (len(x) * (len(x) - 1)))


COLUMNS = (
    ("median_seconds", "median s"),
    ("least_seconds", "least s"),
    ("median_cpu_seconds", "median CPU s"),
    ("least_cpu_seconds", "least CPU s"),
)


def show(report: dict[str, Any]) -> None:
    cut = f" of at most {report['words']} words" if report["words"] else ""
    print(
        f"\n{report['candidates']:,} candidates{cut}, {report['queries']} queries, "
        f"{report['rounds']} rounds, 1 core of {report['machine']}"
    )
    print(", ".join(f"{package} {version}" for package, version in report["versions"].items()))
    engines = report["engines"]
    print(f"\n{'':14}" + "".join(f"{title:>14}" for _, title in COLUMNS) + f"{'pairs/s':>10}{'peak MiB':>10}")
    for name, values in engines.items():
        figures = "".join(f"{values[key]:14.2f}" for key, _ in COLUMNS)
        speed = report["candidates"] / values["median_seconds"]
        print(f"{name:14}{figures}{speed:10.0f}{values['peak_mib']:10.0f}")
    for name, reason in report["not_loaded"].items():
        print(f"{name:14}did not load: {reason.splitlines()[0]}")
    ours = engines.get("tamis")
    if ours:
        print("\ntamis is so many times as fast as")
        for name, values in engines.items():
            if name != "tamis":
                print(f"{name:14}" + "".join(f"{values[key] / ours[key]:14.2f}" for key, _ in COLUMNS))
        for bar, names in ((3.0, (DEFAULT,)), (1.2, BACKENDS)):
            present = [engines[name]["median_seconds"] for name in names if name in engines]
            if present:
                ratio = min(present) / ours["median_seconds"]
                what = "default" if len(names) == 1 else "best backend"
                verdict = "reached" if ratio >= bar else "MISSED"
                print(f"sentence-transformers' {what}: {ratio:.2f}, at least {bar}: {verdict}")
    print()
    for pair, values in report["agreement"].items():
        difference = values.get("score_difference")
        end = f", scores differ by at most {difference:.2g}" if difference is not None else ""
        print(f"{pair}: Kendall tau {values['kendall_tau']:.4f}{end}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a folder of a BERT-like cross-encoder with one label")
    parser.add_argument("--candidates", type=int, default=1000, help="a query (1000)")
    parser.add_argument("--words", type=int, help="of a passage at most (all)")
    parser.add_argument("--queries", type=int, default=2, help="how many (2)")
    parser.add_argument("--rounds", type=int, default=3, help="of all queries (3)")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES), help="(all)")
    parser.add_argument(
        "--quantise", default="avx512_vnni", help="what sentence-transformers quantises for (avx512_vnni)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=SCRATCH,
        help="a folder for what is made on the way (tamis-bench where temporary files are)",
    )
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    arguments = parser.parse_args()
    if arguments.model is not None and not (arguments.model / "config.json").is_file():
        parser.error(f"{arguments.model} holds no model")
    os.environ |= ONE_THREAD  # for the processes started from here
    arguments.data.mkdir(parents=True, exist_ok=True)
    report = measure(arguments)
    show(report)
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    from tamis.cli import status_of  # here: the processes of other engines do without

    sys.exit(status_of(main))
