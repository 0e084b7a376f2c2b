"""The default pipeline on one core: beside `bm25 % 100 >> mono`, and beside FlashRank and
sentence-transformers that read as many pairs with models of the same shapes.

    python bench/interactive.py --data DIR [--first-reader MODEL] [--queries 6] [--out results.json]

DIR holds `trec-dl-2019` (passages of about 60 words) and `multihop-rag` (whole documents, longer than a model
reads), each as corpus.jsonl and queries.jsonl; the first also qrels.txt and run.bm25.txt, over which nDCG@10
is measured. `--first-reader` is a model in place of the default pipeline's own, or `random` for one of two
layers of 128 with random weights: how long a model takes does not depend on what its weights are.

A query's time is from its text to ranked ids. tamis searches its index, with tokens kept beside it. The
others get BM25's candidates and their texts in memory: they read all candidates with the small model and the
best of these with the large one, or all with the large one; their models have the shapes of ours, one label
and random weights. Every engine has a process of its own with one thread, pinned to one core; they answer in
turns, a query each, so that noise meets all alike. On a machine with other work the ratios of processor
seconds are the better ones.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from cpu_rerankers import ENGINES, SentenceTransformers, Setting
from machine import SCRATCH, in_a_process, next_result, one_core, processor, started, versions
from random_model import SHAPES, write_model
from rerank_cpu import ONE_THREAD

from tamis.core.defaults import CANDIDATES, FIRST_READER, NAMED, READ

PLAIN = f"bm25 % {CANDIDATES} >> mono"
OTHERS = ("st torch", "st onnx int8", "flashrank")
SETS = {"passages": "trec-dl-2019", "documents": "multihop-rag"}


class Tamis:
    """A pipeline over the index; `pairs` is a model alone over candidates that are given."""

    def __init__(self, place: Path, pipeline: str) -> None:
        import tamis
        from tamis.core.plan import rerankers
        from tamis.core.runtime import Runtime

        self.index = tamis.Index.open(place / "index")
        self.stage = self.index.pipeline(pipeline, Runtime("cpu", "int8", workers=1))
        for model in rerankers(self.stage):
            model.prepare()

    def rank(self, query: str, ids: Sequence[str]) -> list[str]:
        from tamis.base.documents import Query
        from tamis.core.ranking import Ranking

        given = Ranking(Query("", query), tuple(ids), np.zeros(len(ids)), texts=self.index)
        return list(self.stage.apply([given])[0].ids)


class Cascade:
    """Another engine, with the small model first, or without it."""

    def __init__(self, name: str, small: Setting | None, large: Setting) -> None:
        self.small = ENGINES[name](small) if small else None
        self.large = ENGINES[name](large)

    def rank(self, query: str, ids: Sequence[str]) -> list[str]:
        if self.small is not None:
            ids = [identity for identity, _ in self.small.rank(query, ids)[:READ]]
        return [identity for identity, _ in self.large.rank(query, ids)]


def open_engine(task: dict[str, Any]) -> Any:
    if "pipeline" in task:
        return Tamis(task["place"], task["pipeline"])
    if issubclass(ENGINES[task["name"]], SentenceTransformers):
        import torch

        torch.set_num_threads(1)
    return Cascade(task["name"], task["small"], task["large"])


def serve(task: dict[str, Any], commands: Any, results: Any) -> None:
    """Answer (query, ids) with seconds, processor seconds and ids. The first result is None, or why the
    engine could not be opened."""
    one_core()
    try:
        engine = open_engine(task)
        engine.rank("warm", task["warm"])
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")
        return
    results.put(None)
    while (command := commands.get()) is not None:
        start, used = time.perf_counter(), time.process_time()
        ranked = engine.rank(*command)
        results.put((time.perf_counter() - start, time.process_time() - used, ranked))


def prepare(folder: Path, place: Path, count: int, results: Any) -> None:
    """Index a collection with its tokens, and find the candidates of its first questions that have enough."""
    import tamis
    from tamis.formats import read_corpus, read_queries
    from tamis.infer.tokens import build_tokens
    from tamis.models.bundled import bundled_tokenizer

    index = tamis.Index.build(read_corpus(folder / "corpus.jsonl"), place / "index")
    build_tokens(index, bundled_tokenizer())
    first = index.bm25() % CANDIDATES
    found = ((query.text, list(first(query.text).ids)) for query in read_queries(folder / "queries.jsonl"))
    asked = list(islice(((text, ids) for text, ids in found if len(ids) == CANDIDATES), count))
    wanted = {identity for _, ids in asked for identity in ids}
    results.put((asked, {identity: index.document(identity).contents for identity in wanted}))


def random_models(place: Path, shapes: dict[str, tuple[int, int, int]], results: Any) -> None:
    """Models of these shapes that all engines load, with the bundled models' tokenizer."""
    from tamis.models.bundled import BUNDLED

    for name, shape in shapes.items():
        write_model(place / name, [], shape)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(BUNDLED / "mono" / file, place / name / file)
    results.put(None)


def export(settings: Sequence[Setting], results: Any) -> None:
    """The int8 graphs that sentence-transformers makes, which FlashRank is given too."""
    one_core()
    try:
        for setting in settings:
            ENGINES["st onnx"].build(setting)
        results.put(None)
    except Exception as error:
        results.put(f"{type(error).__name__}: {error}")


def shape_of(model: str) -> tuple[int, int, int]:
    from tamis.infer.scorer import Scorer

    config = Scorer(model).checkpoint.config
    return config.layers, config.hidden, config.heads


def measure(kind: str, arguments: argparse.Namespace, place: Path, models: Path) -> dict[str, Any]:
    """Times of one kind of texts."""
    place.mkdir()
    count = arguments.queries if kind == "passages" else max(1, arguments.queries // 3)
    asked, texts = in_a_process(prepare, arguments.data / SETS[kind], place, count)
    reader = str(models / "small") if arguments.first_reader == "random" else arguments.first_reader
    fast = NAMED["fast"].replace(f"model={FIRST_READER}", f'model="{reader}"')
    tasks: dict[str, dict[str, Any]] = {
        "fast": {"pipeline": fast},
        PLAIN: {"pipeline": PLAIN},
        "mono alone": {"pipeline": "mono"},
        "first reader alone": {"pipeline": f'mono(model="{reader}")'},
    }
    small, large = (
        Setting(models / size, models / f"{size}-made", texts, arguments.quantise)
        for size in ("small", "large")
    )
    for name in arguments.engines:
        tasks[f"{name}, cascade"] = {"name": name, "small": small, "large": large}
        tasks[f"{name}, all"] = {"name": name, "small": None, "large": large}
    report: dict[str, Any] = {"queries": len(asked), "words": words(texts), "engines": {}, "not_loaded": {}}
    workers = {}
    for name, task in tasks.items():
        commands = multiprocessing.get_context("spawn").Queue()
        process, results = started(serve, task | {"place": place, "warm": asked[0][1][:8]}, commands)
        if (problem := next_result(process, results)) is not None:
            report["not_loaded"][name] = problem
            continue
        workers[name] = (process, commands, results)
        report["engines"][name] = {"seconds": [], "cpu_seconds": []}
    for turn in range(arguments.rounds):
        for number, command in enumerate(asked):
            for name, (process, commands, results) in workers.items():
                commands.put(command)
                seconds, cpu, _ = next_result(process, results)
                report["engines"][name]["seconds"].append(seconds)
                report["engines"][name]["cpu_seconds"].append(cpu)
            print(f"{kind}: round {turn + 1}, query {number + 1}", flush=True)
    for process, commands, _ in workers.values():
        commands.put(None)
        process.join()
    for values in report["engines"].values():
        for what in ("seconds", "cpu_seconds"):
            values[f"median_{what}"] = float(np.median(values[what]))
    return report


def words(texts: dict[str, str]) -> float:
    return float(np.mean([len(re.findall(r"\w+", text)) for text in texts.values()]))


def quality(folder: Path, results: Any) -> None:
    """nDCG@10 over BM25's given candidates, of mono and of the default's two readers."""
    import tamis
    from tamis.core.ranking import Run
    from tamis.core.registry import build
    from tamis.evaluate.measures import evaluate
    from tamis.formats import read_corpus, read_qrels, read_queries

    qrels, queries = read_qrels(folder / "qrels.txt"), read_queries(folder / "queries.jsonl")
    readers = NAMED["fast"].partition(" >> ")[2]
    found = {}
    with tempfile.TemporaryDirectory() as place:
        index = tamis.Index.build(read_corpus(folder / "corpus.jsonl"), Path(place) / "index")
        given = Run.read(folder / "run.bm25.txt", queries=queries, texts=index)
        for name, pipeline in (("fast", readers), (PLAIN, "mono")):
            ranked = build(pipeline).apply([ranking.head(CANDIDATES) for ranking in given.values()])
            found[name] = evaluate(qrels, Run(ranked), ["nDCG@10"]).mean["nDCG@10"]
    results.put(found)


#: What is compared: a name, the two engines, and the most that the ratio of their times may be.
def bars(engines: Sequence[str]) -> list[tuple[str, str, Sequence[str], float]]:
    cascades = [name for name in engines if name.endswith(", cascade")]
    return [
        ("default / plain", "fast", [PLAIN], 0.30),
        ("default / the fastest of the others, as many pairs", "fast", cascades, 0.6),
        ("first reader / mono, as many pairs", "first reader alone", ["mono alone"], 1 / 15),
    ]


def show(report: dict[str, Any]) -> None:
    print(f"\n1 core of {report['machine']}")
    print(", ".join(f"{package} {version}" for package, version in report["versions"].items()))
    for kind, part in report["sets"].items():
        engines = part["engines"]
        print(
            f"\n{kind} of {part['words']:.0f} words, {part['queries']} queries, {CANDIDATES} candidates each"
        )
        print(f"{'':34}{'median ms':>12}{'CPU ms':>10}")
        for name, values in engines.items():
            figures = values["median_seconds"] * 1000, values["median_cpu_seconds"] * 1000
            print(f"{name:34}{figures[0]:12.1f}{figures[1]:10.1f}")
        for name, reason in part["not_loaded"].items():
            print(f"{name:34}did not load: {reason.splitlines()[0]}")
        for what, ours, theirs, most in bars(list(engines)):
            for measure in ("median_seconds", "median_cpu_seconds"):
                others = [engines[name][measure] for name in theirs if name in engines]
                if others and ours in engines:
                    ratio = engines[ours][measure] / min(others)
                    verdict = "reached" if ratio <= most else "MISSED"
                    name = "time" if measure == "median_seconds" else "processor time"
                    print(f"{what}, {name}: {ratio:.3f}, at most {most:.3f}: {verdict}")
    for name, value in report["nDCG@10"].items():
        print(f"nDCG@10 of {name}: {value:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the collections")
    parser.add_argument("--first-reader", default=FIRST_READER, help=f"({FIRST_READER})")
    parser.add_argument(
        "--queries", type=int, default=6, help="of passages; a third of them of documents (6)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of all queries (3)")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="(all)")
    parser.add_argument("--engines", nargs="*", choices=OTHERS, default=list(OTHERS), help="(all)")
    parser.add_argument("--no-quality", action="store_true", help="leave out nDCG@10")
    parser.add_argument(
        "--quantise", default="avx512_vnni", help="what the others quantise for (avx512_vnni)"
    )
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    arguments = parser.parse_args()
    os.environ.update(ONE_THREAD)
    report: dict[str, Any] = {
        "machine": processor(),
        "python": platform.python_version(),
        "versions": versions(("tamis", "onnxruntime", "sentence-transformers", "torch", "FlashRank")),
        "default": NAMED["fast"],
        "first_reader": arguments.first_reader,
        "sets": {},
        "nDCG@10": {},
    }
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        models = Path(folder) / "models"
        own = arguments.first_reader
        shapes = {"small": SHAPES["nano"] if own == "random" else shape_of(own), "large": shape_of("mono")}
        report["shapes"] = shapes
        in_a_process(random_models, models, shapes)
        if arguments.engines:
            made = [
                Setting(models / size, models / f"{size}-made", {}, arguments.quantise) for size in shapes
            ]
            if (problem := in_a_process(export, made)) is not None:
                print(f"the others' graphs could not be made: {problem}")
        for kind in arguments.sets:
            report["sets"][kind] = measure(kind, arguments, Path(folder) / kind, models)
        if not arguments.no_quality and own != "random":
            report["nDCG@10"] = in_a_process(quality, arguments.data / SETS["passages"])
    show(report)
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
