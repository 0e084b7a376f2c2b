"""Which pipelines a client may ask for, made ready over the newest commit of the index.

A request keeps the state of the index that it began with, whatever is committed meanwhile: every commit is an
`Index` of its own, with stages of its own. The models behind them are shared.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tamis.base.errors import ExpressionError, InputError, TamisError
from tamis.core.language import Call, Keep, Node, Then, calls, keep, parse, then
from tamis.core.plan import plan, rerankers, walk
from tamis.core.registry import SEARCHING, build, check_searches, searches
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Stage, TopK
from tamis.index.index import Index
from tamis.index.retriever import DEPTH
from tamis.infer.scorer import CrossEncoder, bundled_models
from tamis.rank.groupwise import NAME as GROUPWISE
from tamis.rank.groupwise import Groupwise
from tamis.rank.passage import PassageReranker
from tamis.rank.reranker import Reranker
from tamis.serve.bounds import check_stages
from tamis.serve.limits import Limits
from tamis.serve.models import Named, models_named, stage_of

_LOG = logging.getLogger("tamis.serve")
_REMEMBERED = 64  # pipelines that are kept built
_IN_MEMORY = 8  # models, beside those of the server's own pipelines
_LOOK_EVERY = 0.2  # seconds between looks at the index's manifest
#: Stages that do something with the scores that candidates come with.
ON_SCORES = frozenset({"interpolate", "normalise", "ltr", "groupwise"})


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a pipeline, ready to be carried out for several requests at once."""

    name: str
    expression: str
    stage: Stage  # without the cut, so that requests with different cuts can share a call
    key: str  # the same for stages that take the same time
    k: int | None
    models: tuple[Reranker, ...]

    def work(self, candidates: int) -> int:
        """What its time is in proportion to: the inputs that its models read."""
        return sum(model.inferences(candidates) for model in self.models) or 1


@dataclass(frozen=True, slots=True)
class Built:
    """A pipeline over one commit of the index."""

    index: Index
    stage: Stage
    steps: tuple[Step, ...]

    @property
    def expression(self) -> str:
        return repr(self.stage)


class Pipelines:
    """Turns what clients write into stages, within limits, and follows the index."""

    def __init__(
        self,
        index: Index,
        default: str,
        runtime: Runtime | None = None,
        limits: Limits | None = None,
        models: Iterable[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        self._runtime = runtime or Runtime()
        self._default = parse(default)
        self._encoders: OrderedDict[tuple[object, ...], CrossEncoder] = OrderedDict()
        self._lock = threading.Lock()
        self._index = index
        self._stamp = _stamp(index.path)
        self._looked = 0.0
        self._built: OrderedDict[tuple[str, bool], Built] = OrderedDict()
        self._own_built: dict[bool, Built] = {}  # of the pipelines that a request need not name
        self._pinned: set[tuple[object, ...]] = set()  # the encoders of those
        # whoever starts the server may name any model, and whoever asks it may name those
        own = build(self._default, index, self._runtime)
        _read_files(own)
        named = {(each.model, each.revision) for each in models_named(self._default)}
        named |= {(name, None) for name in (*bundled_models(), *models)}
        self._models = {each: stage_of(*each) for each in sorted(named, key=str)}
        self._whole_documents = any(map(_reads_all, rerankers(own)))
        self.reranking = _without_search(self._default) or Call("mono")

    @property
    def index(self) -> Index:
        """The newest commit that is taken up."""
        return self._index

    @property
    def models(self) -> dict[str, str]:
        """The models that a client may name, and their stages."""
        return {name: stage for (name, revision), stage in self._models.items() if revision is None}

    def outdated(self) -> bool:
        """Whether the index seems to have a new commit; cheap enough to ask at every request."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        return _stamp(self._index.path) != self._stamp

    def reload(self) -> bool:
        """Move to the newest commit; True if there was one. Where it cannot be read (a folder that is being
        replaced), or the server's own pipeline cannot run over it, the error is raised and the last commit
        stays."""
        with self._lock:
            stamp = _stamp(self._index.path)
            newest = copy.copy(self._index)  # requests at work keep the commit that they have
            moved = newest.refresh()
            self._stamp = stamp  # whatever comes of it: a commit is tried, and told of, once
            if moved:
                own = self._own_over(newest)
                self._index = newest
                self._built.clear()
                self._own_built = {True: own}
            return moved

    def _own_over(self, index: Index) -> Built:
        """The server's own pipeline over a commit. Where it cannot run, that is nothing that a client could
        mend: whoever changed the index is told, in the log."""
        try:
            return self._build(self._default, index)
        except TamisError as error:
            _LOG.error(
                "the index has changed, and %s cannot run over it (%s): its last state is served",
                self._default,
                error,
            )
            raise

    def known(self, expression: str | None, *, searching: bool) -> Built | None:
        """A pipeline that is built already, at once."""
        if expression is None:
            return self._own_built.get(searching)
        return self._built.get((expression, searching))

    def search(self, expression: str | None) -> Built:
        """The pipeline that a client asks for, over the index."""
        return self._get(expression, searching=True)

    def rerank(self, expression: str | None) -> Built:
        """The pipeline that a client asks for, over candidates of its own."""
        return self._get(expression, searching=False)

    def _get(self, expression: str | None, *, searching: bool) -> Built:
        with self._lock:
            if (known := self.known(expression, searching=searching)) is not None:
                return known
            if expression is None:
                node = self._default if searching else self.reranking
                built = self._own_built[searching] = self._build(node, self._index, searching=searching)
                return built
            built = self._build(parse(expression), self._index, searching=searching)
            self._built[expression, searching] = built
            if len(self._built) > _REMEMBERED:
                self._built.popitem(last=False)
            return built

    def _build(self, node: Node, index: Index, *, searching: bool = True) -> Built:
        found = searches(node)
        if found and not searching:
            raise ExpressionError(
                f"{found[0]} searches, and the candidates are given", remedy="leave it out of the pipeline"
            )
        if searching:
            check_searches(node)
        own = node in (self._default, self.reranking)
        node = self._within(node)
        for each in models_named(node):  # before stages are made of it, which might look at a path
            self._check_named(each)
        stage = build(node, index if searching else None, self._runtime)
        if not own:  # whoever starts the server may have more
            check_stages(stage)
        _read_files(stage)
        for model in rerankers(stage):
            self._check_passages(model)
            self._share(model, pin=own)
        if searching:
            self.check_inferences(stage, 0)
        return Built(index, stage, tuple(_steps(stage)))

    def check_inferences(self, stage: Stage, candidates: int) -> None:
        """Raise if so many candidates, or none before a search, may take more than the limit."""
        inferences = sum(int(step.inferences.sum()) for step in plan(stage, [candidates]))
        if inferences > self.limits.inferences:
            raise InputError(
                f"{stage} may take {inferences:,} inferences",
                remedy=f"rank fewer candidates: this server takes {self.limits.inferences:,} at most",
            )

    def _within(self, node: Node) -> Node:
        """The same within the limit of candidates: a search that names no number gets it."""
        most = self.limits.candidates
        if isinstance(node, Then):
            return then(*map(self._within, node.stages))
        if isinstance(node, Keep):
            if node.k > most:
                raise ExpressionError(
                    f"{node} keeps {node.k:,} candidates", remedy=f"this server keeps {most:,} at most"
                )
            return keep(self._within(node.stage), node.k)
        arguments = tuple(self._within(each) if isinstance(each, Node) else each for each in node.arguments)
        inside = Call(node.name, arguments, node.options)
        return keep(inside, most) if node.name in SEARCHING and most < DEPTH else inside

    def _check_named(self, named: Named) -> None:
        # the models of groupwise are files and those of the others are not: `mono` is no file of that name
        usable = [
            each for each, stage in self._models.items() if (stage == GROUPWISE) == (named.stage == GROUPWISE)
        ]
        if (named.model, named.revision) not in usable:
            words = (f"{model} of revision {revision}" if revision else model for model, revision in usable)
            raise ExpressionError(
                f"this server has no model {named}",
                remedy=f"use {', '.join(words) or f'a pipeline without {named.stage}'}",
            )

    def _check_passages(self, model: Reranker) -> None:
        if _reads_all(model) and not self._whole_documents:
            raise ExpressionError(
                f"{model} reads passages without number", remedy="give it one, as in passages=30"
            )

    def _share(self, model: Reranker, *, pin: bool) -> None:
        """One copy of a model in memory, however many pipelines name it; and not every precision and form of
        every model, however many clients ask for. Those of the server's own pipelines stay."""
        own = model.encoder
        key = (type(own), own.model, own.revision, own.form, own.precision)
        if pin:
            self._pinned.add(key)
        shared = self._encoders.setdefault(key, own)
        self._encoders.move_to_end(key)
        model.encoder = shared
        if isinstance(model, PassageReranker):
            model.stage.encoder = shared
        others = [each for each in self._encoders if each not in self._pinned]
        if len(others) > _IN_MEMORY:
            del self._encoders[others[0]]
            self._built.clear()  # they may hold what was dropped


def _stamp(folder: Path) -> tuple[int, int, int] | None:
    """Changes with every commit: a manifest is a new file each time."""
    try:
        found = (folder / "manifest.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read_files(stage: Stage) -> None:
    """Read what stages read when they are first used, so that no search waits for it, or fails."""
    for part in walk(stage):
        if isinstance(part, Groupwise):
            _ = part.model


def _reads_all(model: Reranker) -> bool:
    """Whether a long text becomes any number of passages, so that a small request takes much memory."""
    return isinstance(model, PassageReranker) and model.cutting.passages is None


def _without_search(node: Node) -> Node | None:
    """What is left of a pipeline for candidates that are given; its cuts too are for what is searched, and
    what works on the search's scores has none to work on. A `mono` that chooses for the next one is left out:
    whoever sends a hundred texts wants to hear of all of them.

    >>> str(_without_search(parse("bm25 % 100 >> rm3 % 50 >> mono % 20 >> duo % 5")))
    'mono % 20 >> duo'
    >>> str(_without_search(parse("bm25 % 100 >> normalise >> interpolate(mono)")))
    'mono'
    >>> str(_without_search(parse("bm25 % 100 >> fuse(mono(model=mono-tiny)) % 20 >> mono")))
    'mono'
    """
    stages = node.stages if isinstance(node, Then) else (node,)
    left: list[Node] = [each for each in stages if not searches(each)]
    while len(left) > 1 and _reads_single_texts(left[0]) and next(calls(left[1])).name == "mono":
        del left[0]
    while left and ((first := next(calls(left[0]))).name in ON_SCORES or _fuses_one(first)):
        left[:1] = _mixed_in(left[0], first)
    if not left:
        return None
    if isinstance(left[-1], Keep):
        left[-1] = left[-1].stage
    return then(*left)


def _mixed_in(node: Node, call: Call) -> Sequence[Node]:
    """The stages that are mixed with the search's ranking, where there is none to mix them with."""
    if call.name != "interpolate" and not _fuses_one(call):
        return ()
    (inner,) = (each for each in call.arguments if isinstance(each, Node))
    inner = keep(inner, node.k) if isinstance(node, Keep) else inner
    return inner.stages if isinstance(inner, Then) else (inner,)


def _reads_single_texts(node: Node) -> bool:
    """Whether it is a `mono`, by itself or fused with the ranking that comes in."""
    stages = list(calls(node))
    return stages[0].name == "mono" or (_fuses_one(stages[0]) and stages[1].name == "mono")


def _fuses_one(call: Call) -> bool:
    """Whether it fuses a single stage with the ranking that comes in."""
    return call.name == "fuse" and sum(isinstance(each, Node) for each in call.arguments) == 1


def _steps(stage: Stage) -> Iterator[Step]:
    for each in stage.stages if isinstance(stage, Pipeline) else (stage,):
        inner, k = (each.stage, each.k) if isinstance(each, TopK) else (each, None)
        name = inner.expression.name if isinstance(inner.expression, Call) else "pipeline"
        yield Step(name, repr(each), inner, repr(inner), k, tuple(rerankers(inner)))


def reload_or_keep(pipelines: Pipelines) -> str:
    """Reload, and say what came of it: a state that cannot be read is no reason to stop serving the last."""
    try:
        return "new" if pipelines.reload() else "same"
    except (TamisError, OSError):
        return "failed"
