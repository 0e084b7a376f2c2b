"""A pipeline on a cluster: stages that search run here, the rerankers after them in workers.

    bm25 % 100    >>  mono % 50 >> duo    >>  rm3 % 100
    first: here       middle: in workers      last: here

The middle starts with the first stage that has a model and needs no index, and ends before the next stage
that needs the index. Workers receive rankings with the texts of their candidates, so they need neither the
index nor a shared disk, and return ids, scores and evidence. A worker builds its stages from their printed
expressions.

Workers report what their models are (`Stage.resources`). So journals, manifests and fingerprints are those of
a run on one machine, and a worker with a different model than the others is an error.
"""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tamis.base.documents import Document
from tamis.base.errors import InputError, UnknownDocumentError, quoted, some
from tamis.core.cluster import Cluster, Done, WorkerLost, Workers
from tamis.core.language import Node, calls
from tamis.core.model_stage import ModelStage
from tamis.core.options import Kind, Names, parameters_of, values_of
from tamis.core.plan import rerankers, walk, work_done, work_of
from tamis.core.pool import ModelPool
from tamis.core.ranking import Ranking
from tamis.core.registry import build, declared, is_known, role_of
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Role, Stage, TopK
from tamis.text.analyze import Analyzer, get_analyzer

# -- which stages
# ------------------------------------------------------------------------------------------------------------


class Division(NamedTuple):
    """The stages of a pipeline: those in workers, and those before and after them."""

    first: list[Stage]
    middle: list[Stage]
    last: list[Stage]


def divided(stages: Sequence[Stage]) -> Division:
    """Where each stage runs.

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
    """Whether a stage can run without the index, in a process that builds it from its expression.

    >>> from tamis.core.registry import build
    >>> [portable(build(text)) for text in ("mono % 50", "rm3", "maxp(mono, choose=bm25, passages=3)")]
    [True, False, False]
    """
    parts = [each for each in walk(stage) if not isinstance(each, TopK | Pipeline)]
    known = all(is_known(each.name) and type(each) is declared(each.name) for each in parts)
    return known and not any(map(_needs_more, parts)) and not any(map(_searches, calls(stage.expression)))


def _needs_more(stage: Stage) -> bool:
    """Whether a stage uses the index or a Python function, which its expression does not contain."""
    if getattr(stage, "index", None) is not None or stage.role is Role.FINDS:
        return True
    return any(each is not None for each in values_of(stage, Kind.PYTHON))


def _searches(call: Any) -> bool:
    """Whether a call is a first stage; as an option, it takes statistics from the index."""
    return is_known(call.name) and role_of(call.name) is Role.FINDS


def _read_at_most(stages: Sequence[Stage]) -> int | None:
    """How many of the first candidates these stages read at most, or None if they may read all."""
    depths = []
    for stage in stages:
        inner = stage.stage if isinstance(stage, TopK) else stage
        if not isinstance(inner, ModelStage) or inner.top_option is None:
            return None
        depths.append(int(getattr(inner, inner.top_option)))
    return max(depths)


# -- what is sent
# ------------------------------------------------------------------------------------------------------------


class SentTexts:
    """The texts of a ranking's candidates, by their ids in the ranking, and the name of the index's analyzer.

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
    """A ranking as it is sent to workers: with the texts of its first candidates instead of the index."""
    if ranking.texts is None:
        return replace(ranking, origin=None)
    read = ranking if depth is None else ranking.head(depth)
    analyzer = getattr(getattr(ranking.texts, "analyzer", None), "name", "english")
    return replace(ranking, texts=SentTexts(read.ids, read.documents(), analyzer), origin=None)


def returned(ranking: Ranking) -> Ranking:
    """A ranking as workers return it: without the texts, which are known here."""
    return replace(ranking, texts=None, origin=None)


class Answer(NamedTuple):
    """What a worker returns: the rankings, the resources of each stage, and for each model a description of
    how it runs and a tally of its work for these rankings."""

    rankings: list[Ranking]
    resources: list[str]
    models: list[str]
    tallies: list[Any]


@dataclass(frozen=True)
class Reranking:
    """The job: the expression of each stage with the runtime of its models, the folder in which they were
    built, and the files and folders that they name."""

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
        """The function that reranks; without rankings it only reports the models."""
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
        pipeline = Pipeline(stages)
        models = rerankers(pipeline)
        pipeline.prepare()

        def rerank(rankings: Sequence[Ranking]) -> Answer:
            # `replace` makes the scores read-only again, which pickling forgets
            read = [replace(each) for each in rankings]
            found = pipeline.apply(read) if read else []
            tallies = [model.tally for model in models]
            for model in models:
                model.tally = type(model.tally)()
            return Answer(
                [returned(each) for each in found],
                [stage.resources for stage in stages],
                [model.description for model in models],
                tallies,
            )

        return rerank


def _runtime(stage: Stage) -> Runtime:
    """The runtime of a stage's models, which its expression does not contain."""
    for model in rerankers(stage):
        path = getattr(model.cache, "path", None)
        cache = None if path is None else Path(path).resolve()
        return Runtime(device=getattr(model.scorer, "device", "auto"), cache=cache)
    return Runtime()


def _paths(expression: Node) -> Iterator[Path]:
    """The files and folders that an expression names and that exist here."""
    for call in calls(expression):
        known = parameters_of(declared(call.name))
        for name, value in call.options:
            may_be = known[name].takes_text and known[name].names not in (Names.REVISION, Names.NOTHING)
            if may_be and isinstance(value, str) and _is_there(Path(value)):
                yield Path(value)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a path
        return False


# -- the pipeline
# ------------------------------------------------------------------------------------------------------------


class Elsewhere(Stage):
    """A stage that runs in workers, for journals and fingerprints: the workers report its resources."""

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


@dataclass
class WorkerTally:
    """What a worker has done."""

    batches: int = 0
    queries: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """
        >>> WorkerTally(batches=2, queries=16, seconds=4.0).as_dict()
        {'batches': 2, 'queries': 16, 'seconds': 4.0, 'queries_per_second': 4.0}
        """
        speed = round(self.queries / self.seconds, 3) if self.seconds else None
        return asdict(self) | {"seconds": round(self.seconds, 3), "queries_per_second": speed}


class Remote:
    """A pipeline whose rerankers run in workers. The work that they report is added to the tallies of the
    stages here."""

    def __init__(self, stages: Sequence[Stage], on: Cluster, workers: Workers) -> None:
        first, middle, last = divided(stages)
        self._first, self._middle, self._last = Pipeline(first), Pipeline(middle), Pipeline(last)
        self._on, self._workers = on, workers
        self._depth = _read_at_most(middle)
        self._tallies: defaultdict[str, WorkerTally] = defaultdict(WorkerTally)  # by the worker's name
        self._restarts = 0
        (done,) = workers.map([[]])
        self._reported: Answer = done.value
        self.stage = Pipeline([*first, *map(Elsewhere, middle, self._reported.resources), *last])

    def prepare(self) -> None:
        self._first.prepare()
        self._last.prepare()

    def batches(self, rankings: Sequence[Ranking], at_once: int) -> Iterator[tuple[list[Ranking], float]]:
        """As `tamis.core.executor.batches`; the seconds are those since the previous batch."""
        under_way: deque[list[Ranking]] = deque()

        def tasks() -> Iterator[list[Ranking]]:
            for start in range(0, len(rankings), at_once):
                found = self._first.apply(rankings[start : start + at_once])
                under_way.append(found)
                yield [sent(each, self._depth) for each in found]

        since = time.perf_counter()
        results = self._workers.map(tasks())
        while True:
            try:
                done = next(results, None)
            except WorkerLost as error:
                queries = some(each.query.id for each in under_way[0])
                problem = f"{error.problem} by the batch of the queries {queries}"
                raise WorkerLost(problem, remedy=error.remedy) from error
            if done is None:
                return
            before = under_way.popleft()
            reranked = map(_received, before, self._rankings(done, len(before)))
            batch = self._last.apply(list(reranked))
            now = time.perf_counter()
            yield batch, now - since
            since = now

    def _rankings(self, done: Done, queries: int) -> list[Ranking]:
        """The rankings of a finished task, after a check that the worker has the same models as the first."""
        answer: Answer = done.value
        pairs = zip(answer.resources, self._reported.resources, strict=True)
        for stage, (resources, expected) in zip(self._middle.stages, pairs, strict=True):
            if resources != expected:
                raise InputError(
                    f"the worker {done.worker} has another model behind {stage!r} than the first worker",
                    remedy="use one model, device and precision on all machines",
                )
        for model, tally in zip(rerankers(self._middle), answer.tallies, strict=True):
            model.tally += tally
        total = self._tallies[done.worker]
        total.batches += 1
        total.queries += queries
        total.seconds += done.seconds
        self._restarts += done.attempts - 1
        return answer.rankings

    def about(self) -> dict[str, Any]:
        """What the manifest of a run says about the cluster and the models."""
        count = len(self._tallies)
        place = f"in {count} worker{'' if count == 1 else 's'} of {self._on}"
        remote_models = [
            work_of(model, f"{description}, {place}")
            for model, description in zip(rerankers(self._middle), self._reported.models, strict=True)
        ]
        return {
            "cluster": {
                "on": str(self._on),
                "stages": repr(self._middle),
                "restarts": self._restarts,
                "workers": [
                    {"worker": name, **tally.as_dict()} for name, tally in sorted(self._tallies.items())
                ],
            },
            "models": [*work_done(self._first), *remote_models, *work_done(self._last)],
        }


def _received(before: Ranking, after: Ranking) -> Ranking:
    """A ranking that workers have returned, with the source of its texts."""
    return replace(before, ids=after.ids, scores=after.scores, kind=after.kind, evidence=after.evidence)


@contextmanager
def remote(stages: Sequence[Stage], on: Cluster) -> Iterator[Remote]:
    """A pipeline on a cluster; an error if no stage can run there, or if workers cannot use the cache."""
    middle = divided(stages).middle
    if not middle:
        raise InputError(
            f"no stage of {Pipeline(stages)} can work on a cluster: all need the index",
            remedy="run it on this machine, or add a reranker, as in bm25 % 100 >> mono",
        )
    job = Reranking.of(middle)
    if not on.on_this_machine and any(runtime.cache is not None for _, runtime in job.stages):
        problem = "a score cache is a file of this machine, which the workers of a cluster do not share"
        raise InputError(problem, remedy="leave out the cache: finished queries are in the journal")
    with on.start(job) as workers:
        yield Remote(stages, on, workers)
