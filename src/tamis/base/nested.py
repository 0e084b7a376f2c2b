"""JSON, and nested values of any format, from untrusted files."""

from __future__ import annotations

import json
import math
from typing import Any

DEEPEST = 100  # levels: Python can read deeper values than it can write


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Any problem is a `ValueError`: `json.loads` raises a `RecursionError` for
    deep nesting, at a depth that differs from call to call.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested too deeply
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise a `ValueError` for values with more than `DEEPEST` levels.

    >>> check_depth([[], {"a": []}])
    """
    level = _within([value])
    for _ in range(DEEPEST):
        level = _within(inner for each in level for inner in _parts(each))
        if not level:
            return
    raise ValueError("nested too deeply")


def check_numbers(value: Any) -> None:
    """Raise a `ValueError` for numbers beyond the range of a float, such as 1e400: Python reads them as
    infinite, and other programs cannot read what it writes for these. The value must not be nested too
    deeply.

    >>> check_numbers({"year": [1e400]})
    Traceback (most recent call last):
    ValueError: a number beyond the range of a float
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number beyond the range of a float")
    elif isinstance(value, dict | list):
        for each in _parts(value):
            if not isinstance(each, str):
                check_numbers(each)


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


def _within(values: Any) -> list[Any]:
    return [value for value in values if isinstance(value, dict | list)]
