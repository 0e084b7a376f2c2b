"""tamis moved: the documents to look at, with what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.cli import main

TEXTS = {"a": "A sieve for flour.", "b": "Soup and bread.", "c": "The finest sieve of all."}
Moved = Callable[..., tuple[int, str, str]]


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Moved:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, order in (("bm25.run", "abc"), ("mono.run", "cab")):
        lines = [f"q1 Q0 {identity} {rank} {9 - rank} t\n" for rank, identity in enumerate(order, start=1)]
        Path(name).write_text("".join(lines))
    Path("qrels.txt").write_text("q1 0 c 2\nq1 0 a 0\n")
    Path("queries.tsv").write_text("q1\twhich sieve\n")
    Path("corpus.jsonl").write_text(
        "".join(
            json.dumps({"id": key, "title": key.upper(), "text": text}) + "\n" for key, text in TEXTS.items()
        )
    )
    Index.build([Document(key, text, title=key.upper()) for key, text in TEXTS.items()], "idx")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["moved", "bm25.run", "mono.run", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_ranks_alone(moved: Moved) -> None:
    status, out, err = moved()
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["3", "→", "1", "q1", "c"],
        ["1", "→", "2", "q1", "a"],
        ["2", "→", "3", "q1", "b"],
    ]


@pytest.mark.parametrize("corpus", ["idx", "corpus.jsonl"])
def test_with_everything_that_is_known(moved: Moved, corpus: str) -> None:
    options = ["--qrels", "qrels.txt", "--queries", "queries.tsv", "--corpus", corpus]
    status, out, err = moved("-n", "2", *options)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines == [
        ["3", "→", "1", "q1", "c", "grade", "2", "C"],
        ["which", "sieve"],
        TEXTS["c"].split(),
        ["1", "→", "2", "q1", "a", "grade", "0", "A"],
        ["which", "sieve"],
        TEXTS["a"].split(),
    ]
    _, out, _ = moved("-n", "3", *options, "--json")
    first, _, last = json.loads(out)
    assert first == {
        "query": "q1",
        "document": "c",
        "before": 3,
        "after": 1,
        "change": 2,
        "grade": 2,
        "query_text": "which sieve",
        "title": "C",
        "text": TEXTS["c"],
    }
    assert (last["document"], last["grade"]) == ("b", None)


def test_choosing(moved: Moved) -> None:
    _, out, _ = moved("--direction", "down", "-n", "1", "--json")
    (only,) = json.loads(out)
    assert (only["document"], only["change"]) == ("a", -1)
    assert "text" not in only and "query_text" not in only
    _, out, _ = moved("--qrels", "qrels.txt", "--rel", "1", "--json")
    assert [each["document"] for each in json.loads(out)] == ["c"]


def test_nothing_moved(moved: Moved) -> None:
    Path("mono.run").write_text(Path("bm25.run").read_text())
    assert moved() == (0, "", "no document changed its rank\n")
    assert moved("--direction", "up") == (0, "", "no such document changed its rank\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rel", "1"], "a grade without judgments: give the judgments too"),
        (["-n", "0"], "'0' is not a whole number of at least 1"),
        (["--corpus", "none"], "none"),
        (["--corpus", "qrels.txt", "--format", "text"], "has no text for 3 of the 3 documents"),
        (["--qrels", "none.txt"], "none.txt: no such file"),
        (["--qrels", "-", "--queries", "-"], "only one input can be the standard input"),
    ],
)
def test_mistakes_are_one_line(moved: Moved, arguments: list[str], problem: str) -> None:
    status, out, err = moved(*arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
