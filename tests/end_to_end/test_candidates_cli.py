"""tamis rerank of candidates that come with their texts."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import tamis as package
from tamis import Index
from tamis.cli import main
from tamis.formats import read_corpus, read_queries, write_run

DEMO = Path(package.__file__).parent / "demo_data"
P = ["-p", "mono(model=m)"]


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, queries, a run without order, a model, and the same candidates with their texts."""
    folder = tmp_path_factory.mktemp("candidates")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    documents = list(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 300))
    texts = {each.id: " ".join(each.contents.split()) for each in documents}
    (folder / "corpus.tsv").write_text("".join(f"{docid}\t{text}\n" for docid, text in texts.items()))
    queries = read_queries(DEMO / "queries.jsonl")[:5]
    (folder / "queries.tsv").write_text("".join(f"{query.id}\t{query.text}\n" for query in queries))
    run = (Index.build(documents, folder / "idx").bm25() % 12).run(queries)
    write_run(folder / "bm25.run", ((qid, each.ids, each.scores) for qid, each in run.items()), "bm25")
    lines = [
        f"{qid}\t{docid}\t{each.query.text}\t{texts[docid]}\n"
        for qid, each in run.items()
        for docid in reversed(each.ids)
    ]
    # not grouped by query
    (folder / "top.tsv").write_text("".join(lines[::2] + lines[1::2]))
    return folder


@pytest.fixture(autouse=True)
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for each in made.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected() -> bytes:
    """What the same candidates give from a run, a corpus and queries."""
    command = ["rerank", "bm25.run", "--corpus", "corpus.tsv", "--queries", "queries.tsv", *P]
    assert main([*command, "-o", "apart.run"]) == 0
    return by_query(Path("apart.run"))


def by_query(run: Path) -> bytes:
    """The lines, queries in the order of their ids: those of a file come as it has them."""
    return b"".join(sorted(run.read_bytes().splitlines(keepends=True), key=lambda line: line.split()[0]))


def test_the_same_run_as_from_three_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["rerank", "top.tsv", *P, "-o", "top.run"]) == 0
    assert by_query(Path("top.run")) == expected()
    Path("top.tsv.gz").write_bytes(gzip.compress(Path("top.tsv").read_bytes()))
    assert main(["rerank", "top.tsv.gz", *P, "-o", "gz.run"]) == 0
    assert Path("gz.run").read_bytes() == Path("top.run").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("top.tsv").read_bytes())))
    assert main(["rerank", "-", *P, "-o", "stdin.run"]) == 0
    assert Path("stdin.run").read_bytes() == Path("top.run").read_bytes()
    manifest = json.loads(Path("top.run.json").read_text())
    assert [manifest[key] for key in ("reranked", "query_file")] == ["top.tsv", "top.tsv"]
    assert manifest["corpus"] == ["top.tsv"]
    assert (manifest["queries"], manifest["results"]) == (5, 60)


def test_they_have_no_scores_to_mix_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerank", "top.tsv", "-o", "new.run", "-p", "interpolate(mono(model=m), alpha=0.5)"]) == 2
    assert "interpolate has no scores to work on for query 'q" in capsys.readouterr().err


def test_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerank", "top.tsv", *P, "-o", "new.run", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inferences"] == {"least": 12, "most": 12, "all": 60}
    assert not Path("new.run").exists()


def test_the_order_of_the_lines_changes_nothing() -> None:
    lines = Path("top.tsv").read_text().splitlines(keepends=True)
    Path("other.tsv").write_text("".join(reversed(lines)))
    for name in ("top", "other"):
        assert main(["rerank", f"{name}.tsv", *P, "-o", f"{name}.run"]) == 0
    assert by_query(Path("other.run")) == by_query(Path("top.run"))


BAD = {
    "no corpus": (
        ["bm25.run", "--queries", "queries.tsv"],
        "required: --corpus: give both, or for candidates",
    ),
    "no queries": (["bm25.run", "--corpus", "idx"], "required: --queries: give both, or for candidates"),
    "a run": (["bm25.run"], "bm25.run, line 1: a run, which has no texts: give"),
    "no file": (["nowhere.tsv"], "nowhere.tsv: no such file"),
    "empty": (["empty.tsv"], "empty.tsv: contains no candidates: check the file and its format"),
    "a bad line": (["bad.tsv"], "bad.tsv, line 2: 2 tab-separated columns where candidates have 4"),
    "as a run": (
        ["top.tsv", "--corpus", "idx", "--queries", "queries.tsv"],
        "top.tsv, line 1: candidates with their texts: leave them without --corpus and --queries",
    ),
    "a field": (["top.tsv", "--field", "desc"], "top.tsv: the queries have no desc: leave --field out"),
    "a format": (
        ["top.tsv", "--format", "tsv"],
        "--format applies to a corpus, and there is none: leave it out",
    ),
    "onto itself": (
        ["own.tsv", "-o", "own.tsv"],
        "own.tsv is an input and would be overwritten: choose another",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_line_with_a_remedy(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.tsv").write_text("\n")
    Path("bad.tsv").write_text("q1\td1\ta query\ta text\nq1\td2\n")
    Path("own.tsv").write_text("q1\td1\ta query\ta text\n")
    arguments, complaint = BAD[case]
    output = [] if "-o" in arguments else ["-o", "new.run"]
    assert main(["rerank", *arguments, *output, *P]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1
    assert complaint in said.err
    assert not Path("new.run").exists()
