"""From the pipeline language to stages: which names there are, and what each takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tamis.errors import ExpressionError, InputError
from tamis.expression import Call, Keep, Node, Then, Value, parse
from tamis.retrieve.dependence import SDM, Dependence
from tamis.retrieve.feedback import RM3
from tamis.retrieve.retriever import Retriever
from tamis.retrieve.score import BM25, QueryLikelihood, TfIdf
from tamis.stage import Pipeline, Stage

if TYPE_CHECKING:
    from tamis.retrieve.index import Index

Maker = Callable[["Index | None", Mapping[str, Any]], Stage]


def _retriever(model: Callable[..., Any]) -> Maker:
    return lambda index, options: Retriever(_needed(index), model(**options))


#: The names of the language: what gives each its parameters, and what makes the stage.
STAGES: dict[str, tuple[Callable[..., Any], Maker]] = {
    "bm25": (BM25, _retriever(BM25)),
    "ql": (QueryLikelihood, _retriever(QueryLikelihood)),
    "tfidf": (TfIdf, _retriever(TfIdf)),
    "sdm": (Dependence, lambda index, options: SDM(_needed(index), Dependence(**options))),
    "rm3": (RM3, lambda index, options: RM3(**options)),
}


def build(pipeline: str | Node, index: Index | None = None) -> Stage:
    """The stages of an expression over an index.

    >>> from tamis.retrieve.feedback import RM3
    >>> build("rm3(terms=20)")
    rm3(terms=20)
    >>> build("rm3(speed=3)")
    Traceback (most recent call last):
    tamis.errors.ExpressionError: rm3 has no option 'speed': it takes terms, docs, weight
    """
    node = parse(pipeline) if isinstance(pipeline, str) else pipeline
    if isinstance(node, Then):
        return Pipeline([build(stage, index) for stage in node.stages])
    if isinstance(node, Keep):
        return build(node.stage, index) % node.k
    if node.name not in STAGES:
        raise ExpressionError(f"there is no stage {node.name!r}", remedy=f"use {', '.join(STAGES)}")
    parameters, make = STAGES[node.name]
    try:
        return make(index, _options(node, parameters))
    except ExpressionError:
        raise
    except InputError as error:
        raise ExpressionError(f"in {node}: {error.problem}", remedy=error.remedy) from error


def _options(node: Call, parameters: Callable[..., Any]) -> dict[str, Value]:
    known = inspect.signature(parameters).parameters
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    if node.arguments:
        raise ExpressionError(f"{node.name} takes its options as name=value", remedy=takes)
    options: dict[str, Value] = {}
    for name, value in node.options:
        if name not in known:
            raise ExpressionError(f"{node.name} has no option {name!r}", remedy=takes)
        options[name] = _as(type(known[name].default), value, node.name, name)
    return options


def _as(kind: type, value: Value, stage: str, option: str) -> Value:
    """A whole number may stand for a number, nothing else for anything else."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        wanted = {float: "a number", int: "a whole number", str: "a word", bool: "true or false"}.get(
            kind, kind.__name__
        )
        raise ExpressionError(f"{option} of {stage} cannot be {value!r}", remedy=f"give {wanted}")
    return value


def _needed(index: Index | None) -> Index:
    if index is None:
        raise ExpressionError("a first stage needs an index", remedy="give the index to search")
    return index
