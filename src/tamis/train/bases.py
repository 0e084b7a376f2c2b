"""Recipes on recipes: what a recipe says stands in place of what its base says, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError, quoted
from tamis.models.settings import read_toml
from tamis.storage.files import is_there

BUNDLED = Path(__file__).parent / "recipes"

#: Of these a recipe gives one: what it gives drops the others that its base gives.
_EITHER = {
    "optimiser": ("steps", "epochs"),
    "folds": ("files", "count"),
    "student": ("layers", "keep", "random"),
}

#: The tables that the recipes of one command have and those of the others lack.
_OWN = {
    "train": ("examples", "loss", "limits", "dev", "folds", "longdoc", "listwise", "cascade"),
    "distill": ("student", "lm", "ranker"),
    "pretrain": ("objective",),
}


def read_tables(path: str | Path, command: str | None = None) -> dict[str, Any]:
    """The tables of a recipe of any kind over those of its base, not yet checked, but whether it is one for
    another command. A recipe that is bundled may be given by its name."""
    bare = str(path) in bundled() and not Path(path).is_file()
    file = BUNDLED / f"{path}.toml" if bare else Path(path)
    tables = _tables(file, ())
    # a base says how a dev run is measured; whether there is one is up to the recipe
    if "dev" not in read_toml(file) and "queries" not in tables.get("dev", {"queries": None}):
        del tables["dev"]
    meant = {name for name, own in _OWN.items() if not tables.keys().isdisjoint(own)}
    if not isinstance(tables.get("data", []), list):  # the one of a corpus, whatever else is wrong
        meant.discard("train")
    if command is not None and len(meant) == 1 and command not in meant:
        (other,) = meant
        raise InputError(f"a recipe of tamis {other}", remedy=f"use tamis {other}", path=path)
    return tables


def _tables(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file's tables over those of its base."""
    if path.resolve() in seen:
        raise InputError("the recipe is its own base", remedy="leave out `base`", path=path)
    tables = read_toml(path)
    if "base" not in tables:
        return tables
    base = tables.pop("base")
    if not isinstance(base, str):
        remedy = f"it must be a file or one of {', '.join(bundled())}"
        raise InputError(f"base is {quoted(base)}", remedy=remedy, path=path)
    beneath = path.parent / base
    if not is_there(beneath) or not beneath.is_file():
        beneath = BUNDLED / f"{base}.toml"
    if not is_there(beneath) or not beneath.is_file():
        remedy = f"give a file beside it, or one of {', '.join(bundled())}"
        raise InputError(f"there is no recipe {quoted(base)}", remedy=remedy, path=path)
    return _over(tables, _tables(beneath, (*seen, path.resolve())))


def _over(tables: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """
    >>> _over({"optimiser": {"epochs": 2}}, {"optimiser": {"steps": 9, "clip": 1}, "loss": {"name": "kl"}})
    {'optimiser': {'clip': 1, 'epochs': 2}, 'loss': {'name': 'kl'}}
    """
    merged = dict(base)
    for name, table in tables.items():
        beneath = base.get(name)
        if isinstance(table, dict) and isinstance(beneath, dict):
            either = set(_EITHER.get(name, ()))
            dropped = either - set(table) if either & set(table) else set()
            table = _over(table, {key: value for key, value in beneath.items() if key not in dropped})
        merged[name] = table
    return merged


def bundled() -> list[str]:
    """The names of the recipes inside the package.

    >>> "monobert" in bundled()
    True
    """
    return sorted(path.stem for path in BUNDLED.glob("*.toml"))
