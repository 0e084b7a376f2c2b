"""What a pipeline is about to do: who sees how many candidates, how many inferences that takes, and how long.

The inferences are counted, k0 + k1(k1 - 1) for `mono >> duo`; the time is what a few real inputs of each
model take, times the number.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Query
from tamis.core.ranking import Ranking
from tamis.core.stage import Pipeline, Stage, TopK
from tamis.index.dependence import SDM
from tamis.index.feedback import RM3
from tamis.index.retriever import DEPTH, Retriever
from tamis.rank.early_exit import IfUnsure
from tamis.rank.given_run import GivenRun

if TYPE_CHECKING:
    from tamis.rank.reranker import Reranker

_SAMPLED = 4  # queries
_DEPTH = 64  # candidates of each
_LONG_ENOUGH = 0.5  # seconds: what takes so long says how long the rest takes
_ENOUGH = 500  # inferences


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a plan; the arrays have a number for each query."""

    stage: Stage
    enter: Array  # candidates that it gets
    leave: Array  # candidates that it hands on
    inferences: Array
    model: Reranker | None = None
    part: bool = False  # of the next step: it chooses what that one's model reads, in that one's time


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
    return _plan(stage, np.asarray(candidates, dtype=np.int64), None)


def _plan(stage: Stage, enter: Array, depth: int | None) -> list[Step]:
    """The last step is the stage's own."""
    none = np.zeros_like(enter)
    if isinstance(stage, Pipeline):
        steps: list[Step] = []
        for each in stage.stages:
            steps += _plan(each, enter, depth if each is stage.stages[-1] else None)
            enter = steps[-1].leave
        return steps
    if isinstance(stage, TopK):
        k = stage.k if depth is None else min(stage.k, depth)
        *before, last = _plan(stage.stage, enter, k)
        return [*before, replace(last, stage=stage, leave=np.minimum(last.leave, k))]
    if isinstance(stage, Retriever | SDM | RM3):
        documents = DEPTH if depth is None else depth
        if not isinstance(stage, RM3):
            documents = min(documents, len(stage.index))
        return [Step(stage, enter, np.full_like(enter, documents), none)]
    if (model := _reranker(stage)) is not None:
        chosen_by = [
            Step(part, enter, enter, _for_each(enter, model.choosing), _reranker(part), part=True)
            for part in model.parts
        ]
        return [*chosen_by, Step(stage, enter, enter, _for_each(enter, model.inferences), model)]
    if isinstance(stage, IfUnsure):
        # which queries will be sure is not known before: at most, none is; those that are keep what they have
        steps = _plan(stage.stage, enter, depth)
        return [*steps, Step(stage, enter, np.maximum(enter, steps[-1].leave), none)]
    from tamis.rank.groupwise import Groupwise  # not before: a plain search need not wait for it
    from tamis.rank.ltr import LTR
    from tamis.rank.ltr_features import first_stage

    if isinstance(stage, LTR | Groupwise):
        # it keeps the candidates that come in, whatever its stages find; those that search score them only
        asked = (
            _plan(part, enter, None) if first_stage(part) is None else [Step(part, enter, enter, none)]
            for part in stage.parts
        )
        return [*(step for steps in asked for step in steps), Step(stage, enter, enter, none)]
    inside = [_plan(part, enter, None) for part in stage.parts]
    # of several stages' candidates some may be the same: no more than the sum
    leave = sum((steps[-1].leave for steps in inside), start=none) if inside else enter
    return [*(step for steps in inside for step in steps), Step(stage, enter, leave, none)]


def _for_each(numbers: Array, count: Callable[[int], int]) -> Array:
    known = {number: count(number) for number in np.unique(numbers).tolist()}
    return np.array([known[number] for number in numbers.tolist()], dtype=np.int64)


def counts(stage: Stage) -> Literal["exact", "most", "least", "either"]:
    """What a plan of it says: every number, where nothing is searched for and nothing may leave early that
    was not counted on; else the most or the least, or neither, where some steps say one and some the other.

    >>> from tamis.core.registry import build
    >>> [counts(build(text)) for text in ("mono", "maxp(mono)", "birch(mono)", "maxp(mono) >> birch(mono)")]
    ['exact', 'most', 'least', 'either']
    """
    said = {model.counts for model in rerankers(stage)} - {"exact"}
    if any(isinstance(part, Retriever | SDM | RM3 | IfUnsure) for part in walk(stage)):
        said.add("most")
    return "either" if len(said) > 1 else next(iter(said), "exact")


# -- models at work
# ------------------------------------------------------------------------------------------------------------


def rerankers(stage: Stage) -> list[Reranker]:
    """The stages with a model that a stage is made of, in their order."""
    return [model for part in walk(stage) if (model := _reranker(part)) is not None]


def _reranker(stage: Stage) -> Reranker | None:
    module = sys.modules.get("tamis.rank.reranker")
    # not imported: then there is none, and a search that does without must not wait for the import
    return stage if module is not None and isinstance(stage, module.Reranker) else None


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
    return [
        {
            "stage": repr(each),
            "runs_on": each.description,
            "inferences": each.tally.inferences,
            "cached": each.tally.cached,
            "truncation": asdict(each.tally.truncation),
        }
        for each in rerankers(stage)
    ]


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
    firsts = (part for part in walk(stage) if isinstance(part, Retriever | SDM | GivenRun))
    first = next(firsts, None)
    if first is None or not queries:
        return []
    places = np.linspace(0, len(queries) - 1, min(_SAMPLED, len(queries))).astype(int)
    found = first.apply([Ranking(queries[place]) for place in places.tolist()], _DEPTH)
    return [ranking.head(_DEPTH) for ranking in found if ranking]


def calibrate(stage: Reranker, rankings: Sequence[Ranking]) -> Calibration | None:
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
