"""Conditions: what is read, what it is printed as, what is refused, and what holds of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tamis import Document
from tamis.base.conditions import (
    And,
    Compare,
    Contains,
    Not,
    OneOf,
    Or,
    next_to_each_other,
    satisfies,
    values_of,
)
from tamis.base.errors import InputError
from tamis.base.where import DEEPEST, LONGEST, MOST_VALUES, ConditionError, where
from tamis.text.analyze import ENGLISH

YEAR, LANG = Compare(("year",), ">=", 2020), Compare(("lang",), "=", "en")


def test_what_is_read() -> None:
    assert where("year >= 2020 and lang = en") == And((YEAR, LANG))
    assert where("year>=2020 AND\n lang == 'en'") == And((YEAR, LANG))
    assert where("year >= 2020 or lang = en and not lang = en") == Or((YEAR, And((LANG, Not(LANG)))))
    assert where("(year >= 2020 or lang = en) and lang = en") == And((Or((YEAR, LANG)), LANG))
    assert where("((year >= 2020))") == YEAR
    assert where("lang in (en, 'fr', 3, null)") == OneOf(("lang",), ("en", "fr", 3, None))
    assert where("lang <> en") == Compare(("lang",), "!=", "en")
    assert where("author.name = Ada") == Compare(("author", "name"), "=", "Ada")
    assert where('"a.b"."c d".e = 1') == Compare(("a.b", "c d", "e"), "=", 1)
    assert where('contains "drum sieve" and contains flour') == And(
        (Contains("drum sieve"), Contains("flour"))
    )
    assert where("not not contains 3") == Not(Not(Contains("3")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2020", 2020),
        ("-0.50", -0.5),
        ("2e3", 2000),
        ("01234", "01234"),
        ("2020-05-01", "2020-05-01"),
        ("1.2.3", "1.2.3"),
        ("TRUE", True),
        ("false", False),
        ("Null", None),
        ('"true"', "true"),
        ('"2020"', "2020"),
        ("http://a.org/?q=", None),
        (r'"a \"b\" \u00e9 \\ \n"', 'a "b" é \\ \n'),
        (r"""'it\'s "so"'""", 'it\'s "so"'),
        ("“drum sieve”", "drum sieve"),
        ("„drum 'sieve'“", "drum 'sieve'"),
        ("l’été", "l’été"),
        ("de-AT", "de-AT"),
        ("été", "été"),
        (r"C:\files", r"C:\files"),
    ],
)
def test_values(text: str, value: Any) -> None:
    if text.endswith("="):
        with pytest.raises(ConditionError, match="expected and, or or the end, found '='"):
            where(f"field = {text}")
        return
    condition = where(f"field = {text}")
    assert isinstance(condition, Compare)
    assert (condition.value, type(condition.value)) == (value, type(value))


@pytest.mark.parametrize(
    ("condition", "printed"),
    [
        ("YEAR>=2020.0 And lang==en", "YEAR >= 2020 and lang = en"),
        ("(a = 1 and (b = 2 and c = 3))", "a = 1 and b = 2 and c = 3"),
        ("(a = 1 or b = 2) and not (c = 3 and d = 4)", "(a = 1 or b = 2) and not (c = 3 and d = 4)"),
        ("a = 1 or (b = 2 and c = 3)", "a = 1 or b = 2 and c = 3"),
        ("a in ('x', \"y z\", '3', true)", 'a in (x, "y z", "3", true)'),
        ("'not'.'a.b' = 'null'", '"not"."a.b" = "null"'),
        ("contains '\u202eabc'", 'contains "\\u202eabc"'),
        ("a = 'say “x”'", 'a = "say “x”"'),
        ("a = '“x'", 'a = "“x"'),
    ],
)
def test_what_is_printed(condition: str, printed: str) -> None:
    assert str(where(condition)) == printed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the condition is empty: leave it out"),
        ("  ", "the condition is empty"),
        ("year", "column 5 of the condition 'year': expected one of = != < <= > >= or in, found the end"),
        ("year = ", "column 8 of the condition 'year = ': expected a value, found the end"),
        (
            "= 3",
            "column 1 of the condition '= 3': expected a field, not, contains or a parenthesis, found '='",
        ),
        ("year = 3 lang = en", "column 10 .* expected and, or or the end, found 'lang'"),
        ("year = 3 && x = 1", "found '&&': write `and` or `or`"),
        ("!(year = 3)", "expected a field, .* found '!'"),
        ("(year = 3", "expected and, or or a closing parenthesis, found the end"),
        ("year = 3)", "expected and, or or the end, found '\\)'"),
        ("year in 3", "expected an opening parenthesis after in, found '3'"),
        ("year in ()", "expected a value, found '\\)'"),
        ("year in (3 4)", "expected a comma or a closing parenthesis, found '4'"),
        ("year not in (3)", "write not before the field: not lang in"),
        ("lang is null", "found 'is': write = null or != null"),
        ("year BETWEEN 1 and 3", "write year >= 2000 and year <= 2009"),
        ("tags contains tools", "write tags = tools: one of several values is enough"),
        ("lang = “en", "column 8 .* quotes that are not closed"),
        ("state = OR", "expected a value, found 'OR': put quotes around a text of that name: \"or\""),
        ("in = 3", 'put quotes around a field of that name: "in"'),
        ("a..b = 3", "expected the name of a field, found '.b'"),
        ("a. = 3", "expected the name of a field"),
        ("year > true", "> needs a number or text"),
        ("year < null", "< needs a number or text"),
        ('lang = "en', "column 8 .* quotes that are not closed"),
        (r'lang = "\q"', "an escape that JSON does not have"),
        ("year = 1e999", "1e999 is too large a number"),
        ("contains", "expected words in quotes after contains, found the end"),
        ("contains (a)", "expected words in quotes after contains"),
        ("year = 3; drop", "found ';'"),
        ("__import__('os')", "expected one of = != < <= > >= or in, found '\\('"),
        ("(" * 1000 + "a = 1" + ")" * 1000, f"too many parentheses or nots inside each other: use {DEEPEST}"),
        ("not " * 1000 + "a = 1", "too many parentheses or nots"),
        ("a = 1 or " * LONGEST, f"the condition has 90,000 characters: use {LONGEST:,} at most"),
        (f"a in ({','.join('1' * (MOST_VALUES + 1))})", "more than 1,000 values"),
        ("a = \x00", "expected a value, found '.x00'"),
    ],
)
def test_what_is_refused(text: str, problem: str) -> None:
    if text == "year = 3; drop":  # a word may have a semicolon, and no operator follows
        problem = "expected and, or or the end, found 'drop'"
    with pytest.raises(ConditionError, match=problem) as error:
        where(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ConditionError, match="a dict is not a condition"):
        where({"year": 3})  # type: ignore[arg-type]


METADATA = {
    "year": 2021,
    "lang": "en",
    "open": True,
    "tags": ["kitchen", 7, [None, "tools"]],
    "none": None,
    "empty": [],
    "author": {"name": "Ada", "books": [{"year": 1}, {"year": 2}, {}]},
    "date": "2021-03-04",
    "large": 10**400,
}
DOCUMENT = Document("d1", "He is killing the blues, with a drum sieve", "Sieves", METADATA)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("year = 2021", True),
        ("year = 2021.0", True),
        ('year = "2021"', False),
        ('year != "2021"', True),
        ("year > 2020 and year < 2021.5 and year <= 2021 and year >= 2021", True),
        ("year > 2021 or year < 2021", False),
        ('year > "2020"', False),
        ("year = true", False),
        ("open = true", True),
        ("open = 1", False),
        ("open != false", True),
        ("lang = en", True),
        ("lang = EN", False),
        ("lang > de and lang < fr", True),
        ("lang in (de, en)", True),
        ("not lang in (de, en)", False),
        ('date >= 2021-01-01 and date < "2022"', True),
        ("large > 1e308", True),
        # what is missing
        ("nothing = 1", False),
        ("nothing != 1", False),
        ("not nothing = 1", True),
        ("nothing < 1", False),
        ("nothing = null", True),
        ("nothing != null", False),
        ("none = null and none != 3", False),
        ("none = null", True),
        ("empty = null", True),
        ("year != null", True),
        ("nothing in (1, null)", True),
        # several values
        ("tags = kitchen", True),
        ("tags = tools", True),
        ("tags > 6", True),
        ("tags != kitchen", False),
        ("tags != soup", True),
        ("tags = null", False),
        # inside
        ("author.name = Ada", True),
        ("author = Ada", False),
        ("author != null", True),
        ("author.name.first = Ada", False),
        ("author.books.year = 2", True),
        ("author.books.year > 2", False),
        ("lang.x = en", False),
        # the document's own
        ("id = d1", True),
        ("id > d0 and id < d2", True),
        ("title = Sieves", True),
        # words
        ("contains sieves", True),
        ("contains DRUMS", True),
        ('contains "drum sieve"', True),
        ('contains "sieve drum"', False),
        ('contains "killing the blues"', True),
        ('contains "killing of blue"', True),
        ('contains "killing blues"', False),
        ('contains "sieves he is killing"', True),
        ("contains soup", False),
        ("not contains soup", True),
        ("contains the and not contains of", True),
    ],
)
def test_what_holds_of_a_document(condition: str, holds: bool) -> None:
    assert satisfies(where(condition), DOCUMENT, ENGLISH.places) is holds


def test_a_document_without_a_title_has_none() -> None:
    assert satisfies(where("title = null"), Document("d", "x"), ENGLISH.places)


def test_values_inside_of_lists() -> None:
    assert values_of(METADATA, ("author", "books", "year")) == [1, 2]
    assert values_of(METADATA, ("tags",)) == ["kitchen", 7, "tools"]
    assert values_of([], ("tags",)) == []


def test_a_document_is_analyzed_once_for_all_phrases() -> None:
    analyzed = []

    def places(text: str) -> Sequence[str | None]:
        analyzed.append(text)
        return ENGLISH.places(text)

    condition = where(" or ".join(f'contains "drum soup {number}"' for number in range(50)))
    assert not satisfies(condition, DOCUMENT, places)
    assert analyzed.count(DOCUMENT.contents) == 1


class Counted(list[str | None]):
    """Counts the words that are copied out of it."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.copied += len(found) if isinstance(key, slice) else 0
        return found


def test_a_repeated_word_does_not_make_a_phrase_slow() -> None:
    words = Counted(["drum"] * 1000)
    assert not next_to_each_other(["drum", "sieve"], words)
    assert words.copied <= 2 * len(words)


@pytest.mark.parametrize("given", ["year = 2021", 3, [], Not("year = 2021")])  # type: ignore[arg-type]
def test_what_is_no_condition_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="is not a condition: read it from text"):
        satisfies(given, DOCUMENT, ENGLISH.places)
