"""What a stage takes, as its signature says: the one place where its options and their defaults stand.

    @stage("boost", role=Role.WRAPS)
    class Boost(Stage):
        def __init__(self, stage: Stage, field: Literal["title", "text"] = "title", weight: float = 0.5,
                     *, index: Index | None = None) -> None: ...

`stage` is a stage between the parentheses, `field` and `weight` are options, and `index` is filled in by
whoever builds the stage. A stage keeps each of them in an attribute of the same name, from which its printed
form follows.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import CodeType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import xxhash

from tamis.base.errors import InputError
from tamis.core.language import Call, Node, Value

#: Parameters that whoever builds a stage fills in: what a machine offers is no part of what a stage is.
PROVIDED = frozenset({"index", "runtime", "device", "workers", "cache", "pool"})


class Names(StrEnum):
    """What a text names: it decides what a client of a server may say. A text that is not marked is taken for
    a path, so that a new option opens nothing for clients."""

    MODEL = "a model"  # bundled, a folder, or a name on the hub
    FILE = "a file"
    REVISION = "a revision of the model"
    NOTHING = "nothing"  # any text at all


ModelName = Annotated[str, Names.MODEL]
ModelFile = Annotated[str, Names.FILE]
Revision = Annotated[str, Names.REVISION]
PlainText = Annotated[str, Names.NOTHING]


@dataclass(frozen=True, slots=True)
class AtMost:
    """The most that a client of a server may ask for: `docs: Annotated[int, AtMost(100)] = 10`."""

    number: float


class Kind(Enum):
    """What a parameter is for."""

    STAGE = "a stage between the parentheses"
    STAGES = "any number of stages between the parentheses"
    OPTION = "an option, written name=value"
    PROVIDED = "filled in by whoever builds the stage"
    PYTHON = "a function, which only Python can give"


_EMPTY = inspect.Parameter.empty
_PLAIN = (str, int, float, bool, NoneType)


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One parameter of a stage. `annotation` is what a value may be, without its marks."""

    name: str
    kind: Kind
    annotation: Any
    default: Any = _EMPTY
    marks: tuple[Any, ...] = ()

    @property
    def required(self) -> bool:
        return self.default is _EMPTY

    @property
    def takes_text(self) -> bool:
        """Whether it takes any text, such as the name of a file."""
        return any(each in (str, Path, Any, _EMPTY) for each in kinds(self.annotation))

    @property
    def takes_stage(self) -> bool:
        """Whether its value is a stage, or what a stage that searches is made of."""
        return self.kind is Kind.OPTION and any(map(_is_stage, kinds(self.annotation)))

    @property
    def names(self) -> Names | None:
        """What its text names, where it says so."""
        return next((each for each in self.marks if isinstance(each, Names)), None)

    @property
    def at_most(self) -> float | None:
        """The most that a client may ask for."""
        return next((each.number for each in self.marks if isinstance(each, AtMost)), None)


def parameters_of(declared: Any) -> Mapping[str, Parameter]:
    """What a stage takes, by its name; read from the signature of its class.

    >>> from tamis.index.feedback import RM3
    >>> {name: each.default for name, each in parameters_of(RM3).items()}
    {'terms': 10, 'docs': 10, 'weight': 0.5}
    """
    return _read(declared)


@cache
def _read(declared: Any) -> Mapping[str, Parameter]:
    made_by = inspect.unwrap(declared.__init__ if isinstance(declared, type) else declared)  # type: ignore[misc]
    names = getattr(made_by, "__globals__", {})
    found = {}
    for name, each in inspect.signature(declared).parameters.items():
        if each.kind is each.VAR_KEYWORD:
            raise InputError(
                f"{_called(declared)} takes **{name}, which are options without names",
                remedy="give every option a parameter of its own",
            )
        annotation, marks = unmarked(_evaluated(each.annotation, names))
        kind = _kind(name, each, annotation)
        found[name] = Parameter(name, kind, annotation, each.default, marks)
    return found


def _kind(name: str, parameter: inspect.Parameter, annotation: Any) -> Kind:
    if name in PROVIDED:
        return Kind.PROVIDED
    if parameter.kind is parameter.VAR_POSITIONAL:
        return Kind.STAGES
    if any(map(_is_callable, kinds(annotation))):
        return Kind.PYTHON
    if parameter.default is _EMPTY and (annotation is _EMPTY or any(map(_is_stage, kinds(annotation)))):
        return Kind.STAGE
    return Kind.OPTION


def _called(declared: Any) -> str:
    return getattr(declared, "name", "") or getattr(declared, "__name__", repr(declared))


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    """An annotation as an object. One that names what is imported for type checkers alone stays text: it
    matters only where a value of the option is given."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(names))
    except Exception:  # whatever stands there: it is not ours
        return annotation


def unmarked(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without its marks, and these.

    >>> unmarked(ModelName | None)
    (str | None, (<Names.MODEL: 'a model'>,))
    """
    if get_origin(annotation) is Annotated:
        inner, *own = get_args(annotation)
        plain, more = unmarked(inner)
        return plain, (*own, *more)
    if get_origin(annotation) in (Union, UnionType):
        parts = [unmarked(each) for each in get_args(annotation)]
        marks = tuple(mark for _, found in parts for mark in found)
        return (reduce(or_, (part for part, _ in parts)) if marks else annotation), marks
    return annotation, ()


def kinds(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation.

    >>> kinds(int | None), kinds(float)
    ((<class 'int'>, <class 'NoneType'>), (<class 'float'>,))
    """
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _is_callable(kind: Any) -> bool:
    return collections.abc.Callable in (kind, get_origin(kind))


def _is_stage(kind: Any) -> bool:
    """Whether an alternative is a stage: no plain value, and nothing that is written as one."""
    return isinstance(kind, type) and kind not in _PLAIN and not issubclass(kind, Enum | Path)


# -- printing
# ------------------------------------------------------------------------------------------------------------


def call_of(thing: Any) -> Call:
    """What is printed of a stage: its name, the stages between its parentheses, and the options that differ
    from their defaults.

    >>> from tamis.index.score import BM25
    >>> str(call_of(BM25(k1=1)))
    'bm25(k1=1.0)'
    """
    arguments: list[Node | Value] = []
    options: list[tuple[str, Node | Value]] = []
    for each in parameters_of(type(thing)).values():
        if each.kind is Kind.PROVIDED:
            continue
        value = _value_of(thing, each)
        if each.kind is Kind.STAGES:
            arguments += [_printed(stage, each) for stage in value]
        elif each.kind is Kind.STAGE:
            arguments.append(_printed(value, each))
        elif (printed := _printed(value, each)) != _printed(each.default, each):
            options.append((each.name, printed))
    return Call(thing.name, tuple(arguments), tuple(options))


def _value_of(thing: Any, parameter: Parameter) -> Any:
    try:
        return getattr(thing, parameter.name)
    except AttributeError:
        raise InputError(
            f"the stage {_called(type(thing))} does not say what its {parameter.name} is",
            remedy=f"keep it as self.{parameter.name}, or say how it is printed in `expression`",
        ) from None


def _printed(value: Any, parameter: Parameter) -> Node | Value:
    """A value as it is written: 1, 1.0 and np.float64(1) alike, where a number is wanted."""
    if isinstance(value, Enum):
        value = value.value
    elif isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return str(value)
    if type(value) not in _PLAIN and hasattr(value, "item"):  # numpy's
        value = value.item()
    wanted = kinds(parameter.annotation)
    if type(value) is int and float in wanted and int not in wanted:
        return float(value)
    if type(value) is float and int in wanted and float not in wanted and value.is_integer():
        return int(value)
    if type(value) in _PLAIN or value is _EMPTY:
        return value  # type: ignore[no-any-return]
    if (node := getattr(value, "expression", None)) is not None:
        return node  # type: ignore[no-any-return]
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return call_of(value)


# -- what a stage holds
# ------------------------------------------------------------------------------------------------------------


def values_of(thing: Any, *wanted: Kind) -> Iterable[Any]:
    """The values of those parameters of a stage that it keeps."""
    for each in parameters_of(type(thing)).values():
        if each.kind in wanted:
            value = getattr(thing, each.name, None)
            if each.kind is Kind.STAGES and isinstance(value, Sequence):
                yield from value
            else:
                yield value


def known_as(function: Callable[..., Any]) -> str:
    """What tells a function from others: its code, what it was made with and the numbers and words of its
    module that it names; of a method also its object; of any object what it prints as. One that prints its
    address is another one in the next process, where a journal is not resumed: better than to resume it with
    another function."""
    code = getattr(function, "__code__", None)
    if code is None:
        return repr(function)
    around = getattr(function, "__globals__", {})
    known = [
        _instructions(code),
        [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()],
        getattr(function, "__defaults__", None),
        getattr(function, "__kwdefaults__", None),
        [around[name] for name in code.co_names if isinstance(around.get(name), str | int | float)],
        getattr(function, "__self__", None),
    ]
    return str(xxhash.xxh3_128_hexdigest(repr(known).encode()))


def _instructions(code: CodeType) -> tuple[object, ...]:
    inside = [_instructions(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, inside


def choices(annotation: Any) -> tuple[Any, ...]:
    """The values that an alternative lists: of a `Literal`, or of an enumeration.

    >>> choices(Literal["sum", "min"])
    ('sum', 'min')
    """
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(each.value for each in annotation)
    return ()
