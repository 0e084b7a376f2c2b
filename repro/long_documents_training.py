"""Training the models of repro/long_documents.py, and ranking with them: by tokens alone, without texts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from long_documents_data import DEPTH, Prepared

from tamis.columns import Array
from tamis.infer.longdoc import LongEncoder
from tamis.models.longdoc import read
from tamis.models.templates import Inputs
from tamis.train.fields import build
from tamis.train.longdoc import open_start, train_long
from tamis.train.longdoc_recipe import LongRecipe
from tamis.train.recipe import read_tables
from tamis.train.sets import Candidates, Judged, TrainingSet
from tamis.train.sources import Examples

TOGETHER = 8  # queries whose documents are read at once


def recipe_of(
    base: str, kind: str, start: str, steps: int, rate: float, head_rate: float | None
) -> LongRecipe:
    """A bundled recipe for fewer steps, without a dev run: the last weights count.

    >>> recipe_of("parade", "parade-max", "mono", 250, 5e-5, 1e-3).loss.name
    'hinge'
    """
    tables = read_tables(base)
    tables.pop("dev", None)
    rates = {"learning_rate": rate} | ({} if head_rate is None else {"head_learning_rate": head_rate})
    base_rates = {name: value for name, value in tables["optimiser"].items() if name != "head_learning_rate"}
    tables |= {
        "model": {"start": start},  # with its own head where the kind has one
        "data": [{"set": "in memory"}],
        "longdoc": tables["longdoc"] | {"kind": kind},
        "examples": tables["examples"] | {"last": DEPTH},
        "optimiser": base_rates | rates | {"steps": steps, "warm_up": 0.1, "schedule": "linear"},
        "run": {"batch": 16, "checkpoint_every": steps, "log_every": max(steps // 5, 1)},
    }
    return build(LongRecipe, tables, base)


def train(
    prepared: Prepared,
    fold: int,
    recipe: LongRecipe,
    out: Path,
    device: str,
) -> Path:
    """Train on a fold's training queries; what comes of it is a model's folder."""
    began = time.perf_counter()

    def tell(line: object) -> None:
        print(f"    {time.perf_counter() - began:.1f} s {line}", flush=True)

    start = open_start(recipe.model, recipe.longdoc, recipe.run.seed)
    examples = Examples.of(training_set(prepared, prepared.folds[fold - 1].train), recipe)
    return train_long(recipe, examples, out, start=start, device=device, progress=tell).model


def training_set(prepared: Prepared, queries: Sequence[str]) -> TrainingSet:
    """What is learned from: queries with their judgments, and the first stage's candidates."""
    numbers, qrels, first = prepared.document_numbers, prepared.qrels, prepared.first
    judged = [[(numbers[docid], grade) for docid, grade in qrels[qid].items()] for qid in queries]
    found = [prepared.candidates(qid) for qid in queries]
    flat = [pair for own in judged for pair in own]
    return TrainingSet(
        prepared.query_tokens.take([prepared.query_numbers[qid] for qid in queries]),
        prepared.documents,
        list(queries),
        prepared.document_ids,
        Judged(_ends(judged), *np.array(flat, np.int32).reshape(-1, 2).T),
        Candidates(
            _ends(found),
            np.concatenate(found).astype(np.int32),
            np.concatenate([first[qid].scores for qid in queries]).astype(np.float32),
        ),
    )


def ranked(prepared: Prepared, queries: Sequence[str], model: Path, device: str) -> Iterator[Array]:
    """The scores of each query's candidates, as the stages of long documents compute them."""
    encoder = LongEncoder(model, device=device)
    long = encoder.long
    for start in range(0, len(queries), TOGETHER):
        inputs = []
        for qid in queries[start : start + TOGETHER]:
            documents = prepared.documents.take(prepared.candidates(qid))
            own = np.zeros(len(documents), np.int64)
            made = read(
                prepared.query(qid), own, documents, encoder.tokenizer.special, encoder.plan, long.model.config
            )
            inputs.append(made.inputs)
        scores = encoder.margins(Inputs.join(inputs))
        yield from np.split(scores, np.cumsum([len(each) for each in inputs])[:-1])


def _ends(lists: Sequence[Sequence[object] | Array]) -> Array:
    return np.cumsum([0, *map(len, lists)])
