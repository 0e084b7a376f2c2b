"""The reference of recipes: all tables, from the models that read them and the comments beside the fields."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from typing import Any

from docs_text import table
from pydantic.fields import FieldInfo

from tamis.models.architecture import architecture, names
from tamis.models.settings import Settings, in_words, table_of
from tamis.train.distill_recipe import DistillRecipe
from tamis.train.pretrain_recipe import PretrainRecipe
from tamis.train.recipe import Recipe

#: The tables of architectures, those of packages too.
ARCHITECTURES = {
    name: architecture(name).Settings for name in names() if architecture(name).Settings.model_fields
}
#: The recipes of each command; beside the first, what only some of them have.
RECIPES: dict[str, list[type[Settings]]] = {
    "train": [Recipe, *ARCHITECTURES.values()],
    "distill": [DistillRecipe],
    "pretrain": [PretrainRecipe],
}

Field = tuple[str, FieldInfo, str]  # its name, what it may hold, and what is said of it


def recipes(command: str) -> str:
    """What the recipes of a command may say."""
    parts: list[str] = []
    for kind, heading in _sections()[command]:
        fields = _fields(kind)
        if heading:
            parts += [f"### {heading}", _about(kind)]
        parts.append(table(["field", "is", "default", ""], [_row(*field) for field in fields]))
    return "\n\n".join(parts)


def architectures() -> str:
    """Each architecture: what it is, its table, and the stage that ranks with it."""
    rows = [
        [
            f"`{name}`",
            _about(kind := architecture(name)).partition("\n\n")[0].rstrip("."),
            f"[\\[{name}\\]](#{_slug(name)})" if name in ARCHITECTURES else "",
            f"`{kind.stage}`",
            "yes" if kind.needs_torch else "",
        ]
        for name in names()
    ]
    return table(["architecture", "", "table", "stage", "needs torch"], rows)


def _sections() -> dict[str, list[tuple[type[Settings], str]]]:
    """The models of each command with their headings. One that several use has a section once; the heading of
    a table that two commands know by the same name says which command is meant."""
    found: dict[str, list[tuple[type[Settings], str]]] = {}
    seen: set[type[Settings]] = set()
    named: set[str] = set()

    def walk(command: str, kind: type[Settings], path: str) -> None:
        for name, field in kind.model_fields.items():
            inner = table_of(field)
            if inner is None or inner in seen:
                continue
            seen.add(inner)
            within = f"{path}.{name}" if path else name
            heading = f"[[{within}]]" if in_words(field) == "a list of tables" else f"[{within}]"
            if _slug(heading) in named:
                heading += f" of tamis {command}"
            named.add(_slug(heading))
            found[command].append((inner, heading))
            walk(command, inner, within)

    for command, (general, *_) in RECIPES.items():
        found[command] = [(general, "")]
        walk(command, general, "")
    found["train"] += [(kind, f"[{name}]") for name, kind in ARCHITECTURES.items()]
    return found


def _fields(kind: type[Settings]) -> list[Field]:
    said = comments(kind)
    return [(name, field, said.get(name, "")) for name, field in kind.model_fields.items()]


def comments(kind: type[Settings]) -> dict[str, str]:
    """The comments beside a model's fields.

    >>> from tamis.train.recipe import Folds
    >>> comments(Folds)["depth"]
    'how many of them for each query'
    """
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not issubclass(each, Settings) or each is Settings:
            continue
        source = inspect.getsource(each)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        said = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
        (definition,) = ast.parse(source).body
        assert isinstance(definition, ast.ClassDef)
        for line in definition.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = said.get(line.end_lineno or 0, "").removeprefix("#").strip()
    return found


def _row(name: str, field: FieldInfo, said: str) -> list[str]:
    inner = table_of(field)
    kind = in_words(field)
    if inner is not None:
        heading = next(head for each in _sections().values() for model, head in each if model is inner)
        kind = f"[{kind}](#{_slug(heading)})"
        said = said or re.split(r"(?<!\bal)\. |: ", _about(inner))[0].rstrip(".")
    if not field.repr:
        said += " (may differ when a run is resumed)"
    if field.annotation == Recipe.model_fields["architecture"].annotation:
        kind = f"one of {', '.join(f'`{each}`' for each in names())}"
    default = "needed" if field.is_required() else _shown(field.default)
    return [f"`{name}`", kind, default, _escaped(said)]


def _shown(default: Any) -> str:
    """A default as TOML has it.

    >>> _shown(("mlm", "nsp")), _shown(False), _shown(None)
    ('`["mlm", "nsp"]`', '`false`', '')
    """
    return "" if default is None or isinstance(default, Settings) else f"`{json.dumps(default)}`"


def _about(kind: type[Any]) -> str:
    """What a class says of itself, without examples."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(kind) or "")
    return _escaped("\n\n".join(each for each in paragraphs if not each.startswith(">>>")))


def _escaped(text: str) -> str:
    """
    >>> print(_escaped("as [limits] and `[x]`"))
    as \\[limits\\] and `[x]`
    """
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]])", r"\\\1", part) for part in parts)


def _slug(heading: str) -> str:
    """The anchor of a heading, as the builder of the site makes it.

    >>> _slug("[model.random] of tamis pretrain")
    'modelrandom-of-tamis-pretrain'
    """
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
