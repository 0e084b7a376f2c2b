"""Which documents of an index satisfy a condition: a mask for each segment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import (
    TITLE,
    And,
    Compare,
    Condition,
    Contains,
    Not,
    OneOf,
    Or,
    Path,
    Value,
    comparable,
    leaves,
    printed_field,
    without_empty,
    words_of,
)
from tamis.base.errors import did_you_mean, quoted, some
from tamis.base.interrupt import check
from tamis.base.where import ConditionError
from tamis.index.fields import Columns
from tamis.index.phrases import containing
from tamis.index.segment import Segment
from tamis.text.analyze import Analyzer

_NAMES = {"number": "numbers", "text": "text", "truth": "true or false", "other": "objects"}


def allowed(segments: Sequence[Segment], where: Condition, analyzer: Analyzer) -> list[Array] | None:
    """For each segment which of its documents, deleted ones among them, satisfy a condition; None where the
    analyzer leaves nothing of it."""
    condition = without_empty(where, analyzer.places)
    if condition is None:
        return None
    compared = [leaf for leaf in leaves(condition) if not isinstance(leaf, Contains)]
    _check_fields(segments, compared)
    masks = []
    for segment in segments:
        check()
        masks.append(_mask(segment, condition, analyzer, segment.fields.needed(compared)))
    return masks


def _mask(segment: Segment, condition: Condition, analyzer: Analyzer, columns: Columns) -> Array:
    match condition:
        case And(parts):
            return reduce(np.logical_and, (_mask(segment, each, analyzer, columns) for each in parts))
        case Or(parts):
            return reduce(np.logical_or, (_mask(segment, each, analyzer, columns) for each in parts))
        case Not(inside):
            return ~_mask(segment, inside, analyzer, columns)
        case Contains():
            return containing(segment, words_of(condition, analyzer.places), analyzer)
    return segment.fields.where(condition, columns)


def _check_fields(segments: Sequence[Segment], compared: Sequence[Compare | OneOf]) -> None:
    """Raise where no document has a field, or only values of other kinds than those it is compared with: the
    condition is hardly what was meant."""
    paths = {leaf.field for leaf in compared}
    kinds: dict[Path, set[str]] = {path: set() for path in paths}
    for segment in segments if paths else ():
        for path, own in segment.fields.kinds(paths).items():
            kinds[path] |= own
    for leaf in compared:
        if not kinds[leaf.field] and leaf.field != TITLE and any(map(len, segments)):
            known = fields_of(segments)
            raise ConditionError(
                f"no document has a value in the field {printed_field(leaf.field)}",
                remedy=_suggested(printed_field(leaf.field), known),
            )
        _check_kinds(leaf, kinds[leaf.field])


def _check_kinds(leaf: Compare | OneOf, kinds: Collection[str]) -> None:
    values = leaf.values if isinstance(leaf, OneOf) else (leaf.value,)
    wanted = {value: comparable(value)[0] for value in values if value is not None}
    if not wanted or not kinds or any(kind in kinds for kind in wanted.values()):
        return
    value, kind = next(iter(wanted.items()))
    name, has = printed_field(leaf.field), " and ".join(sorted(_NAMES[each] for each in kinds))
    remedy = f"compare it with {has}"
    if kinds == {"text"}:
        remedy = f'put quotes around the value: "{_plain(value)}"'
        if kind == "number":
            remedy += " (text compares letter by letter), or index the field as numbers"
    elif kinds == {"number"} and kind == "text":
        remedy = "write a number, without quotes"
    elif kinds == {"other"}:
        remedy = f"name a field of them: {name}.NAME"
    problem = f"the field {name} has only {has}, and is compared with {quoted(value)}"
    raise ConditionError(problem, remedy=remedy)


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _suggested(name: str, known: Sequence[str]) -> str:
    if not known:
        return "the documents have no metadata; id and title can be used"
    near = did_you_mean(name, known).partition("? ")
    return f"{near[0]}? The fields are {some(known)}" if near[1] else f"the fields are {some(known)}"


def fields_of(segments: Sequence[Segment]) -> list[str]:
    """The fields of the metadata of an index, as far as the first documents of its segments have them."""
    return sorted({printed_field(path) for segment in segments for path in segment.fields.names})
