"""Learn the weights of a linear model by coordinate ascent on the measure itself (Metzler & Croft 2007): one
weight is changed at a time, as long as the measure on the training queries increases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Stage
from tamis.evaluate.chance import check_seed, seeded
from tamis.evaluate.engines import computed, formula
from tamis.evaluate.formulae import Graded, graded
from tamis.evaluate.judgments import checked
from tamis.evaluate.measures import over_queries, parse_measures
from tamis.formats import Qrels
from tamis.rank.combine import Interpolation
from tamis.rank.ltr import LinearModel
from tamis.rank.ltr_features import LEXICAL, NAMED, Feature, columns, weighted

if TYPE_CHECKING:
    from tamis.core.runtime import Runtime
    from tamis.index.index import Index

STEPS = tuple(sign * 0.05 * 2**i for i in range(7) for sign in (1, -1))  # of a weight; all weights sum to 1
LEAST_GAIN = 1e-3  # of a round through all weights; with less, it is the last round
DIGITS = 4


def train_ltr(
    candidates: Mapping[str, Ranking],
    qrels: Qrels,
    features: Sequence[str],
    measure: str = "AP",
    *,
    index: Index | None = None,
    normalise: Interpolation = "minmax",
    seed: int = 0,
    restarts: int = 5,
    runtime: Runtime | None = None,
) -> LinearModel:
    """Train the linear model that orders the candidates of the judged queries best.

    `features` are expressions of stages (`"ql"`, `"bm25 >> rm3"`) and the names of `tamis.rank.ltr_features`;
    all but `score` and stages without a search need the `index`. The ascent starts with equal weights, then
    `restarts` times with random ones; the best result is kept. Never train on the queries that you report
    results for.

    >>> import tempfile
    >>> from tamis import Document, Index, Query
    >>> documents = [Document("d1", "sieve"), Document("d2", "sieve for flour and more")]
    >>> index = Index.build(documents, tempfile.mkdtemp() + "/idx")
    >>> candidates = index.bm25().run([Query("q1", "sieve")])
    >>> model = train_ltr(candidates, {"q1": {"d2": 1}}, ["score", "length"], "RR", index=index)
    >>> candidates["q1"].ids, model.value, index.pipeline(f"bm25 >> {model}")("sieve").ids
    (('d1', 'd2'), 1.0, ('d2', 'd1'))
    """
    (parsed,) = parse_measures([measure])
    check_seed(seed)
    built = built_features(features, index, runtime)
    lists = _lists(candidates, qrels, list(built.values()), index, normalise)
    objective = _objective(parsed, lists)
    weights, _ = coordinate_ascent(objective, len(built), seed=seed, restarts=restarts)
    rounded = weights.round(DIGITS)  # for readability; the reported measure is that of rounded weights
    return LinearModel(
        dict(zip(built, rounded.tolist(), strict=True)),
        normalise,
        str(parsed),
        objective(rounded),
        len(lists),
        seed,
    )


def coordinate_ascent(
    value: Callable[[Array], float], size: int, *, seed: int = 0, restarts: int = 5
) -> tuple[Array, float]:
    """The weights with the largest value found; their absolute values sum to 1. Of equal ones the first are
    taken, so that a useless feature changes nothing.

    >>> target = np.array([0.7, -0.3])
    >>> weights, value = coordinate_ascent(lambda w: -float(np.abs(w - target).sum()), 2)
    >>> weights.round(2).tolist()
    [0.7, -0.3]
    """
    if size < 1 or restarts < 0:
        raise InputError(
            f"{size} features and {restarts} restarts", remedy="use at least 1 feature and 0 or more restarts"
        )
    rng = seeded(seed)
    starts = [np.ones(size), *(rng.uniform(-1, 1, size) for _ in range(restarts))]
    climbed = [_climb(value, start / np.abs(start).sum(), rng) for start in starts]
    return max(climbed, key=lambda each: each[1])


def _climb(value: Callable[[Array], float], weights: Array, rng: np.random.Generator) -> tuple[Array, float]:
    best, before = value(weights), -np.inf
    while best - before > LEAST_GAIN:
        before = best
        for place in rng.permutation(len(weights)).tolist():
            for changed in _along(weights, place):
                if (found := value(changed)) > best:
                    best, weights = found, changed
    return weights, best


def _along(weights: Array, place: int) -> list[Array]:
    """The weights with one of them changed, summing to 1 again.

    >>> [each.round(3).tolist() for each in _along(np.array([0.5, 0.5]), 0)][:3]
    [[0.524, 0.476], [0.474, 0.526], [0.545, 0.455]]
    """
    tried: list[Array] = []
    for step in (*STEPS, -weights[place]):
        changed = weights.copy()
        changed[place] += step
        if total := np.abs(changed).sum():
            tried.append(changed / total)
    return tried


# -- the objective
# ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _List:
    """A training query. Its candidates are in the order of their ids: a stable sort breaks ties by them."""

    ranking: Ranking
    columns: Sequence[Array]
    grades: Graded
    judgments: Mapping[str, int]


def built_features(
    names: Sequence[str], index: Index | None, runtime: Runtime | None, stage: str = "ltr"
) -> dict[str, Feature]:
    """The features, ready to use, by their names in an expression.

    >>> list(built_features(["score", "normalise(how=z)"], None, None))
    ['score', 'normalise(how=z)']
    """
    from tamis.core.registry import build

    found: dict[str, Feature] = {}
    for name in names:
        named = next((each for each in NAMED if each == name), None)
        if named in LEXICAL and index is None:
            raise InputError(f"{name} of {stage} needs an index", remedy="give `index`")
        feature: Feature = named or build(name, index, runtime)
        if isinstance(feature, Stage):
            feature.prepare()
        key = repr(feature) if isinstance(feature, Stage) else name
        if key in found:
            raise InputError(f"the feature {key} comes twice", remedy="give each once")
        found[key] = feature
    if not found:
        raise InputError(f"{stage} without a feature", remedy="give some, such as score and idf")
    return found


def trainable(candidates: Mapping[str, Ranking], qrels: Qrels) -> list[str]:
    """The queries to learn from: those with a relevant document.

    >>> from tamis.base.documents import Query
    >>> trainable({"q1": Ranking(Query("q1", "")), "q2": Ranking(Query("q2", ""))}, {"q2": {"d": 1}})
    ['q2']
    """
    judged = [qid for qid in candidates if any(grade > 0 for grade in qrels.get(qid, {}).values())]
    if not judged:
        raise InputError(
            "no query with candidates has a relevant document", remedy="check that the query ids match"
        )
    return judged


def _lists(
    candidates: Mapping[str, Ranking],
    qrels: Qrels,
    features: Sequence[Feature],
    index: Index | None,
    normalise: Interpolation,
) -> list[_List]:
    qrels = checked(qrels)
    judged = trainable(candidates, qrels)
    rankings = [candidates[qid] for qid in judged]
    lists: list[_List] = []
    for qid, ranking, found in zip(
        judged, rankings, columns(rankings, features, index, normalise), strict=True
    ):
        order = np.array(sorted(range(len(ranking)), key=ranking.ids.__getitem__), dtype=np.int64)
        ids = tuple(ranking.ids[place] for place in order.tolist())
        by_id = replace(ranking, ids=ids, scores=ranking.scores[order])
        lists.append(_List(by_id, [each[order] for each in found], graded(ids, qrels[qid]), qrels[qid]))
    return lists


def _objective(measure: Any, lists: Sequence[_List]) -> Callable[[Array], float]:
    """The measure of the training queries as a function of the weights."""
    compute = formula(measure)
    # the lists are concatenated: a call of numpy costs more than one list
    together = [np.concatenate(column) for column in zip(*(each.columns for each in lists), strict=True)]
    offsets = np.cumsum([len(each.ranking) for each in lists])[:-1]

    def by_formula(weights: Array) -> float:
        assert compute is not None
        values = []
        for each, lower in zip(lists, np.split(-weighted(together, weights), offsets), strict=True):
            order = np.argsort(lower, kind="stable")
            values.append(compute(Graded(each.grades.grades[order], each.grades.pool)))
        return over_queries(measure, values)

    def by_engine(weights: Array) -> float:
        scores = np.split(weighted(together, weights), offsets)
        run = {
            each.ranking.query.id: each.ranking.rescored(own, ScoreKind.COMBINED)
            for each, own in zip(lists, scores, strict=True)
        }
        judged = {each.ranking.query.id: dict(each.judgments) for each in lists}
        return over_queries(measure, [value for _, _, value in computed([measure], judged, run)])

    return by_engine if compute is None else by_formula
