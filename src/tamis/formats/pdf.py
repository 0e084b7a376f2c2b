"""Reads PDF files with pypdfium2: PDFium, the reader of Chromium (the extra `pdf`)."""

from __future__ import annotations

from pathlib import Path

from tamis.base.errors import InputError
from tamis.formats.lines import read_bytes
from tamis.formats.pages import LARGEST_FILE, Page, Parts, page
from tamis.formats.zipped import encrypted

_NO_TITLE = ("untitled", "")


def read_pdf(path: Path) -> Page:
    """The title of a PDF file, if it has one, and the text of all its pages."""
    import pypdfium2

    data = read_bytes(path, LARGEST_FILE)
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise encrypted() from None
        raise InputError("damaged, or not a PDF file", remedy="save it again") from None
    parts = Parts()
    try:
        for number in range(len(document)):
            parts.add(_text(document, number) + "\n\n")
        title = document.get_metadata_dict().get("Title", "")
    finally:
        document.close()
    found = page("" if title.strip().lower() in _NO_TITLE else title, parts.text())
    if not found.text:
        raise InputError("no text in it", remedy="scanned pages need text recognition (OCR)")
    return found


def _text(document: object, number: int) -> str:
    """The text of a page; a damaged page does not affect the others."""
    import pypdfium2

    try:
        opened = document[number]  # type: ignore[index]
        found = opened.get_textpage()
        text: str = found.get_text_bounded()
        found.close()
        opened.close()
    except pypdfium2.PdfiumError:
        return ""
    # PDFium returns U+FFFE for a hyphen at the end of a line
    return text.replace("\ufffe\r\n", "").replace("\ufffe", "").replace("\0", "")
