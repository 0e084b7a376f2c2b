"""The models that a server has, and the stages that they are for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from tamis.core.language import Node, calls
from tamis.core.registry import STAGES, parameters_of
from tamis.infer.scorer import CrossEncoder
from tamis.models.exits import has_exits
from tamis.models.long_plan import is_long, read_plan
from tamis.rank.groupwise import NAME as GROUPWISE
from tamis.rank.groupwise import GroupwiseModel
from tamis.rank.longdoc import Cedr

_OF_PAIRS = 3  # segments: the query, and the two texts of a pair
#: Options of any text that is no name: everything else that takes any text is taken for a path, so that a new
#: stage opens nothing for clients before somebody says so here.
_NO_NAMES = frozenset({("ltr", "weights")})


class Named(NamedTuple):
    """A model that a pipeline names: a folder, a file, or a name on the hub."""

    stage: str
    model: str
    revision: str | None

    def __str__(self) -> str:
        return repr(self.model) + (f" of revision {self.revision!r}" if self.revision is not None else "")


def models_named(node: Node) -> Iterator[Named]:
    """The models that a pipeline names, those that it names by leaving them out too.

    >>> from tamis.core.language import parse
    >>> [str(each) for each in models_named(parse("bm25 >> maxp(mono) >> duo(model=x, revision=y)"))]
    ["'mono'", "'x' of revision 'y'"]
    """
    for call in calls(node):
        if call.name not in STAGES:
            continue  # that there is no such stage is said by whoever builds it
        given = dict(call.options)
        texts = {
            name: given.get(name, parameter.default)
            for name, parameter in parameters_of(call.name).items()
            if _takes_any_text(parameter.annotation) and (call.name, name) not in _NO_NAMES
        }
        revision = texts.pop("revision", None)
        yield from (Named(call.name, text, revision) for text in texts.values() if isinstance(text, str))


def _takes_any_text(annotation: Any) -> bool:
    """Of a union the choices are looked at; those of a `Literal` are texts, and not their type."""
    return str in (get_args(annotation) or (annotation,))


def stage_of(model: str, revision: str | None = None) -> str:
    """The stage of the language that a model is for, by what it holds; one that cannot be read is an error.

    >>> stage_of(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.base.errors.InputError: .../config.json: no such file: check the path
    """
    if Path(model).is_file():
        GroupwiseModel.read(model)
        return GROUPWISE
    if is_long(model):
        return "cedr" if read_plan(model).kind.startswith(Cedr.kinds) else "parade"
    checkpoint = CrossEncoder(model, revision=revision).checkpoint
    if has_exits(checkpoint.folder):
        return "cascade"
    if checkpoint.config.texts:
        return "listwise"
    return "duo" if checkpoint.config.segments >= _OF_PAIRS else "mono"
