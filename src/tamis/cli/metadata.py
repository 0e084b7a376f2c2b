"""A document's metadata in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tamis.cli.console import printable

_BETWEEN = " · "
_LONGEST = 60  # characters of a value


def metadata_line(metadata: Mapping[str, Any], width: int) -> str:
    """As many fields as there is room for, each with its value, or with the beginning of it.

    >>> metadata_line({"year": 2021, "tags": ["kitchen", "tools"], "lang": None}, width=60)
    'year: 2021 · tags: kitchen, tools'
    >>> metadata_line({"year": 2021, "lang": "en", "source": "catalogue"}, width=24)
    'year: 2021 · lang: en …'
    """
    line = ""
    for name, value in metadata.items():
        if value is None or value in ("", [], {}):
            continue
        field = f"{printable(str(name))}: {_short(value)}"
        longer = f"{line}{_BETWEEN}{field}" if line else field
        if len(longer) > width:
            return f"{line} …" if line else f"{field[: width - 2]} …"
        line = longer
    return line


def _short(value: Any) -> str:
    """A value in one line; of a long one the beginning."""
    if isinstance(value, list) and not any(isinstance(each, list | dict) for each in value):
        text = ", ".join(map(_short, value[:_LONGEST]))
    else:
        text = value[: _LONGEST + 1] if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(" ".join(text.split()))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
