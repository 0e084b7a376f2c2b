"""The lines of a document that an answer shows, and documents in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.core.ranking import Span
from tamis.text.analyze import get_analyzer

pytest.importorskip("httpx")
testclient = pytest.importorskip("fastapi.testclient")

from tamis.serve.highlight import Marker  # noqa: E402 (its package needs them)
from tamis.serve.limits import MATCHES  # noqa: E402
from tamis.serve.snippets import WIDTH, snippet  # noqa: E402

MARKER = Marker(get_analyzer("english"), {"siev", "drum"})
FILLER = "Soup is hot. "
LONG = FILLER * 5_000 + "A sieve. " + FILLER * 100


def test_a_short_text_is_its_own_snippet() -> None:
    found = snippet("A drum sieve.", MARKER)
    assert (found.start, found.text, found.source) == (0, "A drum sieve.", "text")
    assert found.highlights == [(2, 6), (7, 12)]
    assert snippet("", MARKER).text == ""
    assert snippet("x" * 1_000, MARKER).text == "x" * WIDTH


def test_the_snippet_is_where_most_different_words_are() -> None:
    text = "sieve sieve sieve. " + FILLER * 60 + "A drum of a sieve. " + FILLER * 60
    found = snippet(text, MARKER)
    assert text[found.start :].startswith(found.text)
    assert "A drum of a sieve." in found.text
    assert len(found.text) <= WIDTH
    assert [found.text[start:stop] for start, stop in found.highlights] == ["drum", "sieve"]


def test_what_the_model_has_read_comes_first() -> None:
    text = "A sieve. " + FILLER * 60 + "A drum of a sieve."
    read = snippet(text, MARKER, read=300)
    assert (read.source, read.start, read.highlights) == ("read", 0, [(2, 7)])
    assert read.start + len(read.text) <= 300
    later = snippet(text[9:], MARKER, read=300)
    assert later.source == "unread"
    assert "A drum of a sieve." in later.text
    nothing = snippet(FILLER * 60, MARKER, read=300)
    assert (nothing.source, nothing.start, nothing.highlights) == ("read", 0, [])
    assert snippet(text, MARKER, read=len(text)).source == "read"


def test_the_best_passage_begins_the_snippet() -> None:
    passages = [Span(13, 25, 0.1), Span(26, 38, 0.9)]
    found = snippet(FILLER * 60, MARKER, passages=passages)
    assert (found.start, found.best, found.source) == (26, (0, 12), "passage")


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[..., Path]
) -> Iterator[tuple[Any, str]]:
    from tamis.serve.app import create_app
    from tamis.serve.pipelines import Pipelines
    from tamis.serve.service import Service

    folder = tmp_path_factory.mktemp("snippets")
    documents = [
        Document("long", LONG, "Soups", metadata={"url": "https://example.org/"}),
        Document("short", "A sieve."),
        Document("many", "sieve " * (MATCHES + 10)),
    ]
    index = Index.build(documents, folder / "idx")
    model = tiny_checkpoint(folder / "mono", layers=1, positions=64, seed=1)
    service = Service(Pipelines(index, f'bm25 % 10 >> mono(model="{model}")'))
    with testclient.TestClient(create_app(service)) as made:
        yield made, str(model)


def results(client: Any, **body: Any) -> dict[str, Any]:
    sent = {"query": "sieve", "deadline_ms": 60_000, **body}
    found = client.post("/search", json=sent)
    assert found.status_code == 200, found.text
    return {result["id"]: result for result in found.json()["results"]}


def test_an_answer_says_what_the_model_has_read(client: tuple[Any, str]) -> None:
    found = results(client[0])
    long, short = found["long"], found["short"]
    assert long["snippet"]["source"] == "unread"
    assert "A sieve." in long["snippet"]["text"]
    assert long["characters"] == len(LONG)
    assert long["read"]["stage"] == "mono"
    assert 0 < long["read"]["characters"] < 500
    assert short["read"] == {"stage": "mono", "characters": len("A sieve.")}
    assert short["snippet"]["source"] == "read"
    searched = results(client[0], pipeline="bm25")
    assert {result["read"] is None and result["snippet"]["source"] for result in searched.values()} == {
        "text"
    }
    passages = results(client[0], pipeline=f'bm25 >> maxp(mono(model="{client[1]}"), passages=5)')
    assert {result["read"] is None and result["snippet"]["source"] for result in passages.values()} == {
        "passage"
    }
    best = results(client[0], pipeline=f'bm25 >> mono(model="{client[1]}", cut=best)')
    assert best["long"]["read"] is None


def test_candidates_of_a_client_are_read_too(client: tuple[Any, str]) -> None:
    sent = {"query": "sieve", "documents": [LONG, "A sieve."], "deadline_ms": 60_000}
    found = client[0].post("/rerank", json=sent).json()["results"]
    long, short = sorted(found, key=lambda result: result["index"])
    assert long["snippet"]["source"] == "unread" and "A sieve." in long["snippet"]["text"]
    assert 0 < long["read"]["characters"] < 500
    assert short["read"] == {"stage": "mono", "characters": len("A sieve.")}
    assert short["snippet"]["source"] == "read"


def test_how_far_a_model_has_read_is_exact(client: tuple[Any, str]) -> None:
    """The text up to there fills the model, and ends with its last token."""
    from tamis import Mono

    mono = Mono(client[1])
    read = results(client[0])["long"]["read"]["characters"]
    scorer = mono.scorer
    query = len(scorer.tokenizer.encode(["sieve"]).ids)
    room = scorer.architecture.room(query, scorer.reading(mono.query_limit, mono.limit))
    tokens = [len(scorer.tokenizer.encode([f"Soups\n{LONG[:end]}"]).ids) for end in (read, len(LONG))]
    assert tokens[0] == room < tokens[1]


def test_a_query_without_terms_says_so(client: tuple[Any, str]) -> None:
    def note(query: str) -> Any:
        return client[0].post("/search", json={"query": query, "pipeline": "bm25"}).json()["note"]

    assert note("the of") == "the query has no terms: the analyzer 'english' drops every word of it"
    assert note("qqqq") is None
    assert note("sieve") is None


def test_a_document_is_given_in_parts_with_the_places_of_words(client: tuple[Any, str]) -> None:
    def document(path: str = "/documents", **given: Any) -> Any:
        return client[0].get(path, params=given)

    part = document(id="long", start=64_990, length=30, query="sieves").json()
    assert part["text"] == LONG[64_990:65_020]
    assert (part["start"], part["characters"], part["title"]) == (64_990, len(LONG), "Soups")
    assert part["metadata"] == {"url": "https://example.org/"}
    assert part["matches"] == [[65_002, 65_007]]
    whole = document(id="long").json()
    assert (whole["text"], whole["start"], whole["matches"]) == (LONG, 0, [])
    assert document("/documents/long", start=2, length=3).json()["text"] == LONG[2:5]
    assert document(id="long", start=10**9, length=5).json()["text"] == ""
    assert len(document(id="many", length=1, query="sieve").json()["matches"]) == MATCHES
    for wrong in ({"start": -1}, {"length": 0}, {"start": "x"}, {"query": "x" * 2_001}):
        answer = document(id="long", **wrong)
        assert answer.status_code == 422
        assert next(iter(wrong)) in answer.json()["error"]
