"""A package of someone else, tests/extension, brings a retriever and a stage: every command takes them like
ours, and nothing in tamis names them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tamis as package
from tamis import Document, Index, Query, Ranking, Run
from tamis.core import extensions
from tamis.core.registry import build, names
from tamis.testing import check_stage
from tests.end_to_end.commands import Tamis

EXTENSION = Path(__file__).parents[1] / "extension"
WORDS = ["castle", "king", "sieve", "flour", "soup", "bread", "glass", "film", "river", "stone"]
PIPELINE = "title % 20 >> shorter(weight=0.05)"


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
    folder = tmp_path_factory.mktemp("extension")
    tiny_checkpoint(folder / "m", layers=1, positions=48)
    generator = np.random.default_rng(0)
    documents, queries, qrels = [], [], []
    for number in range(60):
        title = " ".join(generator.choice(WORDS, 2, replace=False))
        text = " ".join(generator.choice(WORDS, generator.integers(4, 40)))
        documents.append(Document(f"d{number:02}", text, title=title))
    for number in range(100):
        words = " ".join(generator.choice(WORDS, 2, replace=False))
        queries.append(f"q{number:03}\t{words}")
        qrels += [f"q{number:03} 0 d{doc:02} 1" for doc in generator.choice(60, 5, replace=False)]
    Index.build(documents, folder / "idx")
    (folder / "queries.tsv").write_text("\n".join(queries) + "\n")
    (folder / "few.tsv").write_text("\n".join(queries[:6]) + "\n")
    (folder / "qrels.txt").write_text("\n".join(qrels) + "\n")
    return folder


@pytest.fixture
def tamis(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tamis:
    monkeypatch.chdir(place)
    return Tamis(capsys)


def test_nothing_in_tamis_names_them() -> None:
    for path in Path(package.__file__).parent.rglob("*.py"):
        assert not re.search(r"sieves\.\w|import sieves|[\"']shorter[\"']", path.read_text("utf-8")), path


@pytest.mark.parametrize("name", ["title", "shorter"])
def test_each_is_one_short_file_and_keeps_to_the_contract(place: Path, name: str) -> None:
    assert len((EXTENSION / "sieves" / f"{name}.py").read_text().splitlines()) <= 120
    index = Index.open(place / "idx")
    bare = [Ranking(Query(f"q{n}", " ".join(WORDS[n : n + 2]))) for n in range(3)]
    check_stage(build("title(whole=true)", index), bare)
    for text in ("shorter", "shorter(normalise, weight=0.5, unit=characters)"):
        check_stage(build(text, index), (index.bm25() % 8).apply(bare))


def test_search(tamis: Tamis) -> None:
    found = tamis("search", "idx", "castle king", "-p", PIPELINE, "-k", "3", "--json").json
    assert found["pipeline"] == "title % 20 >> shorter(weight=0.05) % 3"
    assert [result["rank"] for result in found["results"]] == [1, 2, 3]
    assert {"castle", "king"} & set(found["results"][0]["title"].split())
    said = tamis("search", "idx", "castle", "-p", "title >> shorter(size=3)")
    assert said.status == 2
    assert said.err.strip().endswith("shorter has no option 'size': it takes weight, unit")
    said = tamis("search", "idx", "castle", "-p", "shorter(normalise, normalise)")
    assert "shorter(normalise, normalise) finds no candidates: begin with a stage that searches" in said.err
    said = tamis("search", "idx", "castle", "-p", "title >> shorter(normalise, normalise)")
    assert "in shorter(normalise, normalise): shorter takes one stage at most" in said.err
    said = tamis("search", "idx", "castle", "-p", "titel")
    assert re.search(r"'titel' is not a stage: did you mean title\? Use bm25, .*, title, ", said.err)


@pytest.mark.parametrize("models", ["", " >> mono(model=m)"])
def test_explain(tamis: Tamis, models: str) -> None:
    question = ["search", "idx", "castle king", "-p", PIPELINE + models, "-k", "2", "--explain"]
    for result in tamis(*question, "--json").json["results"]:
        stages = result["stages"]
        assert stages[0]["stage"] == "title % 20" and stages[1]["stage"].startswith("shorter(weight=0.05)")
        assert (stages[-1]["rank"], stages[-1]["score"]) == (result["rank"], result["score"])
    assert "title % 20" in tamis(*question).out


def test_run_resumes(tamis: Tamis, monkeypatch: pytest.MonkeyPatch) -> None:
    from sieves.shorter import Shorter

    command = ["run", "idx", "queries.tsv", "-p", PIPELINE]
    assert tamis(*command, "-o", "whole.run").status == 0
    prefer, done = Shorter._prefer, []

    def until_stopped(self: Shorter, ranking: Ranking) -> Ranking:
        done.append(ranking)
        if len(done) == 80:
            raise KeyboardInterrupt
        return prefer(self, ranking)

    with monkeypatch.context() as patch:
        patch.setattr(Shorter, "_prefer", until_stopped)
        assert tamis(*command, "-o", "parts.run").status != 0
    assert not Path("parts.run").exists()
    assert tamis(*command, "-o", "parts.run", "--resume").status == 0
    assert Path("parts.run").read_bytes() == Path("whole.run").read_bytes()
    about = json.loads(Path("parts.run.json").read_text())
    assert about["resumed"] == 64 and about["pipeline"] == f"{PIPELINE} % 1000"


def test_cache_and_dry_run(tamis: Tamis) -> None:
    pipeline = "title % 4 >> shorter(mono(model=m)) % 3"
    command = ["run", "idx", "few.tsv", "-p", pipeline, "--workers", "1"]
    planned = tamis(*command, "-o", "x.run", "--dry-run", "--json").json
    assert [step["stage"] for step in planned["steps"]] == [
        "title % 4",
        "mono(model=m)",
        "shorter(mono(model=m)) % 3",
    ]
    assert planned["inferences"]["most"] == 4 and planned["counts"] == "most"
    first = tamis(*command, "-o", "one.run", "--cache", "scores", "--json").json
    second = tamis(*command, "-o", "two.run", "--cache", "scores", "--json").json
    assert Path("one.run").read_bytes() == Path("two.run").read_bytes()
    assert first["models"][0]["inferences"] == second["models"][0]["cached"] > 0


def test_tune_and_tradeoff(tamis: Tamis) -> None:
    grid = [
        "-p",
        "title % 20 >> shorter(weight={w}, unit={u})",
        "--grid",
        "w=0,0.1",
        "--grid",
        "u=words,characters",
    ]
    tuned = tamis(
        "tune", "idx", "queries.tsv", "qrels.txt", *grid, "--folds", "2", "-o", "tuned.run", "-m", "nDCG@10"
    )
    assert tuned.status == 0, tuned.err
    assert len(Run.read("tuned.run")) == 100
    report = ["-o", "report.html", "--json", "-p", "title % {k0} >> mono(model=m) % 5 >> shorter(weight={w})"]
    swept = tamis(
        "tradeoff",
        "idx",
        "few.tsv",
        "qrels.txt",
        *report,
        "--grid",
        "k0=3,6",
        "--grid",
        "w=0,0.1",
        "--workers",
        "1",
    )
    assert swept.status == 0, swept.err
    assert len(swept.json["points"]) == 4


def test_rerank(tamis: Tamis) -> None:
    tamis("run", "idx", "few.tsv", "-p", "bm25 % 9", "-o", "bm25.run")
    given = ["bm25.run", "--corpus", "idx", "--queries", "few.tsv"]
    assert tamis("rerank", *given, "-p", "shorter(weight=2) % 5", "-o", "reranked.run").status == 0
    reranked = Run.read("reranked.run")
    assert {len(ranking) for ranking in reranked.values()} <= {5}
    assert set(reranked["q000"].ids) <= set(Run.read("bm25.run")["q000"].ids)
    refused = tamis("rerank", *given, "-p", "title >> shorter", "-o", "other.run")
    assert refused.status == 2 and "title searches, but the candidates come from the run" in refused.err


def test_doctor(tamis: Tamis) -> None:
    brought = tamis("doctor", "--json").json["extensions"]
    assert [(each["kind"], each["name"], each["is"], each["package"]) for each in brought] == [
        ("stage", "shorter", "mixes scores", "sieves 0.1"),
        ("stage", "title", "finds candidates", "sieves 0.1"),
        ("architecture", "late", "a kind of model, for late", "sieves 0.1"),
    ]
    assert "finds candidates, from sieves 0.1" in " ".join(tamis("doctor").out.split())


def test_the_documentation_lists_them(installed: None) -> None:
    tools = Path(__file__).parents[2] / "tools"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tools))
        from docs_reference import stages

        text = stages()
    assert names()[-3:] == ["late", "shorter", "title"]
    assert "### title\n\n```text\ntitle(whole=false)\n```" in text
    assert "### shorter\n\n```text\nshorter(*stages, weight=0.1, unit=words)\n```" in text
    assert "Finds candidates." in text


def test_a_process_of_its_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{EXTENSION}:{Path(package.__file__).parents[1]}")
    command = [sys.executable, "-m", "tamis", "search", "idx", "castle king", "-p", PIPELINE, "--json"]
    said = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(said.stdout)["results"]


def test_serve(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.end_to_end.served import serving
    from tests.end_to_end.test_serve_stream import events

    monkeypatch.setenv("PYTHONPATH", f"{EXTENSION}:{Path(package.__file__).parents[1]}")
    with serving(place, "-p", f"{PIPELINE} >> mono(model=m) % 5") as server:
        about = server.get("/info").json()
        listed = {each["name"]: each for each in about["stages"]}
        assert listed["title"] == {
            "name": "title", "role": "finds candidates", "options": ["whole"], "package": "sieves 0.1"
        }  # fmt: skip
        found = server.post("/search", query="castle king", trace=True).json()
        assert [each["stage"] for each in found["stages"]] == ["title", "shorter", "mono"]
        first = found["results"][0]["id"]
        explained = server.post("/explain", query="castle king", id=first).json()
        assert [each["stage"] for each in explained["stages"]] == ["title", "shorter", "mono"]
        assert explained["terms"] == [] and explained["stages"][0]["rank"] is not None
        asked = "title(whole=true) % 7 >> shorter(normalise, weight=1)"
        other = server.post("/search", query="castle king", pipeline=asked)
        assert (
            other.status_code == 200
            and other.json()["pipeline"] == "title(whole=true) % 7 >> shorter(normalise, weight=1.0)"
        )
        body = {"query": "castle king"}
        with server.client.stream(
            "POST", "/search", json=body, headers={"accept": "text/event-stream"}
        ) as answer:
            streamed = list(events(answer))
        assert len(streamed) >= 3 and streamed[-1][1]["results"] == found["results"]
        texts = [{"id": "a", "text": "castle " * 9}, {"id": "b", "text": "castle"}]
        reranked = server.post("/rerank", query="castle", documents=texts).json()
        assert reranked["pipeline"] == "mono(model=m)"
        refused = server.post("/search", query="castle", pipeline="titel % 5").json()
        assert "'titel' is not a stage" in refused["error"]
