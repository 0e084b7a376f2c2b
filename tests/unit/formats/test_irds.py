"""Collections of ir_datasets by their names: registered here, with its own classes and no network."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tamis import Document, Index, Query
from tamis.base.errors import InputError, MissingDependencyError
from tamis.cli import main
from tamis.formats import SkipReport, read_corpus, read_qrels, read_queries

needed = pytest.mark.skipif(find_spec("ir_datasets") is None, reason="ir_datasets is not installed")

TOPICS = """<top>
<num> Number: 336
<title> Black Bear Attacks
<desc> Description:
How frequent are
attacks by bears?
<narr> Narrative:
Attacks on cattle are not relevant.
</top>
"""


@pytest.fixture(scope="module")
def ir_datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The package, which makes its folders where it is told to, and so must not be imported before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IR_DATASETS_HOME", str(tmp_path_factory.mktemp("irds")))
        patch.setenv("IR_DATASETS_DL_TRIES", "1")
        import ir_datasets

        yield ir_datasets


@pytest.fixture
def register(ir_datasets: Any, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Registers a dataset of the parts given, and returns what it is called here."""

    def _register(*parts: Any, name: str = "") -> str:
        test = "".join(each if each.isalnum() else "-" for each in request.node.name)
        name = f"tamis-{test}{'/' if name else ''}{name}"
        ir_datasets.registry.register(name, ir_datasets.Dataset(*parts))
        return f"irds:{name}"

    return _register


@pytest.fixture
def local(ir_datasets: Any, tmp_path: Path) -> Callable[[str, str], Any]:
    """A file of this machine, as ir_datasets holds what it has downloaded."""

    def _local(name: str, content: str) -> Any:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return ir_datasets.util.LocalDownload(tmp_path / name)

    return _local


@pytest.fixture
def documents_of(ir_datasets: Any, local: Callable[[str, str], Any]) -> Callable[..., Any]:
    """The documents of a class of ir_datasets, from values by the names of its fields."""

    def _documents_of(doc_cls: Any, *records: dict[str, Any]) -> Any:
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        return ir_datasets.formats.JsonlDocs(local("docs.jsonl", lines), doc_cls=doc_cls)

    return _documents_of


@pytest.fixture
def queries_of(ir_datasets: Any, local: Callable[[str, str], Any]) -> Callable[..., Any]:
    def _queries_of(query_cls: Any, *records: dict[str, Any]) -> Any:
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        return ir_datasets.formats.JsonlQueries(local("queries.jsonl", lines), query_cls=query_cls)

    return _queries_of


class Bare(NamedTuple):
    """A document of someone who gave it no default_text."""

    doc_id: str
    body: str
    title: str
    size: int
    colour: str


class Textless(NamedTuple):
    doc_id: str
    code: str


# What is read


@needed
def test_documents_of_every_shape(
    ir_datasets: Any, register: Callable[..., str], documents_of: Callable[..., Any]
) -> None:
    classes = ir_datasets.datasets
    beir = {"doc_id": "1", "text": "For flour.", "title": "Sieve"}
    cases: list[tuple[Any, dict[str, Any], Document]] = [
        (ir_datasets.formats.GenericDoc, {"doc_id": "1", "text": "For flour."}, Document("1", "For flour.")),
        (classes.beir.BeirTitleDoc, beir, Document("1", "For flour.", "Sieve")),
        (classes.beir.BeirTitleDoc, beir | {"title": ""}, Document("1", "For flour.")),
        (
            classes.beir.BeirTitleUrlDoc,
            beir | {"url": "http://a"},
            Document("1", "For flour.", "Sieve", {"url": "http://a"}),
        ),
        (
            classes.beir.BeirSciDoc,
            beir | {"authors": ["A"], "year": 1900, "cited_by": [], "references": []},
            Document("1", "For flour.", "Sieve"),
        ),
        (
            classes.msmarco_document.MsMarcoDocument,
            {"doc_id": "D1", "url": "http://a", "title": "Sieve", "body": "For flour."},
            Document("D1", "For flour.", "Sieve", {"url": "http://a"}),
        ),
        (  # more than one field is the text
            classes.msmarco_document_v2.MsMarcoV2Document,
            {"doc_id": "D1", "url": "u", "title": "Sieve", "headings": "Use", "body": "For flour."},
            Document("D1", "Use For flour.", "Sieve", {"url": "u"}),
        ),
        (
            classes.cord19.Cord19Doc,
            {"doc_id": "1", "title": "Sieve", "doi": "10/x", "date": "2020", "abstract": "For flour."},
            Document("1", "For flour.", "Sieve", {"doi": "10/x", "date": "2020"}),
        ),
        (  # the text with its markup is the text once more
            ir_datasets.formats.TrecDoc,
            {"doc_id": "1", "text": "For flour.", "marked_up_doc": "<TEXT>For flour.</TEXT>"},
            Document("1", "For flour."),
        ),
        (
            Bare,
            {"doc_id": "1", "body": "Sieve for flour", "title": "Sieve", "size": 3, "colour": "red"},
            Document("1", "Sieve for flour", "Sieve", {"colour": "red"}),
        ),
    ]
    for number, (doc_cls, record, expected) in enumerate(cases):
        name = register(documents_of(doc_cls, record), name=str(number))
        assert list(read_corpus(name)) == [expected], doc_cls


@needed
def test_a_dataset_beside_a_file(
    ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any], tmp_path: Path
) -> None:
    name = register(ir_datasets.formats.TsvDocs(local("docs.tsv", "d1\tsieve\nd2\tsoup\n")))
    file = tmp_path / "more.tsv"
    file.write_text("d3\tpot\n")
    assert [each.id for each in read_corpus(name, file, format="tsv")] == ["d1", "d2", "d3"]
    assert [each.id for each in read_corpus(Path(name))] == ["d1", "d2"]


@needed
def test_topics_are_those_of_the_file(
    ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any], tmp_path: Path
) -> None:
    name = register(ir_datasets.formats.TrecQueries(local("topics.txt", TOPICS)))
    for field in ("title", "desc", "narr", "title+desc", "desc-keywords"):
        assert read_queries(name, field=field) == read_queries(tmp_path / "topics.txt", field=field)
    assert read_queries(name)[0].text == "Black Bear Attacks"
    assert read_queries(name, field="desc")[0].text == "How frequent are attacks by bears?"


@needed
def test_queries_of_other_shapes(
    ir_datasets: Any, register: Callable[..., str], queries_of: Callable[..., Any]
) -> None:
    touche = {"query_id": "1", "text": "sieves", "description": "Which one?", "narrative": "Fine ones."}
    name = register(queries_of(ir_datasets.datasets.beir.BeirToucheQuery, touche), name="a")
    assert read_queries(name, field="title+desc")[0].text == "sieves Which one?"
    assert read_queries(name)[0].text == "sieves"
    web = {"query_id": "1", "query": "sieves", "description": "Which one?", "type": "x", "subtopics": []}
    name = register(queries_of(ir_datasets.datasets.clueweb12.TrecWebTrackQuery, web), name="b")
    assert read_queries(name)[0].text == "sieves"
    assert read_queries(name, field="desc")[0].text == "Which one?"
    case = {"query_id": "1", "type": "x", "description": "A man of 58.", "summary": "A man."}
    name = register(queries_of(ir_datasets.datasets.pmc.TrecCdsQuery, case), name="c")
    assert read_queries(name)[0].text == "A man of 58."


@needed
def test_judgments(ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any]) -> None:
    file = local("qrels", "q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 -1\nq1 0 d1 2\n")
    name = register(ir_datasets.formats.TrecQrels(file, {}))
    assert read_qrels(name) == {"q1": {"d1": 2, "d2": 0}, "q2": {"d1": -1}}


# What is wrong


def problem_of(read: Callable[..., Any], name: str, **options: Any) -> str:
    """What is said when all that this reads is asked for."""
    with pytest.raises(InputError) as caught:
        list(read(name, **options))
    problem = str(caught.value)
    assert "\n" not in problem
    return problem


@needed
def test_names_that_are_not_there(ir_datasets: Any) -> None:
    for read in (read_corpus, read_queries, read_qrels):
        near = "irds:beir/scifcat: ir_datasets has no such dataset: use irds:beir/scifact"
        assert problem_of(read, "irds:beir/scifcat") == near
        nothing = "irds:: ir_datasets has no such dataset: see `ir_datasets list`"
        assert problem_of(read, "irds:") == nothing


@needed
def test_parts_that_are_not_there(
    ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any]
) -> None:
    documents = ir_datasets.formats.TsvDocs(local("docs.tsv", "d1\tsieve\n"))
    name = register(documents)
    assert problem_of(read_queries, name) == f"{name}: it has no queries: see `ir_datasets list`"
    test = register(documents, ir_datasets.formats.TrecQrels(local("qrels", "q1 0 d1 2\n"), {}), name="test")
    assert problem_of(read_qrels, name) == f"{name}: it has no qrels: use {test}"
    only = register(ir_datasets.formats.TrecQrels(local("qrels", "q1 0 d1 2\n"), {}), name="only")
    assert problem_of(read_corpus, only) == f"{only}: it has no docs: see `ir_datasets list`"


@needed
def test_documents_without_a_text(register: Callable[..., str], documents_of: Callable[..., Any]) -> None:
    name = register(documents_of(Textless, {"doc_id": "1", "code": "x = 1"}))
    problem = problem_of(read_corpus, name)
    assert problem.startswith(f"{name}: its documents have no text, but doc_id, code: ")
    assert f"`ir_datasets export {name[5:]} docs --format jsonl`" in problem


@needed
def test_bad_records_are_named_or_skipped(
    ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any]
) -> None:
    name = register(
        ir_datasets.formats.TsvDocs(local("docs.tsv", "d1\tsieve\n\tsoup\n")),
        ir_datasets.formats.TsvQueries(local("queries.tsv", "q1\tsieve\nq2\tsoup\nq1\tpot\nq3\t \n")),
        ir_datasets.formats.TrecQrels(local("qrels", "q1 0 d1 2\nq1 0 d1 1\nq2 0 d1 1\n"), {}),
    )
    for read, problem, kept in (
        (read_corpus, f"{name}: a document without an id", [Document("d1", "sieve")]),
        (
            read_queries,
            f"{name}: the query id 'q1' comes twice",
            [Query("q1", "sieve", {"title": "sieve"}), Query("q2", "soup", {"title": "soup"})],
        ),
        (read_qrels, f"{name}: 'd1' is judged 1 for 'q1', and 2 above: ", {"q1": {"d1": 2}, "q2": {"d1": 1}}),
    ):
        assert problem_of(read, name).startswith(problem)
        report = SkipReport()
        found = read(name, skipped=report)
        assert (found if isinstance(found, dict) else list(found)) == kept
        assert report.count == (2 if read is read_queries else 1)
        assert report.examples[0].startswith(problem)
    missing = problem_of(read_queries, name, field="desc")
    assert missing == f"{name}: query 'q1': the query has no desc: choose another field"


@needed
def test_data_that_must_be_asked_for(ir_datasets: Any, register: Callable[..., str], tmp_path: Path) -> None:
    file = ir_datasets.util.LocalDownload(tmp_path / "disk4")
    name = register(ir_datasets.formats.TsvDocs(file))
    problem = problem_of(read_corpus, name)
    assert problem.startswith(f"{name}: {tmp_path / 'disk4'} is not there: ")
    assert "https://ir-datasets.com/" in problem


@needed
def test_a_download_that_fails(
    ir_datasets: Any, register: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/qrels"
        source = ir_datasets.util.Download([ir_datasets.util.RequestsDownload(url)], tmp_path / "qrels")
        name = register(ir_datasets.formats.TrecQrels(source, {}))
        problem = problem_of(read_qrels, name)
    assert problem.startswith(f"{name}: cannot be fetched or read (ConnectionRefusedError: ")
    assert problem.endswith(
        f": check the network, or copy {os.environ['IR_DATASETS_HOME']} from a machine that has read it"
    )
    assert len(problem) < 500
    assert capfd.readouterr().err == ""  # ir_datasets would say it three times before


@needed
def test_a_damaged_file(
    ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any]
) -> None:
    name = register(ir_datasets.formats.TsvDocs(local("docs.tsv", "d1\tsieve\nd2\n")))
    assert next(read_corpus(name)).id == "d1"
    assert "(RuntimeError: expected 2 fields, got 1)" in problem_of(read_corpus, name)


@needed
@pytest.mark.skipif(find_spec("bs4") is not None, reason="needs that Beautiful Soup is not installed")
def test_a_dataset_that_needs_another_package(
    ir_datasets: Any, register: Callable[..., str], local: Callable[[str, str], Any]
) -> None:
    name = register(ir_datasets.formats.TrecDocs(local("docs.trec", "<DOC>\n<DOCNO>d1</DOCNO>\n</DOC>\n")))
    with pytest.raises(MissingDependencyError, match=r"beautifulsoup4.*: .*pip install") as caught:
        list(read_corpus(name))
    assert str(caught.value).startswith(f"{name}: ")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    for read in (read_corpus, read_queries, read_qrels):
        with pytest.raises(MissingDependencyError) as caught:
            read("irds:beir/scifact/test")
        assert re.fullmatch(
            r"irds:beir/scifact/test needs ir_datasets, which is not installed: "
            r"pip install 'ir-datasets<[\d.]+,>=[\d.]+'",
            str(caught.value),
        )
    assert main(["eval", "irds:beir/scifact/test", "a.run"]) == 2
    assert "pip install 'ir-datasets<" in capsys.readouterr().err


def test_a_file_of_that_name_has_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("irds:a.tsv").write_text("q1\tsieve\n")
    assert [each.id for each in read_queries("./irds:a.tsv")] == ["q1"]


def test_it_is_imported_only_when_asked_for() -> None:
    code = "import sys, tamis.formats, tamis.cli.index; assert 'ir_datasets' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The commands


@needed
def test_index_run_rerank_and_evaluate(
    ir_datasets: Any,
    register: Callable[..., str],
    local: Callable[[str, str], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    documents = ir_datasets.formats.TsvDocs(local("docs.tsv", "d1\ta fine sieve\nd2\tsoup\nd3\ta pot\n"))
    corpus = register(documents)
    test = register(
        documents,
        ir_datasets.formats.TsvQueries(local("queries.tsv", "q1\tsieve\nq2\tpot of soup\n")),
        ir_datasets.formats.TrecQrels(local("qrels", "q1 0 d1 1\nq2 0 d3 1\n"), {}),
        name="test",
    )
    assert main(["index", corpus, "-o", "idx"]) == 0
    assert len(Index.open("idx")) == 3
    assert main(["run", "idx", test, "-o", "a.run"]) == 0
    assert json.loads(Path("a.run.json").read_text())["query_file"] == test
    rerank = ["rerank", "a.run", "--corpus", corpus, "--queries", test, "-o", "b.run", "-p", "normalise"]
    assert main(rerank) == 0
    assert Path("b.run").read_text().split()[:3] == ["q1", "Q0", "d1"]
    capsys.readouterr()
    assert main(["eval", test, "a.run", "-m", "RR@10", "--only", "--json"]) == 0
    assert "RR@10" in capsys.readouterr().out
    assert main(["run", "idx", corpus, "-o", "c.run"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == f"error: {corpus}: it has no queries: use {test}"
