"""Reads model folders written by older versions. Only this module guesses the architecture of a model.

tamis_input_form in config.json            a pointwise model with inputs in another form
tamis_listwise_texts in config.json        a listwise model
tensors exits.* beside the encoder's       a cascade
three segments                             a duo, also in folders of other programs
tamis.json, tamis.safetensors              a model of long documents, its head in a separate file; one on
                                           static embeddings has no config.json
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

from tamis.base.errors import CorruptError, InputError, quoted
from tamis.base.nested import parse_json
from tamis.models.templates import Form
from tamis.models.weights import StoredTensor, stored_tensors, verify_tensors
from tamis.storage.files import is_there, read_text

PLAN, HEAD = "tamis.json", "tamis.safetensors"
_FORM, _TEXTS, _EXITS, _TABLE = "tamis_input_form", "tamis_listwise_texts", "exits.", "embeddings"
_FORMAT = 1  # of tamis.json
#: The table of recipes that all models of long documents used.
OLD_TABLE = "longdoc"
_FAMILIES = {
    "knrm": "interaction",
    "pacrr": "interaction",
    "drmm": "interaction",
    "vanilla": "cedr",
    "maxp": "maxp",
    "birch": "birch",
    "pcgm": "pcgm",
}
_MOST_TEXTS = 1 << 10
DUO_SEGMENTS = 3


class Record(NamedTuple):
    """The name of an architecture, and its settings."""

    architecture: str
    settings: Mapping[str, Any]


def recorded(
    raw: Mapping[str, Any], segments: int, layers: int, names: Iterable[str], folder: Path
) -> Record:
    """The architecture of a model without a record in its config.json."""
    if (plan := _plan(folder)) is not None:
        return plan
    if texts := _texts(raw, folder):
        return Record("listwise", {"n": texts})
    if exits := sorted({_layer(name, folder) for name in names if name.startswith(_EXITS)}):
        if min(exits) < 1 or max(exits) >= layers:
            listed = ", ".join(map(str, exits))
            raise _damaged(folder, f"exits after layers {listed} of a model that has {layers}")
        return Record("cascade", {"exits": exits})
    if segments >= DUO_SEGMENTS:
        return Record("duo", {})
    form = raw.get(_FORM, "default")
    if form not in get_args(Form):
        raise _wrong(folder, _FORM, form, f"one of {', '.join(get_args(Form))}")
    return Record("mono", {"form": form})


def raw_config(folder: Path) -> dict[str, Any] | None:
    """The replacement for the config.json that a model on static embeddings lacks; None for other models."""
    if is_there(folder / "config.json") or not is_there(folder / PLAN):
        return None
    words, width = _table(folder).shape
    return {"model_type": "static", "vocab_size": words, "hidden_size": width}


def stored_words(folder: Path) -> dict[Path, dict[str, StoredTensor]]:
    """The table of words of such a model, under its current name."""
    return {folder / HEAD: {"static.embeddings.word": _table(folder)}}


def stored_head(folder: Path, prefix: str) -> dict[str, StoredTensor]:
    """The tensors of a head in a separate file, under their current names."""
    if not is_there(folder / HEAD):
        return {}
    verify_tensors(folder / HEAD)
    return {f"{prefix}.{name}": tensor for name, tensor in _head(folder).items() if name != _TABLE}


def files(folder: Path) -> list[Path]:
    """The files that a model of long documents has in addition to an encoder's."""
    return [path for path in (folder / PLAN, folder / HEAD) if is_there(path)]


def _head(folder: Path) -> dict[str, StoredTensor]:
    if not is_there(folder / HEAD):
        raise CorruptError(f"{folder} lacks its {HEAD}", remedy="train or copy the model again")
    return stored_tensors(folder / HEAD)


def _table(folder: Path) -> StoredTensor:
    table = _head(folder).get(_TABLE)
    if table is None or len(table.shape) != 2:
        problem = f"{folder / HEAD} has no table of words"
        raise CorruptError(problem, remedy="train or copy the model again")
    return table


def _plan(folder: Path) -> Record | None:
    path = folder / PLAN
    if not is_there(path):
        return None
    try:
        content = parse_json(read_text(path))
        version, kind = content.pop("format"), str(content.pop("kind"))
    except (ValueError, AttributeError, KeyError, TypeError):
        raise CorruptError(f"{path} is damaged", remedy="train or copy the model again") from None
    if version != _FORMAT:
        raise InputError(
            f"format {version!r}, this tamis reads {_FORMAT}", remedy="use that tamis", path=path
        )
    try:
        return document(kind, content)
    except InputError as error:
        raise InputError(error.problem, remedy=error.remedy, path=path) from None


def document(kind: str, content: Mapping[str, Any]) -> Record:
    """A model of long documents from the name of its kind in `tamis.json` or in the table [longdoc] of a
    recipe.

    >>> document("parade-max", {"window": 100})
    Record(architecture='parade', settings={'window': 100, 'kind': 'max'})
    """
    family, _, form = kind.partition("-")
    name = _FAMILIES.get(kind, family)
    if kind not in _FAMILIES and (name not in ("cedr", "parade") or not form):
        raise InputError(f"{quoted(kind)} is not a kind of model", remedy="use one such as parade-max")
    only = {"cls": "cedr", "frozen": "cedr", "gains": "pcgm", "keep": "maxp"}
    settings = {key: value for key, value in content.items() if only.get(key, name) == name}
    if name in ("cedr", "parade", "interaction"):
        settings["kind"] = form or kind
    return Record(name, settings)


def _texts(raw: Mapping[str, Any], folder: Path) -> int:
    texts = raw.get(_TEXTS, 0)
    if not isinstance(texts, int) or isinstance(texts, bool) or texts < 0:
        raise _wrong(folder, _TEXTS, texts, "a whole number of at least 0")
    if texts > _MOST_TEXTS:
        raise _wrong(folder, _TEXTS, texts, f"at most {_MOST_TEXTS:,}")
    return texts


def _layer(name: str, folder: Path) -> int:
    layer = name.split(".")[1]
    if not layer.isascii() or not layer.isdigit() or len(layer) > 9:
        raise _damaged(folder, f"the tensor {quoted(name)} belongs to no layer")
    return int(layer)


def _damaged(folder: Path, problem: str) -> InputError:
    return InputError(
        f"its exits are damaged: {problem}", remedy="save or fetch the model again", path=folder
    )


def _wrong(folder: Path, name: str, value: object, wanted: str) -> InputError:
    return InputError(
        f"{name} is {quoted(value)}", remedy=f"it must be {wanted}", path=str(folder / "config.json")
    )
