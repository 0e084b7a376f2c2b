"""Corpora in CSV: what spreadsheets and databases write, and what goes wrong with it."""

import csv
import gzip
import io
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tamis import Index
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.cli import main
from tamis.formats import SkipReport, csv_rows, read_corpus

WELL_KNOWN = "id,title,text\n1,Sieve,For flour\n"


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# What is read


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (WELL_KNOWN, [Document("1", "For flour", "Sieve")]),
        ("_id,contents\n1,a\n2,\n", [Document("1", "a"), Document("2", "")]),
        ("text,docid\na,1", [Document("1", "a")]),
        ("id,content,body\n1,a,b\n", [Document("1", "a", "", {"body": "b"})]),
        ("ID, Title ,Body,Year\n1,T,a,1900\n", [Document("1", "a", "T", {"Year": "1900"})]),
        ("id,text,metadata\n1,a,m\n", [Document("1", "a", "", {"metadata": "m"})]),
        ('"id","text"\n"1","a ""b"", c"\n', [Document("1", 'a "b", c')]),
        ('id,text\n1,5" pipe\n', [Document("1", '5" pipe')]),
        ('id,text\r\n1,"a\r\n\r\nb"\r\n2,c\r\n', [Document("1", "a\n\nb"), Document("2", "c")]),
        ('id,"te\nxt",text\n1,x,a\n', [Document("1", "a", "", {"te\nxt": "x"})]),
        (b"\xef\xbb\xbfid,text\n1,caf\xc3\xa9\n", [Document("1", "caf\u00e9")]),
        (b'\xef\xbb\xbf"id","text"\n1,a\n', [Document("1", "a")]),
        ("id;text\n1;1,5 litres\n", [Document("1", "1,5 litres")]),
        ('id;text;"a, b, c, d"\n1;a;b\n', [Document("1", "a", "", {"a, b, c, d": "b"})]),
        ("id\ttext\n1\ta, b; c\n", [Document("1", "a, b; c")]),
        (",id,text,\n0,1,a,\n", [Document("1", "a")]),
        ("\n \nid,text\n\n1,a\n,\n\n", [Document("1", "a")]),
        ("id,text\n1,a\0b\u2028c\u0085d\n", [Document("1", "a\0b\u2028c\u0085d")]),
        ("id,text\n", []),
        ("\n\n", []),
    ],
)
def test_what_is_read(tmp_path: Path, content: bytes | str, documents: list[Document]) -> None:
    assert list(read_corpus(write(tmp_path / "c.csv", content))) == documents


CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(['"', ",;\t", "\r\n"])


@given(
    st.lists(st.tuples(CELLS.filter(str.strip), CELLS, CELLS), max_size=4),
    st.sampled_from(csv_rows.SEPARATORS),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_pythons_writer_writes_is_read(
    rows: list[tuple[str, str, str]], separator: str, quoting: int
) -> None:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=separator, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([("id", "text", "note"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        found = list(read_corpus(write(Path(folder) / "c.csv", stream.getvalue())))
    plain = [tuple(cell.replace("\r\n", "\n") for cell in row) for row in rows]
    assert [(document.id, document.text, document.metadata["note"]) for document in found] == plain


@pytest.mark.parametrize(
    ("name", "compress"),
    [("c.csv.gz", gzip.compress), ("c.csv.zst", zstandard.ZstdCompressor().compress), ("C.CSV", bytes)],
)
def test_compressed_and_upper_case_names(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    file = write(tmp_path / name, compress(WELL_KNOWN.encode()))
    assert list(read_corpus(file)) == [Document("1", "For flour", "Sieve")]


def test_the_format_may_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "c.tsv", WELL_KNOWN.replace(",", "\t"))
    with pytest.raises(InputError, match=r"c\.tsv, line 1: a header \('id', .*: read the file as csv"):
        list(read_corpus(file, skipped=SkipReport()))
    assert list(read_corpus(file, format="csv")) == [Document("1", "For flour", "Sieve")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WELL_KNOWN.encode())))
    assert list(read_corpus("-", format="csv")) == [Document("1", "For flour", "Sieve")]


def test_a_folder_of_tables(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", WELL_KNOWN)
    write(tmp_path / "a.csv", "id;body\n2;a\n")
    assert [document.id for document in read_corpus(tmp_path)] == ["2", "1"]
    write(tmp_path / "notes.txt", "note")
    with pytest.raises(InputError, match=r"such as notes.txt, .*such as a.csv: give the format"):
        read_corpus(tmp_path)


def test_documents_come_before_the_file_is_read_to_its_end(tmp_path: Path) -> None:
    documents = read_corpus(write(tmp_path / "c.csv", WELL_KNOWN + "2\n"))
    assert next(documents).id == "1"
    with pytest.raises(InputError):
        next(documents)


def test_a_long_text_is_no_error_and_the_limit_is_only_raised(tmp_path: Path) -> None:
    before = csv.field_size_limit(100)
    try:
        file = write(tmp_path / "c.csv", f'id,text\n1,"{"word " * 40_000}"\n')
        assert len(next(read_corpus(file)).text) == 200_000
        csv.field_size_limit(csv_rows.LONGEST_CELL + 1)
        list(read_corpus(file))
        assert csv.field_size_limit() == csv_rows.LONGEST_CELL + 1
    finally:
        csv.field_size_limit(before)


# What is wrong


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "number,name,description\n17,Sieve,For flour\n",
            "line 1: none of the columns '_id', 'id', 'docid' among 'number', 'name', 'description': "
            "the first line names the columns: rename or add one",
        ),
        (
            "\nid;name\n17;Sieve\n",
            "line 2: none of the columns 'text', 'contents', 'content', 'body' among 'id', 'name': ",
        ),
        (",".join(f"c{number}" for number in range(30)), "'c6', 'c7', ...: the first line names"),
        ("x" * 1000, f"among '{'x' * 39}...: the first line names"),
        ("id,text,Text\n1,a,b\n", "line 1: two columns 'text': rename one"),
        ("title,Year,id,Year,text\n", "line 1: two columns 'Year': rename one"),
        (b"id,text,caf\xe9\n1,a,b\n", "line 1: not UTF-8 (byte 0xe9): convert the file to UTF-8"),
        ("id,text\n1,a\n".encode("utf-16"), "line 1: not UTF-8 (byte 0xff): convert the file to UTF-8"),
        ('id,"text\n1,a\n', "line 1: a quote is opened and never closed"),
        ("id,text\r1,a\r", "line 1: a carriage return outside quotes: end lines with a line feed"),
    ],
)
def test_a_bad_header_is_an_error_even_when_lines_may_be_skipped(
    tmp_path: Path, content: bytes | str, problem: str
) -> None:
    file = write(tmp_path / "c.csv", content)
    for skipped in (None, SkipReport()):
        with pytest.raises(InputError, match=re.escape(problem)) as caught:
            list(read_corpus(file, skipped=skipped))
        assert str(caught.value).startswith(f"{file}, line ")


@pytest.mark.parametrize(
    ("row", "lines", "problem"),
    [
        (b"2,a,b", 1, "3 columns where the header has 2: put quotes around a text that holds the separator"),
        (b"2", 1, "1 columns where the header has 2: give every row all the columns, be they empty"),
        (b'2,"a\n\nb",c', 3, "3 columns where the header has 2"),
        (b",a", 1, '"" is not an id: fill it in, or leave the line out'),
        (b'2,"say "hi" there"', 1, 'text after a closing quote: write a quote inside a text twice ("")'),
        (b'2,"a\nsay "hi" there"', 2, "text after a closing quote"),
        (b"2,a\rb", 1, "a carriage return outside quotes"),
        (b"2,caf\xe9", 1, "not UTF-8 (byte 0xe9)"),
        (b'2,"caf\xe9\n4,b\n5,c"', 3, "not UTF-8 (byte 0xe9)"),
    ],
)
def test_a_bad_row_is_named_or_skipped(tmp_path: Path, row: bytes, lines: int, problem: str) -> None:
    file = write(tmp_path / "c.csv", b'id,text\n1,"a\nb"\n' + row + b"\n3,c\n")
    with pytest.raises(InputError) as caught:
        list(read_corpus(file))
    assert (caught.value.path, caught.value.line) == (str(file), 4)
    assert problem in str(caught.value)
    report = SkipReport()
    assert [document.id for document in read_corpus(file, skipped=report)] == ["1", "3"]
    assert report.count == lines
    assert report.examples == [str(caught.value)]


def test_all_that_an_open_quote_swallows_is_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "c.csv", 'id,text\n1,a\n2,"b\n3,c\n4,d\n')
    problem = 'line 3: a quote is opened and never closed: close it; write a quote inside a text twice ("")'
    with pytest.raises(InputError, match=re.escape(problem)):
        list(read_corpus(file))
    report = SkipReport()
    assert [document.id for document in read_corpus(file, skipped=report)] == ["1"]
    assert report.count == 3


def test_an_open_quote_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = csv.field_size_limit(10)
    monkeypatch.setattr(csv_rows, "LONGEST_CELL", 10)
    try:
        file = write(tmp_path / "c.csv", 'id,text\n1,"a\n' + "2,b\n" * 1000)
        report = SkipReport()
        documents = list(read_corpus(file, skipped=report))
    finally:
        csv.field_size_limit(before)
    assert report.examples[0].startswith(f"{file}, line 2: a cell of over ")
    assert 0 < report.count < 6
    assert len(documents) + report.count == 1001


def test_a_truncated_gz_is_an_error_even_when_lines_may_be_skipped(tmp_path: Path) -> None:
    rows = "".join(f"{number},a\n" for number in range(5000))
    file = write(tmp_path / "c.csv.gz", gzip.compress(f"id,text\n{rows}".encode())[:-20])
    with pytest.raises(InputError, match="damaged or cut short"):
        list(read_corpus(file, skipped=SkipReport()))


# The command


def test_index_add_and_resume(tmp_path: Path) -> None:
    rows = [f"{number},{'flour ' * number}" for number in range(1, 8)]
    file, index = tmp_path / "c.csv", tmp_path / "idx"
    write(file, "\n".join(["id,text", *rows[:4], "cut,off,here"]))
    assert main(["index", str(file), "-o", str(index), "--commit-every", "2"]) != 0
    assert len(Index.open(index)) == 4
    write(file, "\n".join(["id,text", *rows]))
    assert main(["index", str(file), "-o", str(index), "--resume"]) == 0
    assert len(Index.open(index)) == 7
    write(file, "id,text\n7,butter\n8,cream\n")
    assert main(["index", str(file), "-o", str(index), "--add", "--on-duplicate", "replace"]) == 0
    assert len(Index.open(index)) == 8
    assert Index.open(index).document("7").text == "butter"
