"""Files that are one document each: web pages, markup, manual pages and encodings."""

from pathlib import Path

import pytest

from tamis.base.errors import InputError
from tamis.formats.charset import declared, decoded
from tamis.formats.kinds import format_in_folder, format_of, kind_of
from tamis.formats.man_pages import read_man, unescaped
from tamis.formats.markup import read_markdown, read_rst
from tamis.formats.pages import Parts, looks_binary, page
from tamis.formats.web import read_html

PAGE = b"""<!doctype html><html><head><meta charset=utf-8><title> Sieves &amp;
 cooks </title><link rel=canonical href="https://example.org/sieves"><style>p{}</style></head><body>
<header><a href=/>Home</a></header><nav><ul><li>Menu</ul></nav>
<main><h1>Sieves<a class=headerlink href=#s>\xc2\xb6</a></h1><p>Fine <b>and</b> <i>flat</i>.<p>Round<br>too.
<pre>  two
    lines</pre><script>var x = "<p>not this";</script><table><tr><td>a<td>b<tr><td>c</table>
<header>Kept</header></main><footer>Imprint</footer></body></html>"""


def test_a_page_is_its_title_and_main_text() -> None:
    found = read_html(PAGE)
    assert (found.title, found.url) == ("Sieves & cooks", "https://example.org/sieves")
    assert found.text.split("\n") == [
        "Sieves", "", "Fine and flat.", "", "Round", "too.", "", "  two", "    lines", "", "a b", "", "c", "",
        "Kept",
    ]  # fmt: skip


def test_a_page_without_main_is_its_body_without_navigation() -> None:
    found = read_html(b"<nav>Menu</nav><h1>Soup</h1><div>Onions</div><div hidden>no</div><footer>F</footer>")
    assert (found.title, found.text) == ("Soup", "Soup\n\nOnions")
    nested = b"<body><main><p>a<div role=main>b</div></main><p>aside<main>c</main>"
    assert read_html(nested).text.split() == ["a", "b", "c"]


def test_the_navigation_of_manuals_is_no_text() -> None:
    docbook = b"<div class=navheader><table><tr><td>Prev<td>Next</table></div><h1>Soup</h1><p>Onions"
    assert read_html(docbook + b"<div class='navfooter'>Home</div>").text == "Soup\n\nOnions"
    assert read_html(b"<DIV CLASS='navigation'><B>Up:</B></DIV><h1>Soup</h1>").text == "Soup"
    assert read_html(b"<table class='navigation x'><tr><td>Up</table><h1>Soup</h1>").text == "Soup"


@pytest.mark.parametrize(
    ("data", "title"),
    [
        (b"<title></title><h1>Soup</h1>", "Soup"),
        (b"<title> \n</title><h1> </h1><h1>Soup</h1>", "Soup"),
        (b"<p><svg><title>An arrow</title></svg><h1>Soup</h1>", "Soup"),
        (b"<p><svg><title>An arrow</title></svg>", ""),
        (b"<title>Soup</title><h1>Onions</h1>", "Soup"),
    ],
)
def test_a_page_without_a_title_has_that_of_its_first_heading(data: bytes, title: str) -> None:
    assert read_html(data).title == title


@pytest.mark.parametrize(
    "data", [b"", b"<", b"<title>", b"</body></html><p>late", b"<table><p>x</table>", b"<p>one\0two"]
)
def test_broken_pages_are_read_as_browsers_do(data: bytes) -> None:
    assert "\0" not in read_html(data).text


def test_a_page_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="binary, not a page"):
        read_html(b"\x7fELF" + bytes(range(20)) * 100)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("naïve".encode(), "naïve"),
        (b"\xef\xbb\xbfna\xc3\xafve", "naïve"),
        ("naïve".encode("utf-16"), "naïve"),
        (b"na\xefve \x80 \x81", "naïve € \x81"),
        (b'<meta charset="ISO-8859-1">\x93', '<meta charset="ISO-8859-1">“'),
        (b"<?xml version='1.0' encoding='koi8-r'?>\xc1", "<?xml version='1.0' encoding='koi8-r'?>а"),
        (b"<meta charset=utf-16>\xc3\xa9", "<meta charset=utf-16>é"),
        (b"<meta charset=utf-8>\xe9", "<meta charset=utf-8>\ufffd"),
        (b"<meta charset=nonsense>\xe9", "<meta charset=nonsense>é"),
        (b"<meta charset=zip>\xe9", "<meta charset=zip>é"),
    ],
)
def test_encodings_are_found_as_browsers_find_them(data: bytes, text: str) -> None:
    assert decoded(data) == text


def test_a_declaration_counts_in_the_first_kilobyte_only() -> None:
    assert declared(b" " * 2000 + b"<meta charset=koi8-r>") is None
    assert declared(b"<meta name=a content=b><meta charset=Shift_JIS>") == "cp932"


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("# One\n\ntext", "One", "text"),
        ("intro\n\n## [Two](http://x) `code` ##\ntext", "Two code", "intro\n\ntext"),
        ("Soup\n====\ntext", "Soup", "text"),
        ("```\n# no heading\n```\n# One", "One", "```\n# no heading\n```"),
        ("    # code\n\ntext", "", "# code\n\ntext"),
        ("---\ntitle: 'A soup'\ntags: x\n---\n# One", "A soup", "# One"),
        ("---\nno end", "", "---\nno end"),
        ("- a list\n---\n", "", "- a list\n---"),
        ("#hashtag", "", "#hashtag"),
        ('<h1 align="center">A &amp; B</h1>\n\n## Use\ntext', "A & B", "## Use\ntext"),
        ("<p>\n</p>\n<H1>\n<img src=x>\n  Soup\n</H1>\ntext", "Soup", "<p>\n</p>\ntext"),
        ("<h1><img src=x></h1>\n# One", "One", "<h1><img src=x></h1>"),
        ("<h1>no end\n# One", "One", "<h1>no end"),
        ("<header>\n# One", "One", "<header>"),
        ("```\n<h1>no</h1>\n```\n# One", "One", "```\n<h1>no</h1>\n```"),
        ("snake_case # no\n\n# snake_case", "snake_case", "snake_case # no"),
        ("", "", ""),
    ],
)
def test_the_first_heading_of_markdown_is_the_title(text: str, title: str, rest: str) -> None:
    found = read_markdown(text)
    assert (found.title, found.text) == (title, rest)


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("Soup\n====\n\ntext", "Soup", "text"),
        ("****\nSoup\n****\ntext", "Soup", "text"),
        (".. comment\n\n:mod:`email` --- Mail\n========================\n", "email --- Mail", ".. comment"),
        ("text\nmore\n----\n", "", "text\nmore\n----"),
        ("====  ====\na     b\n====  ====\n", "", "====  ====\na     b\n====  ===="),
        ("Long title\n==\n", "", "Long title\n=="),
        ("", "", ""),
    ],
)
def test_the_first_heading_of_restructuredtext_is_the_title(text: str, title: str, rest: str) -> None:
    found = read_rst(text)
    assert (found.title, found.text) == (title, rest)


MAN = r""".\" a comment
.de xx
ignored
..
.ie n \{\
.  ds a b
.\}
.TH LS 1 "2020" "GNU"
.SH NAME
ls \- list directory contents
.SH SYNOPSIS
.B ls
[\fI\,OPTION\/\fR]... [\fI\,FILE\/\fR]...
.TP
\fB\-a\fR, \fB\-\-all\fR
do not ignore entries
.IP "\(bu" 2
.BR cat (1)
.TS
l l.
one	two
.TE
"""


def test_a_manual_page_is_its_text() -> None:
    found = read_man(MAN)
    assert found.title == "ls - list directory contents"
    words = found.text.split()
    assert words[:7] == ["NAME", "ls", "-", "list", "directory", "contents", "SYNOPSIS"]
    assert "-a, --all\ndo not ignore entries" in found.text
    assert "cat(1)" in words and words[-2:] == ["one", "two"]
    assert "ignored" not in words and "ds" not in words


def test_a_manual_page_of_bsd_is_its_text() -> None:
    page = (
        ".Dd May 1\n.Dt CAT 1\n.Sh NAME\n.Nm cat\n.Nd print files\n.Sh SYNOPSIS\n.Nm\n.Op Fl benu\n.Ar file"
    )
    found = read_man(page)
    assert (found.title, found.text.split()[-2:]) == ("cat - print files", ["-benu", "file"])


@pytest.mark.parametrize(
    "definition",
    [
        "..ignored",
        ".de URL\nignored\n..",
        ".if \\n[.g] \\{\\\n.  am URL\n.    ad l\n.  .\n.\\}",  # as Asciidoctor writes it
        ".de URL end\nignored\n..\nignored\n.end",
        ".de1 INDENT\nignored\n..",  # as Docutils writes it
        ".ig\nignored\n..",
        '.de EX \t\\"Begin example\nignored\n..',
        '.ig \\" -*- nroff -*-\nignored\n..',
        ".ig end\nignored\n..\nignored\n.end",
    ],
)
def test_a_manual_page_goes_on_behind_its_own_macros(definition: str) -> None:
    found = read_man(f".TH LS 1\n{definition}\n.SH NAME\nls \\- list\n")
    assert (found.title, found.text) == ("ls - list", "NAME\nls - list")


def test_a_manual_pages_own_macros_print_what_they_say() -> None:
    """As Perl's pod2man, Docutils and Asciidoctor write them."""
    page = r""".de Vb
.ft CW
.ne \\$1
..
.if n \{\
.    de IX
.    tm Index:\\$1
..
.\}
\{\
.\}
.de INDENT
. RS \\$1
..
.de Sample
.BR "see " \\$1
..
.de URL
\fI\\$2\fP <\\$1>
..
.IX Title "STRIP 1"
.TH STRIP 1
.SH NAME
strip \- discard symbols
.SH CODE
.IX Header "CODE"
.Vb 1
print \*(Aqone\*(Aq
.LINKSTYLE blue R < >
.INDENT 3.5
.Sample cat
.URL "http://a" "b"
"""
    found = read_man(page)
    assert found.title == "strip - discard symbols"
    assert found.text.split("\n") == [
        "NAME", "strip - discard symbols", "", "CODE", "print 'one'", "", "cat", "http://a b",
    ]  # fmt: skip


def test_a_comment_above_the_name_is_no_text() -> None:
    found = read_man('.TH LS 1\n\\"Copied from dir.1\n.UC 7\nOf 4.4BSD\n.SH NAME\nls \\- list \\" files\n')
    assert (found.title, found.text) == ("ls - list", "Of 4.4BSD\n\nNAME\nls - list")


def test_a_manual_page_without_text_is_refused() -> None:
    with pytest.raises(InputError, match="no text in it"):
        read_man(".TH LS 1\n.ig\nno end")


def test_a_manual_page_that_refers_to_another_is_refused() -> None:
    with pytest.raises(InputError, match=r"a reference to another page \(man1/ls.1\): index that one"):
        read_man(".so man1/ls.1\n")


@pytest.mark.parametrize("line", ["\\", "\\(", "\\f", "\\[u110000]", "\\s", "\\h'", "\\*[", "\\("])
def test_escapes_that_are_cut_short_are_no_error(line: str) -> None:
    assert len(unescaped(line)) <= len(line)


def test_a_title_is_one_line_and_text_can_be_stored() -> None:
    assert page("a\n\tb", "x\r\ny\udc80") == ("a b", "x\ny\ufffd", "")
    parts = Parts(limit=1 << 20)
    parts.add("a" * (1 << 20))
    with pytest.raises(InputError, match="holds over 1 million characters"):
        parts.add("b")
    assert not looks_binary("") and looks_binary("\0" * 10)


def test_kinds_of_files(tmp_path: Path) -> None:
    (tmp_path / "ls.1").write_text(MAN)
    (tmp_path / "libc.so.6").write_bytes(b"\x7fELF")
    assert format_of(tmp_path / "ls.1") == "man"
    assert format_of(tmp_path / "libc.so.6") is None
    assert kind_of(Path("libc.so.6")) == ".so"
    assert format_of(Path("a.HTML.gz")) == "html"
    assert format_of(Path("a.pdf.gz")) == "pdf"
    assert format_of(Path("a.docx.gz")) is None, "its reader wants the file itself"
    assert format_in_folder(Path("a.csv"), "files") is None
    assert [format_in_folder(Path(name), "text") for name in ("a.md", "a.txt", "a.rst")] == [
        "text",
        "text",
        None,
    ]


def test_pages_nested_deeply_are_read() -> None:
    assert read_html(b"<div>" * 5000 + b"deep").text == "deep"
