"""The bundled collection is whole, small, and what its README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tamis
from tamis.base.documents import Document, Query
from tamis.formats.corpora import read_corpus
from tamis.formats.qrels import read_qrels
from tamis.formats.topics import read_queries

DEMO = Path(tamis.__file__).parent / "demo_data"


@pytest.fixture(scope="module")
def documents() -> dict[str, Document]:
    return {document.id: document for document in read_corpus(DEMO / "corpus.jsonl.gz")}


@pytest.fixture(scope="module")
def queries() -> list[Query]:
    return read_queries(DEMO / "queries.jsonl")


@pytest.fixture(scope="module")
def qrels() -> dict[str, dict[str, int]]:
    return {query: dict(judged) for query, judged in read_qrels(DEMO / "qrels.txt").items()}


def test_it_has_the_promised_size(
    documents: dict[str, Document], queries: list[Query], qrels: dict[str, dict[str, int]]
) -> None:
    assert len(documents) == 2_000
    assert len(queries) == 140
    assert sum(map(len, qrels.values())) == 320
    assert sum(path.stat().st_size for path in DEMO.iterdir()) < 2_000_000


def test_every_query_has_its_passages(
    documents: dict[str, Document], queries: list[Query], qrels: dict[str, dict[str, int]]
) -> None:
    assert qrels.keys() == {query.id for query in queries}
    for judged in qrels.values():
        assert len(judged) in (2, 4)
        assert set(judged.values()) == {1}
        assert judged.keys() <= documents.keys()


def test_texts_are_readable_and_differ(documents: dict[str, Document], queries: list[Query]) -> None:
    assert len({document.contents for document in documents.values()}) == len(documents)
    assert len({document.title for document in documents.values()}) == len(documents)
    assert all(len(document.text.split()) >= 8 for document in documents.values())
    assert len({query.text for query in queries}) == len(queries)
    assert all(query.text.endswith("?") for query in queries)
    misplaced_space = re.compile(r"\w\( |\( | \)")
    assert not [document.id for document in documents.values() if misplaced_space.search(document.text)]


def test_ids_can_stand_in_a_trec_file(documents: dict[str, Document], queries: list[Query]) -> None:
    assert all(re.fullmatch(r"d\d{4}", document_id) for document_id in documents)
    assert all(re.fullmatch(r"q\d{3}", query.id) for query in queries)


def test_the_readme_names_licences_and_quotes_real_questions(queries: list[Query]) -> None:
    readme = (DEMO / "README.md").read_text(encoding="utf-8")
    for needed in ("2WikiMultiHopQA", "Apache License 2.0", "CC BY-SA", "2,000 passages", "140 questions"):
        assert needed in readme
    quoted = re.findall(r"([^|]+\?) \|$", readme, flags=re.MULTILINE)
    assert len(quoted) == 4
    assert {question.strip() for question in quoted} <= {query.text for query in queries}
