"""The commands as a user types them, most of them inside this process because starting one takes long."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tamis import Document, Index
from tamis.cli import VERBS
from tests.end_to_end.commands import Tamis

DOCUMENTS = [
    Document("d1", "A tamis is a fine sieve of horsehair or steel.", title="Tamis"),
    Document("d2", "Flour goes through a sieve before it becomes a cake."),
    Document("d3", "Soup of the day: onions, butter and patience.", title="Menu", metadata={"price": 7}),
    Document("d4", "[bold]Markup[/bold] and \x1b[31mescapes\x1b[0m about a colander[/] are text."),
    Document("d5", ""),
]
QUERIES = {"q1": "fine sieve", "q2": "onion soup", "q3": "the of and"}
QRELS = "q1 0 d1 2\nq1 0 d2 1\nq2 0 d3 1\nq4 0 d2 1\nq5 0 d2 0\n"


def write_corpus(path: Path, documents: list[Document]) -> Path:
    lines = [
        json.dumps({"_id": d.id, "title": d.title, "text": d.text, "metadata": dict(d.metadata)})
        for d in documents
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, its queries and judgments, and an index that no test changes."""
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder / "corpus.jsonl", DOCUMENTS)
    (folder / "queries.tsv").write_text("".join(f"{qid}\t{text}\n" for qid, text in QUERIES.items()))
    (folder / "qrels.txt").write_text(QRELS)
    Index.build(DOCUMENTS, folder / "idx")
    return folder


@pytest.fixture
def own_index(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder / "idx", tmp_path / "idx"))


def process(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys; from tamis.cli import main; sys.exit(main())"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        **options,
    )


def test_from_documents_to_figures_as_processes(folder: Path, tmp_path: Path) -> None:
    indexed = process("index", folder / "corpus.jsonl", "-o", "idx", cwd=tmp_path)
    assert indexed.returncode == 0, indexed.stderr
    assert indexed.stdout.startswith("idx: 5 documents, ")
    assert indexed.stderr == "warning: 1 document has neither title nor text, such as d5\n"

    searched = process("search", "idx", "sieves", cwd=tmp_path)
    assert searched.returncode == 0, searched.stderr
    assert searched.stdout.splitlines()[0].split()[:1] == ["1"]
    assert "Tamis" in searched.stdout
    assert "2 results in " in searched.stdout

    ran = process("run", "idx", folder / "queries.tsv", "-o", "a.run", "--tag", "first", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("a.run: 3 queries, 3 results in ")
    assert ran.stderr == "warning: 1 query found nothing: q3\n"
    lines = (tmp_path / "a.run").read_text().splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["q1", "Q0", "d1", "1"],
        ["q1", "Q0", "d2", "2"],
        ["q2", "Q0", "d3", "1"],
    ]
    assert {line.split()[5] for line in lines} == {"first"}
    manifest = json.loads((tmp_path / "a.run.json").read_text())
    assert manifest["pipeline"] == "bm25 % 1000"
    assert manifest["queries"] == 3

    evaluated = process(
        "eval", folder / "qrels.txt", "a.run", "-m", "RR", "-m", "R@1000", "--only", cwd=tmp_path
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.split() == ["run", "RR", "R@1000", *["─" * 23], "a.run", "0.6667", "0.6667"]
    assert "a.run: judged queries missing from the run (counted as zero): 1 (q4); if they" in evaluated.stderr
    assert "queries without a relevant document (not counted): 1 (q5)" in evaluated.stderr


BAD = {
    "no verb of that name": (["serch"], "'serch' is not a verb: use search"),
    "no arguments": (["search"], "the following arguments are required: IDX, QUERY"),
    "unknown option": (["search", "idx", "x", "--fast"], "unrecognized arguments: --fast"),
    "misspelt option": (["search", "idx", "x", "--jsn"], "--jsn: use --json, or see `tamis search --help`"),
    "empty query": (["search", "idx", " "], "the query is empty"),
    "no results wanted": (["search", "idx", "x", "-k", "0"], "'0' is not a whole number of at least 1"),
    "no index": (["search", "nowhere", "x"], "nowhere holds no index: make one with `tamis index"),
    "not an index": (["search", ".", "x"], ". holds no index"),
    "a file for an index": (["search", "corpus.jsonl", "x"], "corpus.jsonl holds no index"),
    "unknown stage": (
        ["search", "idx", "x", "-p", "bm26"],
        "'bm26' is not a stage: did you mean bm25? Use bm25",
    ),
    "nothing that searches": (
        ["search", "idx", "x", "-p", "maxp(mono) % 5"],
        "maxp(mono) % 5 finds no candidates: begin with a stage that searches, as in bm25 % 100 >> maxp(",
    ),
    "nothing that searches in a run": (
        ["run", "idx", "queries.tsv", "-o", "x.run", "-p", "mono"],
        "mono finds no candidates",
    ),
    "another sign": (
        ["search", "idx", "x", "-p", "bm25 > mono"],
        "is not expected here: write it like bm25(",
    ),
    "half a pipeline": (["search", "idx", "x", "-p", "bm25 >>"], "column 8"),
    "unknown option of a stage": (
        ["search", "idx", "x", "-p", "bm25(speed=3)"],
        "bm25 has no option 'speed'",
    ),
    "positions needed": (["search", "idx", "x", "-p", "sdm"], "sdm needs positions"),
    "nothing to expand": (["search", "idx", "x", "-p", "rm3"], "rm3 finds no candidates"),
    "unknown document": (["show", "idx", "d9"], "holds no document 'd9'"),
    "unknown document to delete": (["delete", "idx", "d1", "d9"], "holds no document 'd9'"),
    "no corpus": (["index", "nowhere.jsonl", "-o", "new"], "nowhere.jsonl: no such file or folder"),
    "empty corpus": (["index", "empty.jsonl", "-o", "new"], "no document in empty.jsonl"),
    "bad line": (["index", "bad.jsonl", "-o", "new"], "bad.jsonl, line 2: not JSON"),
    "same id twice": (["index", "twice.jsonl", "-o", "new"], "the document id 'd1' occurs twice"),
    "unknown analyzer": (["index", "corpus.jsonl", "-o", "new", "--analyzer", "klingon"], "'klingon'"),
    "folder in use": (["index", "corpus.jsonl", "-o", "."], ". is not empty, and a.run in it is not part of"),
    "index there": (
        ["index", "corpus.jsonl", "-o", "idx"],
        "an index: resume it (--resume), add to it (--add) or",
    ),
    "two ways": (["index", "corpus.jsonl", "-o", "idx", "--add", "--overwrite"], "not allowed with"),
    "other analyzer": (
        ["index", "corpus.jsonl", "-o", "idx", "--add", "--analyzer", "plain"],
        "idx was made with --analyzer english",
    ),
    "nothing to add to": (["index", "corpus.jsonl", "-o", "nowhere", "--add"], "nowhere holds no index"),
    "known id": (["index", "corpus.jsonl", "-o", "idx", "--add"], "already holds a document 'd1'"),
    "no queries": (["run", "idx", "nowhere.tsv", "-o", "x.run"], "nowhere.tsv: no such file"),
    "empty queries": (["run", "idx", "empty.jsonl", "-o", "x.run"], "empty.jsonl: contains no queries"),
    "tag of two words": (["run", "idx", "queries.tsv", "-o", "x.run", "--tag", "a b"], "the tag 'a b'"),
    "nowhere to write": (["run", "idx", "queries.tsv", "-o", "no/x.run"], "cannot write no/x.run"),
    "no run": (["eval", "qrels.txt", "nowhere.run"], "nowhere.run: no such file"),
    "a run for qrels": (["eval", "a.run", "qrels.txt"], "a.run, line 1: 6 columns"),
    "no qrels": (["eval", "nowhere.txt", "a.run"], "nowhere.txt: no such file"),
    "empty qrels": (["eval", "empty.jsonl", "a.run"], "empty.jsonl: contains no judgments"),
    "unknown measure": (["eval", "qrels.txt", "a.run", "-m", "nDGC@10"], "use a name such as nDCG@10, AP"),
    "other queries": (["eval", "other.txt", "a.run"], "the run answers none of the judged queries"),
    "demo in use": (["demo", "--keep", "."], ". is not an empty folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_are_one_line_with_a_remedy(
    case: str, folder: Path, tmp_path: Path, tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("corpus.jsonl", "queries.tsv", "qrels.txt"):
        shutil.copy(folder / name, tmp_path)
    shutil.copytree(folder / "idx", tmp_path / "idx")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"_id": "a", "text": "x"}\nnot json\n')
    write_corpus(tmp_path / "twice.jsonl", [DOCUMENTS[0], DOCUMENTS[0]])
    (tmp_path / "a.run").write_text("q1 Q0 d1 1 2.0 a\n")
    (tmp_path / "other.txt").write_text("q7 0 d1 1\n")
    monkeypatch.chdir(tmp_path)
    arguments, complaint = BAD[case]
    said = tamis(*arguments)
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert complaint in said.err
    assert len(Index.open("idx")) == len(DOCUMENTS)
    assert not Path("new/manifest.json").exists()
    assert not Path("x.run").exists()


def test_help(tamis: Tamis) -> None:
    assert tamis().out == tamis("--help").out == tamis("help").out
    for verb in VERBS:
        assert f"  {verb}" in tamis().out
        said = tamis(verb, "--help")
        assert said.status == 0
        assert said.out.startswith(f"usage: tamis {verb} ")
    assert tamis("--version").out.startswith("tamis 0.")


def test_words_and_options_in_any_order(folder: Path, tamis: Tamis) -> None:
    together = tamis("search", folder / "idx", "fine sieve", "-k", "1", "--json").json
    apart = tamis("search", "-k", "1", folder / "idx", "fine", "--json", "sieve").json
    assert apart["results"] == together["results"]


def test_a_query_of_stop_words_finds_nothing_and_says_why(folder: Path, tamis: Tamis) -> None:
    said = tamis("search", folder / "idx", "the of and")
    assert said.status == 0
    assert said.out.startswith("0 results in ")
    assert said.err == "the query has no terms: the analyzer 'english' drops every word of it\n"
    assert tamis("search", folder / "idx", "zzz").err == ""
    assert tamis("search", folder / "idx", "the of and", "--json").json["results"] == []


def test_a_word_that_no_document_has_brings_a_suggestion(folder: Path, tamis: Tamis) -> None:
    words = folder / "idx", "-p", "bm25"
    said = tamis("search", *words, "fine seive")
    assert said.status == 0
    assert said.out.startswith(" 1 ")  # the query is searched as it is
    assert said.err == 'no document has "seive"; did you mean "fine sieve"?\n'
    found = tamis("search", *words, "fine seive", "--json")
    assert found.json["query"] == "fine seive" and found.json["suggestion"] == "fine sieve"
    assert found.err == ""
    assert tamis("search", *words, "fine sieve", "--json").json["suggestion"] is None
    assert tamis("search", *words, "fine zzz").err == ""


@pytest.mark.parametrize("pipeline", ["bm25", "ql(mu=100.0)", "tfidf", "bm25 % 2 >> rm3(terms=5)"])
def test_an_explanation_adds_up_to_the_score(folder: Path, tamis: Tamis, pipeline: str) -> None:
    found = tamis("search", folder / "idx", "fine sieve cake", "-p", pipeline, "--explain", "--json").json
    assert found["pipeline"] == f"{pipeline} % 10"
    assert found["milliseconds"] > 0
    assert found["results"]
    for result in found["results"]:
        added = sum(line["contribution"] for line in result["terms"])
        assert result["score"] == pytest.approx(added, rel=1e-5)


def test_an_explanation_for_a_person(folder: Path, tamis: Tamis) -> None:
    said = tamis("search", folder / "idx", "fine sieve", "--explain", "-p", "bm25")
    assert [line.split()[:3] for line in said.out.splitlines() if line.strip().startswith("fine")] == [
        ["fine", "1", "1"]
    ]


def test_documents_do_not_command_the_terminal(
    folder: Path, tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in (tamis("search", folder / "idx", "colander"), tamis("show", folder / "idx", "d4")):
        assert "[bold]Markup[/bold] and [31mescapes[0m about a colander[/] are text." in said.out
        assert "\x1b" not in said.out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = tamis("search", folder / "idx", "colander").out
    assert "[bold]Markup[/bold] and [31mescapes[0m about a \x1b[1;33mcolander\x1b[0m[/] are text." in coloured


def test_show(folder: Path, tamis: Tamis) -> None:
    said = tamis("show", folder / "idx", "d3")
    assert said.out.splitlines() == ["d3", "Menu", DOCUMENTS[2].text, '{"price": 7}']
    assert tamis("show", folder / "idx", "d3", "--json").json == {
        "id": "d3",
        "title": "Menu",
        "text": DOCUMENTS[2].text,
        "metadata": {"price": 7},
    }


def test_add_replace_skip_delete_merge(own_index: Path, tmp_path: Path, tamis: Tamis) -> None:
    more = write_corpus(tmp_path / "more.jsonl", [Document("d1", "changed"), Document("d6", "new")])
    added = tamis(
        "index", more, "-o", own_index, "--add", "--on-duplicate", "skip", "--no-merge", "--json"
    ).json
    assert (added["documents"], added["read"], added["segments"]) == (6, 2, 2)
    assert tamis("show", own_index, "d1", "--json").json["text"] == DOCUMENTS[0].text
    tamis("index", more, "-o", own_index, "--add", "--on-duplicate", "replace", "--no-merge")
    assert tamis("show", own_index, "d1", "--json").json["text"] == "changed"

    assert tamis("delete", own_index, "d6", "d2").out == f"{own_index}: 2 documents deleted, 4 left\n"
    assert tamis("search", own_index, "flour", "--json").json["results"] == []
    checked = tamis("doctor", own_index, "--json").json["index"]
    assert checked["documents"] == 4
    assert checked["deleted"] > 0
    assert checked["advice"] == f"tamis merge {own_index}"

    assert tamis("merge", own_index, "--json").json["segments"] == 1
    checked = tamis("doctor", own_index, "--json").json["index"]
    assert (checked["documents"], checked["deleted"], checked["advice"]) == (4, 0, None)


def test_files_of_a_folder_that_are_not_read_are_told(tmp_path: Path, tamis: Tamis) -> None:
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "soup.txt").write_text("Onions and butter")
    (tmp_path / "notes" / "deep" / "cake.png").write_bytes(b"\x89PNG")
    said = tamis("index", tmp_path / "notes", "-o", tmp_path / "new")
    assert said.status == 0
    cake = tmp_path / "notes" / "deep" / "cake.png"
    assert said.err == f"warning: left out: 1 .png, such as {cake}\n"
    cake.unlink()
    assert tamis("index", tmp_path / "notes", "-o", tmp_path / "new", "--overwrite").err == ""
    assert tamis("index", tmp_path / "notes", "-o", tmp_path / "notes" / "idx").err == ""


def test_overwrite_and_skip_bad(own_index: Path, tmp_path: Path, tamis: Tamis) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"_id": "a", "text": "alone"}\nnot json\n{"_id": "b"}\n')
    said = tamis("index", bad, "-o", own_index, "--overwrite", "--skip-bad", "--analyzer", "plain", "--json")
    assert (said.json["documents"], said.json["bad_lines"], said.json["analyzer"]) == (1, 2, "plain")
    assert said.err.startswith(f"warning: 2 bad lines left out, such as {bad}, line 2: not JSON")


def test_resume_after_an_interruption(tmp_path: Path, tamis: Tamis) -> None:
    documents = [Document(f"d{i}", f"text number {i}") for i in range(25)]
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    whole = corpus.read_text()
    corpus.write_text("".join(whole.splitlines(keepends=True)[:23]) + "broken\n")
    index = ["index", corpus, "-o", tmp_path / "idx", "--commit-every", "10"]
    assert tamis(*index).status == 2
    assert len(Index.open(tmp_path / "idx")) == 20
    corpus.write_text(whole)
    assert tamis(*index).status == 2, "a second attempt must be asked for"
    assert tamis(*index, "--resume").status == 0
    assert sorted(Index.open(tmp_path / "idx").ids()) == sorted(document.id for document in documents)
    assert len(Index.open(tmp_path / "idx").segments) == 1
    assert tamis(*index, "--resume").status == 0, "nothing left to do is no error"


def test_resume_before_the_first_commit_starts_anew(folder: Path, tmp_path: Path, tamis: Tamis) -> None:
    said = tamis("index", folder / "corpus.jsonl", "-o", tmp_path / "idx", "--resume", "--json")
    assert said.json["documents"] == len(DOCUMENTS)


def test_run_with_a_pipeline_and_a_field(folder: Path, tmp_path: Path, tamis: Tamis) -> None:
    topics = tmp_path / "topics.txt"
    topics.write_text("<top>\n<num> Number: 7\n<title> soup\n<desc> Description:\nfine sieve\n</top>\n")
    run = tmp_path / "desc.run"
    arguments = ["run", folder / "idx", topics, "-o", run, "--field", "desc", "-p", "bm25 >> rm3", "-k", "1"]
    said = tamis(*arguments, "--json").json
    assert (said["pipeline"], said["queries"], said["results"]) == ("bm25 >> rm3 % 1", 1, 1)
    assert run.read_text().startswith("7 Q0 d1 1 ")


def test_eval_compares_runs(folder: Path, tmp_path: Path, tamis: Tamis) -> None:
    (tmp_path / "a.run").write_text("q1 Q0 d1 1 2.0 a\nq2 Q0 d3 1 2.0 a\nq9 Q0 d3 1 2.0 a\n")
    (tmp_path / "b.run").write_text(
        "q1 Q0 d3 1 2.0 b\nq1 Q0 d2 2 2.0 b\nq2 Q0 d1 1 2.0 b\nq4 Q0 d2 1 1.0 b\n"
    )
    arguments = ["eval", folder / "qrels.txt", tmp_path / "a.run", tmp_path / "b.run", "-m", "RR"]
    rows = [line.split() for line in tamis(*arguments).out.splitlines()]
    assert ["a.run", "0.6667"] in rows
    assert ["b.run", "0.5000"] in rows, "the rank column breaks ties"
    assert "a.run: queries of the run without judgments (not counted): 1 (q9)" in tamis(*arguments).err
    first, second = tamis(*arguments, "--json", "--per-query").json
    assert first["mean"] == {"RR": pytest.approx(2 / 3)}
    assert first["missing"] == ["q4"]
    assert second["per_query"] == {"RR": {"q1": 0.5, "q2": 0.0, "q4": 1.0}}
    per_query = [line.split() for line in tamis(*arguments, "--per-query").out.splitlines()]
    assert per_query.count(["q4", "0.0000"]) == per_query.count(["q4", "1.0000"]) == 1
    assert ["all", "0.6667"] in per_query


def test_doctor_names_the_damaged_file(own_index: Path, tamis: Tamis) -> None:
    sound = tamis("doctor", own_index)
    assert sound.status == 0
    assert "all checksums are valid" in sound.out
    frames = next(own_index.rglob("store.frames"))
    damaged = bytearray(frames.read_bytes())
    damaged[3] ^= 1
    frames.write_bytes(damaged)
    next(own_index.rglob("terms.order")).unlink()
    said = tamis("doctor", own_index, "--json")
    assert said.status == 2
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    problems = "\n".join(said.json["problems"])
    assert f"{frames} is corrupt" in problems
    assert "terms.order is missing" in problems


def test_demo(tmp_path: Path, tamis: Tamis) -> None:
    said = tamis("demo", "--keep", tmp_path / "demo")
    assert said.status == 0, said.err
    rows = [line.split() for line in said.out.splitlines()]
    figures = {
        " ".join(row[:-3]): float(row[-3]) for row in rows if len(row) > 3 and row[-1].startswith("0.")
    }
    assert list(figures) == ["bm25", "bm25 >> rm3", "ql", "bm25 % 10 >> mono"]
    assert figures["bm25 % 10 >> mono"] > figures["bm25"]
    # by its name, or by where it is
    commands = re.findall(r"^    .*tamis'? \w+ .*", said.out, re.MULTILINE)
    assert len(commands) >= 4
    again = tamis(
        "eval", tmp_path / "demo/qrels.txt", tmp_path / "demo/bm25.run", "-m", "nDCG@10", "--json"
    ).json
    assert f"{again[0]['mean']['nDCG@10']:.4f}" in said.out


@pytest.mark.skipif(os.name == "nt", reason="head and signals")
def test_a_reader_that_stops_reading(folder: Path) -> None:
    python = shlex.quote(sys.executable)
    command = f"{python} -c 'import sys; from tamis.cli import main; sys.exit(main())'"
    for options in ("", "--json"):
        said = subprocess.run(
            f"{command} search {folder}/idx sieve {options} | true",
            shell=True,
            capture_output=True,
            text=True,
        )
        assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="head and signals")
def test_interrupted(tmp_path: Path) -> None:
    command = "import sys; from tamis.cli import main; print('ready', flush=True); sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", command, "index", "-", "-o", str(tmp_path / "idx")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stdin
        running.stdout.readline()
        running.stdin.write('{"_id": "d1", "text": "half a corpus"}\n')
        running.stdin.flush()
        until = time.monotonic() + 60
        while not (tmp_path / "idx").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, complaint = running.communicate(timeout=60)
    assert (running.returncode, complaint) == (130, "interrupted\n")
    assert not (tmp_path / "idx/manifest.json").exists()
