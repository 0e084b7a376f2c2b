"""How pipelines are carried out, for everyone: `run`, `explain`, the server, `tune` and `tradeoff`.

A pipeline is its stages one after the other (`steps`). Queries go through it in batches, which `run` writes
to a journal. Many pipelines over the same queries are one tree (`PrefixTree`): those that begin alike share
the stages that they begin with, whatever they keep of a ranking, and stages beside each other share what they
have in common inside (`Stage.sharing`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tamis.core.cluster import Cluster
from tamis.core.journal import Job, Journal, Record, digest
from tamis.core.language import Call, Node
from tamis.core.ledger import Ledger, ledger, record
from tamis.core.ranking import Ranking, Run
from tamis.core.stage import Pipeline, Stage, TopK, applied, through

State = TypeVar("State")
Made = TypeVar("Made")
Progress = Callable[[int], object]


# -- one pipeline
# ------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One stage of a pipeline as it stands there, and apart: the stage, and how many candidates it keeps."""

    whole: Stage
    stage: Stage
    k: int | None


def steps(pipeline: Stage) -> list[Step]:
    """The stages of a pipeline, in their order.

    >>> from tamis.core.registry import build
    >>> [(step.stage, step.k) for step in steps(build("rm3 >> normalise % 5"))]
    [(rm3, None), (normalise, 5)]
    """
    return [
        Step(stage, stage.stage, stage.k) if isinstance(stage, TopK) else Step(stage, stage, None)
        for stage in _stages(pipeline)
    ]


def each_stage(pipeline: Stage, ranking: Ranking) -> list[tuple[Stage, Ranking]]:
    """A query's ranking after each stage."""
    return [(stage, found) for stage, (found,) in through(list(_stages(pipeline)), [ranking])]


def batches(stage: Stage, rankings: Sequence[Ranking], at_once: int) -> Iterator[tuple[list[Ranking], float]]:
    """What a stage makes of so many rankings at a time, and the seconds that each batch takes."""
    for start in range(0, len(rankings), at_once):
        started = time.perf_counter()
        batch = applied(stage, rankings[start : start + at_once])
        yield batch, time.perf_counter() - started


def run(
    stage: Stage,
    waiting: Sequence[Ranking],
    *,
    progress: Progress | None = None,
    journal: str | Path | None = None,
    on: Cluster | None = None,
) -> Run:
    """See `Stage.run`."""
    from tamis.base.version import __version__

    with _placed(stage, on) as place, _written(place.stage, journal, waiting) as written:
        # what a journal has are the same queries, but for their conditions
        done = [
            stage.attach(replace(ranking, query=asked.query))
            for ranking, asked in zip(written.done, waiting, strict=False)
        ]
        resumed = len(done)
        if progress and resumed:
            progress(resumed)
        if resumed < len(waiting):
            place.prepare()
        for batch, seconds in place.batches(waiting[resumed:], written.at_once):
            written.append(batch, seconds)
            done += batch
            if progress:
                progress(len(batch))
        manifest = {
            "tamis": __version__,
            "pipeline": repr(stage),
            "fingerprint": place.stage.fingerprint,
            "queries": len(done),
            "seconds": round(written.seconds, 3),
        }
        return Run(done, manifest | ({"resumed": resumed} if resumed else {}) | place.about())


class Place(Protocol):
    """Where a pipeline works: here (`Here`), or partly in workers (`tamis.core.remote.Remote`)."""

    @property
    def stage(self) -> Stage:
        """The pipeline, with its fingerprint."""
        ...

    def prepare(self) -> None: ...

    def batches(self, rankings: Sequence[Ranking], at_once: int) -> Iterator[tuple[list[Ranking], float]]:
        """What becomes of so many rankings at a time, in their order, and the seconds of each batch."""
        ...

    def about(self) -> dict[str, Any]:
        """What the manifest of a run says of it."""
        ...


class Here(NamedTuple):
    """A pipeline in this process."""

    stage: Stage

    def prepare(self) -> None:
        self.stage.prepare()

    def batches(self, rankings: Sequence[Ranking], at_once: int) -> Iterator[tuple[list[Ranking], float]]:
        return batches(self.stage, rankings, at_once)

    def about(self) -> dict[str, Any]:
        return {}


def _placed(stage: Stage, on: Cluster | None) -> AbstractContextManager[Place]:
    if on is None:
        return nullcontext(Here(stage))
    from tamis.core.remote import remote  # which most programs never need

    return remote(list(_stages(stage)), on)


def _written(stage: Stage, journal: str | Path | None, waiting: Sequence[Ranking]) -> Record:
    if journal is None:
        return Record(stage.queries_at_once)
    stages = tuple((repr(each), each.fingerprint) for each in _stages(stage))
    queries = digest(ranking.query for ranking in waiting)
    job = Job(repr(stage), stage.fingerprint, stages, queries, len(waiting))
    return Journal(journal, job, at_once=stage.queries_at_once)


def _stages(stage: Stage) -> Iterator[Stage]:
    if not isinstance(stage, Pipeline):
        yield stage
        return
    for each in stage.stages:
        yield from _stages(each)


class Work(NamedTuple):
    """Inputs that models have read, and inputs whose scores were known."""

    inferences: int = 0
    cached: int = 0

    @classmethod
    def of(cls, entries: Ledger) -> Work:
        return cls(sum(each.inferences for _, each in entries), sum(each.cached for _, each in entries))

    @property
    def inputs(self) -> int:
        """What was asked for: alone, a stage would have inferred all of them."""
        return self.inferences + self.cached

    def plus(self, other: Work) -> Work:
        return Work(self.inferences + other.inferences, self.cached + other.cached)


def ranked(stage: Stage, rankings: Sequence[Ranking]) -> tuple[list[Ranking], Work]:
    """What a stage makes of all rankings, in batches, and what that took."""
    stage.prepare()
    with ledger() as entries:
        found = [each for batch, _ in batches(stage, rankings, stage.queries_at_once) for each in batch]
    return found, Work.of(entries)


# -- many pipelines
# ------------------------------------------------------------------------------------------------------------


class Branch(NamedTuple):
    """A stage of the tree as it is reached from the stages before it.

    `memo` and `notes` belong to all stages beside it, which get the same rankings: what was done for them,
    and what the one who walks the tree writes down.
    """

    stage: Stage
    key: str  # its fingerprint
    memo: Memo
    notes: dict[Hashable, Any]
    last: bool  # in all pipelines that have it here


class PrefixTree:
    """Pipelines as a tree of stages. Of stages with one fingerprint only the first is used, wherever it
    stands.

    A cut is a stage of its own where its stage ranks all its candidates anyhow (`Stage.uses_depth`).

    >>> from tamis.core.registry import build
    >>> tree = PrefixTree([build("normalise % 5 >> rm3"), build("normalise % 9")])
    >>> list(tree.walk("", lambda branch, before: f"{before} {branch.stage}"))
    [(0, ' normalise cut(k=5) rm3'), (1, ' normalise cut(k=9)')]
    """

    def __init__(self, pipelines: Sequence[Stage]) -> None:
        self._stages: dict[str, Stage] = {}
        self._paths: list[list[str]] = []
        for pipeline in pipelines:
            path = []
            for stage in _cuts_apart(pipeline):
                key = stage.fingerprint
                self._stages.setdefault(key, stage)
                path.append(key)
            self._paths.append(path)

    def prepare(self) -> None:
        """Prepare every stage."""
        for stage in self._stages.values():
            stage.prepare()

    def walk(
        self, start: State, advance: Callable[[Branch, State], State], only: Iterable[int] | None = None
    ) -> Iterator[tuple[int, State]]:
        """What each pipeline comes to, by its number, where `advance` is what becomes of a state in a stage.
        Of all pipelines, or of those with the numbers `only`; those that begin alike come together. Only the
        states of the stages that lead to the present one are held."""
        root = _Node()
        for number in range(len(self._paths)) if only is None else only:
            node = root
            for key in self._paths[number]:
                node = node.next.setdefault(key, _Node())
            node.ends.append(number)
        return self._follow(root, start, advance)

    def _follow(
        self, node: _Node, state: State, advance: Callable[[Branch, State], State]
    ) -> Iterator[tuple[int, State]]:
        for number in node.ends:
            yield number, state
        memo, notes = Memo(), dict[Hashable, Any]()
        for key, child in node.next.items():
            branch = Branch(self._stages[key], key, memo, notes, not child.next)
            yield from self._follow(child, advance(branch, state), advance)


@dataclass(slots=True)
class _Node:
    """What comes after a stage, by its fingerprint, and the pipelines that end with it."""

    ends: list[int] = field(default_factory=list)
    next: dict[str, _Node] = field(default_factory=dict)


class _Cut(Stage):
    """The first k candidates: `stage % k` apart from its stage."""

    uses_depth = False

    def __init__(self, k: int) -> None:
        self.k = k

    @property
    def expression(self) -> Node:
        return Call("cut", (), (("k", self.k),))

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [_cut(ranking, self.k) for ranking in rankings]


def _cut(ranking: Ranking, k: int) -> Ranking:
    """With the evidence of the candidates that are left, as a stage has it that is told of its depth."""
    head = ranking.head(k)
    if len(head.evidence) <= k:
        return head
    left = set(head.ids)
    return replace(head, evidence={id: spans for id, spans in head.evidence.items() if id in left})


def _cuts_apart(pipeline: Stage) -> Iterator[Stage]:
    for whole, stage, k in steps(pipeline):
        if k is None or stage.uses_depth:
            yield whole
        else:
            yield from (stage, _Cut(k))


# -- stages beside each other
# ------------------------------------------------------------------------------------------------------------


class Memo:
    """What was done for some rankings, for all stages that would do the same: see `Stage.sharing`."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[int, _Known[Any]]] = {}

    def ranked(self, stage: Stage) -> Stage:
        """A stage inside of another, ranking each ranking once, to any depth.

        >>> from tamis.core.registry import build
        >>> Memo().ranked(build("normalise"))
        normalise
        """
        key = "ranked", stage.fingerprint
        return self.once(stage, key, stage.sharing(self).apply, lambda ranking, found, depth: found)

    def once(
        self,
        stage: Stage,
        key: Hashable,
        work: Callable[[Sequence[Ranking]], Sequence[Made]],
        finish: Callable[[Ranking, Made, int | None], Ranking],
    ) -> Stage:
        """The stage, doing `work` once for each ranking, whoever asks with this `key`, and `finish` with what
        came of it each time. A ledger is told of work that is spared as of scores from a cache."""
        return _Once(stage, work, finish, self._known.setdefault(key, {}))


class _Known(NamedTuple, Generic[Made]):
    """What was made of a ranking, which is held so that its identity stays its own, and what that took."""

    ranking: Ranking
    made: Made
    inputs: int


class _Once(Stage, Generic[Made]):
    """See `Memo.once`."""

    def __init__(
        self,
        stage: Stage,
        work: Callable[[Sequence[Ranking]], Sequence[Made]],
        finish: Callable[[Ranking, Made, int | None], Ranking],
        known: dict[int, _Known[Made]],
    ) -> None:
        self.stage = stage
        self._work, self._finish, self._known = work, finish, known

    @property
    def expression(self) -> Node:
        return self.stage.expression

    @property
    def parts(self) -> Sequence[Stage]:
        return [self.stage]

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        old = [self._known[id(ranking)] for ranking in rankings if id(ranking) in self._known]
        new = [ranking for ranking in rankings if id(ranking) not in self._known]
        record((known.ranking.query, Work(cached=known.inputs)) for known in old)
        if new:
            with ledger() as entries:
                made = self._work(new)
            for ranking, each, inputs in zip(new, made, _inputs_of(new, entries), strict=True):
                self._known[id(ranking)] = _Known(ranking, each, inputs)
        return [self._finish(ranking, self._known[id(ranking)].made, depth) for ranking in rankings]


def _inputs_of(rankings: Sequence[Ranking], entries: Ledger) -> list[int]:
    """How many inputs each ranking took; those of another query, which a stage has made, count as the
    first's."""
    # by the object: nothing keeps two queries from having one id
    place = {id(ranking.query): number for number, ranking in reversed(list(enumerate(rankings)))}
    inputs = [0] * len(rankings)
    for query, each in entries:
        inputs[place.get(id(query), 0)] += each.inferences + each.cached
    return inputs
