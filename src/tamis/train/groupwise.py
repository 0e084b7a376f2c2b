"""Training a groupwise scoring function (Ai et al. 2019) by the listwise softmax loss (Eqs. 37 and 38):

    L = - sum of w_i y_i log p_i,    p_i = exp(t_i) / sum over the query's candidates of exp(t_j)

t_i is the sum of a candidate's scores over its groups, y_i its grade and w_i a weight: if grades are clicks,
the inverse of the propensity of its position. The network is so small that its gradient is written out here,
and training does not need torch. New groups are drawn for each step, and the optimiser is Adam (Kingma & Ba
2015); each step uses all queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking
from tamis.evaluate.chance import check_seed
from tamis.formats import Qrels
from tamis.rank.combine import Interpolation
from tamis.rank.groups import drawn_groups
from tamis.rank.groupwise import NAME, GroupwiseModel, gathered, laid_out
from tamis.rank.ltr_features import NAMED, columns
from tamis.train.ltr import built_features, trainable

if TYPE_CHECKING:
    from tamis.core.runtime import Runtime
    from tamis.index.index import Index

Layers = list[tuple[Array, Array]]
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_ROUNDS = 2  # of groups, in a step


@dataclass(frozen=True, slots=True)
class Lists:
    """The candidates of the training queries, concatenated."""

    rows: Array  # float64[T, f]: features
    gains: Array  # float64[T]: w_i y_i
    offsets: Array  # int64[queries + 1]


def train_groupwise(
    candidates: Mapping[str, Ranking],
    qrels: Qrels,
    features: Sequence[str],
    *,
    texts: int = 4,
    hidden: Sequence[int] = (32,),
    steps: int = 300,
    learning_rate: float = 0.01,
    weights: Mapping[str, Mapping[str, float]] | None = None,
    index: Index | None = None,
    normalise: Interpolation = "minmax",
    seed: int = 0,
    runtime: Runtime | None = None,
) -> GroupwiseModel:
    """Train a network over the features of groups of `texts` candidates, with layers of `hidden` units.

    `features` are as in `train_ltr`; `weights` are the w_i by query and document, by default 1. Never train
    on the queries that you report results for.

    >>> import tempfile
    >>> from tamis import Document, Index, Query
    >>> documents = [Document("d1", "sieve"), Document("d2", "sieve for flour and more")]
    >>> index = Index.build(documents, tempfile.mkdtemp() + "/idx")
    >>> candidates, path = index.bm25().run([Query("q1", "sieve")]), tempfile.mkdtemp() + "/gsf.json"
    >>> model = train_groupwise(candidates, {"q1": {"d2": 1}}, ["score", "length"], index=index)
    >>> model.save(path)
    >>> candidates["q1"].ids, index.pipeline(f'bm25 >> groupwise(model="{path}")')("sieve").ids
    (('d1', 'd2'), ('d2', 'd1'))
    """
    check_seed(seed)
    if texts < 1 or steps < 1 or not all(width >= 1 for width in hidden):
        sizes = f"groups of {texts}, layers of {list(hidden)} and {steps} steps"
        raise InputError(sizes, remedy="use at least 1 of each")
    if not learning_rate > 0:
        raise InputError(f"a learning rate of {learning_rate}", remedy="use a number above 0")
    built = built_features(features, index, runtime, NAME)
    ordered = [name for name in built if name not in NAMED] + [name for name in NAMED if name in built]
    gains = _gains(candidates, qrels, weights or {})
    rankings = [candidates[qid] for qid in gains]
    found = columns(rankings, [built[name] for name in ordered], index, normalise, NAME)
    lists = Lists(
        np.concatenate([np.stack(own, axis=1) for own in found]),
        np.concatenate(list(gains.values())),
        np.cumsum([0, *map(len, rankings)]),
    )
    begun = _begun((texts * len(ordered), *hidden, texts), seed)
    model = GroupwiseModel(tuple(ordered), begun, texts, normalise, queries=len(gains), seed=seed)
    with np.errstate(over="ignore", invalid="ignore"):
        fitted = _fitted(model, lists, steps, learning_rate)
    if not all(np.isfinite(part).all() for layer in fitted.layers for part in layer):
        raise InputError(
            f"a learning rate of {learning_rate} leads to weights that are not numbers",
            remedy="use a smaller one",
        )
    return fitted


def _gains(
    candidates: Mapping[str, Ranking], qrels: Qrels, weights: Mapping[str, Mapping[str, float]]
) -> dict[str, Array]:
    """The w_i y_i of each query's candidates; a query whose values are all 0 cannot be used for training."""
    found = {}
    for qid in trainable(candidates, qrels):
        grades, own = qrels[qid], weights.get(qid, {})
        gains = [max(grades.get(each, 0), 0) * own.get(each, 1.0) for each in candidates[qid].ids]
        if not all(np.isfinite(gain) and gain >= 0 for gain in gains):
            raise InputError(f"a weight of query {qid!r} is below 0 or not a number", remedy="use 0 or more")
        if any(gains):
            found[qid] = np.array(gains, dtype=np.float64)
    if not found:
        raise InputError(
            "no relevant document is among the candidates", remedy="give more of them, or other queries"
        )
    return found


def _begun(widths: Sequence[int], seed: int) -> Layers:
    """Initial weights for ReLU (He et al. 2015)."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(0.0, np.sqrt(2 / wide), (out, wide)), np.zeros(out)) for wide, out in pairwise(widths)
    ]


def _fitted(model: GroupwiseModel, lists: Lists, steps: int, rate: float) -> GroupwiseModel:
    parameters = [part for layer in model.layers for part in layer]
    means, squares = ([np.zeros_like(part) for part in parameters] for _ in range(2))
    value = 0.0
    for step in range(1, steps + 1):
        groups = step_groups(lists.offsets, model.texts, seed=model.seed + step)
        value, gradient = loss_and_gradient(_paired(parameters), lists, groups)
        for number, slope in enumerate(part for layer in gradient for part in layer):
            means[number] += (1 - _BETAS[0]) * (slope - means[number])
            squares[number] += (1 - _BETAS[1]) * (slope**2 - squares[number])
            mean, square = means[number] / (1 - _BETAS[0] ** step), squares[number] / (1 - _BETAS[1] ** step)
            parameters[number] = parameters[number] - rate * mean / (np.sqrt(square) + _EPSILON)
    return replace(model, layers=_paired(parameters), loss=value)


def _paired(parameters: Sequence[Array]) -> Layers:
    return list(zip(parameters[::2], parameters[1::2], strict=True))


def step_groups(offsets: Array, texts: int, seed: int) -> Array:
    """The groups of all queries, whose candidates are concatenated.

    >>> step_groups(np.array([0, 1, 3]), 2, seed=0).tolist()[:3]
    [[0, -1], [0, -1], [1, 2]]
    """
    parts = []
    for start, stop in pairwise(offsets.tolist()):
        own = drawn_groups(stop - start, texts, _ROUNDS, seed)
        parts.append(np.where(own >= 0, own + start, -1))
    return np.concatenate(parts)


def loss_and_gradient(layers: Layers, lists: Lists, groups: Array) -> tuple[float, Layers]:
    """The mean loss of the queries, and its gradient.

    >>> layers = [(np.array([[1.0]]), np.zeros(1))]
    >>> lists = Lists(np.array([[0.0], [0.0]]), np.array([1.0, 0.0]), np.array([0, 2]))
    >>> value, ((weights, biases),) = loss_and_gradient(layers, lists, np.array([[0], [1]]))
    >>> round(value, 4), biases.tolist()  # log 2
    (0.6931, [0.0])
    """
    states = [laid_out(gathered(lists.rows, groups))]
    for number, (weights, biases) in enumerate(layers):
        x = states[-1] @ weights.T + biases
        states.append(np.maximum(x, 0.0) if number < len(layers) - 1 else x)
    there, queries = groups >= 0, len(lists.offsets) - 1
    sums = np.zeros(len(lists.rows))
    np.add.at(sums, groups[there], states[-1][there])
    value, slopes = 0.0, np.empty_like(sums)
    for start, stop in pairwise(lists.offsets.tolist()):
        t, gains = sums[start:stop], lists.gains[start:stop]
        log_p = t - t.max() - np.log(np.exp(t - t.max()).sum())
        value -= float(gains @ log_p) / queries
        slopes[start:stop] = (gains.sum() * np.exp(log_p) - gains) / queries
    slope = np.where(there, slopes[groups], 0.0)
    found: Layers = []
    for number in range(len(layers) - 1, -1, -1):
        found.append((slope.T @ states[number], slope.sum(axis=0)))
        if number:
            slope = (slope @ layers[number][0]) * (states[number] > 0)
    return value, found[::-1]
