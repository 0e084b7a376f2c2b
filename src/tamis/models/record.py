"""The record of a model's architecture in its config.json:

    "tamis": {"format": 2, "architecture": "listwise", "settings": {"n": 8, ...}}

A plain pointwise model has no record. Models without a record may also have an older layout
(`tamis.models.legacy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tamis.base.errors import InputError, quoted
from tamis.models import legacy
from tamis.models.architecture import Architecture, architecture
from tamis.models.architectures.mono import Mono
from tamis.models.config import RECORD, EncoderConfig
from tamis.models.settings import build
from tamis.storage.files import is_there

_FORMAT = 2  # 1 was a separate file
_AGAIN = "fetch or save the model again"


def read_record(
    raw: Mapping[str, Any], config: EncoderConfig, names: Iterable[str], folder: Path
) -> Architecture:
    """The architecture of a model, from the content of its config.json or from the layout of an older
    version; `names` are the names of its tensors."""
    path = folder / "config.json"
    if RECORD in raw:
        name, settings = _parsed(raw[RECORD], path)
    else:
        name, settings = legacy.recorded(raw, config.segments, config.layers, names, folder)
        if is_there(folder / legacy.PLAN):
            path = folder / legacy.PLAN
    try:
        found = architecture(name)
    except InputError as error:
        remedy = "install the package that it comes from"
        raise InputError(error.problem, remedy=remedy, path=path) from None
    kind = found(build(found.Settings, settings, path, name))
    try:
        kind.check_config(config)
    except InputError as error:
        raise InputError(error.problem, remedy=_AGAIN, path=path) from None
    return kind


def record_of(kind: Architecture, config: EncoderConfig, folder: Path) -> dict[str, Any]:
    """The record as a part of the config.json in `folder`. It is empty for a pointwise model, unless that
    would then be read as a model of an older layout.

    >>> bert = EncoderConfig("bert", 9, hidden=8, layers=1, heads=2, feed_forward=8, segments=3)
    >>> record_of(Mono(), bert, getfixture("tmp_path"))  # without a record three segments are a duo
    {'tamis': {'format': 2, 'architecture': 'mono', 'settings': {'form': 'default'}}}
    """
    if kind == Mono() and config.segments < legacy.DUO_SEGMENTS and not legacy.files(folder):
        return {}
    settings = kind.settings.model_dump(mode="json")
    return {RECORD: {"format": _FORMAT, "architecture": kind.name, "settings": settings}}


def _parsed(record: object, path: Path) -> legacy.Record:
    if not isinstance(record, dict) or not isinstance(record.get("settings", {}), dict):
        raise InputError(f"{RECORD} is not a table", remedy=_AGAIN, path=path)
    if record.get("format") != _FORMAT:
        problem = f"a model of the format {quoted(record.get('format'))}, this tamis reads {_FORMAT}"
        raise InputError(problem, remedy="use the version of tamis that wrote it", path=path)
    name = record.get("architecture")
    if not isinstance(name, str):
        raise InputError(f"{RECORD} names no architecture", remedy=_AGAIN, path=path)
    return legacy.Record(name, record.get("settings", {}))
