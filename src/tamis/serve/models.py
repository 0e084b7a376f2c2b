"""The models that a server has, and the stages that they are for."""

from __future__ import annotations

from tamis.infer.cross_encoder import CrossEncoder
from tamis.models.exits import has_exits
from tamis.models.long_plan import is_long, read_plan
from tamis.rank.longdoc import Cedr

_OF_PAIRS = 3  # segments: the query, and the two texts of a pair


def stage_of(model: str, revision: str | None = None) -> str:
    """The stage of the language that a model is for, by what it holds; one that cannot be read is an error.

    >>> stage_of(getfixture("tmp_path"))
    Traceback (most recent call last):
    tamis.errors.InputError: .../config.json: no such file: check the path
    """
    if is_long(model):
        return "cedr" if read_plan(model).kind.startswith(Cedr.kinds) else "parade"
    checkpoint = CrossEncoder(model, revision=revision).checkpoint
    if has_exits(checkpoint.folder):
        return "cascade"
    if checkpoint.config.texts:
        return "listwise"
    return "duo" if checkpoint.config.segments >= _OF_PAIRS else "mono"
