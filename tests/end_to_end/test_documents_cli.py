"""A folder as people have it: every kind of file in it is read, or counted and told."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tamis.base.errors import InputError
from tamis.cli import main
from tamis.formats import kinds, read_corpus
from tamis.index.index import Index
from tests.unit.formats.builders import ENCRYPTED, LAUGHS, archive, docx, epub, odt, paragraph, pdf

Capture = pytest.CaptureFixture[str]

needs_pdf = pytest.mark.skipif(kinds.EXTRAS["pdf"].is_missing(), reason="pypdfium2 is not installed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path("home")
    for name, text in {
        "page.html": "<title>Tamis</title><nav>Menu</nav><main><h1>Sieve</h1><p>Drum</main>",
        "notes/soup.md": "# Soup\n\nOnions",
        "notes/tea.rst": "Tea\n===\n\nLeaves",
        "notes/plain.txt": "Plain",
        "notes/LICENSE": "Free",
        "notes/a.png": "x",
        "b.png": "x",
        "c.css": "x",
        ".hidden": "x",
        ".git/config": "x",
        "lib/libc.so.6": "x",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "ls.1.gz").write_bytes(gzip.compress(b".TH LS 1\n.SH NAME\nls \\- list files\n"))
    docx(folder / "a.docx", paragraph("Flour", "Title") + paragraph("Sifted"))
    odt(folder / "b.odt", "<text:p>Sugar</text:p>")
    epub(folder / "c.epub", ["<p>Salt</p>"], title="Book")
    return folder


def test_a_folder_is_read_by_kind_and_the_rest_is_told(home: Path, capsys: Capture) -> None:
    assert main(["index", "home", "-o", "home/idx", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {each.id: (each.title, each.text) for each in Index.open("home/idx")} == {
        "a.docx": ("Flour", "Flour\nSifted"),
        "b.odt": ("", "Sugar"),
        "c.epub": ("Book", "Salt"),
        "ls.1.gz": ("ls - list files", "NAME\nls - list files"),
        "notes/plain.txt": ("", "Plain"),
        "notes/soup.md": ("Soup", "Onions"),
        "notes/tea.rst": ("Tea", "Leaves"),
        "page.html": ("Tamis", "Sieve\n\nDrum"),
    }
    assert err.splitlines() == [
        "warning: left out: 2 .png, 1 .css, 1 .so, 1 without a suffix, such as home/b.png",
        "warning: left out: 1 hidden folder, 1 hidden file",
    ]
    unread = "tamis does not read this kind"
    assert json.loads(out)["left_out"] == [
        {"kind": ".png", "files": 2, "reason": unread},
        {"kind": ".css", "files": 1, "reason": unread},
        {"kind": ".so", "files": 1, "reason": unread},
        {"kind": "hidden file", "files": 1, "reason": "hidden, or a link to a folder"},
        {"kind": "hidden folder", "files": 1, "reason": "hidden, or a link to a folder"},
        {"kind": "without a suffix", "files": 1, "reason": unread},
    ]


def test_what_a_format_leaves_out_is_told_too(home: Path, capsys: Capture) -> None:
    assert main(["index", "home", "-o", "idx", "--format", "text"]) == 0
    err = capsys.readouterr().err
    assert len(Index.open("idx")) == 2
    assert "warning: left out by --format text: " in err
    for each in ("1 .html", "1 .rst", "1 .docx", "1 .odt", "1 .epub", "1 .1"):
        assert each in err
    assert "warning: left out: 2 .png, 1 .css" in err


@needs_pdf
def test_bad_files_are_told_with_reasons_and_stop_nothing(home: Path, capsys: Capture) -> None:
    pdf(home / "good.pdf", "Butter", title="Cake")
    pdf(home / "locked.pdf", "x", encrypt=ENCRYPTED)
    pdf(home / "scan.pdf", "")
    (home / "cut.pdf").write_bytes(b"%PDF-1.4")
    archive(home / "laughs.docx", word__document=LAUGHS)
    (home / "cut.docx").write_bytes(b"PK\3\4")
    (home / "latin.txt").write_bytes(b"caf\xe9")
    (home / "binary.txt").write_bytes(b"\0\1\2\3" * 100)
    (home / "gone.html").symlink_to("nowhere")
    (home / "huge.txt").touch()
    os.truncate(home / "huge.txt", (1 << 25) + 1)
    assert main(["index", "home", "-o", "idx", "--json"]) == 0
    out, err = capsys.readouterr()
    assert Index.open("idx").document("good.pdf").title == "Cake"
    told = json.loads(out)
    assert (told["documents"], told["bad_files"], told["bad_lines"]) == (9, 9, 0)
    bad = {(each["kind"], each["reason"]) for each in told["left_out"]}
    assert bad >= {
        (".pdf", "encrypted"), (".pdf", "no text in it"), (".pdf", "damaged, or not a PDF file"),
        (".docx", "XML that declares entities"), (".docx", "damaged"), (".txt", "not UTF-8"),
        (".txt", "binary, not text"), (".html", "a broken link"), (".txt", "holds over 32 MiB"),
    }  # fmt: skip
    assert "warning: 9 bad files left out, such as home/binary.txt: binary, not text" in err
    assert "warning: the bad files: " in err and "1 .pdf: encrypted" in err


def test_a_missing_extra_is_one_line(home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = kinds.Extra("no_such_module", "pip install 'tamis[pdf]'")
    monkeypatch.setitem(kinds.EXTRAS, "pdf", missing)
    (home / "a.pdf").touch()
    (home / "b.pdf").touch()
    assert main(["index", "home", "-o", "idx", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "warning: left out: 2 .pdf, which need pip install 'tamis[pdf]'\n" in err
    needed = {"kind": ".pdf", "files": 2, "reason": "needs pip install 'tamis[pdf]'"}
    assert needed in json.loads(out)["left_out"]
    assert main(["index", "home/a.pdf", "-o", "idx2"]) == 2
    assert "reading .pdf needs no_such_module, which is not installed: pip install" in capsys.readouterr().err


def test_records_beside_documents_need_a_format(home: Path, capsys: Capture) -> None:
    (home / "tools.csv").write_text("id,text\n1,sieve\n")
    assert main(["index", "home", "-o", "idx"]) == 2
    assert capsys.readouterr().err == (
        "error: home: holds files that are a document each, such as a.docx, and files of records, such as "
        "tools.csv: give the format (--format): files for the documents, csv for the records\n"
    )
    assert main(["index", "home", "-o", "idx", "--format", "files"]) == 0
    assert "warning: left out by --format files: 1 .csv" in capsys.readouterr().err
    assert len(Index.open("idx")) == 8


def test_a_few_records_among_many_documents_are_told(home: Path, capsys: Capture) -> None:
    (home / "tools.csv").write_text("id,text\n1,sieve\n")
    for number in range(60):
        (home / f"{number}.txt").write_text("a note about sieves")
    assert main(["index", "home", "-o", "idx", "--json"]) == 0
    out, err = capsys.readouterr()
    told = "left out: 1 .csv, records among documents, such as home/tools.csv"
    assert f"warning: {told}: to index them too, name these files\n" in err
    assert {"kind": ".csv", "files": 1, "reason": "records among documents"} in json.loads(out)["left_out"]
    assert main(["index", "home/tools.csv", "-o", "idx", "--add"]) == 0


def test_a_folder_that_cannot_be_opened_is_told(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "private").mkdir()
    (home / "private" / "diary.txt").write_text("no")
    scan = os.scandir

    def refused(path: Any = ".") -> Any:  # as for everybody but root
        if str(path).endswith("private"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert main(["index", "home", "-o", "idx", "--json"]) == 0
    out, err = capsys.readouterr()
    told = "left out: 1 folder that cannot be opened, such as home/private: check that you may read it"
    assert f"warning: {told}\n" in err
    closed = {"kind": "closed folder", "files": 1, "reason": "a folder that cannot be opened"}
    assert closed in json.loads(out)["left_out"]
    problem = "private: cannot be opened: check that you may read it"
    with pytest.raises(InputError, match=problem):
        read_corpus("home")
    assert main(["index", "home/private", "-o", "idx2"]) == 2
    assert problem in capsys.readouterr().err
