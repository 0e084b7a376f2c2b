"""One JSON object per line: the checks shared by corpora and queries, some of them also by CSV rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any

from tamis.base.errors import InputError, quoted
from tamis.base.nested import check_depth, check_numbers

_MOST_NAMES, _LONGEST_NAME = 8, 40  # in an error of one line


def parse_object(line: str) -> dict[str, Any]:
    r"""The JSON object of one line.

    >>> parse_object('{"_id": "d1", "text": "caf\\u00e9"}')
    {'_id': 'd1', 'text': 'café'}
    >>> parse_object("[1, 2]")
    Traceback (most recent call last):
    tamis.base.errors.InputError: not a JSON object: write one {...} per line, as jq -c '.[]' does of an array
    >>> parse_object('{"_id": "d1')
    Traceback (most recent call last):
    tamis.base.errors.InputError: not JSON (Unterminated string starting at column 9): write one ...
    """
    try:
        value = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise InputError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg.removesuffix(' at')} at column {error.colno})"
        raise InputError(problem, remedy=_one_a_line(line)) from None
    except ValueError:
        raise InputError("a number of thousands of digits", remedy="write it as a string") from None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", remedy=_one_a_line(line))
    try:
        check_depth(value)
    except ValueError:
        raise InputError("JSON nested too deeply") from None
    try:
        check_numbers(value)
    except ValueError as error:
        raise InputError(str(error), remedy="write it as a string, or leave it out") from None
    # Half of a surrogate pair is valid in a JSON escape but not in UTF-8: reject it before it is stored.
    if "\\ud" in line or "\\uD" in line:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError("half of a surrogate pair in a \\u escape", remedy="write UTF-8") from None
    return value


def _refuse(constant: str) -> None:
    """Reject NaN and Infinity: Python reads and writes them, but no other parser reads them."""
    raise InputError(f"{constant} is not JSON", remedy="write null, or leave it out")


def _one_a_line(line: str) -> str:
    array = line.lstrip().startswith("[")  # the usual JSON of most programs
    return "write one {...} per line" + (", as jq -c '.[]' does of an array" if array else "")


def first_present(record: Collection[str], keys: Sequence[str], what: str = "keys") -> str:
    """The first of `keys` that the record has.

    >>> first_present({"title": "t", "contents": "c"}, ["text", "contents"])
    'contents'
    >>> first_present({"title": "t", "story": "s"}, ["text", "contents"])
    Traceback (most recent call last):
    tamis.base.errors.InputError: none of the keys 'text', 'contents' among 'title', 'story': rename ...
    """
    for key in keys:
        if key in record:
            return key
    names = [quoted(name, _LONGEST_NAME) for name in islice(record, _MOST_NAMES)]
    more = ["..."] if len(record) > _MOST_NAMES else []
    among = f" among {', '.join(names + more)}" if names else ""
    problem = f"none of the {what} {', '.join(map(repr, keys))}{among}"
    raise InputError(problem, remedy="rename or add one")


def first_filled(record: Mapping[str, object], keys: Sequence[str]) -> str:
    """The first of `keys` that the record has; if its value is `null` or blank, the first with a text that is
    not blank: an export may have all the columns and fill only one of them.

    >>> first_filled({"text": " ", "contents": None, "body": "b"}, ["text", "contents", "body"])
    'body'
    >>> first_filled({"text": None, "body": ""}, ["text", "contents", "body"])
    'text'
    """
    first = first_present(record, keys)
    value = record[first]
    if value is not None and not (isinstance(value, str) and is_blank(value)):
        return first
    texts = ((key, record.get(key)) for key in keys)
    return next((key for key, text in texts if isinstance(text, str) and not is_blank(text)), first)


def is_blank(text: str) -> bool:
    r"""Whether a text is empty or contains only white space; stops at the first other character.

    >>> is_blank(""), is_blank(" \n"), is_blank(" a")
    (True, True, False)
    """
    return not text or text.isspace()


def to_id(value: object) -> str:
    """An id as a string; numbers are converted, any other value raises an error.

    >>> to_id("d1"), to_id(7)
    ('d1', '7')
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value:
        return value
    remedy = "fill it in, or leave the line out" if value == "" else "use a string or a number"
    raise InputError(f"{json.dumps(value)[:40]} is not an id", remedy=remedy)


def to_text(value: object, key: str) -> str:
    """A text; `null` is the empty text, any other value that is not a string raises an error.

    >>> to_text("A sieve.", "text"), to_text(None, "text")
    ('A sieve.', '')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise InputError(f"{key!r} is not a string ({json.dumps(value)[:40]})", remedy="use a string")
