"""The features of a learned linear model: numbers for each candidate of a query.

A feature is the score of a stage, or one of these:

- `score`: the candidate's incoming score;
- `length`: the document's length, in tokens;
- `matched`: how many of the query's terms it contains;
- `idf`: the sum of their idf (Lucene's).

Numbers that are equal for all candidates of a query, such as the query's length, cannot change their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import TamisError
from tamis.core.cost import Step, around
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Stage, TopK
from tamis.index.index import Index
from tamis.index.score import lucene_idf
from tamis.rank.combine import Interpolation, normalised

Named = Literal["score", "length", "idf", "matched"]
NAMED: tuple[Named, ...] = get_args(Named)
LEXICAL: tuple[Named, ...] = ("length", "idf", "matched")  # which need an index

Feature = Named | Stage


def columns(
    rankings: Sequence[Ranking],
    features: Sequence[Feature],
    index: Index | None,
    how: Interpolation,
    stage: str = "ltr",
) -> list[list[Array]]:
    """The columns of the features for each ranking, normalised within the query's list. `stage` is the name
    used in errors.

    >>> from tamis.base.documents import Query
    >>> ranking = Ranking(Query("q", ""), ("a", "b"), np.array([7.0, 4.0]), ScoreKind.RETRIEVAL)
    >>> [column.tolist() for column in columns([ranking], ["score"], None, "minmax")[0]]
    [[1.0, 0.0]]
    """
    for ranking in rankings:
        if ranking.kind is ScoreKind.NONE:
            raise TamisError(
                f"{stage} has no candidates to order for query {ranking.query.id!r}",
                remedy=f"put a stage that finds them before it, as in `bm25 % 1000 >> {stage}(...)`",
            )
    made: dict[Feature, Sequence[Array]] = {"score": [ranking.scores for ranking in rankings]}
    if index is not None and any(feature in LEXICAL for feature in features):
        known = [lexical(ranking, index) for ranking in rankings]
        made |= {name: [each[name] for each in known] for name in LEXICAL}
    made |= {each: stage_scores(each, rankings) for each in features if isinstance(each, Stage)}
    return [
        [normalised(made[feature][number], how) for feature in features] for number in range(len(rankings))
    ]


def weighted(features: Sequence[Array], weights: Sequence[float] | Array) -> Array:
    """The weighted sum of the features. Column by column, so that training and ranking round alike: otherwise
    equal scores could be ordered differently.

    >>> weighted([np.array([1.0, 0.0]), np.array([0.0, 4.0])], [0.5, 0.25]).tolist()
    [0.5, 1.0]
    """
    total = np.zeros(len(features[0]))
    for weight, column in zip(weights, features, strict=True):
        total += weight * column
    return total


def stage_scores(stage: Stage, rankings: Sequence[Ranking]) -> list[Array]:
    """A stage's scores of the candidates. A model of the first stage scores them as it scores its own
    results, at any rank. A candidate that a stage does not return has the lowest score of those returned, or
    0 if that is above 0."""
    inner = _without_cut(stage)
    found: list[Ranking] = []
    for each in rankings:
        alone = inner.only_among(each.ids)
        if alone is None:
            return list(map(_aligned, rankings, stage.apply(rankings)))
        found += alone.apply([each], len(each))
    return [_aligned(old, new) for old, new in zip(rankings, found, strict=True)]


def cost_of(stage: Stage, enter: Array) -> list[Step]:
    """The cost of a stage over features. It keeps the incoming candidates, whatever its stages find: those
    that search only score these."""
    none = np.zeros_like(enter)
    parts = (
        part.cost(enter) if _without_cut(part).only_among(()) is None else [Step(part, enter, enter, none)]
        for part in stage.parts
    )
    return around(stage, enter, parts, enter)


def _without_cut(stage: Stage) -> Stage:
    """The stage of a feature, without its cut.

    >>> from tamis.core.registry import build
    >>> _without_cut(build("normalise % 9"))
    normalise
    """
    return stage.stage if isinstance(stage, TopK) else stage


def lexical(ranking: Ranking, index: Index) -> dict[Named, Array]:
    """The features of the candidates that come from an index.

    >>> import tempfile
    >>> from tamis.base.documents import Document, Query
    >>> documents = [Document("d1", "flour and a sieve"), Document("d2", "sieve, sieve")]
    >>> index = Index.build(documents, tempfile.mkdtemp() + "/idx", analyzer="plain")
    >>> found = Ranking(Query("q", "sieve for flour"), ("d2", "d1"), np.array([2.0, 1.0]))
    >>> {name: column.round(3).tolist() for name, column in lexical(found, index).items()}
    {'length': [2.0, 4.0], 'idf': [0.182, 0.875], 'matched': [1.0, 2.0]}
    """
    terms, documents = index.weights(ranking.query.text), index.collection.documents
    index.look_up(terms)
    idf = [float(lucene_idf(np.array(index.df(term)), documents)) for term in terms]
    lengths, held = index.matches(ranking.ids, list(terms))
    sums = np.zeros(len(ranking))
    for column, value in zip(held.T, idf, strict=True):
        sums[column] += value
    return {"length": lengths.astype(np.float64), "idf": sums, "matched": held.sum(1).astype(np.float64)}


def _aligned(old: Ranking, new: Ranking) -> Array:
    scores = dict(zip(new.ids, new.scores.astype(np.float64).tolist(), strict=True))
    lowest = min((0.0, *scores.values()))
    return np.array([scores.get(doc_id, lowest) for doc_id in old.ids], dtype=np.float64)
