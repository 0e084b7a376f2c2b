"""Long documents and topic fields from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tamis import Birch, Document, Index, MaxP, Mono, Run
from tamis.formats import read_queries
from tamis.text.segment import sentences
from tests.end_to_end.commands import Tamis

WORDS = ["river", "castle", "song", "war", "music", "bridge", "film", "singer", "city", "battle", "king"]
TOPICS = """<top>
<num> Number: 1
<title> castle song
<desc> Description:
Which kings were singers in a castle?
<narr> Narrative:
Kings with a song are relevant. Films about them are not relevant.
</top>
<top>
<num> Number: 2
<title> river bridge
<desc> Description:
What is the oldest bridge of the city?
<narr> Narrative:
Any bridge over a river counts.
</top>
"""


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longdoc")
    tiny_checkpoint(folder / "m", layers=1, positions=64, labels=2)
    generator = np.random.default_rng(0)
    documents = []
    for number in range(30):
        drawn = generator.choice(WORDS, generator.integers(1, 400))
        text = " ".join(word + ("." if place % 8 == 7 else "") for place, word in enumerate(drawn))
        documents.append(Document(f"d{number:02}", text, title=f"About the {drawn[0]}"))
    Index.build(documents, folder / "idx")
    (folder / "topics.trec").write_text(TOPICS)
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


def test_run_ranks_as_python_does(tamis: Tamis, tmp_path: Path) -> None:
    said = tamis(
        "run", "idx", "topics.trec", "-p", "bm25 % 20 >> maxp(mono(model=m))", "-o", tmp_path / "maxp.run"
    )
    assert (said.status, said.err) == (0, "")
    index = Index.open("idx")
    queries = read_queries("topics.trec")
    expected = (index.bm25() % 20 >> MaxP(Mono("m"))).run(queries)
    found = Run.read(tmp_path / "maxp.run", queries=queries)
    assert {qid: list(ranking.ids) for qid, ranking in found.items()} == {
        qid: list(ranking.ids) for qid, ranking in expected.items()
    }
    manifest = json.loads((tmp_path / "maxp.run.json").read_text())
    (model,) = manifest["models"]
    assert model["stage"] == "maxp(mono(model=m))"
    assert model["inferences"] > 40
    assert "maxp(mono(model=m)) (ONNX Runtime, int8" in said.out


def test_every_family_reranks_a_run(tamis: Tamis, tmp_path: Path) -> None:
    base, out = tmp_path / "bm25.run", tmp_path / "out.run"
    assert tamis("run", "idx", "topics.trec", "-p", "bm25 % 10", "-o", base).status == 0
    for name in ("firstp", "maxp", "sump", "avgp", "kmaxp", "birch"):
        said = tamis(
            "rerank", base, "--corpus", "idx", "--queries", "topics.trec",
            "-p", f"{name}(mono(model=m))", "-o", out, "--json",
        )  # fmt: skip
        assert (said.status, said.err, said.json["results"]) == (0, "", 20)
        assert said.json["pipeline"] == f"given >> {name}(mono(model=m))"


def test_the_cache_serves_every_family(tamis: Tamis, tmp_path: Path) -> None:
    cache, counts = tmp_path / "scores.db", []
    for name in ("maxp", "sump", "maxp"):
        said = tamis(
            "run", "idx", "topics.trec", "-p", f"bm25 % 5 >> {name}(mono(model=m))",
            "-o", tmp_path / "a.run", "--cache", cache, "--json",
        )  # fmt: skip
        (model,) = said.json["models"]
        counts.append((model["inferences"] > 0, model["cached"] > 0))
    assert counts == [(True, False), (False, True), (False, True)]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("desc", "Which kings were singers in a castle?"),
        ("desc-keywords", "kings singers castle"),
        ("narr-keywords", "Kings song relevant Films relevant"),
        ("narr-noneg", "Kings with a song are relevant."),
        ("title+desc", "castle song Which kings were singers in a castle?"),
    ],
)
def test_fields_of_topics(tamis: Tamis, tmp_path: Path, field: str, text: str) -> None:
    said = tamis("run", "idx", "topics.trec", "--field", field, "-o", tmp_path / "a.run", "-k", "5", "--json")
    assert (said.status, said.json["field"]) == (0, field)
    assert read_queries("topics.trec", field=field)[0].text == text  # type: ignore[arg-type]
    expected = (Index.open("idx").bm25() % 5)(text)
    assert list(Run.read(tmp_path / "a.run")["1"].ids) == list(expected.ids)


def test_search_with_birch(tamis: Tamis) -> None:
    pipeline = "bm25 % 10 >> birch(mono(model=m), n=2, alpha=0.4)"
    said = tamis("search", "idx", "castle", "song", "-p", pipeline, "-k", "3", "--explain", "--json")
    expected = (Index.open("idx").bm25() % 10 >> Birch(Mono("m"), n=2, alpha=0.4) % 3)("castle song")
    assert [each["id"] for each in said.json["results"]] == list(expected.ids)
    assert len(expected.evidence) == 3
    for each in said.json["results"]:
        spans = expected.evidence[each["id"]]
        assert each["evidence"] == [{"start": s.start, "end": s.stop, "score": s.score} for s in spans]


def test_search_shows_the_best_passage(tamis: Tamis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    pipeline = "bm25 % 5 >> birch(mono(model=m), alpha=0.0)"
    said = tamis("search", "idx", "castle", "song", "-p", pipeline, "-k", "2")
    index = Index.open("idx")
    ranking = (index.bm25() % 5 >> Birch(Mono("m"), alpha=0.0) % 2)("castle song")
    shown = said.out.split("\n\n")
    for identity, lines in zip(ranking.ids, shown, strict=False):
        text = index.document(identity).text
        best = ranking.evidence[identity][0]
        before = "… " if best.start else ""
        after = " …" if best.stop < len(text) else ""
        body = " ".join(" ".join(lines.splitlines()[1:]).split())
        assert body == f"{before}{text[best.start : best.stop]}{after}"


def test_search_shows_whole_sentences(tamis: Tamis) -> None:
    pipeline = "bm25 % 5 >> maxp(mono(model=m), window=8, stride=4)"
    found = tamis("search", "idx", "castle", "song", "-p", pipeline, "-k", "3", "--json").json["results"]
    ranking = (Index.open("idx").bm25() % 5 >> MaxP(Mono("m"), window=8, stride=4) % 3)("castle song")
    completed = 0
    for each in found:
        spans, text = ranking.evidence[each["id"]], each["text"]
        best, shown = spans[0], each["evidence"][0]
        assert shown["start"] <= best.start < best.stop <= shown["end"] and shown["score"] == best.score
        ends = [edge for place in sentences(text) for edge in place]
        assert shown["start"] in ends and shown["end"] in ends
        completed += (shown["start"], shown["end"]) != (best.start, best.stop)
    assert completed, "none of them began or ended within a sentence"


def test_a_document_of_a_title_alone_has_nothing_to_show(tamis: Tamis, tmp_path: Path) -> None:
    Index.build([Document("d", "", title="A sieve")], tmp_path / "idx")
    search = ("search", tmp_path / "idx", "sieve", "-p", "bm25 >> maxp(mono(model=m))")
    said = tamis(*search)
    assert said.status == 0 and "A sieve" in said.out
    assert tamis(*search, "--json").json["results"][0].get("evidence", []) == []


def test_search_without_passages_has_no_evidence(tamis: Tamis) -> None:
    assert all("evidence" not in each for each in tamis("search", "idx", "castle", "--json").json["results"])


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        ("bm25 >> maxp", "maxp takes a stage: write maxp(stage)"),
        ("bm25 >> maxp(bm25)", "maxp of bm25: give a pointwise stage, as in maxp(mono)"),
        ("bm25 >> birch(mono(model=m), n=9)", "birch with 9 sentences: use an n from 1 to 4"),
    ],
)
def test_errors_are_one_line(tamis: Tamis, pipeline: str, message: str) -> None:
    said = tamis("search", "idx", "castle", "-p", pipeline)
    assert said.status == 2
    assert message in " ".join(said.err.split())
    assert said.err.count("\n") <= 2


def test_a_dry_run_says_how_many_inferences_there_can_be(tamis: Tamis, tmp_path: Path) -> None:
    said = tamis(
        "run", "idx", "topics.trec", "-p", "bm25 % 5 >> maxp(mono(model=m), passages=4)",
        "-o", tmp_path / "a.run", "--dry-run", "--json",
    )  # fmt: skip
    assert said.json["inferences"]["most"] == 20


def test_a_dry_run_counts_the_model_that_chooses(tamis: Tamis, tmp_path: Path) -> None:
    arguments = (
        "run", "idx", "topics.trec", "-o", tmp_path / "a.run", "--dry-run", "-p",
        "bm25 % 5 >> maxp(mono(model=m), choose=mono(model=m, limit=64), passages=2, among=4)",
    )  # fmt: skip
    found = tamis(*arguments, "--json").json
    search, chooses, reads = found["steps"]
    assert [step["inferences"]["most"] for step in (search, chooses, reads)] == [0, 20, 10]
    assert (found["inferences"]["most"], found["counts"]) == (30, "most")
    # it is timed with what it chooses for
    assert (chooses["model"], chooses["seconds"], found["seconds"]) == ("m", None, reads["seconds"])
    assert "at most 30 inferences per query" in " ".join(tamis(*arguments).out.split())


def test_what_chooses_is_told_of_after_a_run(tamis: Tamis, tmp_path: Path) -> None:
    said = tamis(
        "run", "idx", "topics.trec", "-o", tmp_path / "a.run", "-p",
        "bm25 % 5 >> maxp(mono(model=m), window=10, choose=mono(model=m, limit=64), passages=1)", "--json",
    )  # fmt: skip
    reads, chooses = said.json["models"]
    assert chooses["stage"] == "mono(model=m, limit=64)"
    assert 0 < reads["inferences"] < chooses["inferences"]


def test_a_shown_passage_is_one_that_was_chosen(tamis: Tamis) -> None:
    pipeline = "bm25 % 5 >> maxp(mono(model=m), window=10, choose=bm25, passages=1)"
    found = tamis("search", "idx", "castle", "-p", pipeline, "--json").json
    assert found["results"]
    for result in found["results"]:
        ((start, end),) = [(each["start"], each["end"]) for each in result["evidence"]]
        assert "castle" in result["text"][start:end].lower() or "castle" in result["title"].lower()
