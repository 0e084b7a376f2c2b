"""Settings: typed, frozen models of the tables of a TOML or JSON file.

A field's annotation defines its validation, and the comment beside it describes it: the reference of recipes
is generated from both. Unknown and missing fields are errors, which name the file, the table and the field. A
check of several fields together belongs in `model_post_init`, and raises an `InputError`.

    class Oven(Settings):
        heat: Positive  # in degrees Celsius
        trays: Count = 2  # in use at once
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from tamis.base.errors import InputError, quoted
from tamis.base.nested import check_depth
from tamis.storage.files import read_text

_LARGEST = 1 << 20  # bytes of a recipe: tomllib takes quadratic time for long dotted names
_MOST = 2**63 - 1  # the largest whole number of a field: the maximum of arrays and other formats
_S = TypeVar("_S", bound="Settings")

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=_MOST)]
Whole = Annotated[int, Field(ge=0, le=_MOST)]
Text = Annotated[str, Field(min_length=1)]


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
class Settings(BaseModel, frozen=True):
    """The base class of all tables. Fields are passed by position, in their order, or by name.

    >>> class Oven(Settings):
    ...     heat: Positive
    ...     trays: Count = 2
    >>> Oven(220, trays=1)
    Oven(heat=220.0, trays=1)
    >>> Oven(heat="220")
    Traceback (most recent call last):
    tamis.base.errors.InputError: heat of [oven] is '220': it must be a number above 0
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, *arguments: Any, **values: Any) -> None:
        names = list(type(self).model_fields)
        if len(arguments) > len(names):
            raise TypeError(f"{type(self).__name__} has {len(names)} fields, not {len(arguments)}")
        given = dict(zip(names, arguments, strict=False))
        if twice := sorted(given.keys() & values.keys()):
            raise TypeError(f"{type(self).__name__} got {twice[0]!r} twice")
        values = {**given, **values}
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), values, error, type(self).__name__.lower()) from None

    # Without this mark pydantic calls `__init__` for each nested table, and an error could not say where that
    # table is.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return repr(self)


def changed(settings: _S, **values: Any) -> _S:
    """A copy with some fields changed, validated like a new object.

    >>> class Oven(Settings):
    ...     heat: Positive
    >>> changed(Oven(220), heat=180)
    Oven(heat=180.0)
    """
    return type(settings)(**{**dict(settings), **values})


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file.

    >>> file = getfixture("tmp_path") / "recipe.toml"
    >>> _ = file.write_text("[model\\nstart = 1")
    >>> read_toml(file)
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../recipe.toml: not TOML (Expected ']' ... line 1...): correct it
    """
    try:
        tables = tomllib.loads(read_text(path, _LARGEST))
        check_depth(tables)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not TOML ({error})", remedy="correct it", path=path) from None
    except RecursionError:
        raise InputError("nested too deeply", remedy="correct it", path=path) from None
    except ValueError as error:  # dotted names nested too deeply, or a number with thousands of digits
        raise InputError(f"cannot be read ({error})", remedy="correct it", path=path) from None
    return tables


def build(kind: type[_S], table: Mapping[str, Any], path: str | Path, where: str = "") -> _S:
    """Settings from a table of a file; `where` is the table's name, or "" for the whole file.

    >>> class Oven(Settings):
    ...     heat: Positive
    >>> build(Oven, {"heat": 220}, "cake.toml", "oven")
    Oven(heat=220.0)
    >>> build(Oven, {"haet": 220}, "cake.toml", "oven")
    Traceback (most recent call last):
    tamis.base.errors.InputError: cake.toml: [oven] has no field 'haet': the known one is heat
    >>> build(Oven, {"heat": -1}, "cake.toml", "oven")
    Traceback (most recent call last):
    tamis.base.errors.InputError: cake.toml: heat of [oven] is -1: it must be a number above 0
    """
    try:
        return kind.model_validate(_frozen(table))
    except ValidationError as error:
        raise _refusal(kind, table, error, where, path) from None
    except InputError as error:  # from `model_post_init`
        raise InputError(error.problem, remedy=error.remedy, path=path) from None


def _frozen(value: Any) -> Any:
    """A value of a file with tuples instead of lists, which fields must have."""
    if isinstance(value, Mapping):
        return {name: _frozen(each) for name, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


# -- errors of one line
# ------------------------------------------------------------------------------------------------------------


def _refusal(
    kind: type[Settings],
    values: Mapping[str, Any],
    error: ValidationError,
    where: str,
    path: str | Path | None = None,
) -> InputError:
    """Convert pydantic's errors to one error. An unknown field is reported before a missing one, since it may
    be a misspelling of the missing name."""
    order = {"extra_forbidden": 0, "missing": 1}
    first = min(error.errors(include_url=False), key=lambda each: order.get(each["type"], 2))
    said = first["msg"].removeprefix("Value error, ") if first["type"] in _SAID_BY_PYDANTIC else ""
    problem, remedy = _told(kind, values, first["loc"], where, said)
    return InputError(problem, remedy=remedy, path=path)


def _told(
    kind: type[Settings], values: Mapping[str, Any], place: Sequence[str | int], where: str, said: str
) -> tuple[str, str]:
    """The problem at a location within a table's values, and the remedy."""
    table, of = (f"[{where}]", f" of [{where}]") if where else ("the recipe", "")
    if not place:
        return f"{table} is not valid", said
    name, *inside = str(place[0]), *place[1:]
    inner = table_of(kind.model_fields.get(name))
    path = f"{where}.{name}" if where else name
    value: Any = values.get(name)
    if inner is not None and inside:
        element = value[inside.pop(0)] if isinstance(inside[0], int) else value  # one table, or one of a list
        if inside or said:
            return _told(inner, element, inside, path, said)
    if name not in kind.model_fields:
        known = f"the known {'ones are' if len(kind.model_fields) > 1 else 'one is'}"
        return f"{table} has no field {quoted(name)}", f"{known} {', '.join(kind.model_fields)}"
    words = in_words(kind.model_fields[name])
    if name not in values:
        return f"{table} lacks {name}", f"give it {words}"
    shown = quoted(list(value) if isinstance(value, tuple) else value, 60)
    if inner is not None:
        words += f", [[{path}]]" if words == "a list of tables" else f", [{path}]"
    return f"{name}{of} is {shown}", said or f"it must be {words}"


#: The types of pydantic errors whose message says more than the type of the field.
_SAID_BY_PYDANTIC = {
    "value_error",
    "assertion_error",
    "string_pattern_mismatch",
    "string_too_long",
    "multiple_of",
    "too_short",
    "too_long",
}
_WORDS = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
}


def in_words(field: FieldInfo) -> str:
    """The valid values of a field, in words.

    >>> class Oven(Settings):
    ...     heat: Positive | None = None
    ...     sides: tuple[Literal["top", "bottom"], ...] = ()
    >>> [in_words(field) for field in Oven.model_fields.values()]
    ['a number above 0', 'a list of one of top, bottom']
    """
    return _words(field.annotation, field.metadata)


def table_of(field: FieldInfo | None) -> type[Settings] | None:
    """The class of a field that is a table or a list of tables; None for other fields."""
    kinds = _flat(field.annotation) if field is not None else ()
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _flat(hint: Any) -> Iterable[Any]:
    inner = get_args(hint)
    return [each for one in inner for each in _flat(one)] if inner else [hint]


def _words(hint: Any, limits: Iterable[Any] = (), several: bool = False) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner = [limit for each in arguments[1:] for limit in getattr(each, "metadata", (each,))]
        return _words(arguments[0], inner, several)
    if origin in (Union, UnionType):
        return " or ".join(_words(each, limits, several) for each in arguments if each is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else str(arguments[0])
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}{_words(arguments[0], several=True)}"
    if hint not in _WORDS:
        return "tables" if several else "a table"
    return " ".join(filter(None, [_WORDS[hint][several], _limits(limits, several)]))


def _limits(limits: Iterable[Any], several: bool) -> str:
    """
    >>> _limits(Share.__metadata__[0].metadata, several=False)
    'from 0 to 1'
    """
    names = ("gt", "ge", "lt", "le", "min_length")
    known = {name: getattr(each, name) for each in limits for name in names if hasattr(each, name)}
    match {name: limit for name, limit in known.items() if limit != _MOST}:
        case {"ge": least, "le": most}:
            return f"from {least} to {most}"
        case {"ge": least, "lt": most}:
            return f"from {least} up to {most}"
        case {"gt": least}:
            return f"above {least}"
        case {"ge": least}:
            return f"of at least {least}"
        case {"min_length": 1}:
            return f"that {'are' if several else 'is'} not empty"
    return ""
