"""RM3, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tamis import Document, Index, Query, Ranking
from tamis.base.errors import InputError, TamisError
from tamis.index.feedback import RM3, document_weights, interpolate, relevance_model, strongest, unit


def test_strongest_are_the_largest_then_the_first_by_name() -> None:
    vector = {"pear": 2.0, "fig": 3.0, "apple": 2.0, "quince": 1.0}
    assert list(strongest(vector, 2).items()) == [("fig", 3.0), ("apple", 2.0)]
    assert list(strongest(vector, 3, lambda term: term != "apple")) == ["fig", "pear", "quince"]
    assert strongest(vector, 99) == vector
    assert strongest({}, 3) == {}


def test_unit_sums_to_one_in_single_precision() -> None:
    assert unit({"a": 3.0, "b": 1.0}) == {"a": 0.75, "b": 0.25}
    assert unit({"a": 1.0, "b": 2.0}) == {"a": float(np.float32(1 / 3)), "b": float(np.float32(2 / 3))}
    assert unit({}) == {}


def test_relevance_model() -> None:
    # a: 2/4 * 3 + 1/2 * 1 = 2; b: 1/4 * 3 = 0.75; c: 1/4 * 3 + 1/2 * 1 = 1.25; together 4
    vectors = [{"a": 2.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "c": 1.0}]
    assert relevance_model(vectors, [3.0, 1.0], 10) == {"a": 0.5, "c": 0.3125, "b": 0.1875}
    # the two strongest: 2 and 1.25 of 3.25
    assert relevance_model(vectors, [3.0, 1.0], 2) == pytest.approx({"a": 2 / 3.25, "c": 1.25 / 3.25})
    assert relevance_model([], [], 10) == {}


def test_interpolate() -> None:
    query, model = {"a": 0.5, "x": 0.5}, {"a": 0.25, "b": 0.75}
    # a: 0.25 * 0.5 + 0.75 * 0.25; x: 0.25 * 0.5; b: 0.75 * 0.75
    assert interpolate(query, model, 0.25) == {"a": 0.3125, "x": 0.125, "b": 0.5625}
    assert interpolate(query, model, 1.0) == {"a": 0.5, "x": 0.5, "b": 0.0}
    assert interpolate(query, model, 0.0) == {"a": 0.25, "x": 0.0, "b": 0.75}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Thirty documents, so that a term may be in three and still count as rare."""
    documents = [
        Document("d1", "sieve flour flour common"),
        Document("d2", "sieve bread common z averyveryverylongword crème"),
        Document("d3", "bread bread common"),
        *(Document(f"filler{n}", "common filler") for n in range(27)),
    ]
    return Index.build(documents, tmp_path_factory.mktemp("feedback") / "idx", analyzer="whitespace")


def expand(index: Index, rm3: RM3, query: str = "sieve") -> dict[str, float]:
    # without lengths (b = 0) both documents that hold "sieve" have one score
    return rm3.expand(index, index.bm25(b=0.0)(query))


def test_a_whole_expansion(index: Index) -> None:
    # Common terms, single letters, words of more than 20 letters and words with other than a-z and 0-9 are
    # left out; d1 is sieve 1/3, flour 2/3 and d2 sieve 1/2, bread 1/2; together sieve 5/6, flour 4/6, bread
    # 3/6, divided by two 5/12, 1/3, 1/4. Half of it, and half of the query:
    assert expand(index, RM3()) == pytest.approx({"sieve": 0.5 + 5 / 24, "flour": 1 / 6, "bread": 1 / 8})
    # the two strongest of each document are the same; of the model sieve 5/9, flour 4/9
    assert expand(index, RM3(terms=2)) == pytest.approx({"sieve": 0.5 + 5 / 18, "flour": 2 / 9})
    # one term of each document: flour 1 of d1; of d2 bread, before sieve in the alphabet; of two as strong
    # as each other the first in the alphabet again
    assert expand(index, RM3(terms=1)) == pytest.approx({"sieve": 0.5, "bread": 0.5})
    # only d1: sieve 1/3, flour 2/3
    assert expand(index, RM3(docs=1)) == pytest.approx({"sieve": 0.5 + 1 / 6, "flour": 1 / 3})
    assert expand(index, RM3(weight=1.0)) == {"sieve": 1.0, "flour": 0.0, "bread": 0.0}


def test_documents_count_by_their_scores(index: Index) -> None:
    # d1 three times as much as d2: sieve 3/3 + 1/2, flour 6/3, bread 1/2; together 4
    ranking = Ranking(Query("q", "sieve"), ("d1", "d2"), np.array([3.0, 1.0], dtype=np.float32))
    expanded = RM3().expand(index, ranking)
    assert expanded == pytest.approx({"sieve": 0.5 + 1.5 / 8, "flour": 2 / 8, "bread": 0.5 / 8})


def test_log_likelihoods_count_as_likelihoods(index: Index) -> None:
    # d1 is e^2 times as likely as d2, so they weigh 1 and 0.135335: sieve 0.333333 + 0.067668, flour
    # 0.666667, bread 0.067668; together 1.135335
    assert document_weights([-3.0, -5.0]) == pytest.approx([1.0, 0.1353353])
    ranking = Ranking(Query("q", "sieve"), ("d1", "d2"), np.array([-3.0, -5.0], dtype=np.float32))
    expanded = RM3(weight=0.0).expand(index, ranking)
    assert expanded == pytest.approx({"sieve": 0.3532006, "flour": 0.5871981, "bread": 0.0596014}, rel=1e-5)


def test_a_query_counts_its_repeated_terms_and_keeps_what_feedback_would_drop(index: Index) -> None:
    # sieve 2/4, common 1/4, nowhere 1/4; no document has a useful term of its own
    ranking = Ranking(Query("q", "sieve common sieve nowhere"), ("filler3",), np.array([1.0]))
    assert RM3().expand(index, ranking) == {"sieve": 0.25, "common": 0.125, "nowhere": 0.125}


def test_the_expanded_query_finds_more(index: Index) -> None:
    assert index.bm25()("sieve").ids == ("d1", "d2")
    found = (index.bm25(b=0.0) >> RM3())("sieve")
    assert set(found.ids) == {"d1", "d2", "d3"}
    # bread is in 2 of 30: idf log(1 + 28.5/2.5) = 2.517696; twice in d3: 1/8 * 2.517696 * 2 / 2.9
    assert found.ids[-1] == "d3"
    assert found.scores[-1] == pytest.approx(0.2170428, rel=1e-5)


def test_the_second_search_is_that_of_the_first_retriever(index: Index) -> None:
    retriever = index.bm25(b=0.0, without=["d3"])
    found = (retriever >> RM3())("sieve")
    assert set(found.ids) == {"d1", "d2"}
    assert found.origin is retriever
    assert (retriever >> RM3() >> RM3() % 1)("sieve").ids == ("d1",)


def test_feedback_looks_only_at_what_it_gets(index: Index) -> None:
    first, all_of_them = index.bm25(b=0.0) % 1, index.bm25(b=0.0)
    assert set((first >> RM3())("sieve").ids) == {"d1", "d2"}  # no bread
    assert set((all_of_them >> RM3())("sieve").ids) == {"d1", "d2", "d3"}


def test_nothing_found_expands_to_nothing(index: Index) -> None:
    assert expand(index, RM3(), "nowhere") == {"nowhere": 0.5}
    assert len((index.bm25() >> RM3())("nowhere")) == 0
    assert len((index.bm25() >> RM3())("")) == 0


def test_there_must_be_a_retriever(index: Index, tmp_path: Path) -> None:
    with pytest.raises(TamisError, match="rm3 has no retriever to search again: put one before it"):
        RM3()("sieve")


@pytest.mark.parametrize("options", [{"terms": 0}, {"docs": 0}, {"weight": -0.1}, {"weight": 1.1}])
def test_impossible_parameters(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="use terms and docs of at least 1 and a weight between 0 and 1"):
        RM3(**options)  # type: ignore[arg-type]
