"""TREC's SGML: `<DOC>` elements, as on the TREC disks and in the web collections.

The title is that of `<TITLE>`, else `<HEADLINE>`, else `<HEAD>`. The text is that of the `<TEXT>`, `<LP>` and
`<LEADPARA>` elements or, in a document without them (web pages), everything but the id, the crawl header,
scripts and the title. Tags are removed and entities replaced by their characters.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.formats.lines import (
    LONGEST_RECORD,
    SkipReport,
    located,
    numbered_lines,
    skip_or_raise,
    too_long,
    unescaped,
)
from tamis.storage.files import PathLike, open_bytes

# No pattern reads beyond the next `<`, so that a search takes linear time. The end of an element or a
# comment, which may be far away or missing, is instead looked up among the closing tags.
_OPEN = re.compile(rb"<DOC(?:\s[^<>]*)?>", re.IGNORECASE)
_OPEN_FIRST = re.compile(rb"\s*" + _OPEN.pattern, re.IGNORECASE)
_CLOSE = re.compile(rb"</DOC\s*>", re.IGNORECASE)
# In this order: a web page has its <TITLE> inside its <HEAD>, a newswire story has its headline there.
_TITLES = ("TITLE", "HEADLINE", "HEAD")
_TEXTS = ("TEXT", "LP", "LEADPARA")
_DROPPED = ("DOCNO", "DOCID", "DOCOLDNO", "DOCHDR", "SCRIPT", "STYLE")
_NAMES = "|".join((*_TITLES, *_TEXTS, *_DROPPED))
_EDGE = re.compile(rf"<(?:({_NAMES})(?:\s[^<>]*)?|/({_NAMES})\s*)>", re.IGNORECASE | re.ASCII)
# A tag starts with a letter, so that "a < b" is not changed.
_TAG = re.compile(r"<[/!?]?[a-z][^<>]*>", re.IGNORECASE)


def read_trec_documents(path: PathLike, skipped: SkipReport | None) -> Iterator[tuple[int, Document]]:
    """The `<DOC>` elements of a file, one at a time, each with the number of its first line.

    A document that is not UTF-8 is read as Latin-1: the TREC disks are older than UTF-8.

    >>> file = getfixture("tmp_path") / "ft.trec"
    >>> _ = file.write_text('''<DOC>
    ... <DOCNO> FT911-3 </DOCNO>
    ... <HEADLINE>Sieves &amp; cooks</HEADLINE>
    ... <TEXT><P>Finer, then finer.</P></TEXT>
    ... </DOC>''')
    >>> list(read_trec_documents(file, None))
    [(1, Document(id='FT911-3', text='Finer, then finer.', title='Sieves & cooks', metadata={}))]
    """
    for number, raw in _documents(path, skipped):
        try:
            document = _parse(_decode(raw))
        except InputError as error:
            skip_or_raise(located(error, path, number), skipped)
        else:
            yield number, document


def _documents(path: PathLike, skipped: SkipReport | None) -> Iterator[tuple[int, bytes]]:
    """Line number and content of each `<DOC>`; keeps only one of them and one line in memory."""
    content: bytearray | None = None
    start = number = 0
    with open_bytes(path) as stream:
        for number, line in numbered_lines(stream, path, skipped):
            at = 0
            while at < len(line):
                if content is None:
                    opening = _OPEN.search(line, at)
                    if opening is None:
                        break
                    start, content, at = number, bytearray(), opening.end()
                closing = None
                if line.find(b"<", at) >= 0:  # most lines have none: skip the searches
                    if _OPEN_FIRST.match(line, at):
                        skip_or_raise(_unclosed(path, start), skipped)
                        content = None
                        continue
                    closing = _CLOSE.search(line, at)
                end = closing.start() if closing else len(line)
                if len(content) + end - at > LONGEST_RECORD:
                    skip_or_raise(too_long("a <DOC>", LONGEST_RECORD, path, start), skipped)
                    content = None  # and continue with the next one
                else:
                    content += line[at:end]
                    if closing:
                        yield start, bytes(content)
                        content = None
                at = closing.end() if closing else end
    if content is not None:
        skip_or_raise(_unclosed(path, start), skipped)
    if number and not start:
        raise InputError("contains no <DOC>", remedy="check the format", path=os.fspath(path))


def _unclosed(path: PathLike, line: int) -> InputError:
    return InputError("<DOC> without </DOC>", remedy="close the element", path=os.fspath(path), line=line)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


class _Edge(NamedTuple):
    """A tag at the start or the end of a relevant element."""

    name: str
    closing: bool
    start: int
    end: int


class _Element(NamedTuple):
    """An element, as the positions of its tags in the text."""

    start: int
    inner: slice
    end: int


def _edges(markup: str) -> list[_Edge]:
    return [
        _Edge((match[1] or match[2]).upper(), match[1] is None, match.start(), match.end())
        for match in _EDGE.finditer(markup)
    ]


def _elements(edges: list[_Edge], names: Collection[str]) -> Iterator[_Element]:
    """The elements with these names in order, each from its opening tag to the first closing tag with its
    name; not nested. An element that is not closed is ignored."""
    ends: dict[str, deque[_Edge]] = {name: deque() for name in names}
    for edge in edges:
        if edge.closing and edge.name in ends:
            ends[edge.name].append(edge)
    at = 0
    for edge in edges:
        if edge.closing or edge.name not in ends or edge.start < at:
            continue
        later = ends[edge.name]
        while later and later[0].start < edge.end:
            later.popleft()
        if later:
            at = later[0].end
            yield _Element(edge.start, slice(edge.end, later[0].start), at)


def _parse(markup: str) -> Document:
    edges = _edges(markup)
    docno = next((markup[each.inner].strip() for each in _elements(edges, ["DOCNO"])), "")
    if not docno:
        raise InputError("<DOC> without a <DOCNO>", remedy="give every document an id")
    title = next((each for name in _TITLES for each in _elements(edges, [name])), None)
    texts = [markup[each.inner] for each in _elements(edges, _TEXTS)]
    if texts:
        body = "\n".join(texts)
    else:
        body = markup if title is None else markup[: title.start] + markup[title.end :]
    heading = "" if title is None else " ".join(_plain(markup[title.inner]).split())
    return Document(docno, _plain(body), heading)


def _plain(markup: str) -> str:
    return unescaped(_TAG.sub(" ", _without_comments(_without_dropped(markup)))).strip()


def _without_dropped(markup: str) -> str:
    parts, at = [], 0
    for element in _elements(_edges(markup), _DROPPED):
        parts += [markup[at : element.start], " "]
        at = element.end
    return "".join(parts) + markup[at:]


def _without_comments(markup: str) -> str:
    parts, at = [], 0
    while (start := markup.find("<!--", at)) >= 0 and (end := markup.find("-->", start + 4)) >= 0:
        parts += [markup[at:start], " "]
        at = end + 3
    return "".join(parts) + markup[at:]
