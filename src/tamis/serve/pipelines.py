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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tamis.base.errors import ExpressionError, InputError, TamisError
from tamis.core.cost import DEPTH
from tamis.core.executor import steps
from tamis.core.language import Call, Keep, Node, Then, keep, parse, then
from tamis.core.model_stage import ModelStage
from tamis.core.plan import plan, rerankers, walk
from tamis.core.pool import ModelPool, shared
from tamis.core.registry import build, check_searches, is_known, role_of, searches
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Role, Stage
from tamis.index.index import Index
from tamis.models.bundled import bundled_models
from tamis.serve.bounds import check_stages
from tamis.serve.limits import Limits
from tamis.serve.models import Named, models_named, stage_for, stage_of, what_is_named
from tamis.text.analyze import ENGLISH, Analyzer

_LOG = logging.getLogger("tamis.serve")
_REMEMBERED = 64  # pipelines that are kept built
_IN_MEMORY = 8  # models, beside those of the server's own pipelines
_LOOK_EVERY = 0.2  # seconds between looks at the index's manifest


class NoIndexError(TamisError):
    """A request for the index of a server that has none."""

    def __init__(self) -> None:
        super().__init__("this server has no index, it reranks", remedy="send candidates to /rerank")


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a pipeline, ready to be carried out for several requests at once."""

    name: str
    expression: str
    stage: Stage  # without the cut, so that requests with different cuts can share a call
    key: str  # the same for stages that take the same time
    k: int | None
    models: tuple[ModelStage, ...]

    def work(self, candidates: int) -> int:
        """What its time is in proportion to: the inputs that its models read."""
        return sum(model.inferences(candidates) for model in self.models) or 1


@dataclass(frozen=True)
class Built:
    """A pipeline over one commit of the index, if the server has one."""

    held: Index | None
    stage: Stage
    steps: tuple[Step, ...]

    @property
    def index(self) -> Index:
        return _there(self.held)

    @cached_property
    def filtered(self) -> tuple[Step, ...]:
        """The steps for queries with a condition, whose searches take another time: the first of a field
        reads it from all documents."""
        return tuple(step if step.models else replace(step, key=f"{step.key} where") for step in self.steps)

    @property
    def analyzer(self) -> Analyzer:
        """What finds the words of a query in a text."""
        return ENGLISH if self.held is None else self.held.analyzer

    @property
    def expression(self) -> str:
        return repr(self.stage)


class Pipelines:
    """Turns what clients write into stages, within limits, and follows the index. Without one, pipelines are
    over the clients' own candidates alone."""

    def __init__(
        self,
        index: Index | None,
        default: str,
        runtime: Runtime | None = None,
        limits: Limits | None = None,
        models: Iterable[str] = (),
    ) -> None:
        self.limits = limits or Limits()
        # one copy of a model in memory, however many pipelines name it; and not every precision and form of
        # every model, however many clients ask for. Those of the server's own pipelines stay.
        self._pool = ModelPool(most=_IN_MEMORY)
        self._runtime = shared(replace(runtime or Runtime(), pool=self._pool))
        self._own_runtime = replace(self._runtime, pool=self._pool.pinned)
        self._default = parse(default)
        self._lock = threading.Lock()
        self._reloading = threading.Lock()
        self._index = index
        self._stamp = None if index is None else index.stamp()
        self._looked = 0.0
        self._built: OrderedDict[tuple[str, bool], Built] = OrderedDict()
        self._own_built: dict[bool, Built] = {}  # of the pipelines that a request need not name
        if index is None and (found := searches(self._default)):
            raise ExpressionError(
                f"{found[0]} searches, and there is no index",
                remedy="name an index, or leave it out of the pipeline",
            )
        # whoever starts the server may name any model, and whoever asks it may name those
        own = build(self._default, index, self._own_runtime)
        own.read_files()
        named = list(models_named(self._default))
        self._own_texts = {each for each in named if each.names is None}
        own_models = {
            (each.model, each.revision): stage_for(each) for each in named if each.names is not None
        }
        others = {(name, None) for name in (*bundled_models(), *models)} - own_models.keys()
        stages = own_models | {each: stage_of(*each) for each in others}
        self._models = {each: stages[each] for each in sorted(stages, key=str)}
        self._whole_documents = any(map(_reads_all, rerankers(own)))
        given = without_search(own)
        self.reranking = Call("mono") if given is None else given.expression

    @property
    def searches(self) -> bool:
        """Whether there is an index to search."""
        return self._index is not None

    @property
    def index(self) -> Index:
        """The newest commit that is taken up."""
        return _there(self._index)

    @property
    def models(self) -> dict[str, str]:
        """The models that a client may name, and their stages."""
        return {name: stage for (name, revision), stage in self._models.items() if revision is None}

    def outdated(self) -> bool:
        """Whether the index seems to have a new commit; cheap enough to ask at every request."""
        now = time.monotonic()
        if self._index is None or now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        return self._index.stamp() != self._stamp

    def reload(self) -> bool:
        """Move to the newest commit; True if there was one. Where it cannot be read (a folder that is being
        replaced), or the server's own pipeline cannot run over it, the error is raised and the last commit
        stays."""
        with self._reloading:
            stamp = self.index.stamp()
            newest = copy.copy(self.index)  # requests at work keep the commit that they have
            moved = newest.refresh()  # it may take long in a cluster: pipelines are built meanwhile
            self._stamp = stamp  # whatever comes of it: a commit is tried, and told of, once
            if moved:
                with self._lock:
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
                "the index has changed, and %s cannot run over it (%s): the previous state is served",
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

    def _build(self, node: Node, index: Index | None, *, searching: bool = True) -> Built:
        over = _there(index) if searching else None
        found = searches(node)
        if found and not searching:
            raise ExpressionError(
                f"{found[0]} searches, but the request has the candidates",
                remedy="leave it out of the pipeline",
            )
        if searching:
            check_searches(node)
        own = node in (self._default, self.reranking)
        node = self._within(node)
        for each in models_named(node):  # before stages are made of it, which might look at a path
            self._check_named(each)
        dropped = self._pool.dropped
        stage = build(node, over, self._own_runtime if own else self._runtime)
        if self._pool.dropped != dropped:
            self._built.clear()  # they may hold what was dropped
        if not own:  # whoever starts the server may have more
            check_stages(stage)
        stage.read_files()
        for model in rerankers(stage):
            self._check_passages(model)
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
        return (
            keep(inside, most)
            if most < DEPTH and is_known(node.name) and role_of(node.name) is Role.FINDS
            else inside
        )

    def _check_named(self, named: Named) -> None:
        if named.names is None:  # nobody says what it names: then it may be any file
            if named not in self._own_texts:
                raise ExpressionError(
                    f"this server lets no client choose {named.option} of {named.stage}, here {named}",
                    remedy="leave it to the server's own pipeline, or mark the option (`tamis.core.options`)",
                )
            return
        # the models of groupwise are files and those of the others are not: `mono` is no file of that name
        usable = [each for each, stage in self._models.items() if what_is_named(stage) is named.names]
        if (named.model, named.revision) not in usable:
            words = (f"{model} of revision {revision}" if revision else model for model, revision in usable)
            raise ExpressionError(
                f"this server has no model {named}",
                remedy=f"use {', '.join(words) or f'a pipeline without {named.stage}'}",
            )

    def _check_passages(self, model: ModelStage) -> None:
        if _reads_all(model) and not self._whole_documents:
            raise ExpressionError(
                f"{model} reads any number of passages", remedy="set a limit, as in passages=30"
            )


def _there(index: Index | None) -> Index:
    """The index of a server that has one."""
    if index is None:
        raise NoIndexError
    return index


def _reads_all(model: ModelStage) -> bool:
    """Whether a long text becomes any number of passages, so that a small request takes much memory."""
    return model.counts == "least"


def without_search(stage: Stage) -> Stage | None:
    """What is left of a pipeline for candidates that are given; its cuts too are for what is searched, and
    what works on the search's scores has none to work on. A stage like `mono` that chooses for the next one
    is left out: whoever sends a hundred texts wants to hear of all of them.

    >>> without_search(build("rm3 % 50 >> mono % 20 >> duo % 5"))
    mono % 20 >> duo
    >>> without_search(build("rm3 % 100 >> normalise >> interpolate(mono)"))
    mono
    >>> without_search(build("rm3 % 100 >> fuse(mono(model=mono-tiny)) % 20 >> mono"))
    mono
    """
    left = [each for each in steps(stage) if all(part.role is not Role.FINDS for part in walk(each.whole))]
    while len(left) > 1 and left[0].stage.pointwise and _is_pointwise(left[1].stage):
        del left[0]
    while left and (rest := left[0].stage.without_scores()) is not left[0].stage:
        if rest is None:
            del left[0]
        else:
            left[:1] = steps(rest if left[0].k is None else rest % left[0].k)
    if not left:
        return None
    return Pipeline([*(each.whole for each in left[:-1]), left[-1].stage]) if len(left) > 1 else left[0].stage


def _is_pointwise(stage: Stage) -> bool:
    """Whether it scores all candidates anew, and does not fuse its ranking with the one that comes in."""
    return stage.pointwise and stage.without_scores() is stage


def _steps(stage: Stage) -> Iterator[Step]:
    for whole, inner, k in steps(stage):
        name = inner.expression.name if isinstance(inner.expression, Call) else "pipeline"
        yield Step(name, repr(whole), inner, repr(inner), k, tuple(rerankers(inner)))


def reload_or_keep(pipelines: Pipelines) -> str:
    """Reload, and say what came of it: a state that cannot be read is no reason to stop serving the last."""
    try:
        return "new" if pipelines.reload() else "same"
    except (TamisError, OSError):
        return "failed"
