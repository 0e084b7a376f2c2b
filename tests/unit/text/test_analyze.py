"""Analyzers: their filters, their names, and that a term depends on its token alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.base.errors import InputError
from tamis.text.analyze import (
    ENGLISH_STOP_WORDS,
    Analyzer,
    analyzer_names,
    english_possessive,
    get_analyzer,
    lower_case,
    stop_words,
)


def test_english() -> None:
    analyzer = get_analyzer("english")
    assert analyzer.tokens("The cook's sieves are FINER than the Miller’s sieves.") == [
        "cook", "siev", "finer", "than", "miller", "siev",
    ]  # fmt: skip


def test_english_filters_are_in_lucene_s_order() -> None:
    term = get_analyzer("english").term
    assert term("THE") is None  # lower case before stop words
    assert term("It's") is None  # possessive before stop words
    assert term("THIS'S") is None
    assert term("ising") == "is"  # stop words before stems
    assert term("his's") == "hi"


def test_the_stop_words_are_lucene_s_33() -> None:
    assert len(ENGLISH_STOP_WORDS) == 33
    assert {"a", "the", "such", "will"} <= ENGLISH_STOP_WORDS
    assert "from" not in ENGLISH_STOP_WORDS


@pytest.mark.parametrize(
    ("token", "expected"),
    [("dog's", "dog"), ("DOG'S", "DOG"), ("dog’s", "dog"), ("dog＇s", "dog"), ("dogs'", "dogs'"), ("s", "s")],
)
def test_possessive(token: str, expected: str) -> None:
    assert english_possessive(token) == expected


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("ABC", "abc"),
        ("ÉTÉ", "été"),
        ("ΣΑΣ", "σασ"),
        ("İ", "i"),
        ("ẞ", "ß"),
        ("𐐀", "𐐨"),
        ("ǅ", "ǆ"),
        ("", ""),
    ],
)
def test_lower_case_is_by_the_character(token: str, expected: str) -> None:
    assert lower_case(token) == expected


@given(st.text())
def test_lower_case_keeps_the_length(token: str) -> None:
    assert len(lower_case(token)) == len(token)
    assert lower_case(token) == "".join(map(lower_case, token))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("plain", ["the", "o'neil's", "sieves", "3.5"]),
        ("whitespace", ["The", "O'Neil's", "sieves,", "3.5!"]),
        ("keyword", ["The O'Neil's\tsieves, 3.5!"]),
        ("snowball-english", ["the", "o'neil", "siev", "3.5"]),
        ("porter2", ["the", "o'neil", "siev", "3.5"]),
        ("german", ["the", "o'neil", "siev", "3.5"]),
    ],
)
def test_named_analyzers(name: str, tokens: list[str]) -> None:
    analyzer = get_analyzer(name)
    assert analyzer.name == name
    assert analyzer.tokens("The O'Neil's\tsieves, 3.5!") == tokens
    assert analyzer.tokens("") == []


@pytest.mark.parametrize("name", analyzer_names())
def test_every_name_gives_an_analyzer_that_can_be_rebuilt_from_its_name(name: str) -> None:
    text = "Die Häuser and l’été, İstanbul 東京 running ran"
    assert get_analyzer(get_analyzer(name).name).tokens(text) == get_analyzer(name).tokens(text) != []


@given(st.sampled_from(["english", "plain", "whitespace", "keyword", "french"]), st.text())
def test_terms_are_those_of_the_tokens(name: str, text: str) -> None:
    analyzer = get_analyzer(name)
    terms = [analyzer.term(surface) for surface in analyzer.split(text)]
    assert analyzer.tokens(text) == [term for term in terms if term is not None]
    assert "" not in terms


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(
        InputError, match=r"'klingon' is not an analyzer: choose from english, plain, .*french"
    ):
        get_analyzer("klingon")


def test_one_s_own() -> None:
    def last_four(token: str) -> str:
        return token[-4:]

    own = Analyzer("own", str.split, (str.casefold, stop_words(["the"]), last_four))
    assert own.tokens("THE sieve of STRASSE the") == ["ieve", "of", "asse"]
    assert own.term("the") is None
    assert own.term("") is None


def test_filters_after_a_dropped_token_are_not_called() -> None:
    def never(token: str) -> str:
        raise AssertionError(token)

    assert Analyzer("own", str.split, (stop_words({"a"}), never)).tokens("a a") == []


def test_snowball_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys, tamis.text.analyze as a; a.get_analyzer('english'); sys.exit('Stemmer' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
