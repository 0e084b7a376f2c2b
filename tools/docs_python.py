"""The reference of Python: the public names, how they are called, and what they say of themselves."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from docs_text import definition, docstring

import tamis

_WIDTH = 100
_EMPTY = inspect.Parameter.empty

#: The modules of each page of the reference of Python, beside `tamis` itself.
MODULES = {
    "rerank": ["core.candidates", "rank.reranker", "rank.scored", "rank.ltr", "train.ltr", "rank.given_run",
               "rank.combine", "storage.score_cache", "core.runtime", "core.pool", "infer.tokens",
               "core.plan", "core.cluster"],
    "stages": ["core.stage", "core.options", "core.cost", "core.model_stage", "core.extensions", "testing"],
    "models": ["models.architecture", "models.settings", "models.network", "train.learning"],
    "evaluate": ["evaluate.measures", "evaluate.compare", "evaluate.significance", "evaluate.folds",
                 "evaluate.grid", "evaluate.tune", "evaluate.candidates", "evaluate.tradeoff",
                 "evaluate.budget", "evaluate.report", "evaluate.moved", "evaluate.trials",
                 "evaluate.sampling", "evaluate.diagnose", "evaluate.ties"],
    "files": ["formats", "base.errors", "index.backup", "index.repair"],
}  # fmt: skip


def top_level() -> str:
    """What `import tamis` gives."""
    names = [name for name in tamis.__all__ if name != "__version__"]
    return "\n\n".join(_described(f"tamis.{name}", getattr(tamis, name), 2) for name in names)


def modules(group: str) -> str:
    """The public names of a group of modules."""
    parts = []
    for name in MODULES[group]:
        module = import_module(f"tamis.{name}")
        parts += [f"## tamis.{name}", docstring(module)]
        parts += [_described(key, each, 3) for key, each in _public(module)]
    return "\n\n".join(parts)


def _public(module: Any) -> Iterator[tuple[str, Any]]:
    """What a module defines, or for a package what it passes on by `__all__`."""
    listed = getattr(module, "__all__", None)
    for name, each in vars(module).items():
        own = getattr(each, "__module__", "") == module.__name__ if listed is None else name in listed
        if own and not name.startswith("_") and (inspect.isclass(each) or inspect.isfunction(each)):
            yield name, each


def _described(name: str, each: Any, level: int) -> str:
    parts = [f"{'#' * level} {name}", f"```python\n{signature(name, each)}\n```"]
    if own := docstring(each) if each.__doc__ and not each.__doc__.startswith(f"{each.__name__}(") else "":
        parts.append(own)
    if inspect.isclass(each):
        parts += [_member(each, key) for key in vars(each) if _documented(each, key)]
    return "\n\n".join(parts)


def _documented(owner: type, name: str) -> bool:
    member = inspect.getattr_static(owner, name)
    callable_ = isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)
    return not name.startswith("_") and callable_ and bool(inspect.getdoc(getattr(owner, name)))


def _member(owner: type, name: str) -> str:
    """A method or property, as a definition: a heading each would make the contents unreadable."""
    member = inspect.getattr_static(owner, name)
    if isinstance(member, property):
        return definition(f".{name}", docstring(member))
    of_class = isinstance(member, classmethod | staticmethod)
    called = signature(f"{owner.__name__ if of_class else ''}.{name}", getattr(owner, name), sys.maxsize)
    return definition(called, docstring(getattr(owner, name)))


def signature(name: str, each: Any, width: int = _WIDTH) -> str:
    """How it is called, on one line if it fits.

    >>> signature("docstring", docstring)
    'docstring(of: Any) -> str'
    """
    try:
        found = inspect.signature(each)
    except ValueError:
        return name
    parameters = [
        _shown(parameter) for key, parameter in found.parameters.items() if key not in ("self", "cls")
    ]
    kinds = [parameter.kind for key, parameter in found.parameters.items() if key not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    gives = found.return_annotation
    result = "" if gives in (inspect.Signature.empty, None, "None") else f" -> {_name(gives)}"
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= width:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){result}"


def _shown(parameter: inspect.Parameter) -> str:
    kind = parameter.kind
    stars = "*" if kind is parameter.VAR_POSITIONAL else "**" if kind is parameter.VAR_KEYWORD else ""
    annotation = "" if parameter.annotation is _EMPTY else f": {_name(parameter.annotation)}"
    if parameter.default is _EMPTY:
        return f"{stars}{parameter.name}{annotation}"
    default = repr(parameter.default)
    default = "..." if default.startswith("<") else default  # a default made anew for each object
    return f"{stars}{parameter.name}{annotation}{' = ' if annotation else '='}{default}"


def _name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
