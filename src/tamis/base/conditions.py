"""Conditions of a query on documents: on their metadata, id and title, and on words next to each other.

A condition is plain data, which prints as `tamis.base.where` reads it. What it means is said here, for one
document (`satisfies`); an index finds the same documents by columns and posting lists
(`tamis.index.conditions`).

A field that is missing, null or an empty list has no value. Every comparison with it is false, `!=` too, but
for `= null`. A field may have several values: those of a list, and of the objects in a list. It is equal if
one of them is; `!=` holds where there is a value and none is equal. Numbers compare with numbers alone, in
double precision; texts compare by their code points, so that dates in ISO 8601 compare as dates.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tamis.base.documents import Document
from tamis.base.errors import InputError

Value = str | int | float | bool | None
Path = tuple[str, ...]
#: What an analyzer makes of each word of a text: its term, or None where it drops the word.
Places = Callable[[str], Sequence[str | None]]
Operator = Literal["=", "!=", "<", "<=", ">", ">="]

KEYWORDS = frozenset({"and", "or", "not", "in", "contains", "true", "false", "null"})
#: What a word without quotes has none of: operators, and what breaks lines, turns their direction or steers a
#: terminal. It is the inside of a class of a pattern.
NOT_BARE = (
    r"\s'\"\u201c\u201d\u201e()=!<>,"
    r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
)
BARE = re.compile(f"[^{NOT_BARE}]+")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
#: Fields of the document itself; metadata under these names cannot be asked for.
ID, TITLE = ("id",), ("title",)
_UNSHOWN = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Compare:
    """A field beside a value: `year >= 2020`."""

    field: Path
    operator: Operator
    value: Value

    def __str__(self) -> str:
        return f"{printed_field(self.field)} {self.operator} {_printed(self.value)}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field equal to one of some values: `lang in (en, fr)`."""

    field: Path
    values: tuple[Value, ...]

    def __str__(self) -> str:
        return f"{printed_field(self.field)} in ({', '.join(map(_printed, self.values))})"


@dataclass(frozen=True, slots=True)
class Contains:
    """Words next to each other, in this order, in the title and the text: `contains "drum sieve"`. Words are
    what the analyzer makes of both: in the place of a word that it drops there may be any. Where it drops
    all, this is no condition (`without_empty`)."""

    text: str

    def __str__(self) -> str:
        return f"contains {_printed(self.text)}"


@dataclass(frozen=True, slots=True)
class Not:
    condition: Condition

    def __str__(self) -> str:
        return f"not {_inside(self.condition, And | Or)}"


@dataclass(frozen=True, slots=True)
class And:
    """All of two or more; made by `all_of`."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " and ".join(_inside(each, Or) for each in self.conditions)


@dataclass(frozen=True, slots=True)
class Or:
    """One of two or more; made by `any_of`."""

    conditions: tuple[Condition, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.conditions))


Condition = Compare | OneOf | Contains | Not | And | Or


# -- making and printing
# ------------------------------------------------------------------------------------------------------------


def all_of(*conditions: Condition | None) -> Condition | None:
    """Every one of the conditions that there are, flat; None for none.

    >>> print(all_of(None, Contains("sieve"), And((Contains("flour"), Contains("drum")))))
    contains sieve and contains flour and contains drum
    """
    flat = [part for each in conditions for part in (each.conditions if isinstance(each, And) else (each,))]
    parts = tuple(part for part in flat if part is not None)
    return And(parts) if len(parts) > 1 else next(iter(parts), None)


def any_of(*conditions: Condition | None) -> Condition | None:
    """One of the conditions that there are, flat; None for none."""
    flat = [part for each in conditions for part in (each.conditions if isinstance(each, Or) else (each,))]
    parts = tuple(part for part in flat if part is not None)
    return Or(parts) if len(parts) > 1 else next(iter(parts), None)


def number(text: str) -> int | float | None:
    """A number in its one form, whole where it is; None where the text is no number, or too large a one.

    >>> number("2020"), number("2e3"), number("0.5"), number("01234"), number("1e999")
    (2020, 2000, 0.5, None, None)
    """
    if not NUMBER.fullmatch(text):
        return None
    value = float(text)
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    return None if value in (float("inf"), float("-inf")) else value


def printed_field(field: Path) -> str:
    """
    >>> print(printed_field(("author", "first name")))
    author."first name"
    """
    return ".".join(key if _is_bare(key) and "." not in key else _quoted(key) for key in field)


def _printed(value: Value) -> str:
    if isinstance(value, str):
        return value if _is_bare(value) and not NUMBER.fullmatch(value) else _quoted(value)
    return json.dumps(value)


def _is_bare(text: str) -> bool:
    return bool(BARE.fullmatch(text)) and text.lower() not in KEYWORDS


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=bool(_UNSHOWN.search(text)))


def _inside(condition: Condition, looser: Any) -> str:
    return f"({condition})" if isinstance(condition, looser) else str(condition)


# -- meaning
# ------------------------------------------------------------------------------------------------------------


def leaves(condition: Condition) -> Iterator[Compare | OneOf | Contains]:
    """The comparisons and the words of a condition, from left to right."""
    if isinstance(condition, And | Or):
        for each in condition.conditions:
            yield from leaves(each)
    elif isinstance(condition, Not):
        yield from leaves(condition.condition)
    else:
        yield condition


def without_empty(condition: Condition, places: Places) -> Condition | None:
    """A condition without the words of which the analyzer leaves nothing: a stop word is neither required nor
    excluded.

    >>> both = And((Contains("sieve"), Not(Contains("!"))))
    >>> print(without_empty(both, lambda text: [text.strip("!") or None]))
    contains sieve
    """
    if isinstance(condition, Contains):
        return condition if words_of(condition, places) else None
    if isinstance(condition, Not):
        inside = without_empty(condition.condition, places)
        return None if inside is None else Not(inside)
    if isinstance(condition, And | Or):
        join = all_of if isinstance(condition, And) else any_of
        return join(*(without_empty(each, places) for each in condition.conditions))
    if not isinstance(condition, Compare | OneOf):  # from callers without a type checker
        problem = f"a {type(condition).__name__} is not a condition"
        raise InputError(problem, remedy='read it from text: tamis.where("year >= 2020")')
    return condition


def words_of(condition: Contains, places: Places) -> tuple[str | None, ...]:
    """The words that must stand next to each other, None for any word between them."""
    words = places(condition.text)
    known = [place for place, word in enumerate(words) if word is not None]
    return tuple(words[known[0] : known[-1] + 1]) if known else ()


def values_of(metadata: Any, field: Path) -> list[Any]:
    """The values that a field has: none if it is missing or null, several if it is a list.

    >>> values_of({"authors": [{"name": "Ada"}, {"name": "Bo"}, {}], "year": None}, ("authors", "name"))
    ['Ada', 'Bo']
    """
    found: list[Any] = []
    _collect(metadata, field, found)
    return found


def _collect(value: Any, field: Path, found: list[Any]) -> None:
    if isinstance(value, list | tuple):
        for each in value:
            _collect(each, field, found)
    elif field:
        if isinstance(value, Mapping) and (inside := value.get(field[0])) is not None:
            _collect(inside, field[1:], found)
    elif value is not None:
        found.append(value)


def holds(condition: Compare | OneOf, values: Sequence[Any]) -> bool:
    """Whether a comparison holds for a field with these values.

    >>> holds(Compare(("lang",), "!=", "en"), ["fr"]), holds(Compare(("lang",), "!=", "en"), [])
    (True, False)
    """
    if isinstance(condition, OneOf):
        return any(_equal(values, wanted) for wanted in condition.values)
    if condition.operator == "=":
        return _equal(values, condition.value)
    if condition.operator == "!=":
        return (
            not _equal(values, condition.value)
            if condition.value is None
            else (bool(values) and not _equal(values, condition.value))
        )
    compare, wanted = _COMPARISONS[condition.operator], comparable(condition.value)
    return any(compare(known[1], wanted[1]) for each in values if (known := comparable(each))[0] == wanted[0])


def _equal(values: Sequence[Any], wanted: Value) -> bool:
    if wanted is None:
        return not values
    return any(comparable(each) == comparable(wanted) for each in values)


def comparable(value: Any) -> tuple[str, Any]:
    """What kind of value this is, and what it compares by. An object equals nothing.

    >>> comparable(3), comparable(True), comparable("3")
    (('number', 3.0), ('truth', True), ('text', '3'))
    """
    if isinstance(value, bool):
        return "truth", value
    if isinstance(value, str):
        return "text", value
    if isinstance(value, int | float):
        try:
            return "number", float(value)
        except OverflowError:  # a whole number of more than 308 digits
            return "number", float("inf") if value > 0 else float("-inf")
    return "other", object()


def satisfies(condition: Condition, document: Document, places: Places) -> bool:
    """Whether a document satisfies a condition; `places` is the analyzer's (`tamis.text.analyze`).

    >>> document = Document("d1", "A drum sieve", metadata={"year": 2021})
    >>> satisfies(And((Contains("drum"), Compare(("year",), ">=", 2020))), document, str.split)
    True
    """
    there = without_empty(condition, places)
    return there is None or _satisfies(there, _Analyzed(document, places))


class _Analyzed:
    """A document, whose words are analyzed once for all phrases of a condition."""

    def __init__(self, document: Document, places: Places) -> None:
        self.document, self.places = document, places

    @cached_property
    def words(self) -> Sequence[str | None]:
        return self.places(self.document.contents)

    @cached_property
    def different(self) -> frozenset[str | None]:
        return frozenset((*self.words, None))

    def contains(self, words: Sequence[str | None]) -> bool:
        return self.different.issuperset(words) and next_to_each_other(words, self.words)


def _satisfies(condition: Condition, analyzed: _Analyzed) -> bool:
    match condition:
        case And(parts):
            return all(_satisfies(each, analyzed) for each in parts)
        case Or(parts):
            return any(_satisfies(each, analyzed) for each in parts)
        case Not(inside):
            return not _satisfies(inside, analyzed)
        case Contains():
            return analyzed.contains(words_of(condition, analyzed.places))
    return holds(condition, field_values(analyzed.document, condition.field))


def field_values(document: Document, field: Path) -> list[Any]:
    """The values that a field of a document has: `id` and `title` are the document's own."""
    if field == ID:
        return [document.id]
    if field == TITLE:
        return [document.title] if document.title else []
    return values_of(document.metadata, field)


def next_to_each_other(words: Sequence[str | None], among: Sequence[str | None]) -> bool:
    """Whether words stand next to each other among others; None among them is any word.

    >>> text = ["kill", None, "blue"]
    >>> next_to_each_other(["kill", None, "blue"], text), next_to_each_other(["kill", "blue"], text)
    (True, False)
    """
    at, last = -1, len(among) - len(words)
    try:
        while True:
            at = among.index(words[0], at + 1, last + 1)
            if all(
                word is None or word == other
                for word, other in zip(words, among[at : at + len(words)], strict=True)
            ):
                return True
    except ValueError:
        return False
