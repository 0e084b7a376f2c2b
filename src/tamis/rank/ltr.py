"""A learned linear model over features: the learning-to-rank baseline of the survey's section 1.2.3. See
`tamis.train.ltr` for how its weights are found."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from tamis.base.errors import InputError
from tamis.base.nested import parse_json
from tamis.core.language import Call, Node, Value, parse
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.stage import Stage
from tamis.index.index import Index
from tamis.rank.combine import Interpolation, normalised
from tamis.rank.ltr_features import LEXICAL, NAMED, Feature, Named, columns, weighted
from tamis.storage.files import atomic_write, read_text


class LTR(Stage):
    """Orders candidates by a weighted sum of features.

    The features are stages, which have their `weights` in the same order, and four others with a weight each:
    `score`, the score that a candidate comes with, its `length`, how many terms of the query are `matched`,
    and the sum of their `idf`. Each is normalised within the query's list (`minmax`, `z`, or `raw` for not at
    all). A stage that searches scores the candidates that come in, and finds none of its own. `train_ltr`
    finds the weights, and prints such an expression.
    """

    def __init__(
        self,
        *stages: Stage,
        weights: str | float = "",
        score: float = 0.0,
        length: float = 0.0,
        idf: float = 0.0,
        matched: float = 0.0,
        normalise: Interpolation = "minmax",
        index: Index | None = None,
    ) -> None:
        for stage in stages:
            if not isinstance(stage, Stage):
                raise InputError(f"ltr of {stage!r}", remedy="give stages, such as index.ql()")
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
        self.weights = (*own, *given.values())

    @property
    def expression(self) -> Call:
        return _call([stage.expression for stage in self.stages], self.features, self.weights, self.normalise)

    @property
    def parts(self) -> Sequence[Stage]:
        return self.stages

    @property
    def resources(self) -> str:
        own = [] if self.index is None else [self.index.fingerprint]
        return "\n".join([*own, *(stage.resources for stage in self.stages)])

    def attach(self, ranking: Ranking) -> Ranking:
        return ranking  # the stages find nothing here

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        # all of them, whatever the depth: the last may come to the top
        found = columns(rankings, self.features, self.index, self.normalise)
        with np.errstate(over="ignore", invalid="ignore"):  # a score that is no number is refused
            scores = [normalised(weighted(own, self.weights), "raw") for own in found]
        return [
            ranking.rescored(own, ScoreKind.COMBINED) for ranking, own in zip(rankings, scores, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """What was learned: the weight of each feature, and how good that was on the training queries. As text it
    is a stage of the pipeline language.

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
        # a feature without weight is none
        left = {name: weight for name, weight in self.weights.items() if weight}
        nodes = [parse(name) for name in left if name not in NAMED]
        order = [name for name in left if name not in NAMED] + [name for name in NAMED if name in left]
        return str(_call(nodes, order, [left[name] for name in order], self.normalise))

    def save(self, path: str | Path) -> None:
        """Write it as JSON, with the stage that it is."""
        from tamis import __version__

        data = {"tamis": __version__, "stage": str(self), **asdict(self)}
        with atomic_write(path, "w") as file:
            file.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> LinearModel:
        """A model that was saved."""
        try:
            data = parse_json(read_text(path))
            weights = {str(name): float(weight) for name, weight in data["weights"].items()}
            if not all(map(math.isfinite, weights.values())):
                raise ValueError("a weight is not finite")
            rest = ("normalise", "measure", "value", "queries", "seed")
            return cls(weights, *(data[name] for name in rest))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise InputError("not a model of ltr", remedy="give a file that it saved", path=path) from error


def _call(
    stages: Sequence[Node], features: Sequence[Feature | str], weights: Sequence[float], normalise: str
) -> Call:
    """The expression of features whose stages come first."""
    own, named = weights[: len(stages)], zip(features[len(stages) :], weights[len(stages) :], strict=True)
    options: list[tuple[str, Value]] = []
    if own:
        options.append(("weights", " ".join(map(str, own)) if len(own) > 1 else own[0]))
    options += [(str(name), weight) for name, weight in named]
    if normalise != "minmax":
        options.append(("normalise", normalise))
    return Call("ltr", tuple(stages), tuple(options))


def _numbers(weights: str | float) -> tuple[float, ...]:
    try:
        return tuple(map(float, str(weights).split()))
    except ValueError as error:
        remedy = 'write numbers, as in "0.5 0.25"'
        raise InputError(f"weights of ltr are {weights!r}", remedy=remedy) from error
