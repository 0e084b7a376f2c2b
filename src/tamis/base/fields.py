"""Tables of a TOML file as frozen dataclasses, checked by their annotations.

A field's annotation says all there is to check: its type, and with `Annotated` its range. What the file has
beyond the fields is an error, as is what it lacks; each names the file, the table and the field.

    rate: Annotated[float, Bound("above 0", lambda x: x > 0)] = 3e-6
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tamis.base.errors import InputError, quoted
from tamis.base.nested import check_depth
from tamis.storage.files import read_text

_LARGEST = 1 << 20  # bytes of a recipe: tomllib takes quadratic time over long dotted names
_T = TypeVar("_T")
_MOST = 2**63 - 1  # the largest whole number of a field: what arrays and other formats hold
_WORDS = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
}


@dataclass(frozen=True, slots=True)
class Bound:
    """What a value must be besides of its type, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


Positive = Annotated[float, Bound("above 0", lambda x: x > 0)]
NotNegative = Annotated[float, Bound("of at least 0", lambda x: x >= 0)]
Share = Annotated[float, Bound("from 0 to 1", lambda x: 0 <= x <= 1)]
BelowOne = Annotated[float, Bound("from 0 up to 1", lambda x: 0 <= x < 1)]
Count = Annotated[int, Bound("of at least 1", lambda x: x >= 1)]
Whole = Annotated[int, Bound("of at least 0", lambda x: x >= 0)]
Text = Annotated[str, Bound("that is not empty", bool)]


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
    except ValueError as error:  # nested too deeply by dotted names, or a number of thousands of digits
        raise InputError(f"cannot be read ({error})", remedy="correct it", path=path) from None
    return tables


def build(kind: Callable[..., _T], table: Mapping[str, Any], path: str | Path, where: str = "") -> _T:
    """A dataclass from a table of a TOML file: its fields by their names, tables in it as dataclasses.

    >>> @dataclass(frozen=True)
    ... class Oven:
    ...     heat: Positive
    ...     __post_init__ = check
    >>> build(Oven, {"heat": 220}, "cake.toml", "oven")
    Oven(heat=220.0)
    >>> build(Oven, {"haet": 220}, "cake.toml", "oven")
    Traceback (most recent call last):
    tamis.base.errors.InputError: cake.toml: [oven] has no field 'haet': the known one is heat
    >>> build(Oven, {"heat": -1}, "cake.toml", "oven")
    Traceback (most recent call last):
    tamis.base.errors.InputError: cake.toml: heat of [oven] is -1: it must be a number above 0
    """
    hints = _hints(kind)
    unknown = [name for name in table if name not in hints]
    if unknown:
        known = f"the known {'ones are' if len(hints) > 1 else 'one is'} {', '.join(hints)}"
        raise InputError(f"{_table(where)} has no field {quoted(unknown[0])}", remedy=known, path=path)
    needed = {each.name for each in _fields(kind) if each.default is each.default_factory is MISSING}
    missing = [name for name in hints if name in needed and name not in table]
    if missing:
        what = _words(hints[missing[0]])
        raise InputError(f"{_table(where)} lacks {missing[0]}", remedy=f"give it {what}", path=path)
    try:
        return kind(**{name: _read(value, hints[name], name, where, path) for name, value in table.items()})
    except InputError as error:
        if error.path is not None:
            raise
        raise InputError(error.problem, remedy=error.remedy, path=path) from None


def check(self: Any) -> None:
    """Whether a dataclass's values are what its annotations say; its `__post_init__`, or called there."""
    kind: Any = type(self)
    where = kind.__name__.lower()
    for name, hint in _hints(kind).items():
        _require(getattr(self, name), hint, name, where)


def _read(value: Any, hint: Any, name: str, where: str, path: str | Path) -> Any:
    """A value as TOML has it, in the field's type; `check` says whether it may be there."""
    inner = _plain(hint)
    if is_dataclass(inner) and isinstance(inner, type):
        _require_table(value, name, path, where)
        return build(inner, value, path, f"{where}.{name}" if where else name)
    if get_origin(inner) is tuple:
        element = get_args(inner)[0]
        of_tables = is_dataclass(element) and isinstance(element, type)
        if not isinstance(value, list):
            if of_tables:
                remedy = f"it must be a list of tables, [[{name}]]"
                raise InputError(f"{name} is {_shown(value)}", remedy=remedy, path=path)
            return value
        if of_tables:
            for each in value:
                _require_table(each, name, path)
            return tuple(build(element, each, path, name) for each in value)
        return tuple(_read(each, element, name, where, path) for each in value)
    if inner is float and isinstance(value, int) and not isinstance(value, bool):
        _require(value, hint, name, where)  # so that a message shows it as it was written
        return float(value)
    return value


def _require_table(value: Any, name: str, path: str | Path, where: str = "") -> None:
    if not isinstance(value, dict):
        what, table = (f"{name} of [{where}]", f"{where}.{name}") if where else (name, name)
        raise InputError(f"{what} is {_shown(value)}", remedy=f"it must be a table, [{table}]", path=path)


def _require(value: Any, hint: Any, name: str, where: str) -> None:
    if not _fits(value, hint):
        problem = f"{name} of {_table(where)} is {_shown(value)}"
        raise InputError(problem, remedy=f"it must be {_words(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, arguments[0]) and all(bound.holds(value) for bound in arguments[1:])
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(_fits(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, int) and not -_MOST <= value <= _MOST:
        return False
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, hint)


def _words(hint: Any, several: bool = False) -> str:
    """What a field may hold, for people."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{_words(arguments[0], several)} {' and '.join(bound.words for bound in arguments[1:])}"
    if origin in (Union, UnionType):
        return " or ".join(_words(each, several) for each in arguments if each is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else str(arguments[0])
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}{_words(arguments[0], several=True)}"
    return _WORDS[hint][several] if hint in _WORDS else "a table"


def _shown(value: Any) -> str:
    return quoted(list(value) if isinstance(value, tuple) else value, 60)


def _table(where: str) -> str:
    return f"[{where}]" if where else "the recipe"


def _plain(hint: Any) -> Any:
    """The type below `Annotated` and `| None`."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        (hint, *others) = [each for each in get_args(hint) if each is not NoneType]
        return hint if others else _plain(hint)
    return hint


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in _fields(kind)}
