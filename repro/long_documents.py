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
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from long_documents_data import BEST, DEPTH, Prepared, Units, prepare

import tamis
from tamis.base.arrays import Array
from tamis.cli import status_of
from tamis.core.runtime import Device
from tamis.infer.scorer import Scorer
from tamis.models.templates import Inputs, Tokenised
from tamis.rank.passage import PASSAGES

if TYPE_CHECKING:
    from tamis.train.recipe import Recipe
    from tamis.train.sets import TrainingSet

TOGETHER = 4  # queries whose inputs are made at once: some ten thousand
QUERY, TOTAL = 64, 512  # tokens, as in mono

TOKENS = 1 << 16  # at a time: all layers of more, which CEDR compares, fill a card
RATE = 5e-5  # a small encoder and few steps want a larger one than BERT-base and many


@dataclass(frozen=True, slots=True)
class Training:
    """A bundled recipe, for how many steps of 16 pairs of documents, the rate of the head, what the hinge
    compares, and the kind of model where it is not the recipe's own."""

    recipe: str
    steps: int
    head_rate: float
    probabilities: bool = False
    kind: str | None = None


#: MaxP goes on with mono's head; a new one learns faster, unless it is layers of its own. The recipes' many
#: epochs are for collections of 50 to 250 queries. "maxp-softmax" is the recipe as it stands.
TRAININGS = {
    "maxp": Training("maxp", 400, RATE),
    "maxp-softmax": Training("maxp", 400, RATE, probabilities=True),
    "parade-max": Training("parade", 250, 1e-3, kind="max"),
    "parade-transformer": Training("parade", 250, 2e-4),
    "vanilla": Training("cedr-vanilla", 150, 1e-3),
    "cedr-knrm": Training("cedr", 150, 1e-3),
}
_Item = TypeVar("_Item")
STEPS = {
    "prepare": "cut and tokenise a collection, once",
    "zero-shot": "score with mono as it is",
    "fine-tune": "train the models on each fold, and score with them",
    "runs": "make runs of the scores",
    "table": "compare the runs",
}
MODELS = ("maxp", "maxp-softmax", "parade-max", "parade-transformer", "cedr-knrm")


def main(arguments: Sequence[str] | None = None) -> None:
    given = _arguments().parse_args(arguments)
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
    for name, purpose in STEPS.items():
        step = steps.add_parser(name, help=purpose)
        step.add_argument("--prepared", type=Path, required=True, help="the folder that prepare makes")
        step.add_argument("--model", default="mono", help="a bundled model or a folder (mono)")
        step.add_argument("--queries", type=int, help="how many, drawn alike from all folds (300)")
        if name != "prepare":
            step.add_argument("--out", type=Path, required=True, help="a folder for scores and runs")
        if name in ("zero-shot", "fine-tune"):
            step.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="(auto)")
            step.add_argument("--precision", default="auto", help="fp32 for the processor's exact arithmetic")
            step.add_argument(
                "--minutes", type=float, default=float("inf"), help="no part is begun after them"
            )
    add = steps.choices["prepare"].add_argument
    add("--data", type=Path, required=True, help="the collection")
    add("--evidence", type=Path, help="the questions with their lists of evidence")
    add("--folds", type=int, default=5, help="how many (5)")
    add("--seed", type=int, default=0, help="of the folds and the sample (0)")
    add = steps.choices["fine-tune"].add_argument
    add("--only", action="append", choices=MODELS, help="a model; may be repeated (all)")
    add("--folds", type=int, help="the first so many alone")
    add("--steps", type=int, help="of every training, for a trial")
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
    prepared, scorer = work.prepared, _scorer(work, work.given.model)

    def parts(units: Units, of: Callable[[list[Array]], Array]) -> dict[str, Array]:
        found = [of(own) for own in scored(scorer, prepared, units, prepared.sample)]
        return {"queries": np.array(prepared.sample), "margins": np.concatenate(found)}

    work.part("mono-texts", lambda: parts(prepared.texts, np.concatenate))
    work.part("mono-passages", lambda: parts(prepared.passages, np.concatenate))
    work.part("mono-sentences", lambda: parts(prepared.sentences, best_sentences))


def _scorer(work: Work, model: str) -> Scorer:
    given = work.given
    mono = tamis.Mono(model, device=given.device, precision=given.precision)
    work.prepared.check(mono)
    mono.prepare()
    print(mono.description, flush=True)
    return mono.scorer


def scored(
    scorer: Scorer, prepared: Prepared, units: Units, queries: Sequence[str], most: int | None = None
) -> Iterator[list[Array]]:
    """The margins of each query's candidates, in their order: an array each, of its units' margins."""

    def made() -> Iterator[tuple[list[Array], Inputs]]:
        for some in batched(queries, TOGETHER):
            documents = [prepared.candidates(qid) for qid in some]
            texts = [units.tokens.take(units.numbers(each, most)) for each in documents]
            inputs = [_inputs(scorer, prepared.query(q), own) for q, own in zip(some, texts, strict=True)]
            yield [units.counts(each, most) for each in documents], Inputs.join(inputs)

    for counts, inputs in ahead(made()):
        margins = np.split(scorer.margins(inputs), np.cumsum([own.sum() for own in counts])[:-1])
        yield from (np.split(own, np.cumsum(c)[:-1]) for own, c in zip(margins, counts, strict=True))


def _inputs(scorer: Scorer, query: Tokenised, texts: Tokenised) -> Inputs:
    members, query_of = np.arange(len(texts))[:, None], np.zeros(len(texts), np.int64)
    return scorer.architecture.inputs(query, texts, members, query_of, scorer.reading(QUERY, TOTAL))[0]


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


# -- fine-tuning
# ------------------------------------------------------------------------------------------------------------


def fine_tune(work: Work) -> None:
    """Train each model on each fold's training queries, all of them, and score the fold's sample."""
    work.prepared.check(tamis.Mono(work.given.model))
    folds = range(1, 1 + (work.given.folds or len(work.prepared.folds)))
    for model in work.given.only or MODELS:
        for fold in folds:
            work.part(f"{model}-{fold}", partial(_trained_scores, work, model, fold))


def _trained_scores(work: Work, kind: str, fold: int) -> dict[str, Array]:
    given, prepared = work.given, work.prepared
    queries = prepared.folds[fold - 1].test
    with tempfile.TemporaryDirectory(dir=given.out) as scratch:
        began = time.perf_counter()
        model = given.model
        for step in ("vanilla", kind) if kind == "cedr-knrm" else (kind,):
            recipe = recipe_of(step, model, given.steps or TRAININGS[step].steps)
            model = str(trained(prepared, fold, recipe, Path(scratch) / step, given.device))
        done = time.perf_counter()
        found: Iterator[Array]
        if TRAININGS[kind].recipe == "maxp":
            scorer = Scorer(model, device=given.device, precision=given.precision)
            found = map(np.concatenate, scored(scorer, prepared, prepared.passages, queries, PASSAGES))
        else:
            found = ranked(prepared, queries, model, given.device)
        margins = np.concatenate(list(found))
    print(f"  trained in {done - began:.1f} s, ranked in {time.perf_counter() - done:.1f} s", flush=True)
    return {"queries": np.array(queries), "margins": margins}


def recipe_of(kind: str, start: str, steps: int) -> Recipe:
    """The bundled recipe for fewer steps, and without a dev run: the last weights count.

    >>> recipe_of("parade-max", "mono", 250).loss.name
    'hinge'
    """
    import torch

    from tamis.models.settings import build, changed
    from tamis.train.bases import read_tables
    from tamis.train.recipe import Recipe
    from tamis.train.recipe_architecture import with_architecture

    training = TRAININGS[kind]
    tables = with_architecture(read_tables(training.recipe), training.recipe)
    tables.pop("dev", None)
    if training.kind is not None:
        model = tables["architecture"]
        tables["architecture"] = type(model)(changed(model.settings, kind=training.kind))
    rates = {"learning_rate": RATE, "head_learning_rate": training.head_rate}
    tables |= {
        "model": {"start": start},
        "loss": tables["loss"] | {"probabilities": training.probabilities},
        "data": [{"set": "in memory"}],
        "examples": tables["examples"] | {"last": DEPTH},
        "optimiser": tables["optimiser"] | rates | {"steps": steps, "warm_up": 0.1, "schedule": "linear"},
        "run": {"batch": 16, "checkpoint_every": steps, "log_every": max(steps // 5, 1)},
    }
    if torch.cuda.is_available():  # a processor has its own default
        tables["run"]["tokens"] = TOKENS
    return build(Recipe, tables, training.recipe)


def trained(prepared: Prepared, fold: int, recipe: Recipe, out: Path, device: str) -> Path:
    """Train on a fold's training queries; what comes of it is a model's folder."""
    from tamis.train.ranking import train
    from tamis.train.sources import Examples

    def tell(line: Mapping[str, Any]) -> None:
        print("   ", *(f"{name} {value:.6g}" for name, value in line.items()), flush=True)

    examples = Examples.of(training_set(prepared, prepared.folds[fold - 1].train), recipe)
    return train(recipe, examples, out, device=device, progress=tell).model


def training_set(prepared: Prepared, queries: Sequence[str]) -> TrainingSet:
    """What is learned from: queries with their judgments, and the first stage's candidates."""
    from tamis.train.sets import Candidates, Judged, TrainingSet, offsets_of

    numbers, first = prepared.document_numbers, prepared.first
    judged = [prepared.qrels[qid] for qid in queries]
    found = [prepared.candidates(qid) for qid in queries]
    return TrainingSet(
        prepared.query_tokens.take([prepared.query_numbers[qid] for qid in queries]),
        prepared.documents,
        list(queries),
        prepared.document_ids,
        Judged(
            offsets_of(np.array([len(own) for own in judged])),
            np.array([numbers[docid] for own in judged for docid in own], np.int32),
            np.array([grade for own in judged for grade in own.values()], np.int32),
        ),
        Candidates(
            offsets_of(np.array([len(own) for own in found])),
            np.concatenate(found).astype(np.int32),
            np.concatenate([first[qid].scores for qid in queries]).astype(np.float32),
        ),
    )


def ranked(prepared: Prepared, queries: Sequence[str], model: str, device: Device) -> Iterator[Array]:
    """The scores of each query's candidates, as the stages of long documents compute them."""
    scorer = Scorer(model, architectures=("cedr", "parade"), device=device)
    documents = ((qid, prepared.documents.take(prepared.candidates(qid))) for qid in queries)
    inputs = (_inputs(scorer, prepared.query(qid), texts) for qid, texts in documents)
    yield from map(scorer.margins, ahead(inputs))


def ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """The same; each next one is made while the one before is used.

    >>> list(ahead(iter([1, 2])))
    [1, 2]
    """
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def batched(queries: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """
    >>> list(batched("abc", 2))
    ['ab', 'c']
    """
    return (queries[start : start + size] for start in range(0, len(queries), size))


if __name__ == "__main__":
    sys.exit(status_of(main))
