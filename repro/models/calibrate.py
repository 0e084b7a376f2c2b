"""Make a model's scores mean something by themselves.

    python calibrate.py MODEL --dev OUT/dev

A loss over lists learns differences alone: all scores may lie too high or too low. Here a scale and a shift
of the margins are fitted on the dev questions, by logistic regression on their relevant documents and on
others that BM25 found, both counted as if there were as many. So 0.5 is for a text that is as likely to be
one of the first as one of the second. No ranking changes. The two numbers go into the weights of the head.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from prepare import SEED
from script import say

import tamis
from tamis.base.arrays import Array
from tamis.cli import status_of
from tamis.core.ranking import Run
from tamis.formats import read_corpus, read_qrels, read_queries
from tamis.models.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tamis.models.config import QUANTISED

OTHERS = 10  # of a question's candidates that are not relevant


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("model", type=Path, help="a folder, whose weights are changed")
    arguments.add_argument("--dev", type=Path, required=True, help="what prepare.py made")
    given = arguments.parse_args()
    margins, relevant = dev_margins(given.model, given.dev)
    scale, shift = fitted(margins, relevant)
    say(f"margins are scaled by {scale:.4f} and shifted by {shift:+.4f}")
    save(calibrated(load_checkpoint(given.model), scale, shift))


def dev_margins(model: Path, folder: Path) -> tuple[Array, Array]:
    """Margins of the dev questions' relevant documents and of some others, and which they are."""
    documents = {document.id: document.contents for document in read_corpus(folder / "corpus.jsonl")}
    queries = list(read_queries(folder / "queries.jsonl"))
    qrels, run = read_qrels(folder / "qrels.txt"), Run.read(folder / "bm25.run", queries=queries)
    mono, rng = tamis.Mono(str(model), score="logit"), random.Random(SEED)
    margins, relevant = [], []
    for query in queries:
        judged = [each for each in qrels[query.id] if each in documents]
        others = [each for each in run[query.id].ids if each not in qrels[query.id]]
        chosen = judged + rng.sample(others, min(OTHERS, len(others)))
        ranked = mono.rank(query.text, [documents[each] for each in chosen])
        margins += [each.score for each in ranked]
        relevant += [each.position < len(judged) for each in ranked]
    return np.array(margins), np.array(relevant)


def fitted(margins: Array, relevant: Array) -> tuple[float, float]:
    """Scale and shift by Newton's method, with both classes of equal weight.

    >>> scale, shift = fitted(np.array([1.0, 3.0, 1.0, 3.0]), np.array([False, True, False, True]))
    >>> bool(abs(scale * 2 + shift) < 1e-6)  # even odds are half way between
    True
    """
    weights = np.where(relevant, 0.5 / max(relevant.sum(), 1), 0.5 / max((~relevant).sum(), 1))
    inputs = np.stack([margins, np.ones(len(margins))], axis=1)
    found = np.array([1.0, 0.0])
    ridge = 1e-4 * np.eye(2)  # what can be told apart wholly would have no largest scale
    for _ in range(50):
        chances = 1 / (1 + np.exp(-inputs @ found))
        gradient = inputs.T @ (weights * (chances - relevant)) + ridge @ found
        curvature = (inputs * (weights * chances * (1 - chances))[:, None]).T @ inputs + ridge
        found = found - np.linalg.solve(curvature, gradient)
    return float(found[0]), float(found[1])


def calibrated(model: Checkpoint, scale: float, shift: float) -> Checkpoint:
    """The model with a head whose margins are scaled and shifted."""
    weight, bias = (model.tensors[f"head.output.{name}"] for name in ("weight", "bias"))
    # with two labels a margin is the second logit less the first
    shifts = np.array([shift]) if len(bias) == 1 else np.array([-shift / 2, shift / 2])
    head = {"head.output.weight": scale * weight, "head.output.bias": scale * bias + shifts}
    return replace(model, tensors={**model.tensors, **head})


def save(model: Checkpoint) -> None:
    """Write the model over what was read, its weights in the same type. Int8 ones stay as they are but for
    the output of the head, which is kept in half precision: quantising again gives the same numbers."""
    save_checkpoint(model, model.folder, "int8" if QUANTISED in model.raw_config else "float16")


if __name__ == "__main__":
    sys.exit(status_of(main))
