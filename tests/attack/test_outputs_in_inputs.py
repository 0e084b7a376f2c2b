"""Outputs that lie in what a command reads: refused in one line, and nothing of it has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tamis import Document, Index
from tamis.cli import main
from tamis.infer.tokens import build_tokens
from tamis.models.tokenizer import Tokenizer

RUNS = {
    "run": ["run", "idx", "q.tsv"],
    "run with a model": ["run", "idx", "q.tsv", "-p", "bm25 % 2 >> mono(model=model)"],
    "rerank": ["rerank", "c.run", "--corpus", "idx", "--queries", "q.tsv", "-p", "mono(model=model)"],
    "tune": ["tune", "idx", "q.tsv", "qrels", "-p", "bm25(k1={k})", "--grid", "k=0.9,1.2", "--folds", "2"],
    "tune models": [
        *("tune", "idx", "q.tsv", "qrels", "-p", "bm25 % 2 >> mono(model={m})", "--folds", "2"),
        *("--grid", "m=mono-nano,model"),
    ],
    "tradeoff": ["tradeoff", "idx", "q.tsv", "qrels", "-p", "bm25 % {k}", "--grid", "k=1,2", "--timed", "0"],
    "sample": ["sample", "qrels", "--deep", "1.0"],
    "compare": ["compare", "qrels", "c.run", "d.run", "--format", "json"],
}
INSIDE = [
    *("idx/manifest.json", "idx/new.run", "idx/segments/new.run", "idx/tokens/new.run", "idx/lock"),
    *("idx/../idx/manifest.json", "link/manifest.json", "to-manifest"),
]
IN_MODEL = ["model/config.json", "model/new.run", "model/sub/../tokenizer.json"]


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Callable[..., Path]
) -> Iterator[Path]:
    """An index with tokens, a model and what the commands read, in the working folder."""
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "model", layers=1, hidden=8, heads=2)
    (tmp_path / "model" / "sub").mkdir()
    documents = [
        Document("d1", "a fine sieve"),
        Document("d2", "coarse flour"),
        Document("d3", "sieve flour"),
    ]
    index = Index.build(documents, tmp_path / "idx")
    build_tokens(index, Tokenizer(tmp_path / "model"))
    (tmp_path / "q.tsv").write_text("q1\tsieve\nq2\tflour\n")
    (tmp_path / "qrels").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    for name, scores in (("c.run", (2, 1)), ("d.run", (1, 2))):
        lines = [f"{q} Q0 d{n} 1 {scores[n - 1]} x" for q in ("q1", "q2") for n in (1, 2)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    (tmp_path / "link").symlink_to("idx")
    (tmp_path / "to-manifest").symlink_to("idx/manifest.json")
    yield tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    before = tree(place)
    capsys.readouterr()
    status = main(arguments)
    said = capsys.readouterr().err.splitlines()
    assert (status, tree(place) == before) == (2, True), (arguments, said)
    assert (len(said) == 1 and said[0].startswith("tamis: error: ")) or said[0].startswith("error: "), said
    return said[0]


@pytest.mark.parametrize("name", RUNS)
def test_no_output_lies_in_an_index(place: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for output in INSIDE:
        if name == "tradeoff":
            output = output.replace(".run", ".html")  # which a report must be called
        said = refused(place, capsys, [*RUNS[name], "-o", output])
        assert "is inside" in said or ".html" in said, said


@pytest.mark.parametrize("name", ["run with a model", "rerank", "tune models"])
def test_no_output_lies_in_a_model_that_is_read(
    place: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in IN_MODEL:
        assert "which is an input" in refused(place, capsys, [*RUNS[name], "-o", output])


@pytest.mark.parametrize("name", ["run", "rerank", "tune", "tradeoff"])
def test_nor_do_the_files_beside_it(place: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    output = "ok.html" if name == "tradeoff" else "ok.run"
    options = [["--cache", "idx/scores"], ["--cache", "idx/manifest.json"]]
    options += {"tune": [["--save-folds", "idx/folds.json"]], "tradeoff": [["--plots", "idx/plots"]]}.get(
        name, []
    )
    for option in options:
        assert "is inside an index" in refused(place, capsys, [*RUNS[name], "-o", output, *option])
    if name in ("run", "rerank"):  # what is written beside the run is an input
        (place / "x.journal").hardlink_to(place / "q.tsv")
        assert "is an input" in refused(place, capsys, [*RUNS[name], "-o", "x"])


def test_other_commands(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "corpus.tsv").write_text("d1\tsieve\n")
    recipe = place / "recipe.toml"
    recipe.write_text(
        '[model]\nstart = "model"\n[[data]]\nqueries = "q.tsv"\nqrels = "qrels"\ncorpus = ["corpus.tsv"]\n'
        "[optimiser]\nsteps = 1\n"
    )
    for command in (
        ["index", "corpus.tsv", "-o", "idx/segments"],
        ["index", "corpus.tsv", "-o", "idx/new", "--overwrite"],
        ["search", "idx", "sieve", "--cache", "idx/scores"],
        ["serve", "idx", "--cache", "idx/segments/scores"],
        ["demo", "--keep", "idx/demo"],
        ["export", "model", "-o", "idx/model"],
        ["export", "model", "--weights", "float16", "-o", "model"],
        ["export", "model", "--weights", "float16", "-o", "model/half"],
        ["compare", "qrels", "c.run", "d.run", "--plot", "idx/plot.svg"],
        ["train", "recipe.toml", "--out", "model"],
        ["train", "recipe.toml", "--out", "model/tuned"],
        ["train", "recipe.toml", "--out", "idx"],
    ):
        assert "is inside" in refused(place, capsys, command), command


def test_hard_links_and_capitals(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that has a second name is the same file, and so is one of which a system ignores the case."""
    (place / "second.run").hardlink_to(place / "idx" / "manifest.json")
    assert "is an input" in refused(place, capsys, [*RUNS["run"], "-o", "second.run"])
    if (place / "IDX").exists():  # pragma: no cover
        refused(place, capsys, [*RUNS["run"], "-o", "IDX/manifest.json"])


def test_a_file_of_the_corpus_is_an_input(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "texts").mkdir()
    for name, text in (("d1", "a fine sieve"), ("d2", "coarse flour")):
        (place / "texts" / name).with_suffix(".txt").write_text(text)
    command = ["rerank", "e.run", "--corpus", "texts", "--queries", "q.tsv", "-p", "mono(model=model)"]
    (place / "e.run").write_text("q1 Q0 d1.txt 1 2 x\nq1 Q0 d2.txt 2 1 x\n")
    assert "is an input" in refused(place, capsys, [*command, "-o", "texts/d2.txt"])
    assert main([*command, "-o", "texts/new.run"]) == 0  # beside them is no harm, nor is it the second time
    assert main([*command, "-o", "texts/new.run"]) == 0


def test_other_places_are_free(place: Path) -> None:
    assert main([*RUNS["run with a model"], "-o", "ok.run", "--cache", "scores"]) == 0
    assert main([*RUNS["run with a model"], "-o", "ok.run", "--cache", "scores"]) == 0
