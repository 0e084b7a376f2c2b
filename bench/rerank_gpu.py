"""Reranking on a GPU beside sentence-transformers: one card, one run, the same texts and weights.

    python bench/rerank_gpu.py [--models bert-large ...] [--out results.json]

Models of the shapes of BERT-large, BERT-base and MiniLM-L6 with random weights, and generated passages (see
synthetic.py) cut so that an input has about 63 tokens, as MS MARCO's have. Everything is made here: no
network is needed. A query's time is from its text to a list of ranked ids. tamis reads the candidates' tokens
from beside the index; sentence-transformers gets their texts, which is what it takes, already in memory.

The ceiling is the rate of a large bf16 matrix product in the same run. A share of it counts the operations
that the encoder's products do, for the tokens that are there (no padding; of the last layer only what the
[CLS] vector needs), over the whole time of a query.

`--tiny` runs all of it in seconds on any machine, to see that it runs.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import random_model
import synthetic
import torch
from machine import versions

import tamis
from tamis.core.ranking import Ranking, ScoreKind
from tamis.infer.engine import Engine
from tamis.infer.tokens import build_tokens
from tamis.infer.torch_backend import TorchBackend
from tamis.models.checkpoint import load_checkpoint, save_checkpoint, with_third_segment
from tamis.models.config import EncoderConfig
from tamis.models.names import shapes
from tamis.models.templates import Inputs
from tamis.models.tokenizer import Tokenizer
from tamis.rank.duo import Duo
from tamis.rank.mono import Mono
from tamis.rank.reranker import Reranker

MODELS = ("bert-large", "bert-base", "minilm-l6")
TINY = "tiny"
random_model.SHAPES[TINY] = (2, 32, 4)
MEAN_TOKENS = 63  # of a whole input
K0 = 1000
K1 = 50
DEPTHS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
PASSAGES = 10_000
QUERIES = 8
PACKAGES = ("tamis", "torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "numba")
BATCH_SIZES = (64, 128, 256, 512, 1000)  # for sentence-transformers' best setting
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SECONDS = 2.0  # how long each thing is timed for, at least


# What is ranked, and with what.


def make_model(folder: Path, shape: str, tokenizer: Path) -> Path:
    """A Hugging Face folder with random weights and a tokenizer that is there already."""
    random_model.write_model(folder, [], shape)
    shutil.copy(tokenizer, folder)
    return folder


def cut_passages(tokenizer: Tokenizer, queries: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The passages, each cut to the same share of its words, so that an input has the wanted mean."""
    query = len(tokenizer.encode(queries).ids) / len(queries)
    whole = len(tokenizer.encode(texts).ids) / len(texts)
    share = (MEAN_TOKENS - query - 3) / whole
    return [" ".join(words[: max(1, round(share * len(words)))]) for words in map(str.split, texts)]


class Task:
    """Queries, and the candidates that each ranks: other ones for every query, drawn from one index."""

    def __init__(self, place: Path, passages: int) -> None:
        rows = list(synthetic.passages(passages))
        self.queries = [text for _, text in synthetic.queries(QUERIES)]
        texts = [text for _, text in rows]
        random_model.write_model(place / "words", texts, TINY)
        self.tokenizer = place / "words" / "tokenizer.json"
        tokenizer = Tokenizer(self.tokenizer.parent)
        self.texts = dict(
            zip((i for i, _ in rows), cut_passages(tokenizer, self.queries, texts), strict=True)
        )
        documents = (tamis.Document(i, text) for i, text in self.texts.items())
        self.index = tamis.Index.build(documents, place / "idx")
        build_tokens(self.index, tokenizer)
        # texts as long as duo takes, to meet inputs of 512 tokens
        long = (tamis.Document(f"l{i}", " ".join(texts[4 * i : 4 * i + 4])) for i in range(K1))
        self.long_index = tamis.Index.build(long, place / "long-idx")
        build_tokens(self.long_index, tokenizer)
        self.ids = list(self.texts)
        self.index.bm25().prepare()  # as a first stage would have done: it is what finds ids fast

    def ranking(self, number: int, k: int) -> Ranking:
        chosen = np.random.default_rng(number).permutation(len(self.ids))[:k]
        query = tamis.Query(str(number), self.queries[number % QUERIES])
        scores = -np.arange(len(chosen), dtype=np.float64)
        ids = tuple(self.ids[i] for i in chosen.tolist())
        return Ranking(query, ids, scores, ScoreKind.RETRIEVAL, texts=self.index)

    def long_ranking(self, number: int, k: int) -> Ranking:
        query = tamis.Query(str(number), " ".join(self.queries * 2))
        ids, scores = tuple(f"l{i}" for i in range(k)), -np.arange(k, dtype=np.float64)
        return Ranking(query, ids, scores, ScoreKind.RETRIEVAL, texts=self.long_index)


# Measuring.


def seconds_each(work: Callable[[int], object], *, least: float) -> list[float]:
    """How long each call took; the first calls, which warm up, are not counted."""
    for number in range(3):
        work(number)
    found: list[float] = []
    while sum(found) < least or len(found) < 5:
        started = time.perf_counter()
        work(len(found))
        found.append(time.perf_counter() - started)
    return found


def matmul_ceiling(size: int) -> float:
    """The rate of a large matrix product in bf16 (fp32 where there is no card), in operations a second."""
    kind = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=DEVICE, dtype=kind) for _ in range(2))
    times = []
    for _ in range(12):
        started = time.perf_counter()
        for _ in range(5):
            a @ b
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / 5)
    return 2 * size**3 / float(np.median(times[2:]))


def operations(config: EncoderConfig, inputs: Inputs) -> float:
    """What the products of the encoder's layers do for these inputs, as tamis computes them."""
    tokens, count = float(inputs.lengths.sum()), len(inputs)
    squares = float((inputs.lengths.astype(np.float64) ** 2).sum())
    hidden, wide = config.hidden, config.feed_forward
    a_token, attention = 2.0 * (4 * hidden**2 + 2 * hidden * wide), 4.0 * hidden * squares
    whole = (config.layers - 1) * (a_token * tokens + attention)
    keys_and_values = 4.0 * hidden**2 * tokens
    return whole + keys_and_values + count * (a_token - 4.0 * hidden**2) + 4.0 * hidden * tokens


class Noted:
    """A backend that remembers the inputs of a query, so that their operations can be counted."""

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend
        self.seen: list[Inputs] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def margins(self, inputs: Inputs) -> Any:
        self.seen.append(inputs)
        return self.backend.margins(inputs)


def use(stage: Reranker, folder: Path, *, compile: bool) -> Noted:
    """Give a stage its backend; compiling is no option of the stages."""
    backend = Noted(TorchBackend(load_checkpoint(folder), compile=compile))
    stage.scorer._engine = Engine(backend)
    stage.prepare()
    return backend


def timed(
    stage: Reranker, backend: Noted, rankings: Callable[[int], Ranking], ceiling: float, *, least: float
) -> dict[str, Any]:
    """A stage over rankings: times, pairs a second, and the share of the ceiling."""
    ready = [rankings(number) for number in range(QUERIES)]
    started = time.perf_counter()
    stage.apply(ready[:1])
    first = time.perf_counter() - started
    times = seconds_each(lambda number: stage.apply([ready[number % QUERIES]]), least=least)
    done = []
    for ranking in ready:
        backend.seen.clear()
        stage.apply([ranking])
        done.append(Inputs.join(backend.seen))
    backend.seen.clear()
    work = np.mean([operations(backend.config, inputs) for inputs in done])
    alone = seconds_each(lambda _: backend.backend.margins(done[0]), least=least / 4)
    backend.seen.clear()
    median, count = float(np.median(times)), len(done[0])
    return {
        "inputs": count,
        "mean_tokens": float(np.mean([inputs.lengths.mean() for inputs in done])),
        "ms": 1000 * median,
        "ms_p95": 1000 * float(np.percentile(times, 95)),
        "pairs_per_s": count / median,
        "of_ceiling": float(work) / median / ceiling,
        "backend_alone_pairs_per_s": count / float(np.median(alone)),
        "first_query_s": first,
        "queries_timed": len(times),
    }


# sentence-transformers.


def sentence_transformers(folder: Path, task: Task, k0: int, least: float) -> Iterator[tuple[str, float]]:
    """Seconds a query takes in its default setting, and in bf16 with several batch sizes."""
    from sentence_transformers import CrossEncoder

    sizes = {"fp32": (32,), "bf16": BATCH_SIZES if DEVICE == "cuda" else ()}
    for precision, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if not sizes[precision]:
            continue
        model = CrossEncoder(str(folder), device=DEVICE, model_kwargs={"dtype": kind})
        for size in sizes[precision]:

            def rank(number: int, model: Any = model, size: int = size) -> list[str]:
                ranking = task.ranking(number, k0)
                pairs = [(ranking.query.text, task.texts[identity]) for identity in ranking.ids]
                scores = model.predict(pairs, batch_size=size, show_progress_bar=False)
                return [ranking.ids[place] for place in np.argsort(-scores, kind="stable").tolist()]

            yield f"{precision}, batch {size}", float(np.median(seconds_each(rank, least=least)))


def agreement(stage: Reranker, folder: Path, task: Task, k0: int) -> float:
    """The rank correlation of our order with that of sentence-transformers in fp32."""
    from sentence_transformers import CrossEncoder

    ranking = task.ranking(0, k0)
    ours = {hit.id: hit.rank for hit in stage.apply([ranking])[0]}
    pairs = [(ranking.query.text, task.texts[identity]) for identity in ranking.ids]
    scores = CrossEncoder(str(folder), device=DEVICE).predict(pairs, show_progress_bar=False)
    theirs = np.argsort(np.argsort(-scores))
    return float(np.corrcoef(theirs, [ours[identity] for identity in ranking.ids])[0, 1])


# The run.


def measure(name: str, task: Task, place: Path, ceiling: float, options: Any) -> Iterator[dict[str, Any]]:
    """What is known of a model so far, after each thing that is measured."""
    k0, depths, least = (20, (5, 10, 20), 0.1) if options.tiny else (K0, DEPTHS, SECONDS)
    k1 = 5 if options.tiny else K1
    folder, duo_folder = make_model(place / name, name, task.tokenizer), place / f"{name}-duo"
    save_checkpoint(with_third_segment(load_checkpoint(folder)), duo_folder)
    shape = shapes(load_checkpoint(folder).config)
    report: dict[str, Any] = {"parameters": sum(int(np.prod(size)) for size in shape.values())}
    for kind in ("eager", "compiled") if options.compile else ("eager",):
        rows = {f"mono, {kind}": lambda number: task.ranking(number, k0)}
        if kind == "eager":
            rows |= {f"mono, k0 = {k:,}": lambda number, k=k: task.ranking(number, k) for k in depths}
        mono = Mono(str(folder), score="logit")
        backend = use(mono, folder, compile=kind == "compiled")
        report.setdefault("backend", backend.description)
        for row, rankings in rows.items():
            report[row] = timed(mono, backend, rankings, ceiling, least=least if kind in row else least / 4)
            yield report
        if kind == "eager" and options.compare:
            report["rank_correlation"] = agreement(mono, folder, task, k0)
        rows = {
            f"duo, passages, {kind}": lambda number: task.ranking(number, k1),
            f"duo, long texts, {kind}": lambda number: task.long_ranking(number, k1),
        }
        duo = Duo(str(duo_folder), k=k1)
        backend = use(duo, duo_folder, compile=kind == "compiled")
        for row, rankings in rows.items():
            report[row] = timed(duo, backend, rankings, ceiling, least=least)
            yield report
        del mono, duo, backend
    if options.compare:
        report["sentence-transformers"] = {}
        for setting, median in sentence_transformers(folder, task, k0, least):
            found = {"ms": 1000 * median, "pairs_per_s": k0 / median}
            report["sentence-transformers"][setting] = found
            yield report


def show(report: dict[str, Any]) -> None:
    ceiling = report["ceiling_tflops"]
    print(f"\n{report['device']}; matrix products in the same run: {ceiling:,.0f} TFLOP/s")
    for name, found in report["models"].items():
        print(f"\n{name}, {found['parameters'] / 1e6:.0f}M parameters; {found['backend']}")
        print(
            f"  {'':34}{'inputs':>8}{'tokens':>8}{'ms':>10}{'pairs/s':>11}{'of ceiling':>12}{'alone/s':>11}"
        )
        for key, value in found.items():
            if key.startswith(("mono", "duo")):
                print(
                    f"  {key:34}{value['inputs']:8,}{value['mean_tokens']:8.1f}{value['ms']:10.2f}"
                    f"{value['pairs_per_s']:11,.0f}{value['of_ceiling']:12.1%}"
                    f"{value['backend_alone_pairs_per_s']:11,.0f}"
                )
        theirs = found.get("sentence-transformers", {})
        for key, value in theirs.items():
            print(f"  {'sentence-transformers ' + key:50}{value['ms']:10.2f}{value['pairs_per_s']:11,.0f}")
        if theirs:
            ours = found["mono, eager"]["pairs_per_s"]
            to_best = ours / max(value["pairs_per_s"] for value in theirs.values())
            to_default = ours / theirs["fp32, batch 32"]["pairs_per_s"]
            print(f"  eager is {to_best:.1f} times its best setting, {to_default:.1f} times its default")
            print(f"  rank correlation with its order in fp32: {found['rank_correlation']:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS, help="(all)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few passages")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="without torch.compile")
    parser.add_argument("--no-compare", dest="compare", action="store_false", help="tamis alone")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "versions": {"python": platform.python_version()} | versions(PACKAGES),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "processor",
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        task = Task(place, 200 if options.tiny else PASSAGES)
        ceiling = matmul_ceiling(256 if options.tiny else 8192)
        report |= {"ceiling_tflops": ceiling / 1e12, "models": {}}
        for name in (TINY,) if options.tiny else options.models:
            started = time.perf_counter()
            for so_far in measure(name, task, place, ceiling, options):
                report["models"][name] = so_far
                print(f"{name}: {list(so_far)[-1]}, {time.perf_counter() - started:.0f} s", flush=True)
                if options.out:  # again after each thing, so that a run cut short leaves what it has
                    options.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
