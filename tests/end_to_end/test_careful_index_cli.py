"""`tamis index` and `tamis delete` where something is not as it seems: files that are none, another corpus,
ids that are unknown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tamis.cli import main
from tamis.formats.corpora import files_left_out
from tamis.index.index import Index

Capture = pytest.CaptureFixture[str]
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    Path("notes/soup.txt").write_text("Onions and butter")


def said(capsys: Capture, *arguments: str) -> SimpleNamespace:
    capsys.readouterr()
    status = main([*arguments])
    captured = capsys.readouterr()
    return SimpleNamespace(status=status, out=captured.out, err=captured.err)


def write_corpus(name: str, **texts: str) -> str:
    Path(name).write_text(
        "".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in texts.items())
    )
    return name


# Files that are none


@needs_pipes
@pytest.mark.parametrize("options", [[], ["--format", "text"]])
def test_a_pipe_in_a_folder_is_left_out_and_told(options: list[str]) -> None:
    os.mkfifo("notes/cake.txt")
    code = "import sys; from tamis.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "index", "notes", "-o", "idx", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == (
        "warning: 1 file left out, such as notes/cake.txt: "
        "a pipe, socket or device is read only if it is named\n"
    )
    assert list(Index.open("idx").ids()) == ["soup.txt"]
    assert files_left_out(Path("notes")) == files_left_out(Path("notes"), "text") == [Path("notes/cake.txt")]
    # no file has the suffix, and then every file is read
    assert files_left_out(Path("notes"), "jsonl") == [Path("notes/cake.txt")]
    Path("notes/a.jsonl").touch()
    assert files_left_out(Path("notes"), "jsonl") == [Path("notes/cake.txt"), Path("notes/soup.txt")]


@needs_pipes
def test_a_pipe_that_is_named_is_read(capsys: Capture) -> None:
    os.mkfifo("cake.txt")
    writer = threading.Thread(target=lambda: Path("cake.txt").write_text("Flour and eggs"))
    writer.start()
    assert said(capsys, "index", "cake.txt", "-o", "idx").err == ""
    writer.join()
    assert Index.open("idx").document("cake.txt").text == "Flour and eggs"


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("b.txt", "", []),
        ("b.txt", "", ["--skip-bad"]),
        ("b.jsonl", '{"id": "1", "text": "a"}', ["--skip-bad"]),
    ],
)
def test_a_link_to_nothing_is_named_or_skipped(
    capsys: Capture, name: str, text: str, options: list[str]
) -> None:
    folder = Path("linked")
    folder.mkdir()
    (folder / f"a{Path(name).suffix}").write_text(text)
    (folder / name).symlink_to("gone")
    problem = f"linked/{name}: a broken link (gone): remove the link, or restore the file"
    if name == "b.jsonl":  # all of whose documents would be missing; a text is one
        refused = said(capsys, "index", "linked", "-o", "idx")
        assert (refused.status, refused.out) == (2, "")
        assert refused.err.startswith(f"error: {problem}")
    skipped = said(capsys, "index", "linked", "-o", "idx", *options, "--json")
    assert f"warning: 1 bad file left out, such as {problem}" in skipped.err
    told = json.loads(skipped.out)
    assert (told["documents"], told["bad_lines"], told["bad_files"]) == (1, 0, 1)


def test_a_link_to_a_file_is_read(capsys: Capture) -> None:
    Path("notes/same.txt").symlink_to("soup.txt")
    assert said(capsys, "index", "notes", "-o", "idx").err == ""
    assert len(Index.open("idx")) == 2


def test_bad_lines_and_bad_files_are_told_apart(capsys: Capture) -> None:
    Path("notes/cake.txt").write_bytes(b"caf\xe9")
    Path("bad.jsonl").write_text("no\nno\n")
    found = said(capsys, "index", "notes", "bad.jsonl", "-o", "idx", "--skip-bad")
    assert found.err.startswith(
        "warning: 2 bad lines and 1 bad file left out, such as notes/cake.txt, line 1:"
    )


# Another corpus


def test_resume_counts_what_was_there(capsys: Capture) -> None:
    write_corpus("c.jsonl", a="one", b="two")
    assert said(capsys, "index", "c.jsonl", "-o", "idx").status == 0
    write_corpus("c.jsonl", a="one", b="two", c="three")
    resumed = said(capsys, "index", "c.jsonl", "-o", "idx", "--resume")
    assert resumed.out.startswith("idx: 3 documents (3 read, 2 there already), ")
    assert resumed.err == ""
    told = json.loads(said(capsys, "index", "c.jsonl", "-o", "idx", "--resume", "--json").out)
    assert (told["read"], told["there_already"], told["there_already_changed"]) == (3, 3, 0)


def test_resume_with_other_texts_keeps_those_that_are_there_and_says_so(capsys: Capture) -> None:
    write_corpus("c.jsonl", a="one", b="two", c="three")
    assert said(capsys, "index", "c.jsonl", "-o", "idx", "--no-merge", "--commit-every", "1").status == 0
    write_corpus("other.jsonl", a="one", b="zwei", c="drei", d="vier")
    resumed = said(capsys, "index", "other.jsonl", "-o", "idx", "--resume", "--json")
    assert resumed.err == (
        "warning: 2 documents have another text in idx, such as b: the old text is kept; "
        "for the new one use --add --on-duplicate replace instead of --resume\n"
    )
    assert json.loads(resumed.out)["there_already_changed"] == 2
    texts = {document.id: document.text for document in Index.open("idx")}
    assert texts == {"a": "one", "b": "two", "c": "three", "d": "vier"}


def test_resume_with_none_of_the_documents_warns(capsys: Capture) -> None:
    write_corpus("c.jsonl", a="one", b="two")
    assert said(capsys, "index", "c.jsonl", "-o", "idx").status == 0
    write_corpus("other.jsonl", c="three")
    resumed = said(capsys, "index", "other.jsonl", "-o", "idx", "--resume")
    assert resumed.err == (
        "warning: none of these documents is among the 2 documents that idx had: "
        "--resume continues an interrupted corpus; check that it is this one\n"
    )
    assert sorted(Index.open("idx").ids()) == ["a", "b", "c"]


def test_who_asks_to_skip_is_told_how_many_and_no_more(capsys: Capture) -> None:
    write_corpus("c.jsonl", a="one")
    assert said(capsys, "index", "c.jsonl", "-o", "idx").status == 0
    write_corpus("more.jsonl", a="eins", b="zwei")
    added = said(capsys, "index", "more.jsonl", "-o", "idx", "--add", "--on-duplicate", "skip")
    assert added.out.startswith("idx: 2 documents (2 read, 1 there already), ")
    assert added.err == ""


def test_what_a_corpus_has_twice_was_not_there_already(capsys: Capture) -> None:
    Path("twice.jsonl").write_text('{"id": "a", "text": "one"}\n{"id": "a", "text": "two"}\n')
    options = ["-o", "idx", "--on-duplicate", "skip", "--commit-every", "1"]
    told = said(capsys, "index", "twice.jsonl", *options)
    assert (told.out[:25], told.err) == ("idx: 1 document (2 read),", "")


# Ids that are unknown


def test_delete_counts_and_names_all_that_are_unknown(capsys: Capture) -> None:
    write_corpus("c.jsonl", a="one", b="two")
    assert said(capsys, "index", "c.jsonl", "-o", "idx").status == 0
    one = said(capsys, "delete", "idx", "nope")
    assert (one.status, one.err) == (2, "error: the index holds no document 'nope': check the id\n")
    two = said(capsys, "delete", "idx", "a", "x", "y", "x")
    problem = "error: the index does not hold 2 of these 3 documents ('x', 'y'): check the ids\n"
    assert (two.status, two.err) == (2, problem)
    many = said(capsys, "delete", "idx", *map(str, range(9)))
    assert "hold 9 of these 9 documents ('0', '1', '2', '3', '4' and 4 more): check the ids" in many.err
    assert len(Index.open("idx")) == 2
