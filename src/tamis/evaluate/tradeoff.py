"""The value and cost of a pipeline's settings, measured together.

from tamis.evaluate.candidates import candidates
from tamis.evaluate.tradeoff import trade_off

grid = {"k0": [10, 50, 100], "k1": [0, 5, 10]}
found = trade_off(candidates("bm25 % {k0} >> mono >> duo(k={k1})", grid, index), queries, qrels)
found.points[found.choice.number].setting
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.core.executor import Work
from tamis.core.plan import rerankers, walk
from tamis.core.ranking import Ranking
from tamis.evaluate.budget import ALPHA, Budget, Ceiling, Choice, Cost, Latency, Point, choose, frontier
from tamis.evaluate.candidates import Candidate
from tamis.evaluate.chance import check_seed, seeded
from tamis.evaluate.engines import cutoff
from tamis.evaluate.formulae import ALL
from tamis.evaluate.grid import Setting, spelled
from tamis.evaluate.halving import Round, Seen, Tried, halve, round_ends
from tamis.evaluate.judgments import with_relevant
from tamis.evaluate.measures import over_queries, parse_measures, values
from tamis.evaluate.sweep import WARM_UP, Sweep
from tamis.formats import Qrels

Search = Literal["grid", "halving"]

#: Shows progress: called with the task, its unit and the total; its context manager yields a function that is
#: called with the number of further units done.
Watch = Callable[[str, str, int], AbstractContextManager[Callable[[int], object]]]

TIMED = 20  # queries


@dataclass(frozen=True, slots=True)
class Timing:
    """How latency was measured: one query at a time, nothing cached, after `warm_up` untimed queries."""

    queries: int
    warm_up: int
    machine: str
    models: list[str]
    given: bool = False  # whether candidates come from a run, whose time is unknown

    def __str__(self) -> str:
        models = f" Models: {'; '.join(self.models)}." if self.models else ""
        given = " The time to find the candidates of the run is not included." if self.given else ""
        return (
            f"{self.queries} queries, drawn at random, one at a time after {self.warm_up} untimed, with the "
            "models loaded and no score cached. Each stage is timed with the candidates that it gets in its "
            "setting; a setting's time is the sum of its stages'. Stages that settings share, and pairs or "
            "sentences that several aggregations or settings of birch read, are timed once."
            f"{given}{models} {self.machine}."
        )


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """All settings as points, the work of measuring them, and the choice."""

    measure: str
    queries: int
    points: list[Point]
    names: list[str]  # of the parameters
    work: Work
    rounds: list[Round]
    timing: Timing | None
    budget: Budget | None
    choice: Choice | None  # None if no setting is within the budget
    left_out: list[str]  # judged queries that are not among the queries
    untried: list[Setting]  # over a time budget, so they were not scored
    alpha: float = ALPHA  # p-values below it are significant

    @property
    def kind(self) -> Cost:
        """The unit of cost: that of the budget, or else inferences, or time if no setting uses a model."""
        return self.budget.kind if self.budget else _kind(self.points)

    @property
    def largest(self) -> float:
        """The inferences of the most expensive setting over all queries."""
        return max(point.inferences for point in self.points) * self.queries

    @property
    def alone(self) -> float:
        """The inferences that all settings would take if each were run separately."""
        return sum(point.inferences * (len(point.per_query)) for point in self.points)

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        choice = self.choice
        return {
            "measure": self.measure,
            "queries": self.queries,
            "left_out": self.left_out,
            "points": [_point_json(point) for point in self.points],
            "frontier": {
                "inferences": frontier(self.points),
                "latency": frontier(self.points, "latency"),
            },
            "budget": None if self.budget is None else str(self.budget),
            "choice": None
            if choice is None
            else {
                "point": choice.number,
                "setting": self.points[choice.number].setting,
                "interval": list(choice.interval),
                "share": {str(number): share for number, share in choice.share.items()},
                "within_noise": choice.within_noise,
                "thrift": choice.thrift,
            },
            "work": {**self.work._asdict(), "largest": round(self.largest), "alone": round(self.alone)},
            "untried": self.untried,
            "rounds": [each._asdict() for each in self.rounds],
            "timing": None
            if self.timing is None
            else {
                "queries": self.timing.queries,
                "warm_up": self.timing.warm_up,
                "machine": self.timing.machine,
                "models": self.timing.models,
                "protocol": str(self.timing),
            },
        }


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "setting": point.setting,
        "pipeline": point.pipeline,
        "value": point.value,
        "inferences": point.inferences,
        "p50_ms": point.latency and point.latency.p50,
        "p95_ms": point.latency and point.latency.p95,
        "dropped_after": point.dropped_after,
        "ceiling": point.ceiling and point.ceiling._asdict(),
        "per_query": point.per_query,
    }


def _unseen(what: str, of: str, number: int) -> AbstractContextManager[Callable[[int], object]]:
    return nullcontext(lambda more: None)


def trade_off(
    candidates: Sequence[Candidate],
    queries: Iterable[Query],
    qrels: Qrels,
    measure: str = "nDCG@10",
    *,
    search: Search = "grid",
    budget: Budget | None = None,
    timed: int = TIMED,
    first: int | None = None,
    alpha: float = ALPHA,
    seed: int = 0,
    watch: Watch = _unseen,
) -> Tradeoff:
    """Measure the settings of a pipeline, and choose the best within a budget.

    With `search="halving"` settings that are clearly worse are dropped before they are tried on all queries;
    the first round uses `first` queries. `timed` queries are timed; with 0, none. Queries without a relevant
    document do not count.

    >>> import tempfile
    >>> from tamis import Document, Index
    >>> from tamis.evaluate.candidates import candidates
    >>> documents = [Document("d1", "sieve sieve"), Document("d2", "sieve and a long tail of words")]
    >>> index = Index.build(documents, tempfile.mkdtemp() + "/idx")
    >>> found = trade_off(candidates("bm25(b={b})", {"b": [0.0, 1.0]}, index), [Query("q", "sieve")],
    ...     {"q": {"d1": 1}}, "RR")
    >>> [(point.setting, point.value, point.inferences) for point in found.points]
    [({'b': 0.0}, 1.0, 0.0), ({'b': 1.0}, 1.0, 0.0)]
    """
    (parsed,) = parse_measures([measure])
    check_seed(seed)
    judged = with_relevant(qrels)
    asked = [query for query in queries if query.id in judged]
    _check(candidates, asked, budget, timed)
    if search == "halving":
        round_ends(len(asked), first)  # raise its errors before the timing
    sweep = Sweep([each.stage for each in candidates], [each.timed or each.stage for each in candidates])
    wanted = list(range(len(candidates)))
    latencies: dict[int, Latency] = {}
    if search == "halving" and budget is not None and budget.kind == "latency":
        latencies = _timed(sweep, asked, timed, wanted, seed, watch)
        # the other settings are not scored
        wanted = [number for number in wanted if latencies[number].p95 <= budget.limit] or wanted
    before = sweep.work

    best: dict[int, dict[str, float]] = {}  # of settings with short lists, by query
    longest: dict[int, int] = {}

    def attempt(some: Sequence[Query], numbers: Sequence[int]) -> Mapping[int, Tried]:
        grades = {query.id: judged[query.id] for query in some}
        found = {}
        with watch("Scoring", "settings", len(numbers)) as advance:
            for number, run, inferences in sweep.score(some, numbers, progress=advance):
                per_query = values([parsed], grades, run, "nonrelevant", "k")[str(parsed)]
                found[number] = Tried(per_query, inferences)
                longest[number] = max(longest.get(number, 0), *map(len, run.values()))
                if longest[number] < cutoff(parsed) < ALL:
                    ideal = {qid: ideally(ranking, grades[qid]) for qid, ranking in run.items()}
                    of_ideal = values([parsed], grades, ideal, "nonrelevant", "k")[str(parsed)]
                    best.setdefault(number, {}).update(of_ideal)
        return found

    rounds: list[Round] = []
    if search == "halving":
        most = budget.limit if budget is not None and budget.kind == "inferences" else np.inf
        seen, rounds = halve(
            asked, wanted, attempt, most_inferences=most, first=first, alpha=alpha, seed=seed
        )
    else:
        tried = attempt(asked, wanted)
        seen = {number: Seen(dict(each.values), each.inferences) for number, each in tried.items()}
    work = Work(*(after - then for after, then in zip(sweep.work, before, strict=True)))
    left = [number for number, each in seen.items() if each.dropped_after is None]
    if timed and not latencies and left:
        latencies = _timed(sweep, asked, timed, left, seed, watch)
    points = [
        _point(
            candidates[number],
            parsed,
            each,
            latencies.get(number),
            Ceiling(longest[number], over_queries(parsed, best[number].values()))
            if longest[number] < cutoff(parsed) < ALL
            else None,
        )
        for number, each in sorted(seen.items())
    ]
    given = {query.id for query in asked}
    return Tradeoff(
        measure=str(parsed),
        queries=len(asked),
        points=points,
        names=list(dict.fromkeys(name for candidate in candidates for name in candidate.setting)),
        work=work,
        rounds=rounds,
        timing=_timing(candidates, min(timed, len(asked))) if latencies else None,
        budget=budget,
        choice=choose(points, budget, kind=_kind(points), alpha=alpha, seed=seed),
        left_out=[qid for qid in judged if qid not in given],
        untried=[each.setting for number, each in enumerate(candidates) if number not in seen],
        alpha=alpha,
    )


def _check(
    candidates: Sequence[Candidate], queries: Sequence[Query], budget: Budget | None, timed: int
) -> None:
    if not candidates:
        raise InputError("no setting to try", remedy="give some")
    if not queries:
        raise InputError(
            "no query has a relevant document", remedy="check that queries and judgments have the same ids"
        )
    if budget is not None and budget.kind == "latency" and not timed:
        raise InputError(
            "a time budget, and no query is timed", remedy="time some queries, or set a budget of inferences"
        )


def ideally(ranking: Ranking, grades: Mapping[str, int]) -> Ranking:
    """The documents of a ranking in the best order.

    >>> ideally(Ranking(Query("q", ""), ("d1", "d2"), np.array([2.0, 1.0])), {"d2": 1}).ids
    ('d2', 'd1')
    """
    ids = tuple(sorted(ranking.ids, key=lambda doc_id: -grades.get(doc_id, 0)))
    return replace(ranking, ids=ids, scores=np.arange(len(ids), 0, -1.0))


def _point(
    candidate: Candidate, measure: Any, seen: Seen, latency: Latency | None, ceiling: Ceiling | None
) -> Point:
    return Point(
        candidate.setting,
        repr(candidate.stage),
        over_queries(measure, seen.values.values()),
        seen.values,
        seen.inferences / len(seen.values),
        latency,
        seen.dropped_after,
        ceiling,
    )


def _kind(points: Sequence[Point]) -> Cost:
    timed = any(point.latency for point in points)
    return "latency" if timed and not any(point.inferences for point in points) else "inferences"


def _timed(
    sweep: Sweep, queries: Sequence[Query], number: int, only: Iterable[int], seed: int, watch: Watch
) -> dict[int, Latency]:
    some = seeded(seed).choice(len(queries), min(number, len(queries)), replace=False)
    with watch("Timing", "queries", len(some)) as advance:
        seconds = sweep.time([queries[place] for place in some.tolist()], only, progress=advance)
    return {each: Latency.of(taken) for each, taken in seconds.items()}


def _timing(candidates: Sequence[Candidate], queries: int) -> Timing:
    models = dict.fromkeys(
        f"{model.scorer.model} by {model.description}"
        for candidate in candidates
        for model in rerankers(candidate.stage)
    )
    machine = f"{platform.system()} on {platform.machine()}, Python {platform.python_version()}"
    given = any(part.found_before for each in candidates for part in walk(each.stage))
    return Timing(queries, WARM_UP, machine, list(models), given)


def described(setting: Setting) -> str:
    """
    >>> described({"k0": 100, "aggregate": "sum", "m": None})
    'k0=100, aggregate=sum, m=none'
    """
    return ", ".join(f"{name}={spelled(value)}" for name, value in setting.items())


def cells(setting: Setting, names: Sequence[str]) -> list[str]:
    """The values of these parameters, with dashes for those that the setting does not have.

    >>> cells({"k1": 0, "m": None}, ["k1", "m", "aggregate"])
    ['0', 'none', '–']
    """
    return [spelled(setting[name]) if name in setting else "–" for name in names]


def milliseconds(value: float) -> str:
    """
    >>> milliseconds(0.3512), milliseconds(1234.5)
    ('0.35', '1,234')
    """
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
