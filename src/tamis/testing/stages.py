"""The contract of a stage."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tamis.base.conditions import ID, Compare, Not, all_of
from tamis.base.errors import TamisError
from tamis.core.language import Call, Node, calls, parse
from tamis.core.plan import rerankers, walk
from tamis.core.ranking import Ranking, ScoreKind
from tamis.core.registry import build, is_known
from tamis.core.runtime import Runtime
from tamis.core.stage import Role, Stage

_RELATIVE, _ABSOLUTE = (
    1e-4,
    1e-5,
)  # tolerance for equal scores: sums may be added in another order
_DEPTHS = (1, 3)


def check_stage(stage: Stage, rankings: Sequence[Ranking], runtime: Runtime | None = None) -> None:
    """Raise an AssertionError with the reason if a stage violates the contract. A stage whose name is known
    to tamis (by an entry point if it is from another package) is also rebuilt from its printed expression;
    its models run as set by `runtime`.

    >>> from tamis.base.documents import Query
    >>> from tamis.rank.combine import Normalise
    >>> found = Ranking(Query("q", "sieve"), ("a", "b"), np.array([7.0, 4.0]), ScoreKind.RETRIEVAL)
    >>> check_stage(Normalise("z"), [found])
    >>> class Backwards(Stage):
    ...     def apply(self, rankings, depth=None):
    ...         return [replace(each, scores=-each.scores) for each in rankings]
    >>> check_stage(Backwards(), [found])
    Traceback (most recent call last):
    AssertionError: backwards: the scores of query 'q' ascend: the best candidate comes first
    """
    contract = _Contract(stage, list(rankings), runtime or Runtime())
    _require(stage, bool(rankings), "give some rankings to check it with")
    with _unchanged(contract):
        contract.prints_and_parses()
        contract.keeps_order_and_ids()
        contract.is_deterministic()
        contract.takes_each_query_by_itself()
        contract.looks_no_deeper()
        contract.obeys_conditions()
        contract.takes_nothing()
        contract.counts_its_cost()
        contract.scores_alike_from_a_cache()
        contract.resumes()


class _Contract:
    def __init__(self, stage: Stage, rankings: list[Ranking], runtime: Runtime) -> None:
        self.stage, self.rankings, self.runtime = stage, rankings, runtime
        self.found = stage.apply(rankings)

    def again(self, runtime: Runtime | None = None) -> Stage | None:
        """The stage rebuilt from its expression, if all names in it are known; else None."""
        node = self.stage.expression
        if not all(is_known(call.name) for call in calls(node)) or _holds_functions(self.stage):
            return None
        indexes = (getattr(part, "index", None) for part in walk(self.stage))
        index = next((each for each in indexes if each is not None), None)
        return build(node, index, runtime or self.runtime)

    def prints_and_parses(self) -> None:
        stage, node = self.stage, self.stage.expression
        _require(stage, parse(str(node)) == node, f"{node} is parsed as {parse(str(node))!r}")
        _require(stage, stage.fingerprint == stage.fingerprint, "its fingerprint changes")
        again = self.again()
        if again is not None:
            _require(stage, again.expression == node, f"what it prints builds {again!r}")
            _require(stage, again.fingerprint == stage.fingerprint, "built again, its fingerprint is another")
            self.compare(again.apply(self.rankings), "built again from what it prints")

    def keeps_order_and_ids(self) -> None:
        stage = self.stage
        _require(stage, len(self.found) == len(self.rankings), "one ranking for each that comes in")
        finds = any(part.role is Role.FINDS for part in walk(stage))
        for old, new in zip(self.rankings, self.found, strict=True):
            name = f"of query {new.query.id!r}"
            _require(stage, new.query == old.query, f"the query {old.query.id!r} becomes {new.query.id!r}")
            _require(
                stage, len(set(new.ids)) == len(new.ids), f"a document comes twice in the ranking {name}"
            )
            _require(stage, not np.isnan(new.scores).any(), f"a score {name} is not a number")
            falling = bool((np.diff(new.scores) <= 0).all())
            _require(stage, falling, f"the scores {name} ascend: the best candidate comes first")
            _require(stage, not len(new) or new.kind is not ScoreKind.NONE, f"the scores {name} have no kind")
            if not finds:
                _require(stage, set(new.ids) <= set(old.ids), f"candidates {name} that did not come in")
            if stage.role is Role.ORDERS:
                _require(stage, len(new) == len(old), f"candidates {name} are lost: it only orders them")

    def is_deterministic(self) -> None:
        self.compare(self.stage.apply(self.rankings), "asked again")

    def takes_each_query_by_itself(self) -> None:
        alone = [self.stage.apply([each])[0] for each in self.rankings]
        self.compare(alone, "with each query by itself")
        self.compare(self.stage.apply(self.rankings[::-1])[::-1], "with the queries in another order")

    def looks_no_deeper(self) -> None:
        for depth in _DEPTHS:
            heads = [each.head(depth) for each in self.found]
            shallow = [each.head(depth) for each in self.stage.apply(self.rankings, depth)]
            self.compare(shallow, f"with depth={depth}", heads)

    def obeys_conditions(self) -> None:
        """What a query's condition excludes is not found: `Ranking.found` leaves it out, `Index.search` takes
        the condition."""
        if self.stage.role is not Role.FINDS:
            return
        for old, new in zip(self.rankings, self.found, strict=True):
            if len(new):
                first = Not(Compare(ID, "=", new.ids[0]))
                query = replace(old.query, where=all_of(old.query.where, first))
                others = self.stage.apply([replace(old, query=query)])[0]
                problem = f"it finds {new.ids[0]!r}, which the condition of query {old.query.id!r} excludes"
                _require(self.stage, new.ids[0] not in others.ids, problem)

    def takes_nothing(self) -> None:
        stage = self.stage
        _require(stage, stage.apply([]) == [], "no rankings come of no rankings")
        empty = [replace(each, ids=(), scores=np.zeros(0), evidence={}) for each in self.rankings]
        with suppress(TamisError):  # a search that needs candidates raises an error
            found = stage.apply(empty)
            finds = any(part.role is Role.FINDS for part in walk(stage))
            _require(stage, finds or not any(map(len, found)), "candidates come of no candidates")

    def counts_its_cost(self) -> None:
        stage = self.stage
        steps = stage.cost(np.array([len(each) for each in self.rankings], np.int64))
        _require(stage, steps[-1].stage is stage, "the last step of its cost is its own")
        for most, new in zip(steps[-1].leave.tolist(), self.found, strict=True):
            _require(stage, len(new) <= most, f"{len(new)} candidates leave it, and its cost says {most}")

    def scores_alike_from_a_cache(self) -> None:
        if not rerankers(self.stage):
            return
        with tempfile.TemporaryDirectory() as folder:
            runtime = replace(self.runtime, cache=str(Path(folder) / "scores.cache"))
            for when in ("with an empty cache", "from its cache"):
                if (cached := self.again(runtime)) is not None:
                    self.compare(cached.apply(self.rankings), when)
                    for model in rerankers(cached):
                        model.cache.close()

    def resumes(self) -> None:
        """A run that is stopped after its first query and resumed equals an uninterrupted one."""
        whole = _Given(self.rankings) >> self.stage
        queries = [each.query for each in self.rankings]
        with tempfile.TemporaryDirectory() as folder:
            journal = Path(folder) / "journal"
            with suppress(_Stopped):
                whole.run(queries, journal=journal, progress=_stop)
            resumed = whole.run(queries, journal=journal)
        _require(self.stage, resumed.manifest.get("resumed", 0) > 0, "its journal is of another stage")
        self.compare(list(resumed.values()), "resumed from a journal")
        for old, new in zip(self.found, resumed.values(), strict=True):
            alike = (old.texts is None) == (new.texts is None)
            _require(self.stage, alike, "resumed from a journal, its rankings have no texts: see `attach`")

    def compare(self, found: Sequence[Ranking], when: str, expected: Sequence[Ranking] | None = None) -> None:
        for old, new in zip(expected or self.found, found, strict=True):
            name = f"{when}, it ranks query {old.query.id!r} otherwise"
            _require(self.stage, tuple(new.ids) == tuple(old.ids), name)
            alike = np.allclose(new.scores, old.scores, _RELATIVE, _ABSOLUTE)
            _require(self.stage, alike, f"{name}: other scores")
            _require(self.stage, new.kind is old.kind, f"{name}: another kind of score")


def _require(stage: Stage, holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(f"{stage}: {problem}")


def _holds_functions(stage: Stage) -> bool:
    """Whether a part of the stage cannot be written in an expression."""
    from tamis.core.options import Kind, values_of

    return any(value is not None for part in walk(stage) for value in values_of(part, Kind.PYTHON))


class _unchanged:
    """Checks that incoming rankings are not changed."""

    def __init__(self, contract: _Contract) -> None:
        self.contract = contract
        self.before = [(tuple(each.ids), each.scores.copy()) for each in contract.rankings]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind is None:
            for (ids, scores), each in zip(self.before, self.contract.rankings, strict=True):
                same = tuple(each.ids) == ids and np.array_equal(each.scores, scores)
                _require(self.contract.stage, same, "it changes the rankings that it gets")


class _Given(Stage):
    """Returns the rankings that a stage is checked with, one query at a time."""

    role = Role.FINDS
    queries_at_once = 1

    def __init__(self, rankings: Sequence[Ranking]) -> None:
        self.rankings = {each.query.id: each for each in rankings}

    @property
    def expression(self) -> Node:
        return Call("checked")

    def attach(self, ranking: Ranking) -> Ranking:
        given = self.rankings[ranking.query.id]
        return replace(ranking, texts=given.texts, origin=given.origin)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [self.rankings[each.query.id] for each in rankings]


class _Stopped(Exception):
    pass


def _stop(done: int) -> None:
    raise _Stopped
