"""tamis sample: from judgments to fewer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tamis.cli import main
from tamis.evaluate.sampling import sample_judgments
from tamis.formats import read_qrels

Sample = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sample:
    monkeypatch.chdir(tmp_path)
    lines = [f"q{query} 0 d{document} {document % 3}\n" for query in range(10) for document in range(20)]
    Path("qrels.txt").write_text("".join(lines))
    Path("some.tsv").write_text("q1\tsieve\nq2\tflour\n")

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["sample", "qrels.txt", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_deep(sample: Sample) -> None:
    assert sample("--deep", "0.3", "-o", "deep.txt") == (
        0,
        "deep.txt: 60 of 200 judgments, 3 queries of 10\n",
        "",
    )
    assert read_qrels("deep.txt") == sample_judgments(read_qrels("qrels.txt"), 0.3, "deep")


def test_shallow_by_another_seed(sample: Sample) -> None:
    status, out, _ = sample("--shallow", "0.1", "--seed", "7", "-o", "shallow.txt")
    assert (status, out) == (0, "shallow.txt: 20 of 200 judgments, 10 queries of 10\n")
    found = read_qrels("shallow.txt")
    assert found == sample_judgments(read_qrels("qrels.txt"), 0.1, "shallow", seed=7)
    assert found != sample_judgments(read_qrels("qrels.txt"), 0.1, "shallow", seed=8)


def test_only_some_queries(sample: Sample) -> None:
    sample("--shallow", "0.5", "--only", "some.tsv", "-o", "half.txt")
    assert {qid: len(grades) for qid, grades in read_qrels("half.txt").items()} == {
        f"q{n}": 10 if n in (1, 2) else 20 for n in range(10)
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-o", "x.txt"], "one of the arguments --deep --shallow is required"),
        (["--deep", "0.1", "--shallow", "0.1", "-o", "x.txt"], "not allowed with argument"),
        (["--deep", "1.5", "-o", "x.txt"], "a rate of 1.5: use a rate above 0 and up to 1"),
        (["--deep", "0.001", "-o", "x.txt"], "a rate of 0.001 keeps no judgment: use a larger one"),
        (["--deep", "0.5", "--seed", "-1", "-o", "x.txt"], "the seed -1: use a whole number of at least 0"),
        (["--deep", "0.5", "-o", "."], ". is a folder"),
        (["--deep", "0.5", "-o", "./qrels.txt"], "qrels.txt is an input and would be overwritten"),
        (
            ["--deep", "0.5", "--only", "others.tsv", "-o", "x.txt"],
            "others.tsv: none of its queries is judged",
        ),
    ],
)
def test_mistakes_are_one_line(sample: Sample, arguments: list[str], problem: str) -> None:
    Path("others.tsv").write_text("z9\tsieve\n")
    status, out, err = sample(*arguments)
    assert (status, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1
    assert not Path("x.txt").exists()
    assert len(Path("qrels.txt").read_text().splitlines()) == 200
