"""Reading conditions: `year >= 2020 and lang in (en, fr) and not contains "drum sieve"`.

    condition = all ("or" all)*
    all       = one ("and" one)*
    one       = "not" one | "(" condition ")" | "contains" value
              | field ("=" | "!=" | "<" | "<=" | ">" | ">=") value
              | field "in" "(" value ("," value)* ")"
    field     = key ("." key)*                     a key is a word, or quoted text
    value     = number | true | false | null | word | "quoted text" | 'quoted text' | “quoted text”

A strict parser: nothing is evaluated, and whatever it does not know is an error with its place. Printing what
it has read and reading that again gives the same condition.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn, get_args

from tamis.base.conditions import (
    BARE,
    KEYWORDS,
    NOT_BARE,
    NUMBER,
    Compare,
    Condition,
    Contains,
    Not,
    OneOf,
    Operator,
    Path,
    Value,
    all_of,
    any_of,
    number,
)
from tamis.base.errors import QUOTED, InputError, quoted

LONGEST: Final = 10_000  # characters
MOST_VALUES: Final = 1_000  # that are compared with, and words that must be contained
DEEPEST: Final = 30  # parentheses and "not" inside each other
_SPACE = re.compile(r"\s*")
_OPERATOR = re.compile(r"==|!=|<>|<=|>=|=|<|>")
_CURLY = "\u201c\u201d\u201e"  # as telephones write them
_QUOTES = f"'\"{_CURLY}"
_QUOTED = re.compile(
    "|".join(rf"[{quote}](?:[^{quote}\\]|\\.)*[{quote}]" for quote in ('"', "'", _CURLY)), re.DOTALL
)
_KEY = re.compile(rf"{_QUOTED.pattern}|[^.{NOT_BARE}]+", re.DOTALL)
_ESCAPE = re.compile(r"\\.|\"", re.DOTALL)
_FORM = "write it like year >= 2020 and lang in (en, fr)"
#: What other languages have where an operator is expected.
_INSTEAD = {
    "is": "write = null or != null",
    "between": "write year >= 2000 and year <= 2009",
    "contains": "write tags = tools: one of several values is enough",
    "not": "write not before the field: not lang in (en, fr)",
}
_CONSTANTS: dict[str, Value] = {"true": True, "false": False, "null": None}


class ConditionError(InputError):
    """A condition that does not parse, or names what no document has."""


def where(text: str) -> Condition:
    """The condition that a text stands for.

    >>> print(where("YEAR>=2020 AND (lang='en' OR lang = fr)"))
    YEAR >= 2020 and (lang = en or lang = fr)
    >>> where("year >= ")
    Traceback (most recent call last):
    tamis.base.where.ConditionError: column 9 of the condition 'year >= ': expected a value, found the end:
    write it like year >= 2020 and lang in (en, fr)
    """
    if not isinstance(text, str):  # from callers without a type checker
        raise ConditionError(f"a {type(text).__name__} is not a condition", remedy=_FORM)
    if len(text) > LONGEST:
        problem = f"the condition has {len(text):,} characters"
        raise ConditionError(problem, remedy=f"use {LONGEST:,} at most")
    if not text.strip():
        raise ConditionError("the condition is empty", remedy=f"leave it out, or {_FORM}")
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = self.depth = self.values = 0

    def whole(self) -> Condition:
        condition = self.condition()
        if self.at < len(self.text):
            remedy = _FORM
            if re.match(r"&&|\|\||&|\|", self.text[self.at :]):
                remedy = "write `and` or `or`"
            elif self.text[self.at] in "!":
                remedy = "write `not`"
            self.expected("and, or or the end", remedy)
        return condition

    # -- what there is

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None  # it may be empty
        self.at = found.end()

    def read(self, pattern: re.Pattern[str]) -> str:
        """What there is of this form, if anything; the space behind it is skipped."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        self.space()
        return found[0]

    def word(self) -> str:
        """The word that comes next, in lower case if it is a keyword; it is not taken."""
        found = BARE.match(self.text, self.at)
        if found is None:
            return ""
        lower = found[0].lower()
        return lower if lower in KEYWORDS else found[0]

    def take(self, character: str) -> bool:
        if not self.text.startswith(character, self.at):
            return False
        self.at += 1
        self.space()
        return True

    def keyword(self, name: str) -> bool:
        if self.word() != name:
            return False
        self.read(BARE)
        return True

    def error(self, problem: str, at: int, remedy: str) -> NoReturn:
        start = max(at - QUOTED // 2, 0) if len(self.text) > QUOTED else 0  # what is wrong must be in it
        shown = quoted(self.text[start:])
        raise ConditionError(f"column {at + 1} of the condition {shown}: {problem}", remedy=remedy)

    def expected(self, wanted: str, remedy: str = _FORM) -> NoReturn:
        rest = self.text[self.at :]
        if rest and rest[0] in _QUOTES and not _QUOTED.match(rest):
            self.error(
                "quotes that are not closed", self.at, "close them, or put a backslash before the quote"
            )
        word = BARE.match(rest)
        found = quoted(word[0] if word else rest[0]) if rest else "the end"
        self.error(f"expected {wanted}, found {found}", self.at, remedy)

    # -- the grammar

    def condition(self) -> Condition:
        self.space()
        parts = [self.all()]
        while self.keyword("or"):
            parts.append(self.all())
        found = any_of(*parts)
        assert found is not None
        return found

    def all(self) -> Condition:
        parts = [self.one()]
        while self.keyword("and"):
            parts.append(self.one())
        found = all_of(*parts)
        assert found is not None
        return found

    def one(self) -> Condition:
        if self.depth == DEEPEST:
            self.error("too many parentheses or nots inside each other", self.at, f"use {DEEPEST} at most")
        self.depth += 1
        condition = self.inside()
        self.depth -= 1
        return condition

    def inside(self) -> Condition:
        if self.keyword("not"):
            return Not(self.one())
        if self.take("("):
            condition = self.condition()
            if not self.take(")"):
                self.expected("and, or or a closing parenthesis")
            return condition
        if self.keyword("contains"):
            return Contains(self.words())
        return self.comparison(self.field())

    def field(self) -> Path:
        keyword = self.word() in KEYWORDS
        if keyword or not _KEY.match(self.text, self.at):
            remedy = f'put quotes around a field of that name: "{self.word()}"' if keyword else _FORM
            self.expected("a field, not, contains or a parenthesis", remedy)
        keys = []
        while True:
            at = self.at
            found = _KEY.match(self.text, at)
            if found is None:
                self.expected("the name of a field")
            self.at = found.end()
            keys.append(self.unquoted(found[0], at))
            if not self.text.startswith(".", self.at):
                self.space()
                return tuple(keys)
            self.at += 1

    def comparison(self, field: Path) -> Condition:
        if self.keyword("in"):
            return OneOf(field, self.several())
        found = self.read(_OPERATOR)
        if not found:
            remedy = _INSTEAD.get(self.word().lower(), _FORM)
            self.expected(f"one of {' '.join(get_args(Operator))} or in", remedy)
        sign: Operator = {"==": "=", "<>": "!="}.get(found, found)  # type: ignore[assignment]
        at = self.at
        value = self.value()
        if sign not in ("=", "!=") and (value is None or isinstance(value, bool)):
            self.error(f"{sign} needs a number or text", at, "use = or != with true, false and null")
        return Compare(field, sign, value)

    def several(self) -> tuple[Value, ...]:
        if not self.take("("):
            self.expected("an opening parenthesis after in", "write it like lang in (en, fr)")
        values = [self.value()]
        while self.take(","):
            values.append(self.value())
        if not self.take(")"):
            self.expected("a comma or a closing parenthesis")
        return tuple(values)

    def value(self) -> Value:
        self.count()
        at = self.at
        word = self.word()
        if word in _CONSTANTS:
            self.read(BARE)
            return _CONSTANTS[word]
        if word in KEYWORDS:
            self.expected("a value", f'put quotes around a text of that name: "{word}"')
        if text := self.read(_QUOTED):
            return self.unquoted(text, at)
        if not self.read(BARE):
            self.expected("a value")
        if not NUMBER.fullmatch(word):
            return word
        if (known := number(word)) is None:
            self.error(f"{word[:QUOTED]} is too large a number", at, "use one of at most 308 digits")
        return known

    def words(self) -> str:
        self.count()
        at = self.at
        if text := self.read(_QUOTED):
            return self.unquoted(text, at)
        if self.word() in KEYWORDS or not (text := self.read(BARE)):
            self.expected("words in quotes after contains", 'write it like contains "drum sieve"')
        return text

    def count(self) -> None:
        self.values += 1
        if self.values > MOST_VALUES:
            self.error(f"more than {MOST_VALUES:,} values", self.at, "use fewer")

    def unquoted(self, text: str, at: int) -> str:
        """A word as it is, quoted text without its quotes: its escapes are those of JSON."""
        if text[0] not in _QUOTES:
            return text
        body = _ESCAPE.sub(lambda each: {"\\'": "'", '"': '\\"'}.get(each[0], each[0]), text[1:-1])
        try:
            return str(json.loads(f'"{body}"', strict=False))
        except json.JSONDecodeError:
            self.error(
                f"{quoted(text)} has an escape that JSON does not have", at, r"write a backslash as \\"
            )
