"""What a pipeline is about to do: who sees how many candidates, how many inferences that takes, and how long.

The inferences are counted, k0 + k1(k1 - 1) for `mono >> duo`; the time is what a few real inputs of each
model take, times the number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Query
from tamis.core.cost import Bound, Step
from tamis.core.model_stage import ModelStage
from tamis.core.ranking import Ranking
from tamis.core.stage import Role, Stage

_SAMPLED = 4  # queries
_DEPTH = 64  # candidates of each
_LONG_ENOUGH = 0.5  # seconds: what takes so long says how long the rest takes
_ENOUGH = 500  # inferences


def plan(stage: Stage, candidates: Sequence[int] | Array) -> list[Step]:
    """The steps of a pipeline for queries that come with so many candidates each, 0 for bare queries.

    How many documents a search finds is not known before: it is taken to find all that it is asked for. Nor
    is it known which queries `if_unsure` lets pass, or which candidates leave `cascade(entropy=...)` early:
    all are taken to go on.

    >>> from tamis.core.registry import build
    >>> mono, duo = plan(build("mono % 50 >> duo(k=30)"), [1000, 20])
    >>> mono.inferences.tolist(), duo.enter.tolist(), duo.inferences.tolist()
    ([1000, 20], [50, 20], [870, 380])
    """
    return stage.cost(np.asarray(candidates, dtype=np.int64))


def counts(stage: Stage) -> Literal["exact", "most", "least", "either"]:
    """What a plan of it says: every number, where nothing is searched for and nothing may leave early that
    was not counted on; else the most or the least, or neither, where some steps say one and some the other.

    >>> from tamis.core.registry import build
    >>> [counts(build(text)) for text in ("mono", "maxp(mono)", "birch(mono)", "maxp(mono) >> birch(mono)")]
    ['exact', 'most', 'least', 'either']
    """
    said = set(map(_bound, walk(stage)))
    if {"most", "least"} <= said:
        return "either"
    return "most" if "most" in said else "least" if "least" in said else "exact"


def _bound(stage: Stage) -> Bound:
    return stage.counts or ("most" if stage.role is Role.FINDS else "exact")


# -- models at work
# ------------------------------------------------------------------------------------------------------------


def rerankers(stage: Stage) -> list[ModelStage]:
    """The stages with a model that a stage is made of, in their order."""
    return [part for part in walk(stage) if isinstance(part, ModelStage)]


def walk(stage: Stage) -> Iterator[Stage]:
    """A stage, and all that it is made of.

    >>> from tamis.core.registry import build
    >>> [repr(each) for each in walk(build("interpolate(mono) % 5"))]
    ['interpolate(mono) % 5', 'interpolate(mono)', 'mono']
    """
    yield stage
    for part in stage.parts:
        yield from walk(part)


def work_done(stage: Stage) -> list[dict[str, Any]]:
    """What the models of a stage have done so far, as plain data: how they ran, inferences, what was found in
    the cache and what was cut off."""
    return [work_of(each) for each in rerankers(stage)]


def work_of(model: ModelStage, runs_on: str | None = None) -> dict[str, Any]:
    """The same of one stage with a model; `runs_on` is for one that does not run here."""
    return {
        "stage": repr(model),
        "runs_on": runs_on or model.description,
        "inferences": model.tally.inferences,
        "cached": model.tally.cached,
        "truncation": asdict(model.tally.truncation),
    }


# -- how long it takes
# ------------------------------------------------------------------------------------------------------------


class Calibration(NamedTuple):
    """So many inferences took so long."""

    inferences: int
    seconds: float

    @property
    def seconds_each(self) -> float:
        return self.seconds / self.inferences


def sample(stage: Stage, queries: Sequence[Query]) -> list[Ranking]:
    """A few of the queries with a few candidates each: those that the pipeline's first stage has for them."""
    firsts = (part for part in walk(stage) if part.role is Role.FINDS and not part.searches_again)
    first = next(firsts, None)
    if first is None or not queries:
        return []
    places = np.linspace(0, len(queries) - 1, min(_SAMPLED, len(queries))).astype(int)
    found = first.apply([Ranking(queries[place]) for place in places.tolist()], _DEPTH)
    return [ranking.head(_DEPTH) for ranking in found if ranking]


def calibrate(stage: ModelStage, rankings: Sequence[Ranking]) -> Calibration | None:
    """Time a model on the first candidates of some rankings: of ever more, until it takes long enough to say
    something. It should have no cache, which would be timed too. None where there is nothing to infer."""
    stage.prepare()
    measured = None
    k = 1
    while rankings:
        heads = [ranking.head(k) for ranking in rankings]
        inferences = sum(stage.inferences(len(head)) for head in heads)
        started = time.perf_counter()
        stage.apply(heads)
        seconds = time.perf_counter() - started
        if inferences:
            measured = Calibration(inferences, seconds)
        if (inferences and seconds >= _LONG_ENOUGH) or inferences >= _ENOUGH or k >= max(map(len, rankings)):
            break
        k *= 2
    return measured
