"""What `tamis index` says of documents that would be lost: files, texts and ids that another one hides."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.cli import main
from tamis.formats import read_corpus, read_queries
from tamis.formats.corpora import files_left_out, places_of
from tamis.index.index import Index

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_jsonl(name: str, *records: dict[str, object]) -> Path:
    return write(name, "".join(json.dumps(record) + "\n" for record in records))


def index(capsys: Capture, *arguments: str) -> SimpleNamespace:
    capsys.readouterr()
    status = main(["index", *arguments])
    said = capsys.readouterr()
    return SimpleNamespace(status=status, out=said.out, err=said.err)


# Files beside corpus.jsonl


def beir_folder() -> None:
    write_jsonl("beir/corpus.jsonl", {"_id": "1", "text": "a"}, {"_id": "2", "text": "b"})
    write_jsonl("beir/queries.jsonl", {"_id": "q", "text": "a"})
    write("beir/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\t1\t1\n")
    write("beir/qrels.trec", "")
    write("beir/.hidden.txt", "")
    write("beir/licence.pdf", "")


def test_a_whole_beir_folder_loses_nothing(capsys: Capture) -> None:
    beir_folder()
    said = index(capsys, "beir", "-o", "idx")
    assert (said.status, said.err) == (0, "")


def test_files_beside_a_beir_corpus_are_told(capsys: Capture) -> None:
    beir_folder()
    write_jsonl("beir/more.jsonl", {"_id": "3", "text": "c"})
    write("beir/deep/note.txt", "d")
    said = index(capsys, "beir", "-o", "idx")
    assert said.status == 0
    assert said.err == (
        "warning: 2 files left out, such as beir/deep/note.txt: "
        "in a folder with corpus.jsonl only that file is read; to read others, name them\n"
    )
    said = index(capsys, "beir", "-o", "idx2", "--format", "jsonl")
    assert "warning: 1 file left out, such as beir/more.jsonl:" in said.err, (
        "it was not asked to leave that out"
    )
    assert index(capsys, "beir", "beir/more.jsonl", "-o", "idx3", "--json").status == 0
    assert len(Index.open("idx3")) == 3


def test_the_index_inside_a_beir_folder_is_no_loss(capsys: Capture) -> None:
    beir_folder()
    assert index(capsys, "beir", "-o", "beir/idx").err == ""
    assert index(capsys, "beir", "-o", "beir/idx", "--overwrite").err == ""


def test_a_file_that_only_begins_like_a_beir_corpus_makes_none() -> None:
    write("notes/corpus.jsonl.txt", "a")
    write("notes/cake.png", "")
    assert files_left_out(Path("notes")) == [Path("notes/cake.png")]


# Texts behind an empty one


@pytest.mark.parametrize("empty", ["", None, " \n\t"])
def test_an_empty_text_does_not_hide_another(empty: str | None) -> None:
    file = write_jsonl("c.jsonl", {"id": "a", "text": empty, "content": empty, "body": "important words"})
    kept = {"text": empty, "content": empty}  # as every other key is
    assert list(read_corpus(file)) == [Document("a", "important words", "", kept)]


def test_the_first_key_stays_where_no_later_one_is_a_text() -> None:
    file = write_jsonl("c.jsonl", {"id": "a", "text": "", "body": ["p"]}, {"id": "b", "body": None})
    assert list(read_corpus(file)) == [Document("a", "", "", {"body": ["p"]}), Document("b", "")]
    wrong = write_jsonl("wrong.jsonl", {"id": "a", "text": 5, "body": "words"})
    with pytest.raises(InputError, match="'text' is not a string"):
        list(read_corpus(wrong))


def test_an_empty_column_does_not_hide_another() -> None:
    file = write("c.csv", "id,text,body\n1,,important words\n2,own,other\n")
    assert [document.text for document in read_corpus(file)] == ["important words", "own"]


def test_an_empty_query_text_does_not_hide_another() -> None:
    file = write_jsonl("q.jsonl", {"id": "q1", "text": "", "query": "sieves"})
    assert [query.text for query in read_queries(file)] == ["sieves"]


def test_documents_with_nothing_to_search_are_told(capsys: Capture) -> None:
    records = [{"id": "a", "text": "words"}, {"id": "b", "text": "", "title": "words"}]
    empty = [{"id": "c", "text": " \n"}, {"id": "d", "text": None, "title": ""}]
    write_jsonl("c.jsonl", *records, *empty)
    said = index(capsys, "c.jsonl", "-o", "idx", "--json")
    assert json.loads(said.out)["empty"] == 2
    assert said.err == "warning: 2 documents have neither title nor text, such as c\n"
    write_jsonl("one.jsonl", *records, empty[1])
    said = index(capsys, "one.jsonl", "-o", "one")
    assert said.err == "warning: 1 document has neither title nor text, such as d\n"
    write_jsonl("none.jsonl", *records)
    said = index(capsys, "none.jsonl", "-o", "none", "--json")
    assert (json.loads(said.out)["empty"], said.err) == (0, "")


# Ids that occur twice


def test_a_repeated_id_is_told_with_its_lines(capsys: Capture) -> None:
    write_jsonl("a.jsonl", {"id": "x", "text": "1"}, {"id": "y", "text": "2"})
    write("b.csv", "id,text\nz,3\ny,4\n")
    said = index(capsys, "a.jsonl", "b.csv", "-o", "idx")
    assert said.status == 2
    assert (
        "the document id 'y' occurs twice (a.jsonl, line 2 and b.csv, line 3): give each its own" in said.err
    )
    assert "the folder that holds both" not in said.err
    assert not Path("idx/manifest.json").exists()


def test_text_files_of_one_name_are_told_with_the_way_out(capsys: Capture) -> None:
    write("both/n1/a.txt", "one")
    write("both/n2/a.txt", "two")
    said = index(capsys, "both/n1", "both/n2", "-o", "idx")
    assert said.status == 2
    places = Path("both/n1/a.txt"), Path("both/n2/a.txt")
    assert f"'a.txt' occurs twice ({places[0]} and {places[1]}): index the folder that holds both" in said.err
    assert said.err.count("\n") == 1
    assert index(capsys, "both", "-o", "idx").status == 0, "what the error advises"
    assert sorted(Index.open("idx").ids()) == ["n1/a.txt", "n2/a.txt"]


def test_a_file_named_twice_has_no_other_folder(capsys: Capture) -> None:
    write("a.txt", "one")
    said = index(capsys, "a.txt", "a.txt", "-o", "idx")
    assert "occurs twice (a.txt and a.txt): give each its own" in said.err


def test_an_id_that_the_index_holds_is_told_with_its_line(capsys: Capture) -> None:
    write_jsonl("a.jsonl", {"id": "x", "text": "1"})
    index(capsys, "a.jsonl", "-o", "idx")
    # the second x comes after the refused one: it was not read, and is not looked for
    more = [{"id": key, "text": "2"} for key in ("y", "x", "y", "x")]
    write_jsonl("more.jsonl", *more)
    said = index(capsys, "more.jsonl", "-o", "idx", "--add")
    assert "already holds a document 'x' (more.jsonl, line 2): delete it first" in said.err
    said = index(capsys, "more.jsonl", "-o", "new", "--commit-every", "1")
    assert "already holds a document 'y' (more.jsonl, line 1 and more.jsonl, line 3)" in said.err


def test_lines_left_out_do_not_shift_the_places(capsys: Capture) -> None:
    write("a.jsonl", '{"id": "x", "text": "1"}\nbad\n\n{"id": "x", "text": "2"}\n')
    said = index(capsys, "a.jsonl", "-o", "idx", "--skip-bad")
    assert "occurs twice (a.jsonl, line 1 and a.jsonl, line 4)" in said.err


def test_the_standard_input_is_not_read_again(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = b'{"id": "x", "text": "1"}\n{"id": "x", "text": "2"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(twice)))
    said = index(capsys, "-", "-o", "idx")
    assert said.status == 2
    assert "the document id 'x' occurs twice: give each its own" in said.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_is_not_waited_for(capsys: Capture) -> None:
    os.mkfifo("pipe.jsonl")
    feed = threading.Thread(target=write, args=("pipe.jsonl", '{"id": "x", "text": "1"}\n'))
    feed.start()
    write_jsonl("a.jsonl", {"id": "x", "text": "2"})
    said = index(capsys, "pipe.jsonl", "a.jsonl", "-o", "idx")
    feed.join()
    assert "the document id 'x' occurs twice (a.jsonl, line 1)" in said.err


def test_places_in_every_format() -> None:
    files = {
        "c.jsonl": ('\n{"id": "x", "text": ""}\n', 2),
        "c.csv": ('id,text\na,"two\nlines"\nx,b\n', 4),
        "c.tsv": ("a\tb\nx\tc\n", 2),
        "c.trec": ("<DOC><DOCNO>a</DOCNO></DOC>\n<DOC>\n<DOCNO>x</DOCNO></DOC>\n", 2),
    }
    for name, (content, line) in files.items():
        assert [str(place) for place in places_of("x", write(name, content))] == [f"{name}, line {line}"]
    assert [str(place) for place in places_of("x", *files)] == ["c.jsonl, line 2", "c.csv, line 4"]
    assert places_of("x", "c.tsv", first=1) == []
    broken = write("broken.csv", "no,header\n")
    assert [str(place) for place in places_of("x", "c.tsv", broken)] == ["c.tsv, line 2"]


# What no reader of JSON takes back


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_not_json_are_refused_where_they_stand(capsys: Capture, constant: str) -> None:
    write_jsonl("odd.jsonl", {"id": "1", "text": "a"}, {"id": "2", "text": "b", "price": float(constant)})
    said = index(capsys, "odd.jsonl", "-o", "idx")
    assert (said.status, said.out) == (2, "")
    assert said.err == f"error: odd.jsonl, line 2: {constant} is not JSON: write null, or leave it out\n"
    assert not Path("idx", "manifest.json").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_metadata_that_are_not_json_are_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"the metadata of .* is not JSON .*: use plain values in it"):
        Index.build([Document("d", "a", metadata={"price": value})], "idx")


# An index that is there already


def test_what_an_index_was_made_with_is_said_by_its_name(capsys: Capture) -> None:
    one, two = (write_jsonl(f"{n}.jsonl", {"id": str(n), "text": "a"}) for n in (1, 2))
    assert index(capsys, str(one), "-o", "idx").status == 0
    said = index(capsys, str(two), "-o", "idx", "--add", "--positions")
    assert said.err == "error: idx was made without --positions: leave it out, or --overwrite the index\n"
    said = index(capsys, str(one), "-o", "idx")
    assert said.err.startswith("error: idx already holds an index: resume it (--resume), add to it (--add)")
