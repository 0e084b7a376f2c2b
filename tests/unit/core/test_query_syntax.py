"""Queries with phrases, and words that must and must not be there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis import Document, Index, Query, simple_query, where
from tamis.base.errors import InputError
from tamis.core.query_syntax import read_query

DOCUMENTS = [
    Document("a", "A tamis is a drum sieve for flour."),
    Document("b", "The sieve and the drum: soup, flour."),
    Document("c", "He wrote killing the blues", "On a drum"),
    Document("d", "Sieves of flour. Drums with sieves, sieves with soup", "Drum"),
    Document("e", "A well-known state-of-the-art sieve"),
]


@pytest.fixture(scope="module", params=[True, False], ids=["positions", "texts"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    built = Index.build(DOCUMENTS[:3], tmp_path_factory.mktemp("simple") / "idx", positions=request.param)
    built.add(DOCUMENTS[3:])
    return built


@pytest.mark.parametrize(
    ("query", "text", "condition"),
    [
        ("fine sieve", "fine sieve", None),
        ('tamis "drum sieve"', "tamis drum sieve", 'contains "drum sieve"'),
        ("+fine -soup sieve", "fine sieve", "contains fine and not contains soup"),
        ('+"a b" -"of soup" c', "a b c", 'contains "a b" and not contains "of soup"'),
        ("“drum sieve” tamis", "drum sieve tamis", 'contains "drum sieve"'),
        ('"a""b"c', "a b c", "contains a and contains b"),
        # where there is no operator
        ("well-known C++ a - b + c", "well-known C++ a - b + c", None),
        ("--force ++x", "--force ++x", None),
        ('12" pipe', '12" pipe', None),
        ('"not closed', '"not closed', None),
        ('"" sieve -""', "sieve", None),
        ("", "", None),
        # what is required as it is written
        ("+state-of-the-art", "state-of-the-art", "contains state-of-the-art"),
        ("-and sieve", "sieve", 'not contains "and"'),
        ("+2020 x", "2020 x", 'contains "2020"'),
    ],
)  # fmt: skip
def test_what_is_read(query: str, text: str, condition: str | None) -> None:
    found = simple_query(query)
    assert found.text == text
    assert (found.where and str(found.where)) == condition
    assert condition is None or where(condition) == found.where


@pytest.mark.parametrize("query", ["-soup", '-soup -"drum sieve"', ' -"a b" ""'])
def test_what_must_not_be_there_alone_is_an_error(query: str) -> None:
    with pytest.raises(InputError, match="only says what must not be there: add a word to look for"):
        simple_query(query)


def test_the_rest_of_a_query_stays() -> None:
    asked = Query("q7", "sieve -soup", {"desc": "flour"}, where("year = 3"))
    found = simple_query(asked)
    assert (found.id, found.text, found.fields) == ("q7", "sieve", {"desc": "flour"})
    assert str(found.where) == "year = 3 and not contains soup"
    assert read_query(asked, "plain") is asked
    with pytest.raises(InputError, match="'lucene' is not a query syntax: use plain or simple"):
        read_query(asked, "lucene")  # type: ignore[arg-type]


@given(st.text(alphabet='ab "+-“”\n', max_size=30))
def test_every_text_is_read(text: str) -> None:
    try:
        found = simple_query(text)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert found.where is None or where(str(found.where)) == found.where
    if not set(text) & set('"“”+-'):
        assert (found.text, found.where) == (" ".join(text.split()), None)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ('"drum sieve"', "ad"),  # the title and the text are one
        ('"drums sieving"', "ad"),
        ('"sieve and the drum"', "bd"),  # any words are where the analyzer drops some
        ('"killing the blues"', "c"),
        ('"killing with blues"', "c"),
        ('"killing blues"', ""),
        ('"drum he wrote"', "c"),
        ("sieve -soup", "ae"),
        ("sieve -the", "abde"),
        ("+the sieve", "abde"),
        ('sieve -"drum sieve" -"sieve drum"', "be"),
        ("sieve drum +flour -tamis", "bd"),
        ("+unknown sieve", ""),
        ("-unknown drum", "abcd"),
        ("+state-of-the-art", "e"),
        ('"sieves with" sieve -b', "abde"),
        ('"with sieves sieves"', "d"),
    ],
)
def test_what_is_found_has_the_scores_of_its_words(index: Index, query: str, ids: str) -> None:
    asked = simple_query(query)
    every = {hit.id: hit.score for hit in index.bm25()(asked.text)}
    found = index.bm25()(asked)
    assert {hit.id: hit.score for hit in found} == {name: every[name] for name in ids}


def test_models_read_no_operators(index: Index) -> None:
    pytest.importorskip("onnxruntime")
    pipeline = index.pipeline("bm25 >> mono(model=mono-nano)")
    plain = {hit.id: hit.score for hit in pipeline("drum sieve flour")}
    found = pipeline(simple_query('"drum sieve" +flour -soup'))
    assert found.query.text == "drum sieve flour"
    assert [hit.id for hit in found] == ["a"]
    assert found[0].score == pytest.approx(plain["a"], abs=1e-6)
