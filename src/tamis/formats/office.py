"""Office files: docx, pptx and xlsx (Microsoft), odt, odp and ods (OpenDocument), and epub.

They are zip archives of XML, of which a search needs only a few elements: `zipped` reads them safely. The
libraries that write these formats would load the whole tree into memory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from tamis.base.errors import InputError
from tamis.formats.pages import Page, Parts, page
from tamis.formats.web import read_html
from tamis.formats.zipped import Archive, encrypted, open_archive

_NUMBER = re.compile(r"\d+")
_MOST_SPACES = 100  # maximum for OpenDocument's <text:s text:c="...">


class _Text:
    """Collects the text of the elements `texts` (None: all elements). `skipped` are left out with their
    content, `signs` are replaced by characters, and `closing` end a line or a cell."""

    def __init__(
        self,
        parts: Parts,
        texts: frozenset[str] | None,
        signs: dict[str, str],
        closing: dict[str, str],
        skipped: frozenset[str] = frozenset(),
    ) -> None:
        self.parts = parts
        self._texts, self._signs, self._closing, self._skipped = texts, signs, closing, skipped
        self._open = 0  # open elements that contain text
        self._left = 0  # open elements that are left out
        self.heading = ""  # the first heading
        self._in_heading = False
        self._line: list[str] = []

    def is_heading(self, name: str, attributes: dict[str, str]) -> bool:
        return False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._left += name in self._skipped
        if self._left:
            return
        self._in_heading |= not self.heading and self.is_heading(name, attributes)
        self._open += self._texts is None or name in self._texts
        if name in self._signs:
            count = attributes.get("c", "") if name == "s" else ""
            times = min(int(count), _MOST_SPACES) if len(count) < 10 and count.isdecimal() else 1
            self._add(self._signs[name] * times)

    def end(self, name: str) -> None:
        if self._left:
            self._left -= name in self._skipped
            return
        self._open -= self._texts is None or name in self._texts
        if name in self._closing:
            self._add(self._closing[name])
            if self._in_heading and self._closing[name] == "\n":
                self.heading, self._in_heading = "".join(self._line).strip()[:1000], False
            self._line.clear()

    def data(self, text: str) -> None:
        if self._open and not self._left:
            self._add(text)

    def _add(self, text: str) -> None:
        self.parts.add(text)
        if self._in_heading:
            self._line.append(text)


class _Word(_Text):
    """Word's runs; the title is the first paragraph with the style of a title or heading."""

    def __init__(self, parts: Parts) -> None:
        signs = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
        closing = {"p": "\n", "tr": "\n"}
        skipped = frozenset(("Fallback", "pPrChange", "tabs"))
        super().__init__(parts, frozenset(("t",)), signs, closing, skipped)

    def is_heading(self, name: str, attributes: dict[str, str]) -> bool:
        return name == "pStyle" and attributes.get("val", "").lower() in ("title", "heading1")


class _Slide(_Text):
    """A slide's runs; the title is its title placeholder."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, frozenset(("t",)), {"br": "\n"}, {"p": "\n"}, frozenset(("Fallback",)))

    def is_heading(self, name: str, attributes: dict[str, str]) -> bool:
        return name == "ph" and attributes.get("type") in ("title", "ctrTitle")


class _Open(_Text):
    """OpenDocument's paragraphs; the title is the first heading."""

    def __init__(self, parts: Parts) -> None:
        signs = {"tab": "\t", "line-break": "\n", "s": " "}
        closing = {"p": "\n", "h": "\n"}
        skipped = frozenset(("tracked-changes", "annotation", "settings", "forms"))
        super().__init__(parts, frozenset(("p", "h")), signs, closing, skipped)

    def is_heading(self, name: str, attributes: dict[str, str]) -> bool:
        return name == "h"


class _Cells:
    """The cells of a sheet, row by row; most texts are in a table shared by all sheets."""

    def __init__(self, parts: Parts, shared: list[str]) -> None:
        self._parts, self._shared = parts, shared
        self._kind, self._in_value = "", False
        self._value: list[str] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "c":
            self._kind = attributes.get("t", "")
            self._value.clear()
        self._in_value = name in ("v", "t")

    def end(self, name: str) -> None:
        self._in_value = False
        if name == "c" and self._value:
            value = "".join(self._value)
            if self._kind == "s":
                number = int(value) if len(value) < 10 and value.isdecimal() else len(self._shared)
                value = self._shared[number] if number < len(self._shared) else ""
            self._parts.add(value + "\t")
        elif name == "row":
            self._parts.add("\n")

    def data(self, text: str) -> None:
        if self._in_value:
            self._value.append(text)


class _Shared(_Text):
    """The table of texts shared by the sheets: each text ends at `si`."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        super().__init__(Parts(), frozenset(("t",)), {}, {}, frozenset(("rPh",)))  # without phonetic text

    def end(self, name: str) -> None:
        super().end(name)
        if name == "si":
            self.texts.append(self.parts.text())
            self.parts = Parts()


class _Named:
    """The text of the first element with this name, and the attributes of all of them."""

    def __init__(self, *names: str) -> None:
        self._names, self._open = names, False
        self.text = ""
        self.found: list[tuple[str, dict[str, str]]] = []
        self._done = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name in self._names:
            self.found.append((name, attributes))
            self._open = not self._done

    def end(self, name: str) -> None:
        if name in self._names and self._open:
            self._open, self._done = False, bool(self.text.strip())

    def data(self, text: str) -> None:
        if self._open and len(self.text) < 1000:
            self.text += text


def _named(archive: Archive, member: str, name: str) -> str:
    found = _Named(name)
    archive.parse(member, found)
    return found.text.strip()


def _numbered(archive: Archive, pattern: str) -> list[str]:
    """Members such as slide1.xml, slide2.xml, ... slide10.xml, in that order."""
    found = [name for name in archive.names if re.fullmatch(pattern, name)]
    return sorted(found, key=lambda name: [int(number) for number in _NUMBER.findall(name)])


def _docx(archive: Archive) -> Page:
    body = _Word(Parts())
    for part in ("document", "footnotes", "endnotes"):
        archive.parse(f"word/{part}.xml", body)
    return page(body.heading or _named(archive, "docProps/core.xml", "title"), body.parts.text())


def _pptx(archive: Archive) -> Page:
    parts = Parts()
    title = ""
    for name in _numbered(archive, r"ppt/(?:slides/slide|notesSlides/notesSlide)\d+\.xml"):
        slide = _Slide(parts)
        archive.parse(name, slide)
        title = title or slide.heading
        parts.add("\n")
    return page(title or _named(archive, "docProps/core.xml", "title"), parts.text())


def _xlsx(archive: Archive) -> Page:
    shared, parts = _Shared(), Parts()
    archive.parse("xl/sharedStrings.xml", shared)
    for name in _numbered(archive, r"xl/worksheets/sheet\d+\.xml"):
        archive.parse(name, _Cells(parts, shared.texts))
        parts.add("\n")
    lines = (line.rstrip("\t") for line in parts.text().split("\n"))
    return page(_named(archive, "docProps/core.xml", "title"), "\n".join(lines))


def _opendocument(archive: Archive) -> Page:
    if b"encryption-data" in archive.read("META-INF/manifest.xml"):
        raise encrypted()
    body = _Open(Parts())
    archive.parse("content.xml", body)
    return page(_named(archive, "meta.xml", "title") or body.heading, body.parts.text())


def _epub(archive: Archive) -> Page:
    container = _Named("rootfile")
    archive.parse("META-INF/container.xml", container)
    package = next((found.get("full-path", "") for _, found in container.found), "")
    listed = _Named("item", "itemref")
    archive.parse(package, listed)
    files = {found.get("id"): found.get("href", "") for name, found in listed.found if name == "item"}
    locked = _Named("CipherReference")  # only the fonts may be encrypted; then the text is readable
    archive.parse("META-INF/encryption.xml", locked)
    closed = {unquote(found.get("URI", "")) for _, found in locked.found}
    parts = Parts()
    for name, found in listed.found:
        if name == "itemref" and (href := files.get(found.get("idref"))):
            member = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(href)))
            if member in closed:
                raise encrypted()
            if data := archive.read(member):
                parts.add(read_html(data).text + "\n\n")
    return page(_named(archive, package, "title"), parts.text())


#: By suffix: the member that identifies an archive of this kind, and its reader.
KINDS: dict[str, tuple[str, Callable[[Archive], Page]]] = {
    ".docx": ("word/document.xml", _docx),
    ".pptx": ("ppt/presentation.xml", _pptx),
    ".xlsx": ("xl/workbook.xml", _xlsx),
    ".odt": ("content.xml", _opendocument),
    ".odp": ("content.xml", _opendocument),
    ".ods": ("content.xml", _opendocument),
    ".epub": ("META-INF/container.xml", _epub),
}


def read_office(path: Path) -> Page:
    """The title and the text of an office file.

    >>> import zipfile
    >>> file = getfixture("tmp_path") / "soup.docx"
    >>> with zipfile.ZipFile(file, "w") as archive:
    ...     archive.writestr("word/document.xml", "<w:p xmlns:w='w'><w:t>Onions</w:t></w:p>")
    >>> read_office(file)
    Page(title='', text='Onions', url='')
    """
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        raise InputError("not an office file", remedy=f"name it {', '.join(KINDS)}")
    member, read = KINDS[suffix]
    with open_archive(path) as archive:
        if member not in archive.names:
            raise InputError(f"not a {suffix.lstrip('.')} file (without {member})", remedy="rename it")
        return read(archive)
