"""What is suggested for words that no document has, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index
from tamis.base.interrupt import interruptible
from tamis.index import suggest as module
from tamis.index.suggest import distance, edits_to_beginning, is_near, similar_terms, suggest

TEXTS = (
    "a transformer model for retrieval",
    "transformer models and the information in them",
    "transformed information about retrieval models",
    "a sieve for the school of Beethoven",
    "the sieve of a school, by Beethoven",
    "ein Café in Österreich, und ein Café",
    "das Café in Österreich",
    "word2vec and gpt4",
    "word2vec and gpt4",
    "lonely",
    "скворец и поиск",
    "поиск",
)

Built = Callable[..., Index]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    def build(texts: tuple[str, ...] = TEXTS, analyzer: str = "english") -> Index:
        documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
        return Index.build(documents, tmp_path / "idx", analyzer=analyzer, overwrite=True)

    return build


def query(index: Index, text: str) -> str | None:
    found = suggest(index, text)
    return found.query if found else None


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("transfomer models", "transformer models"),
        ("transfomer, (modles)!", "transformer, (models)!"),  # all else stays as it was typed
        ("transfomer transfomer", "transformer transformer"),
        ("informaton", "information"),  # the stem `inform` is far from what the error leaves
        ("retreival of the sieve", "retrieval of the sieve"),
        ("seive", "sieve"),
        ("Beethovn", "Beethoven"),  # with the capital that was typed
        ("beethovn", "beethoven"),  # and without
        ("cafe", "café"),
        ("Osterreich", "Österreich"),  # the first letter may be wrong as well,
        ("nformation", "information"),  # missing,
        ("rretrieval", "retrieval"),  # doubled
        ("shcool", "school"),  # or swapped
        ("пойск", "поиск"),
    ],
)
def test_a_word_that_a_person_would_type(built: Built, typed: str, meant: str | None) -> None:
    assert query(built(), typed) == meant


@pytest.mark.parametrize(
    "typed",
    [
        "transformer models",
        "transforming",  # the same term
        "the of",
        "xq 2024 gpt5 word3vec",  # short words, numbers
        "lonley",  # `lonely` is in one document
        "zzzyzzy",
        "",
        "transfomer modles informaton retreival",  # another language, for all we know
        "t" * 41,
    ],
)
def test_what_is_left_alone(built: Built, typed: str) -> None:
    assert suggest(built(), typed) is None


def test_the_words_that_no_document_has(built: Built) -> None:
    found = suggest(built(), "transfomer zzzyzzy modles sieve")
    assert found == ("transformer zzzyzzy models sieve", ("transfomer", "modles"))


def test_fewer_edits_then_more_documents(built: Built) -> None:
    index = built(("cart", "cart", "cord", "cord", "cord", "carpet", "carpet", "carpet"))
    assert query(index, "carrt") == "cart"
    assert query(index, "carpt") == "carpet"  # as near as `cart`, in more documents
    assert query(index, "crd") == "cord"


def test_a_rare_word_beside_it_does_not_end_the_search(built: Built) -> None:
    index = built(("sieves to seize", "a sieve"))
    assert query(index, "seive") == "sieve"  # `seize`, as near, is in one document


@pytest.mark.parametrize("analyzer", ["plain", "whitespace", "french"])
def test_other_analyzers(built: Built, analyzer: str) -> None:
    assert query(built(analyzer=analyzer), "modles") == "models"


def test_deleted_documents_suggest_nothing(built: Built) -> None:
    index = built()
    index.delete(["d3"])
    assert suggest(index, "seive") is None  # one document is left with it
    index.add([Document("new", "another sieve")])
    assert query(index, "seive") == "sieve"
    assert len(index.segments) == 2
    index.delete(["d4", "new"])
    assert suggest(index, "seive") is None


def test_segments_together_have_it_often_enough(built: Built) -> None:
    index = built(("sieve",))
    assert suggest(index, "seive") is None
    index.add([Document("new", "sieves")])
    assert query(index, "seive") == "sieve"
    index.merge()
    assert query(index, "seive") == "sieve"


def test_an_empty_index(built: Built) -> None:
    index = built(("soup",))
    index.delete(["d0"])
    assert suggest(index, "suop") is None
    index.merge()
    assert suggest(index, "suop") is None


def test_the_vocabulary_is_compared_in_blocks(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    index = built()
    words = "transfomer", "seive", "informaton", "cafe", "пойск"
    whole = [similar_terms(index, word) for word in words]
    monkeypatch.setattr(module, "_AT_ONCE", 3)
    assert [similar_terms(index, word) for word in words] == whole


def test_it_is_given_up_when_nobody_waits(built: Built) -> None:
    index = built()
    suggest(index, "transfomer")

    def stop() -> None:
        raise TimeoutError

    with interruptible(stop, np.zeros(1, dtype=bool)), pytest.raises(TimeoutError):
        suggest(index, "transfomer")


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("sieve", "sieve", 0),
        ("sieve", "seive", 1),
        ("ca", "abc", 3),  # not 2: what was swapped is not edited again
        ("kitten", "sitting", 3),
    ],
)
def test_the_distance(one: str, other: str, edits: int) -> None:
    assert distance(one, other) == distance(other, one) == edits


def test_near() -> None:
    assert is_near("seive", "sieve") and not is_near("seive", "sieves")
    assert is_near("transfomer", "transformers") and not is_near("transfomer", "transforming")
    assert is_near("ifnormation", "information") and is_near("xnformation", "information")


def test_the_distance_to_a_beginning() -> None:
    terms = ["sieve", "siev", "seiv", "s", "sieves", "xyz"]
    columns = np.zeros((6, len(terms)), dtype=np.uint32)
    for place, term in enumerate(terms):
        columns[: len(term), place] = [*map(ord, term)]
    lengths = np.array([len(term) for term in terms])
    assert edits_to_beginning("sieve", columns, lengths, 2).tolist() == [0, 0, 1, 0, 1, 3]
