"""What a Python caller without a type checker can give in place of documents and queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index, Query
from tamis.base.errors import InputError, UnknownDocumentError


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build([Document("d1", "a sieve"), Document("d2", "flour")], tmp_path / "idx")


@pytest.mark.parametrize(
    ("documents", "kind"), [(None, "NoneType"), (3, "int"), (Document("d", "t"), "Document")]
)
def test_what_is_no_list_of_documents(tmp_path: Path, index: Index, documents: Any, kind: str) -> None:
    problem = rf"a {kind} is not a list of documents: give an iterable of tamis\.Document\(id, text\)"
    with pytest.raises(InputError, match=problem):
        Index.build(documents, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=problem):
        index.add(documents)
    assert len(index) == 2


@pytest.mark.parametrize("path", ["corpus.jsonl", Path("corpus.jsonl")])
def test_a_path_is_not_read_but_told_how(tmp_path: Path, index: Index, path: Any) -> None:
    problem = r"'corpus.jsonl' is not a list of documents: read a file .* tamis\.formats\.read_corpus\(path\)"
    with pytest.raises(InputError, match=problem):
        Index.build(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match=problem):
        index.add(path)


@pytest.mark.parametrize("queries", [None, [None], 3, ["sieve", 3]])
def test_what_is_no_query(index: Index, queries: Any) -> None:
    with pytest.raises(
        InputError, match=r"is not a query: give a text, a tamis\.Query\(id, text\) or a list"
    ):
        index.bm25()(queries)


def test_a_run_of_no_queries(index: Index) -> None:
    with pytest.raises(InputError, match="a NoneType is not a query"):
        index.bm25().run(None)  # type: ignore[arg-type]


def test_queries_may_come_from_any_iterable(index: Index) -> None:
    found = index.bm25()(each for each in ["sieve", Query("q", "flour")])  # type: ignore[call-overload]
    assert [ranking.ids for ranking in found] == [("d1",), ("d2",)]


def test_the_remedy_for_an_index_that_is_there_works_in_python(index: Index) -> None:
    remedy = r"\(--overwrite\); in Python: Index\.open\(path\)\.add\(documents\), or overwrite=True$"
    with pytest.raises(InputError, match=remedy):
        Index.build([Document("d3", "soup")], index.path)
    Index.open(index.path).add([Document("d3", "soup")])
    assert len(Index.open(index.path)) == 3
    assert len(Index.build([Document("d3", "soup")], index.path, overwrite=True)) == 1


def test_a_writer_says_that_what_is_pending_cannot_be_deleted(index: Index) -> None:
    with index.writer() as writer:
        with pytest.raises(UnknownDocumentError, match=r"no document 'd9': check the id$"):
            writer.delete("d9")
        writer.add(Document("d9", "soup"))
        with pytest.raises(UnknownDocumentError, match="and commit what is just added before you delete it"):
            writer.delete("d1", "d9")
        writer.commit()
        assert len(Index.open(index.path)) == 3, "none of them was deleted"
        writer.delete("d1", "d9", "d1")
        writer.commit()
    assert list(index.ids()) == ["d2"]


def test_a_writer_counts_what_it_skips(index: Index) -> None:
    with index.writer(on_duplicate="skip") as writer:
        writer.add(Document("d1", "a sieve", metadata={"of": "steel"}))
        writer.add(Document("d2", "flour", title="Another"))
        writer.add(Document("d3", "soup"))
        assert (writer.skipped.count, writer.skipped.changed, writer.skipped.first_changed) == (2, 1, "d2")
