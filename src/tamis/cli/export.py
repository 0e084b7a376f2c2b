"""tamis export: a checkpoint as an ONNX graph, or with its weights in another type."""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from itertools import combinations, islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.cli.arguments import ArgumentParser, json_argument
from tamis.cli.console import counted, doing, print_json, size
from tamis.cli.outputs import check_output
from tamis.formats import read_corpus, read_queries
from tamis.infer.onnx_backend import export
from tamis.infer.scorer import Scorer
from tamis.models.architectures.mono import Mono as Pointwise
from tamis.models.bundled import BUNDLED, open_model
from tamis.models.checkpoint import Checkpoint
from tamis.models.convert import convert
from tamis.models.graph import Precision
from tamis.models.weights import WeightType
from tamis.rank.mono import Mono
from tamis.storage.files import make_folder, storage_errors

_QUERIES, _TEXTS = 8, 8  # of the bundled collection


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="CKPT", help="a model: bundled, a folder, or a name on the hub")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        help="output folder (for a graph, the model's own; a bundled model needs one)",
    )
    parser.add_argument(
        "--precision", choices=get_args(Precision), help="precision that the graph computes in (int8)"
    )
    parser.add_argument(
        "--weights",
        choices=get_args(WeightType),
        help="write the model with weights of this type, instead of a graph, to the folder of -o; "
        "transformers reads float16 and float32; int8 is a quarter of the size of float32",
    )
    parser.add_argument("--revision", metavar="R", help="revision of a model on the hub")
    json_argument(parser)


def main(
    model: str,
    output: Path | None,
    precision: Precision | None,
    weights: WeightType | None,
    revision: str | None,
    json: bool,
) -> None:
    """Write a model as an ONNX graph, which loads faster than its weights, or with its weights in another
    type, and compare the scores.

    The comparison is over a few texts of the bundled collection: a check that nothing is broken, not an
    evaluation.
    """
    check_output(output, None if weights is None else model)  # a graph may go beside the weights
    if weights is None:
        made, lines = _graph(model, output, precision or "int8", revision)
    elif precision is not None:
        raise InputError(
            "--precision applies to a graph, and --weights writes none", remedy="give one of them"
        )
    elif output is None:
        raise InputError(f"no output folder for the {weights} weights", remedy="give a new one with -o")
    else:
        made, lines = _weights(model, output, weights, revision)
    if json:
        print_json(made)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines))


def _graph(
    model: str, output: Path | None, precision: Precision, revision: str | None
) -> tuple[dict[str, Any], list[str]]:
    checkpoint = Scorer(model, revision=revision).checkpoint
    if output is None:
        _check_not_bundled(checkpoint, precision)
    else:
        with storage_errors(output):
            make_folder(output)
    with doing("Writing the graph"):
        path = export(checkpoint, precision, output)
    made: dict[str, Any] = {
        "graph": str(path),
        "model": model,
        "precision": precision,
        "bytes": path.stat().st_size,
    }
    lines = [f"{path}: {precision}, {size(made['bytes'])}"]
    if precision == "int8":
        with doing("Comparing int8 with fp32"):
            made |= compare(*(_scores(model, revision, each) for each in ("fp32", "int8")))
        lines.append(f"against fp32, {_compared(made)}")
    return made, lines


def _weights(
    model: str, output: Path, weights: WeightType, revision: str | None
) -> tuple[dict[str, Any], list[str]]:
    checkpoint = open_model(model, revision)
    with doing("Writing the weights"):
        path = convert(checkpoint, output, weights)
    made: dict[str, Any] = {
        "folder": str(output),
        "model": model,
        "weights": weights,
        "bytes": path.stat().st_size,
    }
    lines = [f"{path}: {weights}, {size(made['bytes'])}"]
    kind = checkpoint.architecture.name
    if kind == Pointwise.name or kind in Pointwise.reads:  # the others score by other heads
        with doing("Comparing their scores"):
            made |= compare(_scores(model, revision, "fp32"), _scores(str(output), None, "fp32"))
        lines.append(f"against {model}, both in fp32, {_compared(made)}")
    return made, lines


def _compared(made: dict[str, Any]) -> str:
    return (
        f"over {counted(made['pairs'], 'pair')} of a query and a text: scores differ by at "
        f"most {made['largest_difference']:.3g} (they spread over {made['spread']:.3g}), "
        f"Kendall's tau {made['kendall_tau']:.3f}"
    )


def _check_not_bundled(checkpoint: Checkpoint, precision: Precision) -> None:
    """Refuse to write megabytes into the installed package for a bundled model, unless it already has a
    graph."""
    folder = checkpoint.folder
    if folder.parent == BUNDLED and not (folder / f"model.{precision}.onnx").exists():
        problem = f"{folder.name} is a bundled model, inside the installed package"
        remedy = f"give a folder to write to (-o {folder.name}-onnx)"
        raise InputError(problem, remedy=remedy)


def _scores(model: str, revision: str | None, precision: Precision) -> Array:
    """The logits of some texts for some queries, one row per query."""
    mono = Mono(model, score="logit", precision=precision, revision=revision, device="cpu")
    with as_file(files("tamis") / "demo_data") as data:
        queries = [query.text for query in read_queries(data / "queries.jsonl")[:_QUERIES]]
        texts = [document.contents for document in islice(read_corpus(data / "corpus.jsonl.gz"), _TEXTS)]
    rows = np.zeros((len(queries), len(texts)))
    for row, query in zip(rows, queries, strict=True):
        for candidate in mono.rank(query, texts):
            row[candidate.position] = candidate.score
    return rows


def compare(exact: Array, rounded: Array) -> dict[str, float]:
    """The distance of scores from the exact ones, with one row per query.

    >>> compare(np.array([[3.0, 1.0, 2.0]]), np.array([[3.0, 1.5, 1.25]]))
    {'pairs': 3, 'largest_difference': 0.75, 'spread': 2.0, 'kendall_tau': 0.3333333333333333}
    """
    taus = [kendall_tau(*rows) for rows in zip(exact, rounded, strict=True)]
    return {
        "pairs": exact.size,
        "largest_difference": float(np.abs(exact - rounded).max()),
        "spread": float(exact.max() - exact.min()),
        "kendall_tau": float(np.mean(taus)),
    }


def kendall_tau(first: Array, second: Array) -> float:
    """Of all pairs, the share that both put in the same order less the share that they do not.

    >>> kendall_tau(np.array([1, 2, 3]), np.array([1, 3, 2]))
    0.3333333333333333
    """
    agree = [
        np.sign(first[i] - first[j]) * np.sign(second[i] - second[j])
        for i, j in combinations(range(len(first)), 2)
    ]
    return float(np.mean(agree)) if agree else 1.0
