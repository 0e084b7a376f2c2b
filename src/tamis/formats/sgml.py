"""TREC's SGML: `<DOC>` elements, as on the TREC disks and in the web collections.

The title is that of `<TITLE>`, else `<HEADLINE>`, else `<HEAD>`. The text is that of the `<TEXT>`, `<LP>` and
`<LEADPARA>` elements or, in a document that has none of them (web pages), everything but the id, the crawl
header, scripts and the title. Tags go and entities become characters.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator

from tamis.documents import Document
from tamis.errors import InputError
from tamis.files import BOM, PathLike, open_bytes
from tamis.formats.lines import SkipReport, located, skip_or_raise


def _element(tags: str) -> re.Pattern[str]:
    """Matches `<TAG ...>content</TAG>`; runs of anything but `<` are many times faster than `.*?`."""
    content = r"[^<]*(?:<(?!/\1\s*>)[^<]*)*"
    return re.compile(rf"<({tags})(?:\s[^<>]*)?>({content})</\1\s*>", re.IGNORECASE)


_OPEN = re.compile(rb"<DOC(?:\s[^<>]*)?>", re.IGNORECASE)
_CLOSE = re.compile(rb"</DOC\s*>", re.IGNORECASE)
_DOCNO = _element("DOCNO")
# In this order: a web page has its <TITLE> inside its <HEAD>, a newswire story has its headline there.
_TITLES = [_element(tag) for tag in ("TITLE", "HEADLINE", "HEAD")]
_TEXTS = _element("TEXT|LP|LEADPARA")
_DROPPED = _element("DOCNO|DOCID|DOCOLDNO|DOCHDR|SCRIPT|STYLE")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# A tag starts with a letter, so that "a < b" stays; [^<>] keeps the search linear on unclosed brackets.
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
    for number, raw in _elements(path, skipped):
        try:
            document = _parse(_decode(raw))
        except InputError as error:
            skip_or_raise(located(error, path, number), skipped)
        else:
            yield number, document


def _elements(path: PathLike, skipped: SkipReport | None) -> Iterator[tuple[int, bytes]]:
    """Line number and content of each element; holds no more than one element and one line."""
    content: list[bytes] | None = None
    start = number = 0
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, 1):
            rest = raw.removeprefix(BOM) if number == 1 else raw
            while rest:
                if content is None:
                    opening = _OPEN.search(rest)
                    if opening is None:
                        break
                    start, content, rest = number, [], rest[opening.end() :]
                if b"<" not in rest:  # most lines, so skip the searches
                    content.append(rest)
                    break
                if _OPEN.match(rest.lstrip()):
                    skip_or_raise(_unclosed(path, start), skipped)
                    content = None
                    continue
                closing = _CLOSE.search(rest)
                if closing is None:
                    content.append(rest)
                    break
                content.append(rest[: closing.start()])
                yield start, b"".join(content)
                content, rest = None, rest[closing.end() :]
    if content is not None:
        skip_or_raise(_unclosed(path, start), skipped)
    if number and not start:
        raise InputError("no <DOC> in it", remedy="check the format", path=os.fspath(path))


def _unclosed(path: PathLike, line: int) -> InputError:
    return InputError("<DOC> without </DOC>", remedy="close the element", path=os.fspath(path), line=line)


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _parse(element: str) -> Document:
    docno = _DOCNO.search(element)
    if docno is None or not docno[2].strip():
        raise InputError("<DOC> without a <DOCNO>", remedy="give every document an id")
    title = next(filter(None, (pattern.search(element) for pattern in _TITLES)), None)
    texts = [match[2] for match in _TEXTS.finditer(element)]
    if texts:
        body = "\n".join(texts)
    else:
        body = element if title is None else element[: title.start()] + element[title.end() :]
    heading = "" if title is None else " ".join(_plain(title[2]).split())
    return Document(docno[2].strip(), _plain(body), heading)


def _plain(markup: str) -> str:
    return html.unescape(_TAG.sub(" ", _COMMENT.sub(" ", _DROPPED.sub(" ", markup)))).strip()
