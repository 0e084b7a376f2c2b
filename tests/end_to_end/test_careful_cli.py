"""What a command must not do to your files, and what it says when it cannot do its work to the end."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tests.end_to_end.commands import Tamis

DOCUMENTS = [
    Document("d1", "A tamis is a fine sieve of horsehair or steel."),
    Document("d2", "Flour goes through a sieve before it becomes a cake."),
    Document("d3", "Soup of the day: onions, butter and patience."),
    Document("d4", "A colander."),
    Document("d5", ""),
]
CORPUS = "".join(json.dumps({"_id": d.id, "text": d.text}) + "\n" for d in DOCUMENTS)
FILES = {
    "corpus.jsonl": CORPUS,
    "queries.tsv": "q1\tfine sieve\nq2\tonion soup\n",
    "qrels.txt": "q1 0 d1 1\n",
    "a.run": "q1 Q0 d1 1 2.0 a\n",
    "b.run": "q1 Q0 d1 1 2.0 b\n",
    "spaces.tsv": "q 1\tfine sieve\n",
    "spaces.top": "q1\td 1\tfine sieve\ta sieve\n",
    "header.tsv": "qid\tQuery\nq1\tfine sieve\n",
}


@pytest.fixture
def tamis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tamis:
    """The command, in a folder with the files and an index of theirs."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content)
    Index.build(DOCUMENTS, "idx")
    return Tamis(capsys)


RERANK = ["rerank", "a.run", "--queries", "queries.tsv"]
TUNE = ["tune", "idx", "queries.tsv", "qrels.txt", "-p", "bm25(b={b})", "--grid", "b=0.4,0.5"]
BAD = {
    "onto the queries": (["run", "idx", "queries.tsv", "-o", "./queries.tsv"], "queries.tsv is an input and"),
    "onto the queries of a run": (
        [*RERANK, "--corpus", "idx", "-o", "queries.tsv"],
        "queries.tsv is an input and would be overwritten: choose another name for the output",
    ),
    "onto the corpus": (
        [*RERANK, "--corpus", "corpus.jsonl", "-o", "corpus.jsonl"],
        "corpus.jsonl is an input",
    ),
    "onto a run": (["compare", "qrels.txt", "a.run", "b.run", "-o", "b.run"], "b.run is an input and would"),
    "a plot onto the judgments": (
        ["compare", "qrels.txt", "a.run", "b.run", "--plot", "qrels.txt"],
        "qrels.txt is an input and would",
    ),
    "what is tuned onto the judgments": ([*TUNE, "-o", "qrels.txt"], "qrels.txt is an input and would"),
    "folds onto the queries": (
        [*TUNE, "-o", "x.run", "--save-folds", "queries.tsv"],
        "queries.tsv is an input",
    ),
    "to the standard input": (["run", "idx", "queries.tsv", "-o", "-"], "'-' is the standard input, which"),
    "a query id that no run can hold": (
        ["run", "idx", "spaces.tsv", "-o", "x.run"],
        "the query id 'q 1' is empty or holds white space",
    ),
    "a candidate that no run can hold": (
        ["rerank", "spaces.top", "-o", "x.run"],
        "the document id 'd 1' is empty or holds white space",
    ),
    "a folder for queries": (["run", "idx", "idx", "-o", "x.run"], "idx: is a folder: give a file"),
    "queries with a header": (
        ["run", "idx", "header.tsv", "-o", "x.run"],
        "header.tsv, line 1: a header ('qid', 'Query') where there should be none: take the line out",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_one_line_and_change_no_file(case: str, tamis: Tamis) -> None:
    arguments, complaint = BAD[case]
    said = tamis(*arguments)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert complaint in said.err
    assert {path.name: path.read_text() for path in Path().iterdir() if path.is_file()} == FILES


def test_an_id_that_no_run_can_hold_leaves_no_journal(tamis: Tamis) -> None:
    Index.open("idx").add([Document("my notes.txt", "a fine sieve")])
    said = tamis("run", "idx", "queries.tsv", "-o", "x.run")
    assert (said.status, said.out) == (2, "")
    assert "the document id 'my notes.txt' is empty or holds white space" in said.err
    tamis("delete", "idx", "my notes.txt")
    assert tamis("run", "idx", "queries.tsv", "-o", "x.run").status == 0


def test_without_standard_streams(tamis: Tamis) -> None:
    """As a service may be started; those of the tests are not ours to close."""
    command = """if True:
        import sys
        from tamis.cli import main
        sys.stdin = sys.stdout = None
        sys.exit(main())
    """
    for arguments, status, err in (
        (["search", "idx", "sieve"], 0, ""),
        (["index", "-", "-o", "new"], 2, "error: the standard input is closed: give a file, or a pipe\n"),
    ):
        said = subprocess.run(
            [sys.executable, "-c", command, *arguments], capture_output=True, text=True, timeout=300
        )
        assert (said.returncode, said.stdout, said.stderr) == (status, "", err)


class Interrupted(io.RawIOBase):
    """A file at whose end somebody presses Ctrl-C."""

    def __init__(self, content: bytes) -> None:
        self.rest = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.rest:
            raise KeyboardInterrupt
        part, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def test_an_interrupt_says_what_is_kept(tamis: Tamis, monkeypatch: pytest.MonkeyPatch) -> None:
    Index.build([Document("old", "text")], "idx", overwrite=True)
    for every, kept, remedy in (
        ("9", 1, ""),
        ("2", 4, "--resume instead of --overwrite continues from there"),
    ):
        stdin = io.TextIOWrapper(io.BufferedReader(Interrupted(CORPUS.encode())))
        monkeypatch.setattr(sys, "stdin", stdin)
        said = tamis("index", "-", "-o", "idx", "--overwrite", "--commit-every", every)
        assert (said.status, said.out, "--resume" in said.err) == (130, "", bool(remedy))
        assert remedy in said.err
        assert len(Index.open("idx")) == kept
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CORPUS.encode())))
    said = tamis("index", "-", "-o", "idx", "--commit-every", "2", "--resume")
    assert said.out.startswith("idx: 5 documents")
