"""Conditions print as they are read, and an index finds by them what each document says by itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import tamis
from tamis.base.conditions import (
    Compare,
    Condition,
    Contains,
    Not,
    OneOf,
    Value,
    all_of,
    any_of,
    number,
    satisfies,
)
from tamis.base.where import ConditionError, where
from tamis.index.conditions import allowed

TEXTS = [
    "",
    "en",
    "EN",
    "en-US",
    "2020",
    "2020-05-01",
    "true",
    "not",
    "l'été",
    'a "b"',
    "\\",
    "x\n",
    "\u202e",
    "𝕏",
]
NUMBERS = [0, 1, -3, 2020, 0.5, 1e300, 2**53 + 2.0]
texts = st.one_of(st.sampled_from(TEXTS), st.text(max_size=6))
numbers = st.one_of(
    st.sampled_from(NUMBERS),
    st.integers(-(2**52), 2**52),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: number(repr(value)) or 0),
)
plain = st.one_of(st.none(), st.booleans(), numbers, texts)
keys = st.one_of(st.sampled_from(["a", "b", "id", "title", "in", "a.b", "first name"]), st.text(max_size=4))


def conditions(
    fields: st.SearchStrategy[tuple[str, ...]], values: st.SearchStrategy[Any]
) -> st.SearchStrategy[Condition]:
    comparable = values.filter(lambda value: value is not None and not isinstance(value, bool))
    leaves = st.one_of(
        st.builds(Compare, fields, st.sampled_from(["=", "!="]), values),
        st.builds(Compare, fields, st.sampled_from(["<", "<=", ">", ">="]), comparable),
        st.builds(OneOf, fields, st.lists(values, min_size=1, max_size=4).map(tuple)),
        st.builds(
            Contains,
            st.one_of(
                st.sampled_from(
                    [
                        "sieve",
                        "drum sieve",
                        "the",
                        "a soup",
                        "drum and a sieve",
                        "drum drum",
                        "sieve the",
                        "-",
                    ]
                ),
                texts,
            ),
        ),
    )
    return st.recursive(
        leaves,
        lambda inside: st.one_of(
            st.builds(Not, inside),
            st.lists(inside, min_size=2, max_size=3).map(lambda several: all_of(*several)),
            st.lists(inside, min_size=2, max_size=3).map(lambda several: any_of(*several)),
        ),
        max_leaves=8,
    )


@given(conditions(st.lists(keys, min_size=1, max_size=3).map(tuple), plain))
def test_what_is_printed_is_read_as_the_same(condition: Condition) -> None:
    printed = str(condition)
    assert repr(where(printed)) == repr(condition)
    assert str(where(printed)) == printed
    assert printed.isprintable() or any(character.isspace() for character in printed)


@given(st.text(max_size=60))
def test_no_text_makes_the_parser_fail_in_another_way(text: str) -> None:
    try:
        condition = where(text)
    except ConditionError as error:
        assert "\n" not in str(error)
    else:
        assert str(where(str(condition))) == str(condition)


FRAGMENTS = [
    "year",
    "a.b",
    '"x y"',
    "=",
    "!=",
    ">=",
    "<",
    "in",
    "(",
    ")",
    ",",
    "and",
    "or",
    "not",
    "contains",
]
FRAGMENTS += ["3", "true", "null", "'it'", '"', "1e999", ".", "drum"]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14))
def test_what_looks_like_a_condition_is_one_or_an_error_of_one_line(parts: list[str]) -> None:
    test_no_text_makes_the_parser_fail_in_another_way.hypothesis.inner_test(" ".join(parts))  # type: ignore[attr-defined]


# -- an index and each document by itself

VALUES: list[Value] = ["en", "fr", "2020-05-01", "é", 1, 2.0, 2020, True, False, None, "2020", -1, ""]
CONTENTS = [
    "a drum sieve",
    "the drum and a sieve",
    "sieve drum drum sieve",
    "soup of the day",
    "",
    "drum-sieve",
]


def documents() -> list[tamis.Document]:
    """Documents with all sorts of metadata."""
    made = []
    for place in range(240):
        metadata: dict[str, Any] = {}
        if place % 3:
            metadata["a"] = VALUES[place % len(VALUES)]
        if place % 4 == 1:
            metadata["b"] = [VALUES[(place * step) % len(VALUES)] for step in range(place % 5)]
        if place % 5 == 2:
            metadata["b"] = {"c": VALUES[(place // 5) % len(VALUES)], "a": [[1], ["en", {"c": 3}]]}
        if place % 7 == 3:
            metadata["b"] = [{"c": place % 4}, {"c": VALUES[place % len(VALUES)]}, 7]
        title = "" if place % 6 else f"drum {place % 9}"
        text = CONTENTS[place % len(CONTENTS)] * (place % 4 + 1)
        made.append(tamis.Document(f"d{(place * 37) % 240:03}", text, title, metadata))
    return made


@cache
def index(positions: bool) -> tamis.Index:
    """In two segments, with documents deleted and replaced."""
    made, path = documents(), Path(mkdtemp()) / "idx"
    found = tamis.Index.build(made[:150], path, positions=positions)
    found.add(made[150:])
    found.delete([document.id for document in made[::11]])
    found.add(made[5:12], on_duplicate="replace")
    return found


inner_fields = st.sampled_from([("a",), ("b",), ("b", "c"), ("b", "a"), ("b", "a", "c"), ("id",), ("title",)])
inner_values = st.one_of(st.sampled_from(VALUES), st.sampled_from(["d003", "d120", "drum 3", "drum", 7, 3]))


@settings(max_examples=300)
@given(conditions(inner_fields, inner_values), st.booleans())
def test_masks_say_what_each_document_says(condition: Condition, positions: bool) -> None:
    over = index(positions)
    try:
        masks = allowed(over.segments, condition, over.analyzer)
    except ConditionError:
        return  # no document has such a field, or such values in it
    for number_, segment in enumerate(over.segments):
        wanted = [satisfies(condition, document, over.analyzer.places) for document in segment.store]
        assert (masks[number_].tolist() if masks else [True] * len(segment)) == wanted


@settings(max_examples=100)
@given(conditions(inner_fields, inner_values))
def test_what_is_found_is_what_satisfies_with_the_same_scores(condition: Condition) -> None:
    over = index(True)
    everything = {hit.id: hit.score for hit in over.bm25()("drum sieve soup")}
    try:
        found = over.bm25()("drum sieve soup", where=condition)
    except ConditionError:
        return
    places = over.analyzer.places
    wanted = {each for each in everything if satisfies(condition, over.document(each), places)}
    assert {hit.id: hit.score for hit in found} == {each: everything[each] for each in wanted}
