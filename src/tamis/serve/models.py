"""The models that a server has, and the stages that they are for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tamis.base.errors import InputError
from tamis.core.language import Node, calls
from tamis.core.options import Kind, Names
from tamis.core.registry import BUILT_IN, brought, is_known, names, parameters_of, role_of
from tamis.models.bundled import open_model
from tamis.rank.groupwise import NAME as GROUPWISE
from tamis.rank.groupwise import GroupwiseModel


class Named(NamedTuple):
    """A text of a pipeline that names something: of a model a folder, a file, or a name on the hub. What an
    option names that does not say so (`names` is None) is not known, and may be any file."""

    stage: str
    model: str
    revision: str | None = None
    option: str = "model"
    names: Names | None = Names.MODEL

    def __str__(self) -> str:
        return repr(self.model) + (f" of revision {self.revision!r}" if self.revision is not None else "")


def models_named(node: Node) -> Iterator[Named]:
    """The models that a pipeline names, those that it names by leaving them out too, and all texts of which
    nobody says what they name.

    >>> from tamis.core.language import parse
    >>> [str(each) for each in models_named(parse("bm25 >> maxp(mono) >> duo(model=x, revision=y)"))]
    ["'mono'", "'x' of revision 'y'"]
    """
    for call in calls(node):
        if not is_known(call.name):
            continue  # that there is no such stage is said by whoever builds it
        given = dict(call.options)
        texts = {
            each: given.get(name, each.default)
            for name, each in parameters_of(call.name).items()
            if each.takes_text and each.names is not Names.NOTHING
        }
        revision = next((text for each, text in texts.items() if each.names is Names.REVISION), None)
        for each, text in texts.items():
            if isinstance(text, str | Path) and each.names in (Names.MODEL, Names.FILE):
                yield Named(call.name, str(text), revision, each.name, each.names)
            elif isinstance(text, str | Path) and each.names is None:
                yield Named(call.name, str(text), None, each.name, None)


@cache
def stages_known() -> list[dict[str, Any]]:
    """The stages that a pipeline may have. One of a package that cannot be imported is left out: whoever
    names it hears why."""
    return list(filter(None, map(_stage_known, names())))


def _stage_known(name: str) -> dict[str, Any] | None:
    try:
        options = [key for key, each in parameters_of(name).items() if each.kind is Kind.OPTION]
        package = brought()[name].package if name not in BUILT_IN else None
        return {"name": name, "role": str(role_of(name)), "options": options, "package": package}
    except InputError:
        return None


def what_is_named(stage: str) -> Names | None:
    """Whether the model of a stage is a file, or a model by its name.

    >>> str(what_is_named("groupwise")), str(what_is_named("mono")), what_is_named("bm25")
    ('a file', 'a model', None)
    """
    found = (each.names for each in parameters_of(stage).values())
    return next((each for each in found if each in (Names.MODEL, Names.FILE)), None)


def stage_for(named: Named) -> str:
    """The stage that a model which a pipeline names is for: of a package's own stages that one."""
    own = named.names is Names.FILE or named.stage not in BUILT_IN
    return named.stage if own else stage_of(named.model, named.revision)


def stage_of(model: str, revision: str | None = None) -> str:
    """The stage of the language that a model is for, by what it holds; one that cannot be read is an error.

    >>> stage_of(str(getfixture("tmp_path")))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    if Path(model).is_file():
        GroupwiseModel.read(model)
        return GROUPWISE
    return open_model(model, revision).architecture.stage
