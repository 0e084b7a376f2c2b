"""Office files and PDF, whole and damaged, made by the tests."""

from pathlib import Path

import pytest

from tamis.base.errors import InputError
from tamis.formats.office import read_office
from tamis.formats.pages import Page
from tests.unit.formats.builders import (
    DRAWING,
    LAUGHS,
    SHEETS,
    SLIDES,
    archive,
    archived,
    core,
    docx,
    epub,
    odt,
    paragraph,
    pdf,
)


def test_word(tmp_path: Path) -> None:
    body = paragraph("Soup", "Title") + "<w:p><w:r><w:t>On</w:t></w:r><w:r><w:t>ions</w:t><w:tab/></w:r>"
    body += "<w:r><w:delText>gone</w:delText><w:t>butter</w:t></w:r></w:p>"
    assert read_office(docx(tmp_path / "a.docx", body)) == Page("Soup", "Soup\nOnions\tbutter")
    named = docx(tmp_path / "b.docx", paragraph("text"), title="Named")
    assert read_office(named) == Page("Named", "text")


def test_slides_in_their_order(tmp_path: Path) -> None:
    def slide(text: str, kind: str = "") -> str:
        place = f'<p:nvPr><p:ph type="{kind}"/></p:nvPr>' if kind else ""
        words = f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"
        return f'<p:sld xmlns:p="{SLIDES}" xmlns:a="{DRAWING}"><p:sp>{place}{words}</p:sp></p:sld>'

    slides = {f"ppt/slides/slide{n}.xml": slide(f"slide {n}", "title" if n == 2 else "") for n in (10, 2, 1)}
    made = archived(tmp_path / "a.pptx", {"ppt/presentation.xml": "<p/>"} | slides)
    assert read_office(made) == Page("slide 2", "slide 1\n\nslide 2\n\nslide 10")


def test_sheets(tmp_path: Path) -> None:
    sheet = (
        f'<worksheet xmlns="{SHEETS}"><sheetData><row><c t="s"><v>1</v></c><c><v>2.5</v></c></row>'
        '<row><c t="inlineStr"><is><t>pot</t></is></c><c t="s"><v>99</v></c><c><f>A1</f><v>7</v></c></row>'
        "</sheetData></worksheet>"
    )
    shared = f'<sst xmlns="{SHEETS}"><si><t>no</t></si><si><r><t>si</t></r><r><t>eve</t></r></si></sst>'
    made = archive(
        tmp_path / "a.xlsx",
        xl__workbook="<w/>",
        xl__sharedStrings=shared,
        xl__worksheets__sheet1=sheet,
        docProps__core=core("Prices"),
    )
    assert read_office(made) == Page("Prices", "sieve\t2.5\npot\t\t7")


def test_open_document(tmp_path: Path) -> None:
    body = "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes><text:h>Soup</text:h>"
    body += '<text:p>On<text:span>ions</text:span><text:s text:c="2"/>and<text:line-break/>butter</text:p>'
    assert read_office(odt(tmp_path / "a.odt", body)) == Page("Soup", "Soup\nOnions  and\nbutter")
    many = odt(tmp_path / "b.odt", '<text:p>a<text:s text:c="999999999"/>b</text:p>', title="Named")
    assert read_office(many).title == "Named"
    assert len(read_office(many).text) == 102


def test_a_book(tmp_path: Path) -> None:
    made = epub(tmp_path / "a.epub", ["<h1>One</h1><p>text</p>", "<p>two</p>"], title="Book")
    assert read_office(made) == Page("Book", "One\n\ntext\n\ntwo")
    lock = '<e><CipherReference URI="OEBPS/text/c%200.xhtml"/></e>'
    locked = epub(tmp_path / "b.epub", ["x"], extra={"META-INF/encryption.xml": lock})
    with pytest.raises(InputError, match="encrypted: save it without a password"):
        read_office(locked)


def test_damaged_and_hostile_office_files_are_refused(tmp_path: Path) -> None:
    whole = docx(tmp_path / "a.docx", paragraph("text" * 1000)).read_bytes()
    (tmp_path / "cut.docx").write_bytes(whole[:-40])
    (tmp_path / "old.docx").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600)
    (tmp_path / "empty.docx").write_bytes(b"")
    flipped = bytearray(whole)
    flipped[60:90] = b"\xff" * 30
    (tmp_path / "flipped.docx").write_bytes(flipped)
    archive(tmp_path / "laughs.docx", word__document=LAUGHS)
    archive(tmp_path / "broken.docx", word__document="<w><t>text</w>")
    archive(tmp_path / "other.docx", word__other="<w/>")
    archive(tmp_path / "bomb.docx", word__document=b" " * ((1 << 26) + 1))
    odt(tmp_path / "locked.odt", "", manifest='<manifest:encryption-data xmlns:manifest="m"/>')
    reasons = {
        "cut": "damaged", "old": "encrypted, or of an old version", "empty": "damaged", "flipped": "damaged",
        "laughs": "XML that declares entities", "broken": "damaged XML", "other": "not a docx file",
        "bomb": "a part of it expands to over 64 MiB", "locked": "encrypted",
    }  # fmt: skip
    for name, reason in reasons.items():
        (file,) = tmp_path.glob(f"{name}.*")
        with pytest.raises(InputError, match=reason):
            read_office(file)


def test_deeply_nested_xml_is_read(tmp_path: Path) -> None:
    body = "<w:p>" * 100_000 + "<w:t>deep</w:t>" + "</w:p>" * 100_000
    assert read_office(docx(tmp_path / "a.docx", body)).text == "deep"


def test_pdf(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    from tamis.formats.pdf import read_pdf

    made = pdf(tmp_path / "a.pdf", "Onions and butter", "", "patience", title="Soup")
    found = read_pdf(made)
    assert (found.title, found.text.split()) == ("Soup", ["Onions", "and", "butter", "patience"])
    with pytest.raises(InputError, match=r"no text in it: scanned pages need text recognition \(OCR\)"):
        read_pdf(pdf(tmp_path / "b.pdf", ""))
    (tmp_path / "c.pdf").write_bytes(b"%PDF-1.4 and nothing more")
    with pytest.raises(InputError, match="damaged, or not a PDF file"):
        read_pdf(tmp_path / "c.pdf")
