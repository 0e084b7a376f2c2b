"""Small real files of many kinds, written by the tests themselves."""

from __future__ import annotations

import zipfile
from pathlib import Path

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
DRAWING = "http://schemas.openxmlformats.org/drawingml/2006/main"
SLIDES = "http://schemas.openxmlformats.org/presentationml/2006/main"
SHEETS = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
CORE = "http://schemas.openxmlformats.org/package/2006/metadata/core-properties"
DC = "http://purl.org/dc/elements/1.1/"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
MANIFEST = "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"


def archive(path: Path, **members: str | bytes) -> Path:
    """A zip archive; `word__document` stands for word/document.xml."""
    return archived(path, {f"{name.replace('__', '/')}.xml": content for name, content in members.items()})


def archived(path: Path, members: dict[str, str | bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def core(title: str) -> str:
    return (
        f'<c:coreProperties xmlns:c="{CORE}" xmlns:dc="{DC}"><dc:title>{title}</dc:title></c:coreProperties>'
    )


def docx(path: Path, body: str, title: str = "") -> Path:
    document = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return archive(path, word__document=document, docProps__core=core(title))


def paragraph(text: str, style: str = "") -> str:
    styled = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{styled}<w:r><w:t>{text}</w:t></w:r></w:p>"


def odt(path: Path, body: str, title: str = "", manifest: str = "") -> Path:
    office = f'xmlns:office="{OFFICE}" xmlns:text="{TEXT}"'
    return archived(
        path,
        {
            "mimetype": "application/vnd.oasis.opendocument.text",
            "content.xml": f"<office:document-content {office}><office:body>{body}</office:body>"
            "</office:document-content>",
            "meta.xml": f'<m xmlns:dc="{DC}"><dc:title>{title}</dc:title></m>',
            "META-INF/manifest.xml": f'<manifest:manifest xmlns:manifest="{MANIFEST}">{manifest}'
            "</manifest:manifest>",
        },
    )


def epub(
    path: Path, chapters: list[str], title: str = "", extra: dict[str, str | bytes] | None = None
) -> Path:
    items = "".join(f'<item id="c{n}" href="text/c%20{n}.xhtml"/>' for n in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="{DC}"><metadata>'
        f"<dc:title>{title}</dc:title></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    members: dict[str, str | bytes] = {"META-INF/container.xml": container, "OEBPS/book.opf": package}
    members |= {f"OEBPS/text/c {n}.xhtml": chapter for n, chapter in enumerate(chapters)}
    return archived(path, members | (extra or {}))


def pdf(path: Path, *pages: str, title: str = "", encrypt: str = "") -> Path:
    """A PDF file with one line of text on each page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    objects.append(f"<< /Title ({title}) >>")
    out, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    out += (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}"
        f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info {len(objects)} 0 R {encrypt} >>\n"
        f"startxref\n{len(out)}\n%%EOF\n"
    )
    path.write_bytes(out.encode("latin-1"))
    return path


#: A PDF's dictionary of encryption with a password that is not the empty one.
ENCRYPTED = (
    "/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 "
    f"/O <{'28' * 32}> /U <{'5f' * 32}> >> /ID [<{'ab' * 16}> <{'ab' * 16}>]"
)
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY a "lol">'
    + "".join(f'<!ENTITY {chr(98 + n)} "{f"&{chr(97 + n)};" * 10}">' for n in range(10))
    + "]><w><t>&k;</t></w>"
)
