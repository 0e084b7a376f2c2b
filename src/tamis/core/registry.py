"""From the pipeline language to stages: which names there are, and what each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from tamis.base.errors import ExpressionError, InputError, quoted
from tamis.core.defaults import NAMED
from tamis.core.language import Call, Keep, Node, Then, Value, calls, parse
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Stage
from tamis.index.dependence import SDM, Dependence
from tamis.index.feedback import RM3
from tamis.index.retriever import Retriever
from tamis.index.score import BM25, QueryLikelihood, TfIdf
from tamis.rank.combine import Fuse, Interpolate, Normalise
from tamis.rank.early_exit import IfUnsure

if TYPE_CHECKING:
    from tamis.index.index import Index


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What stages are made with beside their options."""

    index: Index | None
    runtime: Runtime
    scoring: bool = False  # for an option: the stage searches nothing, and scores what it is given


Maker = Callable[[BuildContext, Sequence[Stage], Mapping[str, Any]], Stage]


def _retriever(model: Callable[..., Any]) -> Maker:
    return lambda context, stages, options: (
        model(**options) if context.scoring else Retriever(_needed(context.index), model(**options))
    )


def _plain(stage: Callable[..., Stage]) -> Maker:
    """Of a stage that needs no index: the stages between its parentheses, then its options."""
    return lambda context, stages, options: stage(*stages, **options)


def _neural(name: str) -> tuple[str, Maker]:
    """Of a stage that reads texts with a model, by where it is: searches without one must not wait for it."""

    def make(context: BuildContext, stages: Sequence[Stage], options: Mapping[str, Any]) -> Stage:
        runtime = context.runtime
        stage: Stage = _imported(name)(
            **{"precision": runtime.precision, **options},
            device=runtime.device,
            workers=runtime.workers,
            cache=runtime.cache,
        )
        return stage

    return name, make


def _over_stage(name: str) -> tuple[str, Maker]:
    """Of a stage over another that has a model, by where it is: the model runs as it does by itself."""
    return name, lambda context, stages, options: _imported(name)(*stages, **options)


def _over_index(name: str) -> tuple[str, Maker]:
    """Of a stage over others that may ask the index about the candidates, by where it is."""
    return name, lambda context, stages, options: _imported(name)(*stages, **options, index=context.index)


#: The names of the language: what gives each its parameters (or where that is), and what makes the stage. A
#: parameter without a default is a stage (`*stages`: any number of them); the others are options, and their
#: annotations say what they may be.
STAGES: dict[str, tuple[Callable[..., Any] | str, Maker]] = {
    "bm25": (BM25, _retriever(BM25)),
    "ql": (QueryLikelihood, _retriever(QueryLikelihood)),
    "tfidf": (TfIdf, _retriever(TfIdf)),
    "sdm": (Dependence, lambda context, stages, options: SDM(_needed(context.index), Dependence(**options))),
    "rm3": (RM3, _plain(RM3)),
    "mono": _neural("tamis.rank.mono.Mono"),
    "duo": _neural("tamis.rank.duo.Duo"),
    "listwise": _neural("tamis.rank.listwise.Listwise"),
    "cascade": _neural("tamis.rank.cascade.Cascade"),
    "firstp": _over_stage("tamis.rank.passage.FirstP"),
    "maxp": _over_stage("tamis.rank.passage.MaxP"),
    "sump": _over_stage("tamis.rank.passage.SumP"),
    "avgp": _over_stage("tamis.rank.passage.AvgP"),
    "kmaxp": _over_stage("tamis.rank.passage.KMaxP"),
    "birch": _over_stage("tamis.rank.birch.Birch"),
    "cedr": _neural("tamis.rank.longdoc.Cedr"),
    "parade": _neural("tamis.rank.longdoc.Parade"),
    "if_unsure": (IfUnsure, _plain(IfUnsure)),
    "interpolate": (Interpolate, _plain(Interpolate)),
    "normalise": (Normalise, _plain(Normalise)),
    "fuse": (Fuse, _plain(Fuse)),
    "ltr": _over_index("tamis.rank.ltr.LTR"),
    "groupwise": _over_index("tamis.rank.groupwise.Groupwise"),
}

#: Those that search, for which there must be an index.
SEARCHING = frozenset({"bm25", "ql", "tfidf", "sdm", "rm3"})

#: Parameters of Python that the language does not have: what a machine offers is for a `Runtime` to say, and
#: nothing in an expression is a program.
_OF_PYTHON = ("device", "workers", "cache", "sure", "index")


def build(pipeline: str | Node, index: Index | None = None, runtime: Runtime | None = None) -> Stage:
    """The stages of an expression over an index; its models run as `runtime` says.

    >>> from tamis.index.feedback import RM3
    >>> build("rm3(terms=20)")
    rm3(terms=20)
    >>> build("rm3(speed=3)")
    Traceback (most recent call last):
    tamis.base.errors.ExpressionError: rm3 has no option 'speed': it takes terms, docs, weight
    """
    node = parse(pipeline) if isinstance(pipeline, str) else pipeline
    return _build(node, BuildContext(index, runtime or Runtime()))


def check_searches(node: Node) -> None:
    """That a pipeline finds candidates itself: a reranker that gets none ranks nothing, or fails late.

    >>> check_searches(parse("fuse(bm25, ql) % 10 >> mono"))
    >>> check_searches(parse("mono % 10"))
    Traceback (most recent call last):
    tamis.base.errors.ExpressionError: mono % 10 finds no candidates: begin with a stage that searches, as in
    bm25 % 100 >> mono % 10
    """
    first = node.stages[0] if isinstance(node, Then) else node
    # rm3 searches again with what another stage has found; an unknown name has an error of its own
    if not set(searches(first)) - {"rm3"} and {call.name for call in calls(first)} <= STAGES.keys():
        remedy = f"begin with a stage that searches, as in bm25 % 100 >> {node}"
        raise ExpressionError(f"{first} finds no candidates", remedy=remedy)


def searches(node: Node) -> list[str]:
    """The stages of a pipeline that search; one that is an option scores what it is given.

    >>> searches(parse("bm25 % 10 >> maxp(mono, choose=bm25, passages=3)"))
    ['bm25']
    """
    return [call.name for call in calls(node, options=False) if call.name in SEARCHING]


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """What a stage of the language takes.

    >>> list(parameters_of("rm3"))
    ['terms', 'docs', 'weight']
    """
    giver, _ = STAGES[name]
    known = inspect.signature(_imported(giver) if isinstance(giver, str) else giver, eval_str=True)
    return {key: each for key, each in known.parameters.items() if key not in _OF_PYTHON}


def _build(node: Node, context: BuildContext) -> Stage:
    if isinstance(node, Then):
        return Pipeline([_build(stage, context) for stage in node.stages])
    if isinstance(node, Keep):
        return _build(node.stage, context) % node.k
    if node.name not in STAGES:
        known = ", ".join([*STAGES, *NAMED])
        raise ExpressionError(f"there is no stage {quoted(node.name)}", remedy=f"use {known}")
    parameters = parameters_of(node.name)
    options = _options(node, parameters, context)
    stages = [_build(argument, replace(context, scoring=False)) for argument in _arguments(node, parameters)]
    make = STAGES[node.name][1]
    try:
        return make(context, stages, options)
    except ExpressionError:
        raise
    except InputError as error:
        raise ExpressionError(f"in {node}: {error.problem}", remedy=error.remedy) from error


def _arguments(node: Call, parameters: Mapping[str, inspect.Parameter]) -> list[Node]:
    """The stages between a stage's parentheses."""
    taken = [each for each in parameters.values() if each.default is each.empty]
    stages = [each for each in node.arguments if isinstance(each, Node)]
    if len(stages) < len(node.arguments) or (stages and not taken):
        raise ExpressionError(
            f"{node.name} takes its options as name=value", remedy=f"it takes {_names(parameters)}"
        )
    if any(each.kind is each.VAR_POSITIONAL for each in taken) or len(stages) == len(taken):
        return stages
    wanted = "a stage" if len(taken) == 1 else f"{len(taken)} stages"
    found = f", not {len(stages)}" if stages else ""
    raise ExpressionError(
        f"{node.name} takes {wanted}{found}",
        remedy=f"write {node.name}({', '.join(each.name for each in taken)})",
    )


def _options(
    node: Call, parameters: Mapping[str, inspect.Parameter], context: BuildContext
) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in node.options:
        if name not in parameters or parameters[name].default is inspect.Parameter.empty:
            raise ExpressionError(
                f"{node.name} has no option {quoted(name)}", remedy=f"it takes {_names(parameters)}"
            )
        if isinstance(value, Call):
            options[name] = _build(value, replace(context, scoring=True))
        elif isinstance(value, Node):
            raise ExpressionError(f"{name} of {node.name} cannot be {value}", remedy="give one stage alone")
        else:
            options[name] = _as(parameters[name].annotation, value, node.name, name)
    return options


def _names(parameters: Mapping[str, inspect.Parameter]) -> str:
    options = [name for name, each in parameters.items() if each.default is not each.empty]
    return ", ".join(options) or "none"


_WORDS = {float: "a number", int: "a whole number", str: "a word", bool: "true or false", NoneType: "none"}


def _as(annotation: Any, value: Value, stage: str, option: str) -> Value:
    """A whole number may stand for a number, nothing else for anything else."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if type(value) is int and float in kinds and int not in kinds:
        return float(value)
    wanted: list[str] = []
    for kind in kinds:
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        # by type too: True is equal to 1
        if type(value) is kind or any(type(value) is type(each) and value == each for each in choices):
            return value
        wanted += map(str, choices) if choices else [_WORDS.get(kind, "a stage")]
    remedy = " or ".join(", ".join(dict.fromkeys(wanted)).rsplit(", ", 1))
    raise ExpressionError(f"{option} of {stage} cannot be {quoted(value)}", remedy=f"give {remedy}")


def _imported(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def _needed(index: Index | None) -> Index:
    if index is None:
        raise ExpressionError("a first stage needs an index", remedy="give the index to search")
    return index
