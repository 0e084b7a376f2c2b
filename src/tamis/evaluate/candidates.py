"""The settings of a pipeline that a trade-off compares. `k1=0` means: without the stages after it.

    bm25 % {k0} >> mono % {k1} >> duo        with k1=0 is  bm25 % {k0} >> mono
    bm25 % {k0} >> mono >> duo(k={k1}) % 10  with k1=0 is  bm25 % {k0} >> mono % 10

The first form passes on at most k1 documents. The second reranks the first k1 and leaves the others below
them, in mono's order; it is the fair one if k1 is smaller than the cutoff of the measure. The second form
works with any stage that has a `top_option`, such as duo and listwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tamis.base.errors import ExpressionError
from tamis.core.language import Call, Keep, Node, Then, Value, keep, parse, then
from tamis.core.pool import shared
from tamis.core.registry import declared, is_known
from tamis.core.runtime import Runtime
from tamis.core.stage import Stage
from tamis.evaluate.grid import Grid, Setting, builder, fill, settings

if TYPE_CHECKING:
    from tamis.index.index import Index

_KEEP_NONE = re.compile(r"%\s*0(?![\w.])")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


class Candidate(NamedTuple):
    """A setting, without the parameters that its pipeline does not use, and the pipeline; for timing also the
    same pipeline without a score cache."""

    setting: Setting
    stage: Stage
    timed: Stage | None = None


def candidates(
    template: str,
    grid: Grid,
    index: Index | None = None,
    *,
    first: Stage | None = None,
    runtime: Runtime | None = None,
) -> list[Candidate]:
    """The distinct pipelines of a grid; without duo, for example, settings that differ only in its
    aggregation are one pipeline. They share their models and a score cache, which is in memory unless the
    runtime has one.

    `first` is the stage that `given` stands for: the candidates of a run.

    >>> grid = {"k": [0, 5], "a": ["sum", "min"]}
    >>> for candidate in candidates("mono >> duo(k={k}, aggregate={a})", grid):
    ...     print(candidate.setting, candidate.stage)
    {'k': 0} mono
    {'k': 5, 'a': 'sum'} mono >> duo(k=5)
    {'k': 5, 'a': 'min'} mono >> duo(aggregate=min, k=5)
    """
    runtime = shared(runtime or Runtime())
    alike: dict[Node, list[Setting]] = {}
    for setting in settings(grid):
        alike.setdefault(expression_of(template, setting), []).append(setting)
    scored = builder(index, _with_cache(runtime), first)
    timed = builder(index, replace(runtime, cache=None), first)
    return [Candidate(_used(those), scored(node), timed(node)) for node, those in alike.items()]


def _with_cache(runtime: Runtime) -> Runtime:
    """The runtime with a cache in memory, unless it has one."""
    if runtime.cache is not None:
        return runtime
    from tamis.storage.score_cache import ScoreCache

    return replace(runtime, cache=ScoreCache(":memory:"))


def expression_of(template: str, setting: Mapping[str, Value]) -> Node:
    """The pipeline of a setting, without stages that would receive no candidates.

    >>> template = "bm25 % {k0} >> mono % {k1} >> duo"
    >>> print(expression_of(template, {"k0": 100, "k1": 0}), "|", expression_of(template, {"k0": 9, "k1": 5}))
    bm25 % 100 >> mono | bm25 % 9 >> mono % 5 >> duo
    >>> print(expression_of("mono >> duo(k={k1}) % 10", {"k1": 0}))
    mono % 10
    """
    node = parse(_cut_short(fill(template, setting)))
    kept: list[Node] = []
    for stage in node.stages if isinstance(node, Then) else (node,):
        call = stage.stage if isinstance(stage, Keep) else stage
        assert isinstance(call, Call)
        if not _reranks_none(call):
            kept.append(stage)
        elif isinstance(stage, Keep) and kept:
            kept[-1] = keep(kept[-1], stage.k)
    if not kept:
        raise ExpressionError(f"nothing is left of {template!r}", remedy="begin with a stage that ranks")
    return then(*kept)


def _reranks_none(call: Call) -> bool:
    """Whether a stage would rerank the first 0 candidates."""
    option = getattr(declared(call.name), "top_option", None) if is_known(call.name) else None
    return option is not None and (option, 0) in call.options


def _cut_short(text: str) -> str:
    """The expression without `% 0` and what follows it, up to the closing parenthesis."""
    blank = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)  # a file name may contain anything
    found = _KEEP_NONE.search(blank)
    if found is None:
        return text
    depth, end = 0, len(text)
    for at in range(found.end(), len(text)):
        depth += {"(": 1, ")": -1}.get(blank[at], 0)
        if depth < 0 or (depth == 0 and blank[at] == ","):
            end = at
            break
    return _cut_short(text[: found.start()] + text[end:])


def _used(alike: list[Setting]) -> Setting:
    """The parameters that settings with the same pipeline have in common."""
    first = alike[0]
    return {name: value for name, value in first.items() if all(each[name] == value for each in alike)}
