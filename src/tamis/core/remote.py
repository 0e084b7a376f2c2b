"""A pipeline on a cluster: what searches works here, the rerankers after that in workers.

    bm25 % 100    >>  mono % 50 >> duo    >>  rm3 % 100
    first: here       in workers              last: here

The middle is the first of the pipeline's stages with a model that need no index, and those that follow it up
to one that does. Workers get rankings with the texts of their candidates, so they need neither the index nor
a file of ours, and give back ids, scores and evidence. A worker makes its stages of the printed expression.

What a ranking depends on is the same here and there: a worker says what its models are (`Stage.resources`),
so that journals, manifests and fingerprints are those of a run on one machine, and one that has another model
than the others is an error.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError, quoted, some
from tamis.core.cluster import Cluster, Done, WorkerLost, Workers
from tamis.core.language import Node, calls
from tamis.core.model_stage import ModelStage
from tamis.core.options import Kind, Names, parameters_of, values_of
from tamis.core.plan import rerankers, walk, work_of
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking
from tamis.core.registry import build, declared, is_known, role_of
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Role, Stage, TopK, applied
from tamis.text.analyze import Analyzer, get_analyzer

# -- which stages
# ------------------------------------------------------------------------------------------------------------


class Division(NamedTuple):
    """The stages of a pipeline: those before the workers', the workers', and those after."""

    first: list[Stage]
    middle: list[Stage]
    last: list[Stage]


def divided(stages: Sequence[Stage]) -> Division:
    """Which stages work where.

    >>> from tamis.core.registry import build
    >>> divided(build("normalise >> mono % 50 >> interpolate(duo) >> rm3 % 5 >> mono").stages)
    Division(first=[normalise], middle=[mono % 50, interpolate(duo)], last=[rm3 % 5, mono])
    """
    start = next((n for n, each in enumerate(stages) if rerankers(each) and portable(each)), None)
    if start is None:
        start = next((n for n, each in enumerate(stages) if portable(each)), len(stages))
    stop = start
    while stop < len(stages) and portable(stages[stop]):
        stop += 1
    return Division([*stages[:start]], [*stages[start:stop]], [*stages[stop:]])


def portable(stage: Stage) -> bool:
    """Whether a stage can work without the index, in a process that knows no more of it than its expression.

    >>> from tamis.core.registry import build
    >>> [portable(build(text)) for text in ("mono % 50", "rm3", "maxp(mono, choose=bm25, passages=3)")]
    [True, False, False]
    """
    parts = [each for each in walk(stage) if not isinstance(each, TopK | Pipeline)]
    own = all(is_known(each.name) and type(each) is declared(each.name) for each in parts)
    return own and not any(map(_needs_more, parts)) and not any(map(_searches, calls(stage.expression)))


def _needs_more(stage: Stage) -> bool:
    """Whether a stage has an index, or a function of the program that made it."""
    if getattr(stage, "index", None) is not None or stage.role is Role.FINDS:
        return True
    return any(each is not None for each in values_of(stage, Kind.PYTHON))


def _searches(call: Any) -> bool:
    """Whether it is a model of the first stage: as an option it takes its statistics from the index."""
    return is_known(call.name) and role_of(call.name) is Role.FINDS


def _read_at_most(stages: Sequence[Stage]) -> int | None:
    """How many of the first candidates these stages read, if that is known: the others stay below them."""
    depths = []
    for stage in stages:
        own = stage.stage if isinstance(stage, TopK) else stage
        if not isinstance(own, ModelStage) or own.top_option is None:
            return None
        depths.append(int(getattr(own, own.top_option)))
    return max(depths)


# -- what is sent
# ------------------------------------------------------------------------------------------------------------


class SentTexts:
    """The texts of a ranking's candidates, by the ids that it has for them, and the name of what makes terms
    of them.

    >>> SentTexts(["d1"], [Document("d1", "a sieve")]).document("d1").text
    'a sieve'
    """

    def __init__(self, ids: Sequence[str], documents: Sequence[Document], analyzer: str = "english") -> None:
        self._documents = dict(zip(ids, documents, strict=True))
        self._analyzer = analyzer

    @property
    def analyzer(self) -> Analyzer:
        return get_analyzer(self._analyzer)

    def document(self, doc_id: str) -> Document:
        try:
            return self._documents[doc_id]
        except KeyError:
            problem = f"the text of {quoted(doc_id)} was not sent to the worker"
            raise UnknownDocumentError(problem, remedy="run this pipeline on one machine") from None


def sent(ranking: Ranking, depth: int | None = None) -> Ranking:
    """A ranking with the texts of its first candidates in place of where they come from."""
    if ranking.texts is None:
        return replace(ranking, origin=None)
    read = ranking if depth is None else ranking.head(depth)
    analyzer = getattr(getattr(ranking.texts, "analyzer", None), "name", "english")
    return replace(ranking, texts=SentTexts(read.ids, read.documents(), analyzer), origin=None)


def returned(ranking: Ranking) -> Ranking:
    """A ranking without its texts, which are where it came from."""
    return replace(ranking, texts=None, origin=None)


class Answer(NamedTuple):
    """What a worker gives back: the rankings, what its stages depend on, and of its models how they run and
    what they have done for these rankings."""

    rankings: list[Ranking]
    resources: list[str]
    models: list[str]
    tallies: list[Any]


@dataclass(frozen=True)
class Reranking:
    """The job: stages as they are printed, each with how its models are run; where they were built, and
    which files and folders they name there."""

    stages: tuple[tuple[str, Runtime], ...]
    folder: str
    named: tuple[str, ...] = ()

    @classmethod
    def of(cls, stages: Sequence[Stage]) -> Reranking:
        """
        >>> from tamis.core.registry import build
        >>> Reranking.of([build("mono % 50")]).stages[0][0]
        'mono % 50'
        """
        named = (str(path.resolve()) for stage in stages for path in _paths(stage.expression))
        built = tuple((str(stage.expression), _runtime(stage)) for stage in stages)
        return cls(built, str(Path.cwd()), tuple(dict.fromkeys(named)))

    @property
    def uses_gpu(self) -> bool:
        return any(runtime.device != "cpu" for _, runtime in self.stages)

    def start(self, cores: int) -> Callable[[Sequence[Ranking]], Answer]:
        """What a worker does with rankings; of none it only says what it has."""
        for path in self.named:
            if not Path(path).exists():
                raise InputError(
                    f"the worker {platform.node()} has no {path}",
                    remedy="copy it there, use a folder that all machines share, or a bundled model",
                )
        if self.named and str(Path.cwd()) != self.folder and Path(self.folder).is_dir():
            os.chdir(self.folder)  # names may be relative to it
        pool = ModelPool()
        stages = [
            build(text, runtime=replace(runtime, workers=cores, pool=pool)) for text, runtime in self.stages
        ]
        models = [model for stage in stages for model in rerankers(stage)]
        for stage in stages:
            stage.prepare()

        def rerank(rankings: Sequence[Ranking]) -> Answer:
            current = [replace(each) for each in rankings]
            for stage in stages if current else ():
                current = applied(stage, current)
            tallies = [model.tally for model in models]
            for model in models:
                model.tally = type(model.tally)()
            return Answer(
                [returned(each) for each in current],
                [stage.resources for stage in stages],
                [model.description for model in models],
                tallies,
            )

        return rerank


def _runtime(stage: Stage) -> Runtime:
    """How a stage's models were built, as far as it is not printed."""
    for model in rerankers(stage):
        path = getattr(model.cache, "path", None)
        cache = None if path is None else Path(path).resolve()
        return Runtime(device=getattr(model.scorer, "device", "auto"), cache=cache)
    return Runtime()


def _paths(expression: Node) -> Iterator[Path]:
    """The files and folders that an expression names, which are here."""
    for call in calls(expression):
        known = parameters_of(declared(call.name))
        for name, value in call.options:
            may_be = known[name].takes_text and known[name].names not in (Names.REVISION, Names.NOTHING)
            if may_be and isinstance(value, str) and _is_there(Path(value)):
                yield Path(value)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that is no path
        return False


# -- what is done with it
# ------------------------------------------------------------------------------------------------------------


class Elsewhere(Stage):
    """A stage that works in workers, as journals and fingerprints see it: what it depends on, they say."""

    def __init__(self, stage: Stage, resources: str) -> None:
        self.stage, self._resources = stage, resources

    @property
    def expression(self) -> Node:
        return self.stage.expression

    @property
    def parts(self) -> Sequence[Stage]:
        return [self.stage]

    @property
    def resources(self) -> str:
        return self._resources

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return self.stage.apply(rankings, depth)


class Remote:
    """A pipeline whose rerankers are in workers. What they have done is added to the tallies of the stages
    here."""

    def __init__(self, stages: Sequence[Stage], on: Cluster, workers: Workers) -> None:
        self._first, self._middle, self._last = divided(stages)
        self._on, self._workers = on, workers
        self._depth = _read_at_most(self._middle)
        self._models = [model for stage in self._middle for model in rerankers(stage)]
        self._done: dict[str, list[float]] = {}  # of each worker batches, queries and seconds
        self._restarts = 0
        (answer,) = workers.map([[]])
        self._known: Answer = answer.value
        self.stage = Pipeline(
            [*self._first, *map(Elsewhere, self._middle, self._known.resources), *self._last]
        )

    def prepare(self) -> None:
        for stage in (*self._first, *self._last):
            stage.prepare()

    def batches(self, rankings: Sequence[Ranking], at_once: int) -> Iterator[tuple[list[Ranking], float]]:
        """As `tamis.core.executor.batches`; here the seconds are those since the batch before."""
        under_way: deque[list[Ranking]] = deque()

        def tasks() -> Iterator[list[Ranking]]:
            for start in range(0, len(rankings), at_once):
                found = _through(self._first, rankings[start : start + at_once])
                under_way.append(found)
                yield [sent(each, self._depth) for each in found]

        since = time.perf_counter()
        answers = self._workers.map(tasks())
        while True:
            try:
                done = next(answers, None)
            except WorkerLost as error:
                queries = some(each.query.id for each in under_way[0])
                problem = f"{error.problem} by the batch of the queries {queries}"
                raise WorkerLost(problem, remedy=error.remedy) from error
            if done is None:
                return
            before = under_way.popleft()
            batch = _through(self._last, [*map(_received, before, self._answer(done, len(before)))])
            now = time.perf_counter()
            yield batch, now - since
            since = now

    def _answer(self, done: Done, queries: int) -> list[Ranking]:
        answer: Answer = done.value
        for stage, own, first in zip(self._middle, answer.resources, self._known.resources, strict=True):
            if own != first:
                raise InputError(
                    f"the worker {done.worker} has another model behind {stage!r} than the first worker",
                    remedy="use one model, device and precision on all machines",
                )
        for model, tally in zip(self._models, answer.tallies, strict=True):
            model.tally += tally
        known = self._done.setdefault(done.worker, [0, 0, 0.0])
        self._done[done.worker] = [known[0] + 1, known[1] + queries, known[2] + done.seconds]
        self._restarts += done.attempts - 1
        return answer.rankings

    def about(self) -> dict[str, Any]:
        """What the manifest of a run says of it."""
        count = len(self._done)
        place = f"in {count} worker{'' if count == 1 else 's'} of {self._on}"
        described = zip(self._models, self._known.models, strict=True)
        runs_on = {id(model): f"{text}, {place}" for model, text in described}
        models = [model for stage in (*self._first, *self._middle, *self._last) for model in rerankers(stage)]
        return {
            "cluster": {
                "on": str(self._on),
                "stages": repr(Pipeline(self._middle)),
                "restarts": self._restarts,
                "workers": [
                    {
                        "worker": worker,
                        "batches": batches,
                        "queries": queries,
                        "seconds": round(seconds, 3),
                        "queries_per_second": round(queries / seconds, 3) if seconds else None,
                    }
                    for worker, (batches, queries, seconds) in sorted(self._done.items())
                ],
            },
            "models": [work_of(model, runs_on.get(id(model))) for model in models],
        }


def _through(stages: Sequence[Stage], rankings: Sequence[Ranking]) -> list[Ranking]:
    current = list(rankings)
    for stage in stages:
        current = applied(stage, current)
    return current


def _received(before: Ranking, after: Ranking) -> Ranking:
    """What workers have made of a ranking, with where its texts come from."""
    return replace(before, ids=after.ids, scores=after.scores, kind=after.kind, evidence=after.evidence)


@contextmanager
def remote(stages: Sequence[Stage], on: Cluster) -> Iterator[Remote]:
    """A pipeline on a cluster; one that it cannot do, and a cache that it cannot use, is an error."""
    pipeline, middle = Pipeline(stages), divided(stages).middle
    if not middle:
        raise InputError(
            f"no stage of {pipeline} can work on a cluster: all need the index",
            remedy="run it on this machine, or add a reranker, as in bm25 % 100 >> mono",
        )
    job = Reranking.of(middle)
    if not on.on_this_machine and any(runtime.cache is not None for _, runtime in job.stages):
        problem = "a cache of scores is a file of this machine, which the workers of a cluster do not share"
        raise InputError(problem, remedy="leave out the cache: finished queries are in the journal")
    with on.start(job) as workers:
        yield Remote(stages, on, workers)
