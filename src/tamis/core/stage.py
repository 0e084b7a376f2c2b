"""Stages and pipelines: `a >> b` is "then", `a % k` is "keep k". H0..HN of the papers is literally the
expression."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import Condition, all_of
from tamis.base.documents import Query
from tamis.base.errors import InputError
from tamis.base.where import where
from tamis.core import language as expression
from tamis.core.candidates import Candidate, Candidates, Field, Ranked
from tamis.core.cost import Bound, Step, around, search
from tamis.core.options import Kind, call_of, known_as, values_of
from tamis.core.ranking import Ranking, Run

if TYPE_CHECKING:
    from tamis.core.cluster import Cluster
    from tamis.core.executor import Memo

_Q = TypeVar("_Q")
_Declared = TypeVar("_Declared", bound=type)

BATCH = 64  # queries that go through a pipeline together, where a stage does not want fewer


class Role(StrEnum):
    """What a stage is for."""

    FINDS = "finds candidates"
    ORDERS = "orders candidates"
    MIXES = "mixes scores"
    WRAPS = "wraps a stage"


def stage(name: str, *, role: Role) -> Callable[[_Declared], _Declared]:
    """Declares a stage: its name in the pipeline language and what it is for. All else that the language, a
    server and the documentation say of it follows from the signature of its class; see `tamis.core.options`.

    >>> @stage("last_first", role=Role.ORDERS)
    ... class LastFirst(Stage):
    ...     def __init__(self, k: int = 10) -> None:
    ...         self.k = k
    ...     def apply(self, rankings, depth=None):
    ...         return [ranking.rescored(-ranking.scores, ranking.kind) for ranking in rankings]
    >>> LastFirst(), LastFirst(k=3)
    (last_first, last_first(k=3))
    """

    def declare(declared: _Declared) -> _Declared:
        declared.name, declared.role, declared.declared = name, role, True  # type: ignore[attr-defined]
        return declared

    return declare


class Stage(ABC):
    """Rankings in, rankings out. A subclass says what it does in `apply`, and what it takes by its signature:
    each parameter is kept in an attribute of the same name. Everything else has a default."""

    name: str = ""
    role: Role = Role.ORDERS
    declared: bool = False  # by `stage`; of others the name is that of the class
    searches_again: bool = False  # of one that finds: by what another stage has found
    #: Whether it scores each candidate by itself, whatever was ranked before it.
    pointwise: bool = False
    #: The option that says how many of the first candidates it reranks; the others stay below.
    top_option: str | None = None
    #: Of a stage that finds: whether its candidates were found before, in a time that is not known.
    found_before: bool = False
    #: The most terms of a query that a client of a server may ask it about; none for the server's own limit.
    query_terms: int | None = None
    #: What the numbers of `cost` say; of a stage that finds, the most, unless it says something else.
    counts: Bound | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.declared and "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @abstractmethod
    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        """One new ranking for each; no more than `depth` candidates of each will be looked at."""

    @property
    def expression(self) -> expression.Node:
        """The stage in the pipeline language."""
        return call_of(self)

    @property
    def parts(self) -> Sequence[Stage]:
        """The stages that it is made of: those that its signature takes."""
        found = values_of(self, Kind.STAGE, Kind.STAGES, Kind.OPTION)
        return [each for each in found if isinstance(each, Stage)]

    @property
    def resources(self) -> str:
        """Whatever the result depends on that the expression does not say: an index's commit, a model's
        weights, the code of a function."""
        index = getattr(getattr(self, "index", None), "fingerprint", None)
        own = [] if index is None else [str(index)]
        own += [known_as(each) for each in values_of(self, Kind.PYTHON) if each is not None]
        return "\n".join([*own, *(part.resources for part in self.parts)])

    def prepare(self) -> None:
        """Do what is done once (compile, load), so that it is never part of a query's time."""
        for part in self.parts:
            part.prepare()

    @property
    def queries_at_once(self) -> int:
        """How many queries it wants to see together: what a kill can cost, and what memory must hold."""
        return min((part.queries_at_once for part in self.parts), default=BATCH)

    def attach(self, ranking: Ranking) -> Ranking:
        """`ranking` with the texts and the origin that this stage's rankings have. A stage that finds
        candidates attaches its own; one that orders them leaves those that came."""
        if self.role is Role.FINDS:
            texts = getattr(self, "texts", None) or getattr(self, "index", None)
            return ranking if texts is None else replace(ranking, texts=texts, origin=self)
        for part in self.parts:
            ranking = part.attach(ranking)
        return ranking

    @property
    def searches(self) -> bool:
        """Whether it takes as long as a search: of these a server carries out a few for each request."""
        return self.role is Role.FINDS

    def read_files(self) -> None:
        """Read the files that it names and that are read in no time, so that one that is not right is an
        error before anything is ranked."""
        for part in self.parts:
            part.read_files()

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        """The steps of its work for queries that come with so many candidates each; the last is its own. No
        more than `depth` candidates of each will be looked at."""
        if self.role is Role.FINDS:
            index = getattr(self, "index", None)
            return search(self, enter, depth, None if index is None else len(index))
        return around(self, enter, (part.cost(enter) for part in self.parts))

    def explain(self, before: Ranking, after: Ranking, doc_id: str) -> Sequence[Any] | None:
        """Why a document has its score, of a stage that made the ranking `after` of `before`: a line for each
        term (`tamis.index.index.TermContribution`), or None where terms do not say it."""
        return None

    def only_among(self, ids: Sequence[str]) -> Stage | None:
        """The same search among these documents alone, which scores them as among all; None where it has no
        such search."""
        return None

    def without_scores(self) -> Stage | None:
        """What is left of it for candidates that come without scores: all of it, unless it mixes these with
        those of a stage inside, or works on nothing else."""
        if self.role is not Role.MIXES or len(self.parts) > 1:
            return self
        return next(iter(self.parts), None)

    #: Whether `apply` does less, or something else, where no more than `depth` candidates are looked at.
    #: Where it does not, `stage % 5` and `stage % 9` can share what the stage does.
    uses_depth: ClassVar[bool] = True

    @property
    def reads(self) -> Hashable:
        """What its work depends on. Stages that are alike in this read the same with the same models; what
        they then make of it is no time beside that."""
        return self.fingerprint

    def sharing(self, memo: Memo) -> Stage:
        """The stage, or one that ranks as it does and takes from `memo` what it has in common with others
        that get the same rankings."""
        return self

    @property
    def fingerprint(self) -> str:
        """Says exactly what this stage is: two stages with one fingerprint rank alike."""
        return hashlib.sha256(f"{self!r}\n{self.resources}".encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return str(self.expression)

    def __rshift__(self, other: Stage) -> Stage:
        if not isinstance(other, Stage):
            return NotImplemented
        return Pipeline([*_stages(self), *_stages(other)])

    def __mod__(self, k: int) -> Stage:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:  # numpy's are whole numbers too
            raise InputError(f"cannot keep {k!r} candidates", remedy="use a whole number of at least 1")
        k = int(k)
        *before, last = _stages(self)
        kept = TopK(last.stage, min(last.k, k)) if isinstance(last, TopK) else TopK(last, k)
        return Pipeline([*before, kept]) if before else kept

    # a str is a sequence of str, which the first overload is meant to catch
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, query: str | Query | Ranking, *, where: Condition | str | None = None
    ) -> Ranking: ...
    @overload
    def __call__(
        self, query: Sequence[str | Query | Ranking], *, where: Condition | str | None = None
    ) -> list[Ranking]: ...
    def __call__(
        self,
        query: str | Query | Ranking | Sequence[str | Query | Ranking],
        *,
        where: Condition | str | None = None,
    ) -> Ranking | list[Ranking]:
        """Rank one query, or several. Searches find only what satisfies `where`, such as `"year >= 2020"`,
        beside the condition that a query has itself."""
        if isinstance(query, str | Query | Ranking):
            return applied(self, [_where(_ranking(query, 0), where)])[0]
        rankings = [_ranking(each, number) for number, each in enumerate(_several(query))]
        return applied(self, [_where(each, where) for each in rankings])

    def run(
        self,
        queries: Iterable[Query],
        *,
        where: Condition | str | None = None,
        progress: Callable[[int], object] | None = None,
        journal: str | Path | None = None,
        on: Cluster | None = None,
    ) -> Run:
        """Rank all of `queries`; `progress` is called with the number of newly finished queries. Searches
        find only documents that satisfy `where` and the query's own condition. `on` is a cluster whose
        workers run the rerankers, such as `tamis.RayRuntime()`; the run is the same.

        What is ranked is written to the file `journal` at once. After a kill the same call goes on at the
        first batch of queries that is not in it, and returns what it would have returned; with a journal that
        is complete it returns at once. The file stays: it is yours to delete.
        """
        from tamis.core import executor  # which is made of stages

        # through a Run, which refuses queries with one id: better now than after hours
        asked = (_where(_asked(query), where) for query in _several(queries))
        waiting = list(Run(asked).values())
        return executor.run(self, waiting, progress=progress, journal=journal, on=on)

    def rank(
        self,
        query: str | Query,
        candidates: Iterable[Candidate],
        top_k: int | None = None,
        *,
        text: Field | None = None,
        id: Field | None = None,
        title: Field | None = None,
    ) -> list[Ranked]:
        """Rank candidates from elsewhere: texts, documents, or dictionaries, objects or rows of a table with
        a text (and perhaps an id and a title), from whatever framework. `text`, `id` and `title` name their
        fields where these have other names. Nothing of the caller's is changed; candidates that tie keep
        their order. Of pipelines, those that do not search can do so.

        >>> from tamis import Normalise
        >>> hits = [{"_id": "7", "_score": 2.5, "_source": {"abstract": "a sieve"}}]
        >>> Normalise("minmax").rank("sieve", hits, text="abstract")[0].text
        'a sieve'
        """
        if (search := _search_of(self)) is not None:
            problem = f"{self} searches, by {search}, and cannot rank given candidates"
            raise InputError(problem, remedy="call it with the query alone, or give a pipeline of rerankers")
        read = Candidates.of(candidates, text, id, title)
        return read.ranked(applied(self, [read.ranking(query)])[0], top_k)

    async def aquery(self, query: str | Query | Ranking, *, where: Condition | str | None = None) -> Ranking:
        """`stage(query)` in a worker thread, for callers with an event loop."""
        from asyncio import to_thread  # which most programs that rank never need

        return await to_thread(self, query, where=where)

    async def arank(
        self, query: str | Query, candidates: Iterable[Candidate], top_k: int | None = None, **fields: Field
    ) -> list[Ranked]:
        """`rank` in a worker thread, for callers with an event loop."""
        from asyncio import to_thread

        return await to_thread(self.rank, query, candidates, top_k, **fields)


def _search_of(stage: Stage) -> Stage | None:
    """The first stage that searches, of those that a stage is made of."""
    if stage.role is Role.FINDS:
        return stage
    return next((found for part in stage.parts if (found := _search_of(part)) is not None), None)


def _several(queries: Iterable[_Q]) -> Iterator[_Q]:
    try:
        return iter(queries)
    except TypeError:  # from callers without a type checker, as below
        raise _no_query(queries) from None


def _no_query(given: object) -> InputError:
    problem = f"a {type(given).__name__} is not a query"
    return InputError(problem, remedy="give a text, a tamis.Query(id, text) or a list of them")


def _asked(query: Query) -> Ranking:
    if not isinstance(query, Query):
        problem = f"a {type(query).__name__} is not a query"
        raise InputError(problem, remedy="give a tamis.Query(id, text): a run goes by their ids")
    return Ranking(query)


def _ranking(query: str | Query | Ranking, number: int) -> Ranking:
    if isinstance(query, Ranking):
        return query
    if not isinstance(query, str | Query):
        raise _no_query(query)
    return Ranking(query if isinstance(query, Query) else Query(str(number), query))


def _where(ranking: Ranking, condition: Condition | str | None) -> Ranking:
    """A ranking whose query has one more condition."""
    if condition is None:
        return ranking
    added = where(condition) if isinstance(condition, str) else condition
    return replace(ranking, query=replace(ranking.query, where=all_of(ranking.query.where, added)))


def _stages(stage: Stage) -> Sequence[Stage]:
    return stage.stages if isinstance(stage, Pipeline) else [stage]


class TopK(Stage):
    """The first k candidates of a stage."""

    def __init__(self, stage: Stage, k: int) -> None:
        self.stage, self.k = stage, k

    @property
    def parts(self) -> Sequence[Stage]:
        return [self.stage]

    @property
    def expression(self) -> expression.Node:
        return expression.keep(self.stage.expression, self.k)

    def sharing(self, memo: Memo) -> Stage:
        return TopK(self.stage.sharing(memo), self.k)

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        k = self.k if depth is None else min(self.k, depth)
        *before, last = self.stage.cost(enter, k)
        return [*before, replace(last, stage=self, leave=np.minimum(last.leave, k))]

    def explain(self, before: Ranking, after: Ranking, doc_id: str) -> Sequence[Any] | None:
        return self.stage.explain(before, after, doc_id)

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        k = self.k if depth is None else min(self.k, depth)
        return [ranking.head(k) for ranking in self.stage.apply(rankings, k)]


class Pipeline(Stage):
    """Stages one after the other."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)

    @property
    def parts(self) -> Sequence[Stage]:
        return self.stages

    @property
    def expression(self) -> expression.Node:
        return expression.then(*(stage.expression for stage in self.stages))

    def cost(self, enter: Array, depth: int | None = None) -> list[Step]:
        steps: list[Step] = []
        for each in self.stages:
            steps += each.cost(enter, depth if each is self.stages[-1] else None)
            enter = steps[-1].leave
        return steps

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        current = list(rankings)
        for _, found in through(self.stages, rankings, depth):
            current = found
        return current


def through(
    stages: Sequence[Stage], rankings: Sequence[Ranking], depth: int | None = None
) -> Iterator[tuple[Stage, list[Ranking]]]:
    """Each of the stages, one after the other, and what it makes of what the one before it has made."""
    for number, stage in enumerate(stages, start=1):
        rankings = applied(stage, rankings, depth if number == len(stages) else None)
        yield stage, rankings


def applied(stage: Stage, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
    """What a stage makes of rankings; a search that does not say where its texts are has them attached."""
    found = stage.apply(rankings, depth)
    return [each if each.texts is not None or not each.ids else stage.attach(each) for each in found]
