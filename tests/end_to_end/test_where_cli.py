"""Searches and runs of documents that satisfy a condition, as a user types them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tamis.cli import main

BOOKS = [
    {"id": "b1", "title": "The drum sieve", "text": "A tamis is a drum sieve.", "year": 1998, "lang": "en"},
    {"id": "b2", "title": "Le tamis", "text": "Un tamis est un sieve rond.", "year": 2019, "lang": "fr"},
    {"id": "b3", "text": "Soup passes a sieve, a drum.", "year": 2021, "lang": "en", "tags": ["soup", 7]},
]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    lines = "".join(f"{json.dumps(book)}\n" for book in BOOKS)
    (tmp_path / "books.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "queries.tsv").write_text("q1\tsieve\nq2\tdrum\nq3\ttamis\n", encoding="utf-8")
    assert main(["index", str(tmp_path / "books.jsonl"), "-o", str(tmp_path / "idx")]) == 0
    return tmp_path


def searched(books: Path, *arguments: str) -> int:
    return main(["search", str(books / "idx"), *arguments, "-p", "bm25"])


def test_search(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert searched(books, "sieve", "--where", "year >= 2000 and lang = en", "--explain") == 0
    out = capsys.readouterr().out
    assert "b3" in out
    assert "year: 2021 · lang: en · tags: soup, 7" in out
    assert "b1" not in out
    assert "1 result in" in out
    assert searched(books, "sieve", "--where", "YEAR<2000 or year<2000", "--json") == 2
    assert capsys.readouterr().err.startswith("error: no document has a value in the field YEAR: ")
    assert searched(books, "sieve", "--where", "(year<2000)", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["where"] == "year < 2000"
    assert [(result["id"], result["metadata"]) for result in found["results"]] == [
        ("b1", {"year": 1998, "lang": "en"})
    ]
    assert searched(books, "tamis", "--where", "tags = soup") == 0
    said = capsys.readouterr()
    assert said.out.startswith("0 results in")
    assert said.err == "no document that satisfies tags = soup has a word of the query\n"
    assert searched(books, "sieve", "--where", "year >") == 2
    assert capsys.readouterr().err == (
        "error: column 7 of the condition 'year >': expected a value, found the end: "
        "write it like year >= 2020 and lang in (en, fr)\n"
    )


def test_with_models_and_feedback(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for pipeline in ("fast", "bm25 >> rm3", "fuse(bm25, ql) >> mono(model=mono-nano)"):
        command = ["search", str(books / "idx"), "sieve", "-p", pipeline, "--where", "lang != en", "--json"]
        assert main(command) == 0
        assert [result["id"] for result in json.loads(capsys.readouterr().out)["results"]] == ["b2"]


def test_query_syntax(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    query = '"drum sieve" -soup'
    assert searched(books, query, "--json") == 0  # plain: quotes and hyphens are no words
    plain = {each["id"]: each["score"] for each in json.loads(capsys.readouterr().out)["results"]}
    assert plain.keys() == {"b1", "b2", "b3"}
    assert searched(books, query, "--query-syntax", "simple", "--where", "year != 2000", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["query"], found["where"]) == (
        "drum sieve",
        'year != 2000 and contains "drum sieve" and not contains soup',
    )
    assert [each["id"] for each in found["results"]] == ["b1"]
    assert searched(books, " -soup -drum", "--query-syntax", "simple") == 2
    assert capsys.readouterr().err == (
        "error: the query '-soup -drum' only says what must not be there: add a word to look for\n"
    )


def arguments(books: Path, run: Path, *more: str) -> list[str]:
    condition = ["--where", "lang = en"]
    return ["run", str(books / "idx"), str(books / "queries.tsv"), "-o", str(run), *(more or condition)]


def test_run(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = books / "a.run"
    assert main(arguments(books, run)) == 0
    assert [line.split()[:3] for line in run.read_text().splitlines()] == [
        ["q1", "Q0", "b1"],
        ["q1", "Q0", "b3"],
        ["q2", "Q0", "b1"],
        ["q2", "Q0", "b3"],
        ["q3", "Q0", "b1"],
    ]
    assert json.loads((books / "a.run.json").read_text())["where"] == "lang = en"
    assert main(arguments(books, books / "b.run", "--where", "tags = soup")) == 0
    assert "1 query found nothing: q3" in capsys.readouterr().err
    assert main(arguments(books, books / "c.run", "--where", "land = en")) == 2
    assert "did you mean lang?" in capsys.readouterr().err


def test_run_with_a_query_syntax(books: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (books / "queries.tsv").write_text('q1\tsieve -soup\nq2\t"a drum" +sieve\n', encoding="utf-8")
    run = books / "a.run"
    assert main(arguments(books, run, "--query-syntax", "simple")) == 0
    found = [tuple(line.split()[:3:2]) for line in run.read_text().splitlines()]
    assert found == [("q1", "b1"), ("q1", "b2"), ("q2", "b1"), ("q2", "b3")]
    assert json.loads((books / "a.run.json").read_text())["query_syntax"] == "simple"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_is_resumed_with_its_condition_alone(
    books: Path, killed_before: Callable[..., bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(books, books / "whole.run")) == 0
    run = books / "a.run"
    assert not killed_before(2, partial(main, arguments(books, run)), ("fsync", "replace", "unlink"))
    capsys.readouterr()
    for other in (["--where", "lang = fr", "--resume"], ["--resume"]):
        assert main(arguments(books, run, *other)) == 2
        assert "the journal belongs to 3 other queries, not to these 3" in capsys.readouterr().err
    assert main(arguments(books, run, "--where", "( lang == 'en' )", "--resume")) == 0
    assert run.read_bytes() == (books / "whole.run").read_bytes()
    assert json.loads((books / "a.run.json").read_text())["resumed"] == 3
