"""Long documents: scores of passages against representations of passages, on one collection and one set of
folds.

    python repro/long_documents.py prepare   --data DIR --prepared P [--evidence MultiHopRAG.json]
    python repro/long_documents.py zero-shot --prepared P --out OUT [--device cuda]
    python repro/long_documents.py fine-tune --prepared P --out OUT [--device cuda] [--only maxp]
    python repro/long_documents.py runs      --prepared P --out OUT
    python repro/long_documents.py table     --prepared P --out OUT [--write FILE]

DIR holds multihop-rag in the BEIR layout; MultiHopRAG.json is what the collection was published with, and
says which sentences are evidence. `prepare` needs no accelerator and makes a folder that the two steps with a
model read alone: all pairs of a query with a passage and with a sentence are scored once, and what they leave
in OUT/scores is small. `runs` makes TREC runs of it, tuned on training folds, and `table` reads nothing else.
What is in OUT is not made again; `--minutes` stops before the next part once the time is up.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from long_documents_data import Prepared, Units, prepare

import tamis
from tamis.columns import Array
from tamis.infer.cross_encoder import CrossEncoder
from tamis.models import templates
from tamis.models.templates import Inputs, Tokenised
from tamis.rank.passage import PASSAGES

TOGETHER = 4  # queries whose inputs are made at once: some ten thousand
BEST = 4  # sentences of a document that Birch may look at
QUERY, TOTAL = 64, 512  # tokens, as in mono

#: Steps of 16 pairs of documents. The recipes' hundreds of epochs are for collections of 50 to 250 queries.
STEPS = {"maxp": 400, "parade-max": 250, "parade-transformer": 250, "vanilla": 150, "cedr-knrm": 150}
RECIPES = {"maxp": "maxp", "parade-max": "parade", "parade-transformer": "parade"} | {
    "vanilla": "cedr-vanilla",
    "cedr-knrm": "cedr",
}
#: A small encoder and few steps want larger rates than BERT-base and many; a head that is new a larger one yet.
RATE, HEAD_RATE = 5e-5, 1e-3
MODELS = ("maxp", "parade-max", "parade-transformer", "cedr-knrm")


def main() -> None:
    given = _arguments().parse_args()
    if given.step == "prepare":
        prepare(
            given.data,
            given.prepared,
            model=given.model,
            queries=given.queries or 300,
            folds=given.folds,
            seed=given.seed,
            evidence=given.evidence,
        )
        return
    work = Work(Prepared(given.prepared, given.queries), given)
    if given.step == "zero-shot":
        zero_shot(work)
    elif given.step == "fine-tune":
        fine_tune(work)
    else:
        from long_documents_table import table, write_runs

        if given.step == "runs":
            write_runs(work.prepared, given.out, given.model)
        else:
            table(work.prepared, given.out, given.write)


def _arguments() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = arguments.add_subparsers(dest="step", required=True)
    for name in ("prepare", "zero-shot", "fine-tune", "runs", "table"):
        step = steps.add_parser(name)
        step.add_argument("--prepared", type=Path, required=True, help="the folder that prepare makes")
        step.add_argument("--model", default="mono", help="a bundled model or a folder (mono)")
        step.add_argument("--queries", type=int, help="how many, drawn alike from all folds (300)")
        if name != "prepare":
            step.add_argument("--out", type=Path, required=True)
        if name in ("zero-shot", "fine-tune"):
            step.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
            step.add_argument("--precision", default="auto", help="fp32 for the processor's exact arithmetic")
            step.add_argument("--minutes", type=float, default=float("inf"))
    add = steps.choices["prepare"].add_argument
    add("--data", type=Path, required=True, help="the collection")
    add("--evidence", type=Path, help="the questions with their lists of evidence")
    add("--folds", type=int, default=5)
    add("--seed", type=int, default=0)
    add = steps.choices["fine-tune"].add_argument
    add("--only", action="append", choices=MODELS)
    add("--folds", type=int, help="the first so many alone")
    add("--steps", type=int, help="of every training, for a trial")
    add("--scratch", type=Path, help="where models are kept while they are needed (OUT/models)")
    steps.choices["table"].add_argument("--write", type=Path, help="a file of Markdown")
    return arguments


class Work:
    """What a step was told, and how far its time reaches."""

    def __init__(self, prepared: Prepared, given: argparse.Namespace) -> None:
        self.prepared, self.given = prepared, given
        self.scores = given.out / "scores"
        self.scores.mkdir(parents=True, exist_ok=True)
        self.started = time.perf_counter()

    def part(self, name: str, make: Callable[[], dict[str, Array]]) -> None:
        """Make OUT/scores/NAME.npz, unless it is there or the time is up."""
        path = self.scores / f"{name}.npz"
        spent = time.perf_counter() - self.started
        if path.is_file():
            print(f"{name}: there already", flush=True)
        elif spent > 60 * self.given.minutes:
            print(f"{name}: no time left", flush=True)
        else:
            found = make()
            temporary = path.with_suffix(".part.npz")
            np.savez_compressed(temporary, **found)
            temporary.rename(path)
            seconds = time.perf_counter() - self.started - spent
            print(f"{name}: {seconds:.1f} s, {spent + seconds:.1f} s in all", flush=True)


# -- zero-shot
# ------------------------------------------------------------------------------------------------------------


def zero_shot(work: Work) -> None:
    """Score each pair once: with passages (all of them), with sentences, and with documents cut off."""
    prepared, encoder = work.prepared, _encoder(work, work.given.model)

    def sentences() -> dict[str, Array]:
        parts = [best_sentences(each) for each in scored(encoder, prepared, prepared.sentences)]
        return {"queries": np.array(prepared.sample), "margins": np.stack(parts)}

    work.part("mono-texts", lambda: _flat(prepared, truncated(encoder, prepared)))
    work.part("mono-passages", lambda: _flat(prepared, map(_joined, scored(encoder, prepared, prepared.passages))))
    work.part("mono-sentences", sentences)


def _encoder(work: Work, model: str) -> CrossEncoder:
    given = work.given
    mono = tamis.Mono(model, device=given.device, precision=given.precision)
    work.prepared.check(mono)
    mono.prepare()
    print(mono.description, flush=True)
    return mono.encoder


def scored(
    encoder: CrossEncoder,
    prepared: Prepared,
    units: Units,
    queries: Sequence[str] | None = None,
    most: int | None = None,
) -> Iterator[list[Array]]:
    """The margins of each query's candidates, in their order: an array each, of its units' margins."""
    asked = prepared.sample if queries is None else queries
    for start in range(0, len(asked), TOGETHER):
        some = asked[start : start + TOGETHER]
        documents = [prepared.candidates(qid) for qid in some]
        texts = [units.tokens.take(units.numbers(each, most)) for each in documents]
        found = _margins(encoder, prepared, some, texts)
        for each, margins in zip(documents, found, strict=True):
            yield np.split(margins, np.cumsum(units.counts(each, most))[:-1])


def truncated(encoder: CrossEncoder, prepared: Prepared) -> Iterator[Array]:
    """The margins of each query's candidates, of which mono reads what fits."""
    for start in range(0, len(prepared.sample), 8 * TOGETHER):
        some = prepared.sample[start : start + 8 * TOGETHER]
        texts = [prepared.documents.take(prepared.candidates(qid)) for qid in some]
        yield from _margins(encoder, prepared, some, texts)


def _margins(
    encoder: CrossEncoder, prepared: Prepared, queries: Sequence[str], texts: Sequence[Tokenised]
) -> list[Array]:
    inputs = [
        templates.mono(
            prepared.query(qid),
            own,
            encoder.tokenizer.special,
            own=np.zeros(len(own), np.int64),
            query_limit=QUERY,
            total_limit=min(TOTAL, encoder.positions),
            segment_types=encoder.checkpoint.config.segments,
        )[0]
        for qid, own in zip(queries, texts, strict=True)
    ]
    margins = encoder.margins(Inputs.join(inputs))
    return np.split(margins, np.cumsum([len(each) for each in inputs])[:-1])


def best_sentences(margins: Sequence[Array]) -> Array:
    """Each document's best, in falling order, and minus infinity for those that it lacks.

    >>> best_sentences([np.array([1.0, 3.0])]).tolist()
    [[3.0, 1.0, -inf, -inf]]
    """
    found = np.full((len(margins), BEST), -np.inf, np.float32)
    for row, own in zip(found, margins, strict=True):
        best = np.sort(own)[::-1][:BEST]
        row[: len(best)] = best
    return found


def _joined(margins: Sequence[Array]) -> Array:
    return np.concatenate(margins)


def _flat(prepared: Prepared, margins: Any) -> dict[str, Array]:
    return {"queries": np.array(prepared.sample), "margins": np.concatenate(list(margins))}


# -- fine-tuning
# ------------------------------------------------------------------------------------------------------------


def fine_tune(work: Work) -> None:
    """Train each model on each fold's training queries, all of them, and score the fold's sample."""
    given = work.given
    scratch = given.scratch or given.out / "models"
    folds = list(enumerate(work.prepared.folds, start=1))[: given.folds]
    for model in given.only or MODELS:
        for number, _ in folds:
            work.part(f"{model}-{number}", lambda m=model, n=number: _trained_scores(work, m, n, scratch))


def _trained_scores(work: Work, kind: str, fold: int, scratch: Path) -> dict[str, Array]:
    from long_documents_training import ranked, train

    given, prepared = work.given, work.prepared
    work.prepared.check(tamis.Mono(given.model))
    queries = prepared.folds[fold - 1].test
    start, folder = given.model, scratch / f"{kind}-{fold}"
    steps = {name: given.steps or count for name, count in STEPS.items()}
    began = time.perf_counter()
    if kind == "cedr-knrm":
        vanilla = scratch / f"vanilla-{fold}"
        start = str(train(prepared, fold, "vanilla", RECIPES["vanilla"], start, vanilla, steps["vanilla"], RATE, HEAD_RATE, given.device))
    head_rate = None if kind == "maxp" else HEAD_RATE
    model = train(prepared, fold, kind, RECIPES[kind], start, folder, steps[kind], RATE, head_rate, given.device)
    trained = time.perf_counter()
    if kind == "maxp":
        encoder = CrossEncoder(str(model), device=given.device, precision=given.precision)
        each = scored(encoder, prepared, prepared.passages, queries, PASSAGES)
        margins = np.concatenate([_joined(own) for own in each])
    else:
        margins = np.concatenate(list(ranked(prepared, queries, model, given.device)))
    print(f"  trained in {trained - began:.1f} s, ranked in {time.perf_counter() - trained:.1f} s", flush=True)
    for name in (f"vanilla-{fold}", f"{kind}-{fold}"):
        shutil.rmtree(scratch / name, ignore_errors=True)
    return {"queries": np.array(queries), "margins": margins}


if __name__ == "__main__":
    main()
