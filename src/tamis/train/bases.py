"""Recipes with a base: the fields of a recipe replace those of its base."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError, did_you_mean, quoted
from tamis.models.settings import read_toml
from tamis.storage.files import is_there
from tamis.train.recipe_architecture import KEY, renamed, tells

BUNDLED = Path(__file__).parent / "recipes"

#: Alternative fields, of which a recipe sets one: its choice drops the others that its base sets.
_EITHER = {
    "optimiser": ("steps", "epochs"),
    "folds": ("files", "count"),
    "student": ("layers", "keep", "random"),
}

#: The tables that only the recipes of one command have.
_OWN = {
    "train": ("examples", "loss", "limits", "dev", "folds"),
    "distill": ("student", "lm", "ranker"),
    "pretrain": ("objective",),
}


def read_tables(path: str | Path, command: str | None = None) -> dict[str, Any]:
    """The tables of a recipe of any kind, merged over those of its base. The only check is whether the recipe
    is for another command. A bundled recipe may be named instead of a file."""
    bare = str(path) in bundled() and not Path(path).is_file()
    file = BUNDLED / f"{path}.toml" if bare else Path(path)
    if file.parent == Path() and not file.suffix and not is_there(file):
        remedy = f"{did_you_mean(str(path), bundled())}, or give a file"
        raise InputError(f"no recipe is called {quoted(str(path))}", remedy=remedy)
    tables = _tables(file, ())
    # a base may set how a dev run is measured; the recipe decides whether there is one
    if "dev" not in read_toml(file) and "queries" not in tables.get("dev", {"queries": None}):
        del tables["dev"]
    meant = _commands(tables)
    if command is not None and len(meant) == 1 and command not in meant:
        (other,) = meant
        raise InputError(f"a recipe of tamis {other}", remedy=f"use tamis {other}", path=path)
    return tables


def _commands(tables: Mapping[str, Any]) -> set[str]:
    """The commands that have recipes with such tables."""
    meant = {name for name, own in _OWN.items() if not tables.keys().isdisjoint(own)}
    if tells(tables):
        meant.add("train")
    if not isinstance(tables.get("data", []), list):  # [data] with a corpus, whatever else is wrong
        meant.discard("train")
    return meant


def _tables(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A file's tables, merged over those of its base."""
    if path.resolve() in seen:
        raise InputError("the recipe is its own base", remedy="leave out `base`", path=path)
    tables = read_toml(path)
    if "base" not in tables:
        return renamed(tables, {}, path)
    base = tables.pop("base")
    if not isinstance(base, str):
        remedy = f"it must be a file or one of {', '.join(bundled())}"
        raise InputError(f"base is {quoted(base)}", remedy=remedy, path=path)
    beneath = path.parent / base
    if not is_there(beneath) or not beneath.is_file():
        beneath = BUNDLED / f"{base}.toml"
    if not is_there(beneath) or not beneath.is_file():
        remedy = f"give a file beside it, or one of {', '.join(bundled())}"
        raise InputError(f"{quoted(base)} is not a recipe", remedy=remedy, path=path)
    under = _tables(beneath, (*seen, path.resolve()))
    tables = renamed(tables, under, path)
    if tells(tables):  # a model has one architecture
        gone = [name for name in tells(under) if name not in tables and name != tables.get(KEY)]
        under = {name: table for name, table in under.items() if name not in gone}
    return _over(tables, under)


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


def bundled_for(command: str) -> dict[str, str]:
    """The recipes inside the package for a command, each with a description in one sentence.

    >>> bundled_for("pretrain")["tcp"]
    'Target corpus pretraining: Nogueira et al. 2019, section 4.1.'
    """
    tables = {name: _tables(BUNDLED / f"{name}.toml", ()) for name in bundled()}
    return {
        name: _sentence(str(each.get("about", "")))
        for name, each in tables.items()
        if command in _commands(each)
    }


def _sentence(about: str) -> str:
    """The first sentence of a text.

    >>> _sentence("PARADE: Li et al. 2020. It reads passages.")
    'PARADE: Li et al. 2020.'
    """
    return re.split(r"(?<=(?<! al)[.])\s", " ".join(about.split()), maxsplit=1)[0]
