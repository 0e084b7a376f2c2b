"""Corpora of every format, good and bad."""

import gzip
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.formats import LeftOut, SkipReport, read_corpus


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def ids(documents: object) -> list[str]:
    return [document.id for document in documents]  # type: ignore[attr-defined]


# JSONL


def test_jsonl_keys_of_every_dialect(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.jsonl",
        '{"_id": "1", "title": "T", "text": "a", "metadata": {"url": "u"}, "year": 1999}\n'
        '{"id": 2, "contents": "b"}\n'
        '{"docid": 3.5, "text": "c", "title": null, "metadata": null}\n'
        '{"_id": "4", "id": "other", "text": "d", "contents": "kept"}\n'
        '{"_id": "5", "text": null}\n'
        '{"_id": "6", "text": "", "metadata": "plain"}\n'
        '{"_id": "7", "body": "e", "content": "f"}\n',
    )
    assert list(read_corpus(file)) == [
        Document("1", "a", "T", {"url": "u", "year": 1999}),
        Document("2", "b"),
        Document("3.5", "c"),
        Document("4", "d", "", {"id": "other", "contents": "kept"}),
        Document("5", ""),
        Document("6", "", "", {"metadata": "plain"}),
        Document("7", "f", "", {"body": "e"}),
    ]


def test_jsonl_with_byte_order_mark_crlf_blank_lines_and_no_last_line_end(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.jsonl",
        b'\xef\xbb\xbf{"_id": "1", "text": "a"}\r\n\r\n  \n{"_id": "2", "text": "b"}  ',
    )
    assert list(read_corpus(file)) == [Document("1", "a"), Document("2", "b")]


def test_jsonl_keeps_nul_and_line_separators_inside_strings(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", '{"_id": "1", "text": "a\\u0000b\u2028c\u0085d"}\n')
    assert list(read_corpus(file)) == [Document("1", "a\0b\u2028c\u0085d")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"_id": "2", "text": "b"', "not JSON"),
        (b"[1, 2]", "not a JSON object: write one {...} per line, as jq -c '.[]' does of an array"),
        (b"[", "write one {...} per line, as jq -c '.[]' does of an array"),
        (b"{", "write one {...} per line"),
        (b'{"text": "b"}', "none of the keys '_id', 'id', 'docid' among 'text': rename or add one"),
        (
            b'{"_id": "2", "title": "b"}',
            "none of the keys 'text', 'contents', 'content', 'body' among '_id', 'title'",
        ),
        (b'{"_id": "", "text": "b"}', '"" is not an id'),
        (b'{"_id": null, "text": "b"}', "null is not an id"),
        (b'{"_id": true, "text": "b"}', "true is not an id"),
        (b'{"_id": ["2"], "text": "b"}', "is not an id"),
        (b'{"_id": "2", "text": 7}', "'text' is not a string"),
        (b'{"_id": "2", "text": "b", "title": {}}', "'title' is not a string"),
        (b'{"_id": "2", "text": "caf\xe9"}', "not UTF-8 (byte 0xe9)"),
        (b'{"_id": "2", "text": "\\ud83c"}', "half of a surrogate pair"),
        (b'{"_id": "2", "text": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"_id": ' + b"9" * 5000 + b', "text": ""}', "a number of thousands of digits"),
        (b'\xef\xbb\xbf{"_id": "2", "text": "b"}', "not JSON"),
    ],
)
def test_a_bad_json_line_is_named_or_skipped(tmp_path: Path, line: bytes, problem: str) -> None:
    good = b'{"_id": "1", "text": "a"}'
    file = write(tmp_path / "c.jsonl", good + b"\n" + line + b"\n" + good.replace(b"1", b"3") + b"\n")
    with pytest.raises(InputError) as caught:
        list(read_corpus(file))
    assert (caught.value.path, caught.value.line) == (str(file), 2)
    assert problem in str(caught.value)
    report = SkipReport()
    assert ids(read_corpus(file, skipped=report)) == ["1", "3"]
    assert report.count == 1
    assert report.examples == [str(caught.value)]


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", '{"_id": "1", "text": "\\ud83c\\udf73"}')
    assert next(read_corpus(file)).text == "\U0001f373"


def test_the_report_keeps_only_the_first_examples(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", "bad\n" * 9)
    report = SkipReport()
    assert list(read_corpus(file, skipped=report)) == []
    assert report.count == 9
    assert [example.partition(": ")[0] for example in report.examples] == [
        f"{file}, line {number}" for number in range(1, 6)
    ]


def test_an_empty_file_has_no_documents(tmp_path: Path) -> None:
    for name in ("c.jsonl", "c.csv", "c.tsv", "c.trec"):
        assert list(read_corpus(write(tmp_path / name, ""))) == []


# TSV


@pytest.mark.parametrize(
    ("line", "document"),
    [
        ("1\tthe text", Document("1", "the text")),
        ("1\t", Document("1", "")),
        ("1\ttitle\tthe text \r", Document("1", "the text ", "title")),
        ("D1\thttp://u\ttitle\tbody", Document("D1", "body", "title", {"url": "http://u"})),
    ],
)
def test_tsv_columns(tmp_path: Path, line: str, document: Document) -> None:
    assert list(read_corpus(write(tmp_path / "c.tsv", line + "\n"))) == [document]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("2", "1 tab-separated columns where the lines above have 2"),
        ("2\ta\tb", "3 tab-separated columns where the lines above have 2"),
        ("\ttext", "the id is empty"),
    ],
)
def test_a_bad_tsv_line_is_named_or_skipped(tmp_path: Path, line: str, problem: str) -> None:
    file = write(tmp_path / "c.tsv", f"1\ta\n{line}\n3\tc\n")
    with pytest.raises(InputError, match=f"line 2: {problem}"):
        list(read_corpus(file))
    report = SkipReport()
    assert ids(read_corpus(file, skipped=report)) == ["1", "3"]
    assert report.count == 1


def test_a_first_tsv_line_without_tabs_is_bad(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 1: 1 tab-separated columns where a corpus has 2 to 4"):
        list(read_corpus(write(tmp_path / "c.tsv", "a b c\n")))


# TREC


NEWS = """<DOC>
<DOCNO> FT911-3 </DOCNO>
<DATE>910514</DATE>
<HEADLINE>
FT  14 MAY 91 / Sieves
&amp; cooks
</HEADLINE>
<LP>A lead.</LP>
<TEXT>
<P>Finer &lt; finest; 1 < 2.</P>
</TEXT>
</DOC>
<DOC><DOCNO>FT911-4</DOCNO><TEXT>two</TEXT></DOC> <doc><docno>FT911-5</docno><text>three</text></doc>
"""


def test_trec_newswire(tmp_path: Path) -> None:
    assert list(read_corpus(write(tmp_path / "c.trec", NEWS))) == [
        Document("FT911-3", "A lead.\n\n Finer < finest; 1 < 2.", "FT 14 MAY 91 / Sieves & cooks"),
        Document("FT911-4", "two"),
        Document("FT911-5", "three"),
    ]


def test_trec_web_page_takes_the_title_out_of_its_head(tmp_path: Path) -> None:
    page = """<DOC>
<DOCNO>GX000</DOCNO>
<DOCHDR>
http://example.org/ 200
</DOCHDR>
<html><head>above<title>A  page</title><script>var a = "<p>";</script></head>
<body class="x">Body <!-- not <b>this</b> -->text</body></html>
</DOC>"""
    (document,) = read_corpus(write(tmp_path / "c.trec", page))
    assert (document.id, document.title, document.text.split()) == (
        "GX000",
        "A page",
        ["above", "Body", "text"],
    )


def test_trec_documents_in_latin_1(tmp_path: Path) -> None:
    file = write(
        tmp_path / "c.trec",
        b"<DOC><DOCNO>1</DOCNO><TEXT>caf\xe9</TEXT></DOC>\n<DOC><DOCNO>2</DOCNO><TEXT>caf\xc3\xa9</TEXT></DOC>",
    )
    assert [document.text for document in read_corpus(file)] == ["caf\u00e9", "caf\u00e9"]


@pytest.mark.parametrize(
    ("middle", "problem"),
    [
        ("<DOC>\n<TEXT>no id</TEXT></DOC>", "<DOC> without a <DOCNO>"),
        ("<DOC>\n<DOCNO> </DOCNO></DOC>", "<DOC> without a <DOCNO>"),
        ("<DOC>\n<DOCNO>2</DOCNO>", "<DOC> without </DOC>"),
    ],
)
def test_a_bad_trec_document_is_named_or_skipped(tmp_path: Path, middle: str, problem: str) -> None:
    good = "<DOC>\n<DOCNO>1</DOCNO>\n</DOC>\n"
    file = write(tmp_path / "c.trec", good + middle + "\n" + good.replace("1", "3"))
    with pytest.raises(InputError, match=f"line 4: {problem}"):
        list(read_corpus(file))
    report = SkipReport()
    assert ids(read_corpus(file, skipped=report)) == ["1", "3"]
    assert report.count == 1


def test_a_trec_file_cut_short_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "c.trec", "<DOC>\n<DOCNO>1</DOCNO>\n</DOC>\n<DOC>\n<DOCNO>2</DOC")
    with pytest.raises(InputError, match="line 4: <DOC> without </DOC>"):
        list(read_corpus(file))


def test_a_file_of_another_format_is_not_an_empty_trec_corpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no <DOC>"):
        list(read_corpus(write(tmp_path / "c.trec", '{"_id": "1"}\n')))


# Folders, text files and the choice of format


def test_a_folder_of_text_files(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", b"\xef\xbb\xbfone\r\ntwo\0")
    write(tmp_path / "a" / "z.md", "# three")
    write(tmp_path / "a" / "Y.TXT", "")
    write(tmp_path / "a" / "image.png", b"\x89PNG")
    write(tmp_path / ".git" / "c.txt", "hidden")
    write(tmp_path / ".hidden.txt", "hidden")
    write(tmp_path / "package.json", "{}")
    assert list(read_corpus(tmp_path)) == [
        Document("a/Y.TXT", ""),
        Document("a/z.md", "", "three"),
        Document("b.txt", "one\ntwo\0"),
    ]


def test_a_text_file_that_is_not_utf8_is_named_or_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "fine")
    bad = write(tmp_path / "b.txt", b"line\ncaf\xe9")
    with pytest.raises(InputError) as caught:
        list(read_corpus(tmp_path))
    assert (caught.value.path, caught.value.line) == (str(bad), 2)
    report = SkipReport()
    assert ids(read_corpus(tmp_path, skipped=report)) == ["a.txt"]
    assert report.count == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_file_name_that_is_not_utf8_is_named_or_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "fine")
    write(tmp_path / os.fsdecode(b"caf\xe9.txt"), "fine too")
    with pytest.raises(InputError, match=r"caf\\udce9.txt: the file's name is not UTF-8"):
        list(read_corpus(tmp_path))
    report = SkipReport()
    assert ids(read_corpus(tmp_path, skipped=report)) == ["a.txt"]
    assert report.count == 1


def test_a_beir_folder_is_its_corpus_file(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", '{"_id": "1", "text": "a"}')
    write(tmp_path / "queries.jsonl", '{"_id": "q", "text": "b"}')
    write(tmp_path / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\n")
    write(tmp_path / "README.md", "about")
    assert ids(read_corpus(tmp_path)) == ["1"]


def test_a_folder_of_corpus_files(tmp_path: Path) -> None:
    write(tmp_path / "2.tsv", "t\tb\n")
    write(tmp_path / "1.jsonl.gz", gzip.compress(b'{"_id": "j", "text": "a"}'))
    write(tmp_path / "sub" / "3.trec", "<DOC><DOCNO>d</DOCNO>c</DOC>")
    assert list(read_corpus(tmp_path)) == [Document("j", "a"), Document("t", "b"), Document("d", "c")]


def test_a_folder_of_both_kinds_needs_a_format(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", "note")
    write(tmp_path / "part.jsonl", '{"_id": "1", "text": "a"}')
    with pytest.raises(InputError, match=r"as notes.txt, .* as part.jsonl: give the format"):
        read_corpus(tmp_path)
    assert ids(read_corpus(tmp_path, format="text")) == ["notes.txt"]
    assert ids(read_corpus(tmp_path, format="jsonl")) == ["1"]


def test_a_few_records_among_many_documents_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "example.csv", "id,text\n1,sieve\n")
    for number in range(49):
        write(tmp_path / f"{number}.txt", "a note")
    with pytest.raises(InputError, match="give the format"):
        read_corpus(tmp_path)
    write(tmp_path / "49.txt", "a note")
    left_out = LeftOut()
    assert len(ids(read_corpus(tmp_path, left_out=left_out))) == 50
    assert left_out.counts("records") == {".csv": 1}
    assert ids(read_corpus(tmp_path, format="csv")) == ["1"]
    write(
        tmp_path / "example.csv", "id,text\n" + "".join(f"{n},sieve\n" for n in range(50))
    )  # the larger part
    with pytest.raises(InputError, match="give the format"):
        read_corpus(tmp_path)


def test_files_without_suffix_are_read_when_the_format_is_given(tmp_path: Path) -> None:
    write(tmp_path / "ft911_1", "<DOC><DOCNO>1</DOCNO>a</DOC>")
    assert ids(read_corpus(tmp_path, format="trec")) == ["1"]
    assert ids(read_corpus(tmp_path / "ft911_1", format="trec")) == ["1"]


def test_several_paths_in_the_order_given(tmp_path: Path) -> None:
    first = write(tmp_path / "z.tsv", "2\tb")
    second = write(tmp_path / "a.txt", "text")
    assert ids(read_corpus(first, second)) == ["2", "a.txt"]


def test_paths_and_formats_are_checked_before_reading(tmp_path: Path) -> None:
    good = write(tmp_path / "a.tsv", "1\ta")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no such file or folder"):
        read_corpus(good, tmp_path / "missing.tsv")
    with pytest.raises(InputError, match=r"'\.xyz' names no corpus format: give the format \(--format\)"):
        read_corpus(write(tmp_path / "a.xyz", ""))
    with pytest.raises(InputError, match="holds no corpus file"):
        read_corpus(tmp_path / "empty")
    with pytest.raises(
        InputError, match="unknown corpus format 'xml': use one of jsonl, csv, tsv, trec, text, markdown"
    ):
        read_corpus(good, format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("c.jsonl.gz", gzip.compress),
        ("c.jsonl.zst", zstandard.ZstdCompressor().compress),
        ("C.JSONL", bytes),
    ],
)
def test_compressed_and_upper_case_names(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    content = json.dumps({"_id": "1", "text": "a"}).encode()
    compress = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(
        name[-3:].strip("."), bytes
    )
    assert list(read_corpus(write(tmp_path / name, compress(content)))) == [Document("1", "a")]


def test_a_truncated_gz_is_an_error_even_when_lines_may_be_skipped(tmp_path: Path) -> None:
    lines = "".join(f'{{"_id": "{number}", "text": "a"}}\n' for number in range(5000))
    file = write(tmp_path / "c.jsonl.gz", gzip.compress(lines.encode())[:-20])
    with pytest.raises(InputError, match="damaged or cut short"):
        list(read_corpus(file, skipped=SkipReport()))


def test_standard_input_is_jsonl_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"_id": "1", "text": "a"}')))
    assert ids(read_corpus("-")) == ["1"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"2\tb")))
    assert ids(read_corpus("-", format="tsv")) == ["2"]


def test_documents_come_before_the_file_is_read_to_its_end(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", '{"_id": "1", "text": "a"}\nnot json\n')
    documents = read_corpus(file)
    assert next(documents).id == "1"
    with pytest.raises(InputError):
        next(documents)
