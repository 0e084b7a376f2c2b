"""A package of someone else, tests/extension, brings an architecture: it is trained, ranks and is served like
ours, and nothing in tamis names it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tamis as package
from tamis import Document, Index, Run
from tamis.cli import main
from tamis.core import extensions
from tamis.core.registry import names as stage_names
from tamis.models.architecture import architecture
from tamis.models.architecture import names as architecture_names
from tamis.models.checkpoint import load_checkpoint
from tests.end_to_end.commands import Tamis
from tests.end_to_end.test_extension import EXTENSION

pytest.importorskip("torch")

WORDS = ["castle", "king", "sieve", "flour", "soup", "bread", "glass", "film", "river", "stone"]
RECIPE = """
architecture = "late"
[late]
width = 8
[model]
start = "m"
[[data]]
queries = "queries.tsv"
qrels = "qrels.txt"
corpus = ["idx"]
run = "bm25.run"
[examples]
group = 4
[limits]
total = 40
[optimiser]
learning_rate = 5e-3
steps = 24
[run]
batch = 4
checkpoint_every = 3
log_every = 3
[dev]
queries = "few.tsv"
qrels = "qrels.txt"
corpus = ["idx"]
run = "bm25.run"
every = 12
depth = 8
"""
STAGE = 'late(model="trained/best", limit=40)'


@pytest.fixture(scope="module")
def installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXTENSION))
        extensions._installed.cache_clear()
        yield
    extensions._installed.cache_clear()


@pytest.fixture(scope="module")
def place(
    installed: None, tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A collection, a recipe and what it trains."""
    folder = tmp_path_factory.mktemp("late")
    tiny_checkpoint(folder / "m", layers=1, positions=48)
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, generator.integers(4, 20))) for _ in range(40)]
    Index.build([Document(f"d{n:02}", text) for n, text in enumerate(texts)], folder / "idx")
    asked = [generator.choice(WORDS, 2, replace=False).tolist() for _ in range(30)]
    queries = [f"q{n:02}\t{' '.join(words)}" for n, words in enumerate(asked)]
    relevant = [
        (n, doc)
        for n, words in enumerate(asked)
        for doc, text in enumerate(texts)
        if text.count(words[0]) > 1
    ]
    (folder / "queries.tsv").write_text("\n".join(queries) + "\n")
    (folder / "few.tsv").write_text("\n".join(queries[:6]) + "\n")
    (folder / "qrels.txt").write_text("".join(f"q{n:02} 0 d{doc:02} 1\n" for n, doc in relevant))
    (folder / "late.toml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        assert main(["run", "idx", "queries.tsv", "-p", "bm25 % 8", "-o", "bm25.run"]) == 0
        assert main(["train", "late.toml", "--out", "trained"]) == 0
    return folder


@pytest.fixture
def tamis(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tamis:
    monkeypatch.chdir(place)
    return Tamis(capsys)


def test_it_is_one_short_file_that_nothing_in_tamis_names() -> None:
    assert len((EXTENSION / "sieves" / "late.py").read_text().splitlines()) <= 120
    for path in Path(package.__file__).parent.rglob("*.py"):
        assert not re.search(r"sieves\.\w|import sieves|[\"']late[\"']", path.read_text("utf-8")), path


def test_it_is_trained_and_its_checkpoint_says_what_it_is(place: Path) -> None:
    trained = load_checkpoint(place / "trained" / "best")
    assert trained.architecture == architecture("late")(trained.architecture.settings)
    assert trained.architecture.settings.width == 8
    assert {name: trained.head[name].shape for name in trained.head} == {
        "late.project.weight": (8, 32),
        "late.project.bias": (8,),
        "late.scale": (),
    }
    record = json.loads((place / "trained" / "best" / "config.json").read_text())["tamis"]
    assert record["architecture"] == "late" and record["settings"]["width"] == 8
    log = [json.loads(line) for line in (place / "trained" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 24 and log[-1]["loss"] < log[1]["loss"]
    assert [line["step"] for line in log if "dev" in line] == [0, 12, 24]


def test_a_training_that_was_killed_is_resumed(
    place: Path,
    killed_at: Callable[[Path, Sequence[str]], None],
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PYTHONPATH", f"{EXTENSION}:{Path(package.__file__).parents[1]}")
    (place / "short.toml").write_text(RECIPE.partition("[dev]")[0])
    assert main(["train", "short.toml", "--out", "whole"]) == 0
    command = ["train", "short.toml", "--out", str(place / "killed")]
    killed_at(place / "killed" / "state" / "state.pt", command)
    assert not Path("killed/last").exists()
    assert main([*command, "--resume"]) == 0
    one, other = (load_checkpoint(place / each / "last") for each in ("whole", "killed"))
    for name in one.head:
        assert np.array_equal(one.head[name], other.head[name]), name
    for name in one.tensors:
        assert np.array_equal(one.tensors[name], other.tensors[name]), name


def test_it_searches_and_explains(tamis: Tamis) -> None:
    question = ["search", "idx", "castle king", "-p", f"bm25 % 8 >> {STAGE}", "-k", "3"]
    found = tamis(*question, "--json")
    assert found.status == 0, found.err
    assert [result["rank"] for result in found.json["results"]] == [1, 2, 3]
    for result in tamis(*question, "--explain", "--json").json["results"]:
        assert [each["stage"].partition("(")[0] for each in result["stages"]] == ["bm25 % 8", "late"]
        assert result["stages"][-1]["score"] == result["score"]


def test_run_cache_and_dry_run(tamis: Tamis) -> None:
    command = ["run", "idx", "few.tsv", "-p", f"bm25 % 6 >> {STAGE}", "--workers", "1"]
    planned = tamis(*command, "-o", "x.run", "--dry-run", "--json").json
    assert planned["inferences"]["most"] == 6 and planned["counts"] == "most"
    first = tamis(*command, "-o", "one.run", "--cache", "scores", "--json").json
    second = tamis(*command, "-o", "two.run", "--cache", "scores", "--json").json
    assert Path("one.run").read_bytes() == Path("two.run").read_bytes()
    assert first["models"][0]["inferences"] == second["models"][0]["cached"] > 0
    assert tamis(*command, "-o", "three.run", "--resume").status == 0
    assert Path("three.run").read_bytes() == Path("one.run").read_bytes()


def test_rerank(tamis: Tamis) -> None:
    given = ["bm25.run", "--corpus", "idx", "--queries", "queries.tsv"]
    assert tamis("rerank", *given, "-p", f"{STAGE} % 5", "-o", "reranked.run").status == 0
    reranked = Run.read("reranked.run")
    assert {len(ranking) for ranking in reranked.values()} <= {1, 2, 3, 4, 5}
    assert set(reranked["q00"].ids) <= set(Run.read("bm25.run")["q00"].ids)


def test_tune_and_tradeoff(tamis: Tamis) -> None:
    tuned = tamis(
        "tune", "idx", "queries.tsv", "qrels.txt", "-p", f"bm25 % {{k}} >> {STAGE}", "--grid", "k=3,6",
        "--folds", "2", "-o", "tuned.run", "-m", "nDCG@10",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    swept = tamis(
        "tradeoff", "idx", "few.tsv", "qrels.txt", "-o", "report.html", "--json", "--workers", "1",
        "-p", "bm25 % {k0} >> late(model=\"trained/best\", limit=40, query_limit={q})",
        "--grid", "k0=3,6", "--grid", "q=2,12",
    )  # fmt: skip
    assert swept.status == 0, swept.err
    assert len(swept.json["points"]) == 4


def test_what_is_wrong_is_said_in_a_line(tamis: Tamis, place: Path) -> None:
    for pipeline, problem in (
        ("bm25 >> late", "late needs model: write late(model=...)"),
        ("bm25 >> late(model=m)", 'm holds a mono model: write mono(model="m")'),
        ('bm25 >> mono(model="trained/best")', 'holds a late model: write late(model="trained/best")'),
        ('bm25 >> late(model="trained/best", width=3)', "late has no option 'width': it takes model, "),
    ):
        said = tamis("search", "idx", "castle", "-p", pipeline)
        assert said.status == 2 and problem in said.err, said.err
    for old, new, problem in (
        ("width = 8", "wdith = 8", "[late] has no field 'wdith': the known ones are width, prompt, calm"),
        ("width = 8", "width = 0", "width of [late] is 0: it must be a whole number of at least 1"),
        ("group = 4", "group = 4\nrandom = 1.0", "late learns from candidates: leave out random"),
        ('= "late"', '= "layt"', "architecture is 'layt': use one of mono, "),
        ("[model]", "[listwise]\n[model]", "the recipe has [late] and [listwise]: leave out one of them"),
        ("total = 40", "total = 5", "no room for a text and a query"),
    ):
        (place / "wrong.toml").write_text(RECIPE.replace(old, new, 1))
        said = tamis("train", "wrong.toml", "--out", "wrong")
        assert said.status == 2 and problem in said.err, said.err
        assert not (place / "wrong").exists()


def test_doctor_and_the_lists_name_it(tamis: Tamis) -> None:
    brought = tamis("doctor", "--json").json["extensions"]
    found = [
        (each["name"], each["is"], each["package"]) for each in brought if each["kind"] == "architecture"
    ]
    assert found == [("late", "a kind of model, for late", "sieves 0.1")]
    assert architecture_names()[-1] == "late" and "late" in stage_names()
    assert tamis("doctor", "--json").json["models"]["architectures"] == architecture_names()
    tools = Path(__file__).parents[2] / "tools"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tools))
        for name in ("docs_recipes", "docs_reference"):
            patch.delitem(sys.modules, name, raising=False)
        from docs_reference import PARTS

        assert "| `late` | Late interaction: " in PARTS["architectures"]()
        assert "| `width` | a whole number of at least 1 | `16` | of the vectors that are compared |" in (
            PARTS["recipes train"]()
        )
        for name in ("docs_recipes", "docs_reference"):  # those of others know nothing of it
            patch.delitem(sys.modules, name)


def test_serve(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.end_to_end.served import serving

    monkeypatch.setenv("PYTHONPATH", f"{EXTENSION}:{Path(package.__file__).parents[1]}")
    with serving(place, "-p", f"bm25 % 8 >> {STAGE} % 5") as server:
        listed = {each["name"]: each for each in server.get("/info").json()["stages"]}
        assert listed["late"]["role"] == "orders candidates" and listed["late"]["package"] == "sieves 0.1"
        found = server.post("/search", query="castle king", trace=True).json()
        assert [each["stage"] for each in found["stages"]] == ["bm25", "late"]
        texts = [{"id": "a", "text": "a castle and a king"}, {"id": "b", "text": "soup"}]
        reranked = server.post("/rerank", query="castle", documents=texts).json()
        assert reranked["pipeline"].startswith("late(model=") and len(reranked["results"]) == 2
        explained = server.post("/explain", query="castle king", id=found["results"][0]["id"]).json()
        assert [each["stage"] for each in explained["stages"]] == ["bm25", "late"]
