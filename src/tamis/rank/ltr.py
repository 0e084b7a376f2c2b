"""A learned linear model over features: the learning-to-rank baseline of the survey's section 1.2.3.
`tamis.train.ltr` learns its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from tamis.base.arrays import Array
from tamis.base.errors import InputError
from tamis.base.nested import parse_json
from tamis.core.cost import Step
from tamis.core.language import Call, Value, parse
from tamis.core.options import PlainText
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Role, Stage, stage
from tamis.index.index import Index
from tamis.rank.combine import Interpolation, normalised
from tamis.rank.ltr_features import LEXICAL, NAMED, Feature, Named, columns, cost_of, weighted
from tamis.storage.files import atomic_write, read_text


@stage("ltr", role=Role.MIXES)
class LTR(Stage):
    """Orders candidates by a weighted sum of features.

    The features are stages, with their `weights` in the same order, and four others with a weight each:
    `score`, the candidate's incoming score, `length`, its length, `matched`, how many terms of the query it
    contains, and `idf`, the sum of their idf. Each is normalised within the query's list (`minmax`, `z`, or
    `raw` for no normalisation). A stage that searches only scores the incoming candidates and adds none.
    `train_ltr` learns the weights and prints such an expression.
    """

    uses_depth = False

    def __init__(
        self,
        *stages: Stage,
        weights: PlainText | float = "",
        score: float = 0.0,
        length: float = 0.0,
        idf: float = 0.0,
        matched: float = 0.0,
        normalise: Interpolation = "minmax",
        index: Index | None = None,
    ) -> None:
        for each in stages:
            if not isinstance(each, Stage):
                raise InputError(f"ltr of {each!r}", remedy="give stages, such as index.ql()")
        own = _numbers(weights)
        if len(own) != len(stages):
            raise InputError(
                f"ltr of {len(stages)} stages with {len(own)} weights",
                remedy='give each its own, as in ltr(bm25, ql, weights="0.5 0.5")',
            )
        named: dict[Named, float] = {"score": score, "length": length, "idf": idf, "matched": matched}
        given = {name: float(weight) for name, weight in named.items() if weight}
        if not given and not stages:
            raise InputError("ltr without a feature", remedy="give a stage, or a weight such as score=1")
        if not all(map(math.isfinite, (*given.values(), *own))):
            raise InputError("ltr with a weight that is not finite", remedy="use numbers")
        if normalise not in get_args(Interpolation):
            raise InputError(f"ltr with normalise={normalise!r}", remedy="use minmax, z or raw")
        wanting = [name for name in LEXICAL if name in given]
        if wanting and index is None:
            raise InputError(f"{wanting[0]} of ltr needs an index", remedy="give the index to search")
        self.stages, self.normalise, self.index = stages, normalise, index if wanting else None
        self.features: tuple[Feature, ...] = (*stages, *given)
        self.all_weights = (*own, *given.values())
        self.weights = _written(own)
        self.score, self.length, self.idf, self.matched = (float(weight) for weight in named.values())

    @property
    def searches(self) -> bool:
        return True  # it may look up the query's terms, which takes as long as a search

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        return cost_of(self, enter)

    def without_scores(self) -> Stage | None:
        return None

    def attach(self, ranking: Ranking) -> Ranking:
        return ranking  # the stages find nothing here

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        # all candidates, whatever the depth: the last may come to the top
        found = columns(rankings, self.features, self.index, self.normalise)
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and infinite scores are refused
            scores = [normalised(weighted(own, self.all_weights), "raw") for own in found]
        return [
            ranking.rescored(own, ScoreKind.COMBINED) for ranking, own in zip(rankings, scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A trained model: the weight of each feature, and its quality on the training queries. As text it is a
    stage of the pipeline language.

    >>> model = LinearModel({"ql": 0.25, "score": 0.5, "bm25 >> rm3": -0.25})
    >>> print(model)
    ltr(ql, bm25 >> rm3, weights="0.25 -0.25", score=0.5)
    """

    weights: Mapping[str, float]
    normalise: Interpolation = "minmax"
    measure: str = ""
    value: float = 0.0
    queries: int = 0
    seed: int = 0

    def __str__(self) -> str:
        # a feature with weight 0 is left out
        left = {name: weight for name, weight in self.weights.items() if weight}
        stages = [name for name in left if name not in NAMED]
        options: list[tuple[str, Value]] = [(name, left[name]) for name in NAMED if name in left]
        if stages:
            options.insert(0, ("weights", _written([left[name] for name in stages])))
        if self.normalise != "minmax":
            options.append(("normalise", self.normalise))
        return str(Call("ltr", tuple(map(parse, stages)), tuple(options)))

    def save(self, path: str | Path) -> None:
        """Write it as JSON, with the expression of its stage."""
        from tamis import __version__

        data = {"tamis": __version__, "stage": str(self), **asdict(self)}
        with atomic_write(path, "w") as file:
            file.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> LinearModel:
        """Read a saved model."""
        try:
            data = parse_json(read_text(path))
            weights = {str(name): float(weight) for name, weight in data["weights"].items()}
            if not all(map(math.isfinite, weights.values())):
                raise ValueError("a weight is not finite")
            rest = ("normalise", "measure", "value", "queries", "seed")
            return cls(weights, *(data[name] for name in rest))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError("not a model of ltr", remedy="give a file that it saved", path=path) from error


def _written(weights: Sequence[float]) -> str | float:
    """The weights of stages as an option; a single weight is a plain number."""
    return weights[0] if len(weights) == 1 else " ".join(map(str, weights))


def _numbers(weights: str | float) -> tuple[float, ...]:
    try:
        return tuple(map(float, str(weights).split()))
    except ValueError as error:
        remedy = 'write numbers, as in "0.5 0.25"'
        raise InputError(f"weights of ltr are {weights!r}", remedy=remedy) from error
