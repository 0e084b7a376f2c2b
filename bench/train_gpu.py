"""Training on a GPU beside sentence-transformers: one card, one run, the same pairs and weights.

    python bench/train_gpu.py [--models bert-base ...] [--batches 128 ...] [--compile] [--out results.json]

Models of the shapes of MiniLM-L6 and BERT-base with random weights learn from generated passages (see
synthetic.py and rerank_gpu.py: inputs of about 63 tokens, as MS MARCO's have), each query with a relevant and
another passage, by binary cross-entropy. Everything is made here: no network is needed, only
sentence-transformers[train].

tamis is timed through its own loop (`tamis.train.loop`), from the training set to the updated weights,
logging every ten steps as it does by default. sentence-transformers is timed through its
`CrossEncoderTrainer`, from texts, which is what it takes: bf16, sdpa attention, fused AdamW, loader
workers, nothing logged, evaluated or saved, no attention dropout (tamis's packed inputs have none), and no
wait for the card to look for a loss that is not a number. It is timed again with batches of like length, by
a sampler of one's own, which is the way that it documents: less padding, and batches that are no longer
random. tamis pads nothing.

After a warm-up the steps between two synchronisations are timed; the contenders take turns, and medians
count. Rates are of pairs and of tokens that are there, padding not counted. Operations are three times those
of the forward pass as tamis computes it (of the last layer only what [CLS] needs), for both; the ceiling is
the rate of a large bf16 matrix product in the same run.

`--tiny` runs all of it in seconds on any machine, to see that it runs.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import random_model
import synthetic
import torch
from machine import versions
from rerank_gpu import DEVICE, PACKAGES, TINY, cut_passages, make_model, matmul_ceiling, operations

from tamis.models.architecture import Reading
from tamis.models.architectures.mono import Mono
from tamis.models.checkpoint import load_checkpoint
from tamis.models.config import EncoderConfig
from tamis.models.names import shapes
from tamis.models.templates import Inputs
from tamis.models.tokenizer import Tokenizer
from tamis.train.batch import ranking_batch
from tamis.train.loop import fit
from tamis.train.ranking import RankingTask
from tamis.train.recipe import Data, Loss, Model, Optimiser, Recipe, Run
from tamis.train.recipe import Examples as Drawn
from tamis.train.sets import Candidates, Judged, TrainingSet, offsets_of
from tamis.train.sources import Examples

MODELS = ("minilm-l6", "bert-base")
BATCHES = (128, 512)
PASSAGES, QUERIES, CANDIDATES = 10_000, 2_000, 24
WARM_UP, STEPS, ROUNDS = 10, 40, 3
LOG_EVERY = 10  # which divides both, so that a line tells when either is over
MAX_LENGTH = 512
RATE = 2e-5
OURS = "tamis"
WORKERS = 4  # of sentence-transformers' loader


# What is learned, and from what.


class Task:
    """Queries with a relevant passage and candidates each, as tokens and as texts."""

    def __init__(self, place: Path, passages: int, queries: int) -> None:
        texts = [text for _, text in synthetic.passages(passages)]
        self.queries = [text for _, text in synthetic.queries(queries)]
        random_model.write_model(place / "words", texts, TINY)
        self.tokenizer = place / "words" / "tokenizer.json"
        tokenizer = Tokenizer(self.tokenizer.parent)
        self.texts = cut_passages(tokenizer, self.queries, texts)
        rng = np.random.default_rng(0)
        drawn = np.stack(
            [rng.choice(passages, CANDIDATES + 1, replace=False).astype(np.int32) for _ in range(queries)]
        )
        ones = np.ones(queries, np.int64)
        listed = drawn[:, 1:].ravel()
        self.data = TrainingSet(
            tokenizer.encode(self.queries),
            tokenizer.encode(self.texts),
            [f"q{number}" for number in range(queries)],
            [f"p{number}" for number in range(passages)],
            Judged(offsets_of(ones), drawn[:, 0], ones.astype(np.int32)),
            Candidates(offsets_of(ones * drawn[:, 1:].shape[1]), listed, np.zeros(len(listed), np.float32)),
        )


@dataclass(frozen=True)
class Plan:
    """How much is done of it."""

    batch: int  # pairs
    warm_up: int
    steps: int

    @property
    def all_steps(self) -> int:
        return self.warm_up + self.steps

    @property
    def recipe(self) -> Recipe:
        return Recipe(
            Model("random weights"),
            (Data(set="generated"),),
            Optimiser(learning_rate=RATE, steps=self.all_steps),
            Run(batch=self.batch, log_every=LOG_EVERY, checkpoint_every=1 << 30),
            Drawn(kind="balanced"),
            Loss("pointwise"),
        )


class Contender(Protocol):
    def seconds(self, plan: Plan) -> float:
        """How long the plan's steps take after the warm-up."""
        ...


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


# tamis.


class Enough(Exception):
    """Ends training when it has been timed, so that nothing is saved."""


class Ours:
    """As it is by default, which on a card is packed; padded; or with layers compiled by torch.compile."""

    def __init__(self, folder: Path, task: Task, plan: Plan, kind: str = "") -> None:
        recipe = plan.recipe
        self.task = RankingTask(recipe, load_checkpoint(folder), Examples.of(task.data, recipe))
        network = self.task.module.network
        network.packed = network.packed and kind != "padded"
        if kind == "compiled":
            for layer in network.encoder.layers:  # all alike, so that one compilation serves all
                layer.compile(dynamic=True)

    def seconds(self, plan: Plan) -> float:
        times: dict[int, float] = {}

        def tell(line: Mapping[str, Any]) -> None:  # after the losses of all steps so far have been read
            synchronise()
            times[line["step"]] = time.perf_counter()
            if line["step"] == plan.all_steps:
                raise Enough

        recipe = plan.recipe
        with tempfile.TemporaryDirectory() as out, suppress(Enough):
            fit(self.task, recipe.optimiser, recipe.run, out, progress=tell)
        return times[plan.all_steps] - times[plan.warm_up]


def inputs_of(config: EncoderConfig, task: Task, plan: Plan) -> Inputs:
    """All that the steps read."""
    recipe, special = plan.recipe, Tokenizer(task.tokenizer.parent).special
    reading = Reading(special, config, recipe.limits.query or Mono.query_limit, recipe.limits.total)
    batches = map(Examples.of(task.data, recipe).stream.batch, range(plan.all_steps))
    made = [ranking_batch(each.groups, each.data, Mono(), reading) for each in batches]
    return Inputs.join([batch.inputs for batch in made])


# sentence-transformers.


def pairs_of(task: Task, plan: Plan) -> dict[str, list[Any]]:
    """The pairs of tamis's batches, as texts."""
    stream = Examples.of(task.data, plan.recipe).stream
    columns: dict[str, list[Any]] = {"query": [], "passage": [], "label": []}
    for number in range(plan.all_steps):
        for group in stream.batch(number).groups:
            columns["query"] += [task.queries[group.query]] * len(group.documents)
            columns["passage"] += [task.texts[document] for document in group.documents.tolist()]
            columns["label"] += group.labels.tolist()
    return columns


class Theirs:
    """The trainer as its documentation uses it."""

    def __init__(self, folder: Path, task: Task, plan: Plan, kind: str, place: Path) -> None:
        from datasets import Dataset
        from sentence_transformers.cross_encoder import (
            CrossEncoder,
            CrossEncoderTrainer,
            CrossEncoderTrainingArguments,
        )
        from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
        from transformers import TrainerCallback

        self.times = times = {}
        model = CrossEncoder(
            str(folder),
            device=DEVICE,
            max_length=MAX_LENGTH,
            config_kwargs={"attention_probs_dropout_prob": 0.0},
        )
        columns = pairs_of(task, plan)
        settings = CrossEncoderTrainingArguments(
            output_dir=str(place / "trainer"),
            num_train_epochs=1,
            per_device_train_batch_size=plan.batch,
            learning_rate=RATE,
            weight_decay=0.01,
            warmup_steps=plan.all_steps // 10,
            bf16=DEVICE == "cuda",
            use_cpu=DEVICE != "cuda",
            optim="adamw_torch_fused" if DEVICE == "cuda" else "adamw_torch",
            dataloader_num_workers=WORKERS,
            logging_strategy="no",
            logging_nan_inf_filter=False,
            eval_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **({"batch_sampler": by_length(columns)} if kind == "by length" else {}),
        )

        class Clock(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step in (plan.warm_up, plan.all_steps):
                    synchronise()
                    times[state.global_step] = time.perf_counter()

        class Trainer(CrossEncoderTrainer):
            def add_model_card_callback(self, _: Any) -> None:
                """None is written, so nothing is collected for one."""

        self.trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=Dataset.from_dict(columns),
            loss=BinaryCrossEntropyLoss(model),
            callbacks=[Clock()],
        )

    def seconds(self, plan: Plan) -> float:
        self.times.clear()
        self.trainer.train()
        return self.times[plan.all_steps] - self.times[plan.warm_up]


def by_length(columns: Mapping[str, list[Any]]) -> Callable[..., Any]:
    """A sampler of batches of like length, in a random order."""
    from sentence_transformers.base.sampler import DefaultBatchSampler

    lengths = [len(one) + len(other) for one, other in zip(columns["query"], columns["passage"], strict=True)]

    class ByLength(DefaultBatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            order = np.argsort(lengths, kind="stable").tolist()
            batches = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
            np.random.default_rng(0).shuffle(batches)
            return iter(batches)

    def sampler(dataset: Any, batch_size: int, drop_last: bool, **settings: Any) -> Any:
        return ByLength(dataset, batch_size=batch_size, drop_last=drop_last, **settings)

    return sampler


# The run.


def contenders(folder: Path, task: Task, plan: Plan, options: Any, place: Path) -> dict[str, Contender]:
    found: dict[str, Contender] = {OURS: Ours(folder, task, plan)}
    for kind in ("padded", "compiled") if options.compile else ("padded",):
        found[f"tamis, {kind}"] = Ours(folder, task, plan, kind)
    if options.compare:
        for kind in ("random batches", "by length"):
            found[f"sentence-transformers, {kind}"] = Theirs(folder, task, plan, kind, place)
    return found


def measure(
    folder: Path, task: Task, plan: Plan, ceiling: float, options: Any, place: Path
) -> dict[str, Any]:
    """What each contender does with one model and one size of batch."""
    config = load_checkpoint(folder).config
    inputs = inputs_of(config, task, plan)
    tokens, work = inputs.lengths.mean(), 3 * operations(config, inputs) / len(inputs)
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, float] = {}
    failed: dict[str, str] = {}
    waiting = contenders(folder, task, plan, options, place)
    for number in range(options.rounds):
        for name, contender in waiting.items():
            if name in failed:
                continue
            before = 0
            if DEVICE == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            try:
                seconds.setdefault(name, []).append(contender.seconds(plan))
            except Exception as error:  # one that fails must not cost what the others have shown
                if name == OURS:
                    raise
                failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
                print(f"  {name} failed: {failed[name]}", flush=True)
                continue
            if DEVICE == "cuda":
                peaks[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
            took = seconds[name][-1]
            print(f"  round {number + 1}, {name}: {plan.batch * plan.steps / took:,.0f} pairs/s", flush=True)
    found: dict[str, Any] = {"mean_tokens": float(tokens), "contenders": {}, "failed": failed}
    for name, times in seconds.items():
        if not times or name in failed:
            continue
        pairs = plan.batch * plan.steps / np.array(times)
        rate = float(np.median(pairs))
        found["contenders"][name] = {
            "pairs_per_s": rate,
            "pairs_per_s_of_rounds": pairs.tolist(),
            "ms_a_step": 1000 * plan.batch / rate,
            "tokens_per_s": rate * float(tokens),
            "tflops": rate * work / 1e12,
            "of_ceiling": rate * work / ceiling,
            "peak_gib": peaks.get(name),
        }
    theirs = [each["pairs_per_s"] for name, each in found["contenders"].items() if name.startswith("sent")]
    ours = [each["pairs_per_s"] for name, each in found["contenders"].items() if name.startswith("tamis")]
    if theirs:
        default = found["contenders"][OURS]["pairs_per_s"]
        found["ratio"] = default / theirs[0]
        found["ratio_to_its_best"] = default / max(theirs)
        found["ratio_of_the_best"] = max(ours) / max(theirs)
    waiting.clear()
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return found


def show(report: Mapping[str, Any]) -> None:
    ceiling = report["ceiling_tflops"]
    print(f"\n{report['device']}; matrix products in the same run: {ceiling:,.1f} TFLOP/s")
    for name, model in report["models"].items():
        for batch, found in model["batches"].items():
            print(
                f"\n{name}, {model['parameters'] / 1e6:.0f}M parameters; batches of {batch} pairs of "
                f"{found['mean_tokens']:.1f} tokens"
            )
            print(f"  {'':38}{'pairs/s':>10}{'tokens/s':>13}{'ms/step':>9}{'TFLOP/s':>9}{'ceiling':>9}")
            for contender, row in found["contenders"].items():
                print(
                    f"  {contender:38}{row['pairs_per_s']:10,.0f}{row['tokens_per_s']:13,.0f}"
                    f"{row['ms_a_step']:9.2f}{row['tflops']:9.1f}{row['of_ceiling']:9.1%}"
                )
            for contender, reason in found["failed"].items():
                print(f"  {contender:38}failed: {reason[:60]}")
            if "ratio" in found:
                print(
                    f"  tamis is {found['ratio']:.2f} times sentence-transformers with random "
                    f"batches, {found['ratio_to_its_best']:.2f} times its best"
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", choices=MODELS, default=MODELS, help="(all)")
    parser.add_argument("--batches", nargs="*", type=int, default=BATCHES, help="pairs a step (128 512)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of all contenders (3)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and few passages")
    parser.add_argument("--compile", action="store_true", help="tamis with compiled layers, too")
    parser.add_argument("--no-compare", dest="compare", action="store_false", help="tamis alone")
    parser.add_argument("--out", type=Path, help="a file of JSON for the figures")
    options = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"  # else its tokenizer takes one core after a fork
    if options.compare and not all(map(importlib.util.find_spec, ("accelerate", "datasets"))):
        parser.error("sentence-transformers[train] is not installed: install it, or add --no-compare")
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    warm_up, steps, batches = (10, 10, (8,)) if options.tiny else (WARM_UP, STEPS, options.batches)
    report: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "versions": {"python": platform.python_version()} | versions([*PACKAGES, "accelerate", "datasets"]),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "processor",
        "warm_up": warm_up,
        "steps": steps,
    }
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        task = Task(place, *((200, 50) if options.tiny else (PASSAGES, QUERIES)))
        ceiling = matmul_ceiling(256 if options.tiny else 8192)
        report |= {"ceiling_tflops": ceiling / 1e12, "models": {}}
        for name in (TINY,) if options.tiny else options.models:
            model = make_model(place / name, name, task.tokenizer)
            sizes = shapes(load_checkpoint(model).config).values()
            parameters = sum(int(np.prod(size)) for size in sizes)
            report["models"][name] = {"parameters": parameters, "batches": {}}
            for batch in batches:
                started = time.perf_counter()
                print(f"{name}, {batch} pairs", flush=True)
                plan = Plan(batch, warm_up, steps)
                found = measure(model, task, plan, ceiling, options, place)
                found["took_s"] = time.perf_counter() - started
                report["models"][name]["batches"][str(batch)] = found
                if options.out:  # again after each, so that a run cut short leaves what it has
                    options.out.write_text(json.dumps(report, indent=1) + "\n")
    show(report)


if __name__ == "__main__":
    main()
