"""The neural stages from the command line: run, rerank, search, their plans, and what they need."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import tamis as package
from tamis import Document, Duo, Index, Mono, Run
from tamis.core.registry import build
from tamis.core.runtime import Runtime
from tamis.formats import read_corpus, read_queries
from tamis.rank.given_run import Documents, GivenRun
from tests.end_to_end.commands import Tamis

DEMO = Path(package.__file__).parent / "demo_data"
PIPELINE = "mono(model=m) % 5 >> duo(model=d)"


@pytest.fixture(scope="module")
def made(tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus and its index, queries, a run of BM25, and two models that read few tokens."""
    folder = tmp_path_factory.mktemp("rerank")
    tiny_checkpoint(folder / "m", layers=1, positions=48, seed=1)
    tiny_checkpoint(folder / "d", layers=1, positions=48, segments=3, seed=2)
    documents = list(islice(read_corpus(DEMO / "corpus.jsonl.gz"), 500))
    lines = [json.dumps({"_id": d.id, "title": d.title, "text": d.text}) for d in documents]
    (folder / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))
    queries = read_queries(DEMO / "queries.jsonl")[:6]
    (folder / "queries.tsv").write_text("".join(f"{query.id}\t{query.text}\n" for query in queries))
    index = Index.build(documents, folder / "idx")
    (index.bm25() % 50).run(queries).write(folder / "bm25.run")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, as the working folder."""
    copy = Path(shutil.copytree(made, tmp_path / "place"))
    monkeypatch.chdir(copy)
    return copy


RERANK = ["rerank", "bm25.run", "--corpus", "idx", "--queries", "queries.tsv", "-p", PIPELINE]


# -- the same run whatever way
# ------------------------------------------------------------------------------------------------------------


def test_one_pipeline_from_everywhere(place: Path, tamis: Tamis) -> None:
    said = tamis("run", "idx", "queries.tsv", "-o", "full.run", "-p", f"bm25 % 50 >> {PIPELINE}")
    assert said.status == 0, said.err
    expected = Path("full.run").read_bytes()
    assert expected.count(b"\n") == 6 * 5

    assert tamis(*RERANK, "-o", "index.run").status == 0
    assert Path("index.run").read_bytes() == expected

    from_files = [*RERANK[:3], "corpus.jsonl", *RERANK[4:]]
    assert tamis(*from_files, "-o", "files.run").status == 0
    assert Path("files.run").read_bytes() == expected

    assert tamis("tokens", "idx", "--model", "m").status == 0
    assert tamis(*RERANK, "-o", "tokens.run").status == 0
    assert Path("tokens.run").read_bytes() == expected

    pipeline = Index.open("idx").bm25() % 50 >> Mono("m") % 5 >> Duo("d")
    pipeline.run(read_queries("queries.tsv")).write("python.run")
    assert Path("python.run").read_bytes() == expected

    query, ranking = next(iter(pipeline.run(read_queries("queries.tsv")).items()))
    text = next(each.text for each in read_queries("queries.tsv") if each.id == query)
    found = tamis("search", "idx", text, "-p", f"bm25 % 50 >> {PIPELINE}", "--json").json
    assert [(each["id"], each["score"]) for each in found["results"]] == [
        (hit.id, hit.score) for hit in ranking
    ]
    assert found["kind"] == "combined"


@pytest.mark.parametrize(
    "command",
    [
        ["run", "idx", "queries.tsv", "-o", "a.run", "-p", f"bm25 % 50 >> {PIPELINE}"],
        [*RERANK, "-o", "a.run"],
        ["search", "idx", "who directed it", "-p", f"bm25 % 9 >> {PIPELINE}", "--explain"],
    ],
    ids=["run", "rerank", "search"],
)
def test_torch_is_not_needed(place: Path, command: list[str]) -> None:
    code = """
import sys
blocked = ("torch", "transformers", "sentence_transformers")
sys.modules.update(dict.fromkeys(blocked))  # an import of what is None there fails
from tamis.cli import main
assert main() == 0
assert not [name for name in sys.modules if name.startswith("torch") and name != "torch"]
"""
    said = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    told = [line for line in said.stderr.splitlines() if not line.startswith("maxp(mono, ")]
    assert all(" texts cut, " in line for line in told)  # `m` reads 48 tokens


def test_a_run_says_what_its_models_did(place: Path, tamis: Tamis) -> None:
    said = tamis(*RERANK, "-o", "two.run", "--workers", "1", "--precision", "fp32", "-k", "3", "--tag", "x")
    assert said.status == 0, said.err
    first, mono, duo = said.out.splitlines()
    assert first.startswith("two.run: 6 queries, 18 results in ")
    assert mono.startswith("mono(model=m, precision=fp32) (ONNX Runtime, fp32, 1 core): 300 inferences; ")
    assert duo.startswith("duo(model=d, precision=fp32) (ONNX Runtime, fp32, 1 core): 120 inferences; ")
    assert "of 300 texts cut" in mono
    manifest = json.loads(Path("two.run.json").read_text())
    assert manifest["pipeline"].endswith(
        "mono(model=m, precision=fp32) % 5 >> duo(model=d, precision=fp32) % 3"
    )
    assert (manifest["reranked"], manifest["corpus"], manifest["tag"]) == ("bm25.run", ["idx"], "x")
    assert [each["inferences"] for each in manifest["models"]] == [300, 120]
    assert manifest["models"][0]["truncation"]["texts"] == 300
    assert manifest["models"][0]["runs_on"] == "ONNX Runtime, fp32, 1 core"
    ran = tamis(
        "run", "idx", "queries.tsv", "-o", "one.run", "-p", "bm25 % 50 >> mono(model=m)", "--json"
    ).json
    assert [each["stage"] for each in ran["models"]] == ["mono(model=m)"]
    assert "models" not in tamis("run", "idx", "queries.tsv", "-o", "none.run", "--json").json


def test_scores_from_the_cache(place: Path, tamis: Tamis) -> None:
    first = tamis(*RERANK, "-o", "first.run", "--cache", "scores.db", "--json").json
    second = tamis(*RERANK, "-o", "second.run", "--cache", "scores.db", "--json").json
    assert [(each["inferences"], each["cached"]) for each in first["models"]] == [(300, 0), (120, 0)]
    assert [(each["inferences"], each["cached"]) for each in second["models"]] == [(0, 300), (0, 120)]
    assert Path("first.run").read_bytes() == Path("second.run").read_bytes()
    assert "120 from the cache" in tamis(*RERANK, "-o", "third.run", "--cache", "scores.db").out


def test_a_precision_in_the_pipeline_holds_before_the_option(place: Path) -> None:
    pipeline = "mono(model=m, precision=int8) >> mono(model=m)"
    built = build(pipeline, runtime=Runtime(precision="fp32", workers=1))
    assert repr(built) == "mono(model=m, precision=int8) >> mono(model=m, precision=fp32)"
    over = Index.open("idx").pipeline("bm25 >> mono(model=m)", Runtime(precision="fp32"))
    assert repr(over) == "bm25 >> mono(model=m, precision=fp32)"


# -- the plan
# ------------------------------------------------------------------------------------------------------------


def test_an_id_that_no_run_can_hold_is_told_before_the_models_run(place: Path, tamis: Tamis) -> None:
    Index.open("idx").add([Document("my notes.txt", "nothing that is asked for")])
    said = tamis("run", "idx", "queries.tsv", "-o", "x.run", "-p", "bm25 % 5 >> mono(model=m)")
    assert said.status == 2
    assert "the document id 'my notes.txt' is empty or holds white space" in said.err
    assert not Path("x.run.journal").exists()


def test_a_plan_of_a_run_counts_its_lists(place: Path, tamis: Tamis) -> None:
    lists = {"q001": 7, "q002": 3, "q003": 1}
    ids = [document.id for document in read_corpus("corpus.jsonl")]
    qids = [query.id for query in read_queries("queries.tsv")][:3]
    lines = [
        f"{qid} Q0 {ids[rank]} {rank} {100 - rank} a\n"
        for qid, count in zip(qids, lists.values(), strict=True)
        for rank in range(count)
    ]
    Path("short.run").write_text("".join(lines))
    before = sorted(Path().rglob("*"))
    command = ["rerank", "short.run", "--corpus", "idx", "--queries", "queries.tsv", "-o", "new.run"]
    command += ["-p", "mono(model=m) % 4 >> duo(model=d)", "--cache", "scores.db", "--dry-run"]
    planned = tamis(*command, "--json").json
    mono, duo = planned["steps"]
    assert mono["candidates"] == {"least": 1, "most": 7, "all": 11}
    assert mono["inferences"] == {"least": 1, "most": 7, "all": 11}
    assert mono["kept"] == duo["candidates"] == {"least": 1, "most": 4, "all": 8}
    assert duo["inferences"] == {"least": 0, "most": 12, "all": 4 * 3 + 3 * 2 + 0}
    assert planned["inferences"] == {"least": 1, "most": 7 + 12, "all": 11 + 18}
    assert planned["counts"] == "exact"
    assert planned["seconds"] == pytest.approx(mono["seconds"] + duo["seconds"], abs=0.002)
    assert mono["seconds"] == pytest.approx(11 * mono["seconds_each"], abs=0.001)
    assert (mono["model"], mono["runs_on"][:18]) == ("m", "ONNX Runtime, int8")
    assert "3 queries: 1 to 19 inferences per query, 29 in all, about " in tamis(*command).out
    assert sorted(Path().rglob("*")) == before, "something was written"


def test_a_plan_over_an_index_is_the_most_there_can_be(place: Path, tamis: Tamis) -> None:
    command = ["run", "idx", "queries.tsv", "-o", "new.run", "--dry-run", "-p"]
    planned = tamis(*command, f"bm25 % 50 >> {PIPELINE}", "--json").json
    assert [step["stage"] for step in planned["steps"]] == [
        "bm25 % 50",
        "mono(model=m) % 5",
        "duo(model=d) % 1000",
    ]
    assert [step["inferences"]["all"] for step in planned["steps"]] == [0, 6 * 50, 6 * 5 * 4]
    assert planned["inferences"] == {"least": 70, "most": 70, "all": 420}
    assert planned["counts"] == "most"
    said = tamis(*command, f"bm25 % 50 >> {PIPELINE}").out
    assert "6 queries: at most 70 inferences per query, 420 in all, about " in said
    said = tamis(*command, "bm25 % 50 >> birch(mono(model=m))").out
    assert (
        "50 inferences per query, 300 in all (fewer if fewer candidates are found, more for each further "
        "passage)" in said
    )
    # all 500 documents, not 1,000
    assert tamis(*command, "bm25 >> mono(model=m)", "--json").json["inferences"]["most"] == 500
    nothing = tamis(*command, "bm25 >> rm3", "--json").json
    assert (nothing["inferences"]["all"], nothing["seconds"]) == (0, 0)
    assert not Path("new.run").exists()


# -- after an interruption
# ------------------------------------------------------------------------------------------------------------


def interrupted() -> int:
    """Leave the journal of two.run as a kill does, and return how many queries are in it."""
    queries = read_queries("queries.tsv")
    given = Run.read("bm25.run", queries=queries)
    done = 0

    def stop(more: int) -> None:
        nonlocal done
        done += more
        if done >= 3:
            raise KeyboardInterrupt

    whole = GivenRun(given, Index.open("idx")) >> build(PIPELINE)
    with pytest.raises(KeyboardInterrupt):
        whole.run(queries, progress=stop, journal="two.run.journal")
    return done


def test_rerank_goes_on_after_an_interruption(place: Path, tamis: Tamis) -> None:
    assert tamis(*RERANK, "-o", "whole.run").status == 0
    assert interrupted() == 3
    refused = tamis(*RERANK, "-o", "two.run")
    assert refused.status == 2
    assert "two.run.journal has 3 queries of an unfinished run: add --resume" in refused.err
    said = tamis(*RERANK, "-o", "two.run", "--resume")
    assert said.status == 0, said.err
    assert Path("two.run").read_bytes() == Path("whole.run").read_bytes()
    assert "3 of the queries before the interruption" in said.out
    assert "since the interruption: 150 inferences" in said.out
    assert not Path("two.run.journal").exists()


@pytest.mark.parametrize("changed", ["run", "text", "pipeline", "precision"])
def test_what_has_changed_since_is_refused(place: Path, tamis: Tamis, changed: str) -> None:
    interrupted()
    options: list[str | Path] = []
    if changed == "run":
        lines = Path("bm25.run").read_text().splitlines(keepends=True)
        Path("bm25.run").write_text("".join(lines[:-1]))
    elif changed == "text":
        index = Index.open("idx")
        index.add([Document(next(index.ids()), "other text")], on_duplicate="replace")
    else:
        options = ["-k", "2"] if changed == "pipeline" else ["--precision", "fp32"]
    said = tamis(*RERANK, "-o", "two.run", "--resume", *options)
    assert said.status == 2
    assert "two.run.journal: the " in said.err
    assert "delete it to start again" in said.err
    assert not Path("two.run").exists()


def test_a_damaged_file_of_a_folder_matters_only_as_a_candidate(place: Path, tamis: Tamis) -> None:
    folder = Path("folder")
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("a sieve")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    Path("q.tsv").write_text("1\tsieve\n")
    run = Path("folder.run")
    command = [
        "rerank",
        run,
        "--corpus",
        folder,
        "--queries",
        "q.tsv",
        "-p",
        "mono(model=m)",
        "-o",
        "new.run",
    ]
    run.write_text("1 Q0 a.txt 1 2 x\n1 Q0 b.txt 2 1 x\n")
    assert tamis(*command).status == 0
    assert len(Run.read("new.run")["1"]) == 2
    run.write_text("1 Q0 a.txt 1 2 x\n1 Q0 latin.txt 2 1 x\n")
    said = tamis(*command)
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert said.err.startswith(
        "error: folder has no text for 1 of the 2 documents (latin.txt) of the run; 1 file of the corpus "
        f"cannot be read, such as {folder / 'latin.txt'}, line 1: not UTF-8"
    )


# -- search
# ------------------------------------------------------------------------------------------------------------


def test_search_says_what_a_model_did_not_read(place: Path, tamis: Tamis) -> None:
    words = "director " * 100
    Index.open("idx").add([Document("long", words), Document("short", "the director")])
    question = ["search", "idx", "director", "-k", "3", "-p"]
    cut = tamis(*question, "bm25 % 3 >> mono(model=m)").err
    assert "mono(model=m): " in cut and " texts cut, " in cut
    instead = (
        "maxp(mono, choose=bm25, passages=3) reads the best passages of long texts, and not their beginnings"
    )
    assert cut.splitlines()[-1] == instead
    twice = tamis(*question, "bm25 % 3 >> mono(model=m) % 2 >> mono(model=m, limit=20)").err
    assert twice.count(" texts cut, ") == 2 and twice.count(instead) == 1
    passages = tamis(*question, "bm25 % 3 >> maxp(mono(model=m), window=20, stride=20, passages=1)").err
    assert " texts cut, " in passages and instead not in passages
    whole = tamis(*question, "bm25 % 3 >> maxp(mono(model=m), window=20, stride=20)").err
    assert "cut" not in whole


def test_search_shows_what_each_stage_did(place: Path, tamis: Tamis) -> None:
    command = [
        "search",
        "idx",
        "who directed the film",
        "-k",
        "2",
        "--explain",
        "-p",
        f"bm25 % 20 >> {PIPELINE}",
    ]
    found = tamis(*command, "--json").json
    assert len(found["results"]) == 2
    for result in found["results"]:
        assert [each["stage"] for each in result["stages"]] == [
            "bm25 % 20",
            "mono(model=m) % 5",
            "duo(model=d) % 2",
        ]
        assert [each["kind"] for each in result["stages"]] == ["retrieval", "probability", "combined"]
        last = result["stages"][-1]
        assert (last["rank"], last["score"]) == (result["rank"], result["score"])
        assert result["stages"][1]["rank"] <= 5
    assert [each["stage"] for each in found["models"]] == ["mono(model=m)", "duo(model=d)"]
    said = tamis(*command).out
    assert said.count("mono(model=m) % 5") == 2 + 1
    assert said.rstrip().endswith("; scores: combined")
    silent = tamis("search", "idx", "zzz", "-p", f"bm25 >> {PIPELINE}")
    assert silent.out.startswith("0 results in ")


# -- what is refused
# ------------------------------------------------------------------------------------------------------------

C, Q = ["--corpus", "idx"], ["--queries", "queries.tsv"]
NEW, P = ["-o", "new.run"], ["-p", "mono(model=m)"]
BAD = {
    "no arguments": (["rerank"], "the following arguments are required: -o/--output"),
    "no corpus": (["rerank", "bm25.run", *Q, *NEW], "the following arguments are required: --corpus"),
    "no run": (["rerank", "nowhere.run", *C, *Q, *NEW, *P], "nowhere.run: no such file"),
    "empty run": (["rerank", "empty", *C, *Q, *NEW, *P], "empty: contains no results: check"),
    "no queries": (["rerank", "bm25.run", *C, "--queries", "nowhere.tsv", *NEW, *P], "nowhere.tsv: no such"),
    "other queries": (
        ["rerank", "bm25.run", *C, "--queries", "other.tsv", *NEW, *P],
        "other.tsv has no text for 5 of the 6 queries (q",
    ),
    "no texts": (
        ["rerank", "bm25.run", "--corpus", "other.jsonl", *Q, *NEW, *P],
        "other.jsonl has no text for ",
    ),
    "no text in the index": (
        ["rerank", "foreign.run", *C, *Q, *NEW, *P],
        "idx has no text for 7 of the 8 documents (x1, x2, x3, x4, x5 and 2 more) of the run: give the "
        "corpus",
    ),
    "a text twice": (
        ["rerank", "bm25.run", "--corpus", "corpus.jsonl", "corpus.jsonl", *Q, *NEW, *P],
        "occurs twice",
    ),
    "a corpus that is not there": (
        ["rerank", "bm25.run", "--corpus", "nowhere.jsonl", *Q, *NEW, *P],
        "nowhere.jsonl: no such file or folder",
    ),
    "a first stage": (
        ["rerank", "bm25.run", *C, *Q, *NEW, "-p", "bm25 % 10 >> mono(model=m)"],
        "bm25 searches, but the candidates come from the run: leave it out",
    ),
    "a first stage inside": (
        ["rerank", "bm25.run", *C, *Q, *NEW, "-p", "interpolate(rm3 % 3)"],
        "rm3 searches, but the candidates",
    ),
    "half a pipeline": (["rerank", "bm25.run", *C, *Q, *NEW, "-p", "mono >>"], "column 8"),
    "no model": (["rerank", "bm25.run", *C, *Q, *NEW, "-p", "mono(model=nowhere/at/all)"], "nowhere/at/all"),
    "a model for pairs that is not": (
        ["rerank", "bm25.run", *C, *Q, *NEW, "-p", "duo(model=m)"],
        "duo needs three segment types",
    ),
    "unknown option of a stage": (
        ["rerank", "bm25.run", *C, *Q, *NEW, "-p", "mono(device=cpu)"],
        "mono has no option 'device': it takes model, score, form, precision, query_limit, limit, cut, ",
    ),
    "onto itself": (
        ["rerank", "bm25.run", *C, *Q, "-o", "./bm25.run", *P],
        "bm25.run is an input and would be",
    ),
    "into a folder": (["rerank", "bm25.run", *C, *Q, "-o", ".", *P], ". is a folder"),
    "all from one place": (["rerank", "-", *C, "--queries", "-", *NEW, *P], "only one input can be"),
    "a tag of two words": (["rerank", "bm25.run", *C, *Q, *NEW, *P, "--tag", "a b"], "the tag 'a b'"),
    "no device": (["rerank", "bm25.run", *C, *Q, *NEW, *P, "--device", "abacus"], "invalid choice: 'abacus'"),
    "not a cache": (
        ["rerank", "bm25.run", *C, *Q, *NEW, *P, "--cache", "foreign.run"],
        "foreign.run is damaged",
    ),
    "nothing to export": (["export", "empty"], "empty: not a folder"),
    "no tokenizer": (["tokens", "idx", "--model", "half"], "half: no tokenizer.json"),
    "no index": (["tokens", "m", "--model", "m"], "m holds no index"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_line_with_a_remedy(case: str, place: Path, tamis: Tamis) -> None:
    Path("empty").write_text("")
    Path("other.tsv").write_text(Path("queries.tsv").read_text().splitlines()[0] + "\nzzz\tother\n")
    Path("other.jsonl").write_text('{"_id": "other", "text": "x"}\n')
    own = next(Index.open("idx").ids())
    qid = next(iter(read_queries("queries.tsv"))).id
    foreign = [
        f"{qid} Q0 {name} 1 {9 - n} a\n" for n, name in enumerate([own, *(f"x{n}" for n in range(1, 8))])
    ]
    Path("foreign.run").write_text("".join(foreign))
    shutil.copytree("m", "half")
    Path("half/tokenizer.json").unlink()
    arguments, complaint = BAD[case]
    said = tamis(*arguments)
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert complaint in said.err
    assert not Path("new.run").exists()


# -- tokens, export, doctor
# ------------------------------------------------------------------------------------------------------------


def test_tokens(place: Path, tamis: Tamis) -> None:
    said = tamis("tokens", "idx", "--model", "m", "--json").json
    assert said["documents"] == 500
    assert said["bytes"] == sum(
        path.stat().st_size for path in Path(said["tokens"]).rglob("*") if path.is_file()
    )
    again = tamis("tokens", "idx", "--model", "d")
    assert again.out.startswith(f"{said['tokens']}: tokens of 500 documents, "), "one tokenizer, one store"


def test_export(place: Path, tamis: Tamis) -> None:
    assert tamis(*RERANK, "-o", "before.run").status == 0
    said = tamis("export", "m", "--json").json
    graph = Path("m/model.int8.onnx")
    assert (said["graph"], said["bytes"]) == (str(graph), graph.stat().st_size)
    assert said["pairs"] == 64
    assert 0 < said["largest_difference"] < said["spread"]
    assert 0.5 < said["kendall_tau"] <= 1
    assert tamis(*RERANK, "-o", "after.run").status == 0
    assert Path("before.run").read_bytes() == Path("after.run").read_bytes()
    lines = tamis("export", "m").out.splitlines()
    assert lines[0].startswith("m/model.int8.onnx: int8, ")
    assert lines[1].startswith("against fp32, over 64 pairs of a query and a text: scores differ by at most ")
    exact = tamis("export", "m", "-o", "graphs/here", "--precision", "fp32")
    assert exact.out.startswith("graphs/here/model.fp32.onnx: fp32, ")
    assert exact.out.count("\n") == 1


def test_doctor_tries_the_runtimes(tamis: Tamis) -> None:
    found = tamis("doctor", "--json").json["models"]
    assert found["onnx_runtime"]["works"] is True
    assert found["torch"]["failure"] is None
    assert found["automatic"] == (
        "cuda in bf16, by torch" if found["torch"]["cuda"] else "cpu in int8, by ONNX Runtime"
    )
    said = tamis("doctor").out
    assert f"ONNX Runtime {found['onnx_runtime']['version']} works" in said
    assert found["automatic"] in said


def test_documents_in_memory_know_when_they_change() -> None:
    one, two = Document("d1", "a sieve"), Document("d2", "soup")
    assert Documents([one, two], only=["d1"]).fingerprint == Documents([two, one], only=["d1"]).fingerprint
    changed = [Document("d1", "a sieve", title="Tamis"), two]
    assert Documents([one, two], only=["d1"]).fingerprint != Documents(changed, only=["d1"]).fingerprint
