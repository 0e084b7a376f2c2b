"""From the pipeline language to stages: which names there are, and what each takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Protocol

from tamis.base.errors import ExpressionError, InputError, did_you_mean, quoted
from tamis.core import options
from tamis.core.defaults import NAMED
from tamis.core.extensions import Extension, extensions
from tamis.core.language import CONSTANTS, Call, Keep, Node, Then, Value, calls, parse
from tamis.core.options import Kind, Parameter, choices, kinds
from tamis.core.ranking import Texts
from tamis.core.runtime import Runtime
from tamis.core.stage import Pipeline, Role, Stage

#: Our own stages, and where each is: imported when it is first named, so that a search without a model does
#: not wait for one. Those of others are added by entry points, see `tamis.core.extensions`.
BUILT_IN: dict[str, str | type] = {
    "bm25": "tamis.index.score:BM25",
    "ql": "tamis.index.score:QueryLikelihood",
    "tfidf": "tamis.index.score:TfIdf",
    "sdm": "tamis.index.dependence:Dependence",
    "rm3": "tamis.index.feedback:RM3",
    "mono": "tamis.rank.mono:Mono",
    "duo": "tamis.rank.duo:Duo",
    "listwise": "tamis.rank.listwise:Listwise",
    "cascade": "tamis.rank.cascade:Cascade",
    "firstp": "tamis.rank.passage:FirstP",
    "maxp": "tamis.rank.passage:MaxP",
    "sump": "tamis.rank.passage:SumP",
    "avgp": "tamis.rank.passage:AvgP",
    "kmaxp": "tamis.rank.passage:KMaxP",
    "birch": "tamis.rank.birch:Birch",
    "cedr": "tamis.rank.scored:Cedr",
    "parade": "tamis.rank.scored:Parade",
    "if_unsure": "tamis.rank.early_exit:IfUnsure",
    "interpolate": "tamis.rank.combine:Interpolate",
    "normalise": "tamis.rank.combine:Normalise",
    "fuse": "tamis.rank.combine:Fuse",
    "ltr": "tamis.rank.ltr:LTR",
    "groupwise": "tamis.rank.groupwise:Groupwise",
}
#: Makes the stage of an architecture that comes without one.
_OF_ARCHITECTURE = "tamis.rank.scored:stage_of"
_RUNTIME = frozenset(field.name for field in fields(Runtime))
_RESERVED = frozenset({*CONSTANTS, *NAMED, "given"})


# -- which stages there are
# ------------------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The names of all stages: ours, and those of installed packages."""
    return [*BUILT_IN, *(name for name, each in brought().items() if not each.problem)]


def brought() -> Mapping[str, Extension]:
    """What packages of others bring, by name: stages, and architectures, each of which is a stage too."""
    taken = _RESERVED | BUILT_IN.keys()
    stages = extensions("tamis.stages", taken=taken)
    return {**extensions("tamis.architectures", taken=taken), **stages}


def is_known(name: str) -> bool:
    """Whether a stage has this name.

    >>> is_known("bm25"), is_known("bm52")
    (True, False)
    """
    return name in BUILT_IN or name in brought()


def declared(name: str) -> Any:
    """The class behind a name: a stage, or what a stage that searches is made of.

    >>> declared("mono")
    <class 'tamis.rank.mono.Mono'>
    """
    if (found := BUILT_IN.get(name)) is not None:
        return _at(found) if isinstance(found, str) else found
    if (extension := brought().get(name)) is not None:
        return checked(extension) if extension.group == "tamis.stages" else _at(_OF_ARCHITECTURE)(name)
    every = [*names(), *NAMED]
    raise ExpressionError(f"{quoted(name)} is not a stage", remedy=did_you_mean(name, every))


def _at(place: str) -> Any:
    """What is at a place such as `tamis.rank.mono:Mono`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def checked(extension: Extension) -> Any:
    """What an entry point stands for, which must be a stage by that name."""
    found = extension.load()
    is_stage = isinstance(found, type) and (
        issubclass(found, Stage) or callable(getattr(found, "over", None))
    )
    if not is_stage:
        raise extension.error("is not a class of stages", "derive it from tamis.Stage")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise extension.error(f"does not define {missing}", f"define {missing} in {found.__name__}")
    if not getattr(found, "declared", False):  # the entry point is declaration enough
        found.name, found.declared = extension.name, True
        found.role = getattr(found, "role", Role.ORDERS)
    if found.name != extension.name:
        raise extension.error(f"declares the name {found.name!r}", "use one name for both")
    options.parameters_of(found)
    return found


def role_of(name: str) -> Role:
    """What the stages of a name are for.

    >>> str(role_of("ql"))
    'finds candidates'
    """
    found: Role = declared(name).role
    return found


def parameters_of(name: str) -> dict[str, Parameter]:
    """What a stage of the language takes.

    >>> list(parameters_of("rm3"))
    ['terms', 'docs', 'weight']
    """
    own = (Kind.STAGE, Kind.STAGES, Kind.OPTION)
    return {key: each for key, each in options.parameters_of(declared(name)).items() if each.kind in own}


def takes_stage(name: str, option: str) -> bool:
    """Whether an option of a stage is a stage itself: of a bare word, only this says whether it is one.

    >>> takes_stage("maxp", "choose"), takes_stage("maxp", "unit")
    (True, False)
    """
    if not is_known(name):
        return False  # which is said by whoever builds it
    found = parameters_of(name).get(option)
    return found is not None and found.takes_stage


# -- what a pipeline does, before it is built
# ------------------------------------------------------------------------------------------------------------


def check_searches(node: Node) -> None:
    """That a pipeline finds candidates itself: a reranker that gets none ranks nothing, or fails late.

    >>> check_searches(parse("fuse(bm25, ql) % 10 >> mono"))
    >>> check_searches(parse("mono % 10"))
    Traceback (most recent call last):
    tamis.base.errors.ExpressionError: mono % 10 finds no candidates: begin with a stage that searches, as in
    bm25 % 100 >> mono % 10
    """
    first = node.stages[0] if isinstance(node, Then) else node
    if not all(is_known(call.name) for call in calls(first)):
        return  # an unknown name has an error of its own
    if all(declared(name).searches_again for name in searches(first)):
        remedy = f"begin with a stage that searches, as in bm25 % 100 >> {node}"
        raise ExpressionError(f"{first} finds no candidates", remedy=remedy)


def searches(node: Node) -> list[str]:
    """The stages of a pipeline that search; one that is an option scores what it is given.

    >>> searches(parse("bm25 % 10 >> maxp(mono, choose=bm25, passages=3)"))
    ['bm25']
    """
    found = (call.name for call in calls(node, options=False) if is_known(call.name))
    return [name for name in found if role_of(name) is Role.FINDS]


# -- building
# ------------------------------------------------------------------------------------------------------------


class SearchedIndex(Texts, Protocol):
    """What stages that search are built over: a `tamis.Index`."""

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What stages are made with beside their options."""

    index: SearchedIndex | None
    runtime: Runtime
    scoring: bool = False  # for an option: the stage searches nothing, and scores what it is given

    def provided(self, name: str) -> Any:
        """What a parameter of this name is filled in with."""
        return {"index": self.index, "runtime": self.runtime}.get(name, getattr(self.runtime, name, None))


def build(pipeline: str | Node, index: SearchedIndex | None = None, runtime: Runtime | None = None) -> Stage:
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


def _build(node: Node, context: BuildContext) -> Stage:
    if isinstance(node, Then):
        return Pipeline([_build(stage, context) for stage in node.stages])
    if isinstance(node, Keep):
        return _build(node.stage, context) % node.k
    made_by = declared(node.name)
    parameters = parameters_of(node.name)
    given = _options(node, parameters, context)
    stages = [_build(argument, replace(context, scoring=False)) for argument in _arguments(node, parameters)]
    try:
        made = _made(made_by, stages, given, context)
        return made if context.scoring or isinstance(made, Stage) else _over(made, context)
    except ExpressionError:
        raise
    except InputError as error:
        raise ExpressionError(f"in {node}: {error.problem}", remedy=error.remedy) from error
    except (ValueError, TypeError) as error:
        if node.name in BUILT_IN:
            raise
        raise ExpressionError(f"in {node}: {' '.join(str(error).split())}") from error


def _made(made_by: Any, stages: list[Stage], given: dict[str, Any], context: BuildContext) -> Any:
    """An object of a class of stages: what stands in the expression, and what a machine provides."""
    bound, waiting = inspect.signature(made_by).bind_partial(), iter(stages)
    for name, each in options.parameters_of(made_by).items():
        if each.kind is Kind.STAGES:
            bound.arguments[name] = tuple(waiting)
        elif each.kind is Kind.STAGE:
            bound.arguments[name] = next(waiting)
        elif name in given:
            bound.arguments[name] = given[name]
        elif each.kind is Kind.PROVIDED or name in _RUNTIME:
            # scores depend on a precision, so an expression may say it; else it is as the runtime has it
            value = context.provided(name)
            if value is None and name == "index" and each.required:
                raise _no_index(made_by)
            if value is not None or each.required:
                bound.arguments[name] = value
    bound.apply_defaults()
    return made_by(*bound.args, **bound.kwargs)


def _over(model: Any, context: BuildContext) -> Stage:
    """The stage that searches by a model of the first stage."""
    if context.index is None:
        raise _no_index(type(model))
    found: Stage = model.over(context.index)
    return found


def _no_index(made_by: Any) -> ExpressionError:
    what = "a first stage" if made_by.role is Role.FINDS else made_by.name
    return ExpressionError(f"{what} needs an index", remedy="give the index to search")


# -- options
# ------------------------------------------------------------------------------------------------------------


def _arguments(node: Call, parameters: Mapping[str, Parameter]) -> list[Node]:
    """The stages between a stage's parentheses."""
    taken = [each for each in parameters.values() if each.kind is not Kind.OPTION]
    stages = [each for each in node.arguments if isinstance(each, Node)]
    if len(stages) < len(node.arguments) or (stages and not taken):
        raise ExpressionError(
            f"{node.name} takes its options as name=value", remedy=f"it takes {_names(parameters)}"
        )
    if any(each.kind is Kind.STAGES for each in taken) or len(stages) == len(taken):
        return stages
    wanted = "a stage" if len(taken) == 1 else f"{len(taken)} stages"
    found = f", not {len(stages)}" if stages else ""
    raise ExpressionError(
        f"{node.name} takes {wanted}{found}",
        remedy=f"write {node.name}({', '.join(each.name for each in taken)})",
    )


def _options(node: Call, parameters: Mapping[str, Parameter], context: BuildContext) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in node.options:
        if name not in parameters or parameters[name].kind is not Kind.OPTION:
            raise ExpressionError(
                f"{node.name} has no option {quoted(name)}", remedy=f"it takes {_names(parameters)}"
            )
        if isinstance(value, Call):
            given[name] = _build(value, replace(context, scoring=True))
        elif isinstance(value, Node):
            raise ExpressionError(f"{name} of {node.name} cannot be {value}", remedy="give one stage alone")
        else:
            given[name] = _as(parameters[name].annotation, value, node.name, name)
    for name, each in parameters.items():
        if each.kind is Kind.OPTION and each.required and name not in given:
            raise ExpressionError(f"{node.name} needs {name}", remedy=f"write {node.name}({name}=...)")
    return given


def _names(parameters: Mapping[str, Parameter]) -> str:
    return ", ".join(name for name, each in parameters.items() if each.kind is Kind.OPTION) or "none"


_WORDS = {float: "a number", int: "a whole number", str: "a word", bool: "true or false", NoneType: "none"}


def _as(annotation: Any, value: Value, stage: str, option: str) -> Any:
    """The value of an option. A whole number may stand for a number, nothing else for anything else."""
    if isinstance(annotation, str):
        raise InputError(
            f"{option} of {stage} is of the type {annotation}, which cannot be found",
            remedy="import it where the stage is defined, and not for type checkers alone",
        )
    if annotation in (inspect.Parameter.empty, Any):
        return value
    wanted: list[str] = []
    for kind in kinds(annotation):
        known = choices(kind)
        # by type too: True is equal to 1
        if type(value) is kind or any(type(value) is type(each) and value == each for each in known):
            return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value
        if isinstance(value, str) and kind is Path:
            return Path(value)
        wanted += map(str, known) if known else [_WORDS.get(kind, "a word" if kind is Path else "a stage")]
    if type(value) is int and float in kinds(annotation):
        return float(value)
    remedy = " or ".join(", ".join(dict.fromkeys(wanted)).rsplit(", ", 1))
    raise ExpressionError(f"{option} of {stage} cannot be {quoted(value)}", remedy=f"give {remedy}")
