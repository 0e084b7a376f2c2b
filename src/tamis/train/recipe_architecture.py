"""The table of a recipe that sets the model's architecture: it is named after it and has its settings.

    [parade]
    kind = "max"

If all settings have their defaults, the name is enough: `architecture = "birch"`. Earlier, all models of long
documents had one table, [longdoc]; recipes with it are still read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError, quoted
from tamis.models.architecture import architecture, names
from tamis.models.legacy import OLD_TABLE, document
from tamis.models.settings import build

KEY = "architecture"


def tells(tables: Mapping[str, Any]) -> set[str]:
    """The fields of a recipe that set its architecture.

    >>> tells({"parade": {"kind": "max"}, "data": []})
    {'parade'}
    """
    return tables.keys() & {KEY, OLD_TABLE, *names()}


def renamed(tables: dict[str, Any], base: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A recipe with the table of its architecture instead of [longdoc]. The table does not repeat what the
    base contains.

    >>> renamed({"longdoc": {"kind": "parade-max"}}, {"parade": {"window": 100}}, Path("mine.toml"))
    {'parade': {'window': 100, 'kind': 'max'}}
    """
    if OLD_TABLE not in tables:
        return tables
    old = tables[OLD_TABLE]
    if not isinstance(old, dict):
        raise InputError(
            f"{OLD_TABLE} is {quoted(old)}", remedy="use the table of an architecture", path=path
        )
    rest = {name: table for name, table in tables.items() if name != OLD_TABLE}
    own = {name: value for name, value in old.items() if name != "kind"}
    before = next(((name, base[name]) for name in names() if name in base), None)
    if "kind" not in old:
        if before is None:
            raise InputError(f"[{OLD_TABLE}] lacks kind", remedy="add it", path=path)
        return rest | {before[0]: own}
    beneath = {} if before is None else {key: value for key, value in before[1].items() if key != "kind"}
    try:
        found = document(str(old["kind"]), beneath | own)
    except InputError as error:
        raise InputError(error.problem, remedy=error.remedy, path=path) from None
    return rest | {found.architecture: dict(found.settings)}


def with_architecture(tables: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """The tables of a recipe, in which its architecture replaces the table of that name.

    >>> with_architecture({"listwise": {"n": 4}}, "mine.toml")["architecture"].shape()
    (4,)
    """
    tables, known = dict(tables), names()
    asked = tables.pop(KEY, None)
    if asked is not None and asked not in known:
        problem = f"{KEY} is {quoted(asked)}"
        raise InputError(problem, remedy=f"use one of {', '.join(known)}", path=path)
    named = list(dict.fromkeys(filter(None, [asked, *(name for name in tables if name in known)])))
    if len(named) > 1:
        raise InputError(
            f"the recipe has [{named[0]}] and [{named[1]}]",
            remedy="leave out one of them: a model has one architecture",
            path=path,
        )
    for name in named:
        settings = tables.pop(name, {})
        if not isinstance(settings, dict):
            raise InputError(
                f"{name} is {quoted(settings)}", remedy=f"it must be a table, [{name}]", path=path
            )
        kind = architecture(name)
        tables[KEY] = kind(build(kind.Settings, settings, path, name))
    return tables
