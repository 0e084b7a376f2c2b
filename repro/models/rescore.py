"""A taught set in which a cross-encoder has its say beside the teachers that were there.

    python rescore.py --set OUT/taught --model OUT/teacher/last --out OUT/retaught

Of each query's candidates twelve are kept: the relevant ones, the teachers' first six, and others at random.
Their scores are the sum of the old ones and of the cross-encoder's margins, each of unit spread over the
twelve. About two minutes for half a million queries on an H200.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from prepare import PASSAGE_TOKENS, QUERY_TOKENS, SEED
from script import say
from teach import unit

from tamis.cli import status_of
from tamis.columns import Array
from tamis.infer.engine import Engine
from tamis.infer.torch_backend import TorchBackend
from tamis.models import templates
from tamis.models.checkpoint import Checkpoint, load_checkpoint
from tamis.models.templates import Inputs
from tamis.models.tokenizer import Tokenizer
from tamis.train.sets import Candidates, TrainingSet

KEPT, FIRST = 12, 6
_STEP = 8192  # queries at a time


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--set", type=Path, required=True, help="what teach.py made")
    arguments.add_argument("--model", required=True, help="the cross-encoder's folder")
    arguments.add_argument(
        "--weight", type=float, default=1.0, help="of the cross-encoder beside the teachers (1)"
    )
    arguments.add_argument("--out", type=Path, required=True, help="folder for the new set")
    given = arguments.parse_args()
    rescore(given.set, given.model, given.weight, given.out)


def rescore(taught: Path, model: str, weight: float, out: Path) -> None:
    """Write the new set."""
    data = TrainingSet.open(taught)
    documents, scores = keep(data)
    margins = score(data, documents, load_checkpoint(model))
    mixed = unit(unit(scores) + weight * unit(margins))
    order = np.argsort(-mixed, axis=1, kind="stable")
    listed = np.take_along_axis(documents, order, 1).ravel().astype(np.int32)
    ranked = np.take_along_axis(mixed, order, 1).ravel().astype(np.float32)
    ends = np.arange(len(data) + 1, dtype=np.int64) * KEPT
    replace(data, candidates=Candidates(ends, listed, ranked), scores=ranked).save(out)
    say(f"{out} is written")


def keep(data: TrainingSet) -> tuple[Array, Array]:
    """[queries, 12] candidates and the scores that they have."""
    assert data.candidates is not None and data.scores is not None
    documents = data.candidates.documents.reshape(len(data), -1)
    key = np.random.default_rng(SEED).random(documents.shape)
    key[:, :FIRST] -= 1.0  # the best come first in the set
    queries, relevant = data.all_positives()
    for query, document in zip(queries.tolist(), relevant.tolist(), strict=True):
        key[query, documents[query] == document] = -2.0
    chosen = np.argsort(key, axis=1, kind="stable")[:, :KEPT]
    scores = data.scores.reshape(documents.shape)
    return np.take_along_axis(documents, chosen, 1), np.take_along_axis(scores, chosen, 1)


def score(data: TrainingSet, documents: Array, model: Checkpoint) -> Array:
    """The cross-encoder's margins of all candidates; inputs are made while it works."""
    engine, special = Engine(TorchBackend(model)), Tokenizer(model.folder).special

    def inputs(start: int) -> Inputs:
        some = documents[start : start + _STEP]
        made, _ = templates.mono(
            data.queries.take(np.arange(start, start + len(some))),
            data.documents.take(some.ravel()),
            special,
            own=np.repeat(np.arange(len(some)), KEPT),
            query_limit=QUERY_TOKENS,
            total_limit=QUERY_TOKENS + PASSAGE_TOKENS + 3,
            segment_types=model.config.segments,
        )
        return made

    found = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inputs, 0)
        for start in range(0, len(documents), _STEP):
            made = waiting.result()
            waiting = pool.submit(inputs, min(start + _STEP, len(documents) - 1))
            found.append(engine.margins(made).reshape(-1, KEPT))
            if start // _STEP % 10 == 0:
                say(f"scored {start:,} of {len(documents):,} queries")
    return np.concatenate(found)


if __name__ == "__main__":
    sys.exit(status_of(main))
