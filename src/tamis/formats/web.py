"""Reads web pages: their title and main text, without navigation and scripts, with selectolax (the standard
parser of HTML 5, as in browsers, written in C)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tamis.base.errors import InputError
from tamis.formats.charset import decoded
from tamis.formats.pages import Page, Parts, looks_binary, page

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

#: Elements that are on every page of a site, or not displayed; the last line is DocBook's and LaTeX2HTML's.
_ASIDE = (
    "script, style, noscript, template, nav, iframe, object, svg, canvas, select, button, dialog, [hidden], "
    "[role=navigation], [role=search], [role=banner], [role=contentinfo], body > header, body > footer, "
    "div.navheader, div.navfooter, div.navigation, table.navigation"
)
_MAIN = "main, [role=main]"
_BLOCK_NAMES = """
    address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption
    figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li main menu nav ol p pre section summary table
    tbody tfoot thead tr ul
"""
_APART_NAMES = "p pre h1 h2 h3 h4 h5 h6 blockquote table ul ol dl"  # separated by an empty line
_BLOCKS, _APART = frozenset(_BLOCK_NAMES.split()), frozenset(_APART_NAMES.split())
_CELLS = frozenset(("td", "th"))
_PERMALINKS = frozenset("¶§#🔗")
_SPACE = re.compile(r"[ \t\n\r\f]+")
_BESIDE_BREAK = re.compile(r" *(\n+) *")
_SPACES = re.compile(" {2,}")


def read_html(data: bytes) -> Page:
    r"""The title and the main text of a page; headings are on separate lines.

    >>> read_html(b"<title>A sieve</title><nav>Home</nav><h1>Sieve</h1><p>Fine &amp; <b>flat</b>.<p>Round.")
    Page(title='A sieve', text='Sieve\n\nFine & flat.\n\nRound.', url='')
    """
    from selectolax.lexbor import LexborHTMLParser

    source = decoded(data)
    if looks_binary(source):
        raise InputError("binary, not a page", remedy="rename it")
    tree = LexborHTMLParser(source.replace("\0", "\ufffd"))
    # in document order: <head> comes first; a title may be empty, and a picture may have its own
    titles = (node.text(deep=True) for node in tree.css("title, h1") if not _inside(node, "svg"))
    titled = next((title for title in titles if title.strip()), "")
    link = tree.css_first("link[rel=canonical]")
    url = (link.attributes.get("href") or "" if link is not None else "").strip()
    for node in tree.css(_ASIDE):
        node.decompose()
    mains = [node for node in tree.css(_MAIN) if not _inside_main(node)]
    text = _text(mains)
    if not text and tree.body is not None:
        text = _text([tree.body])
    return page(titled, text, url if url.startswith(("http://", "https://")) else "")


def _inside_main(node: LexborNode) -> bool:
    return any(each.tag == "main" or each.attributes.get("role") == "main" for each in _above(node))


def _inside(node: LexborNode, tag: str) -> bool:
    return any(each.tag == tag for each in _above(node))


def _above(node: LexborNode) -> Iterator[LexborNode]:
    """The elements that an element is in, from the innermost."""
    above = node.parent
    while above is not None and above.is_element_node:
        yield above
        above = above.parent


def _text(roots: list[LexborNode]) -> str:
    parts = Parts()
    for root in roots:
        _gather(root, parts)
        parts.add("\n\n")
    text = _SPACES.sub(" ", parts.text())
    return _BESIDE_BREAK.sub(r"\1", text).strip().replace(_KEPT_LINE, "\n").replace(_KEPT_SPACE, " ")


# White space inside <pre> is kept: it is replaced by private-use characters while other spaces are joined.
_KEPT_LINE, _KEPT_SPACE = "\ue00a", "\ue020"
_KEPT = str.maketrans({"\n": _KEPT_LINE, " ": _KEPT_SPACE, "\r": None})


def _gather(root: LexborNode, parts: Parts) -> None:
    """Add the text below an element to `parts`, with line breaks around blocks. Not recursive, so that pages
    can be nested to any depth."""
    node: LexborNode | None = root
    last = root.mem_id  # each access to a node returns a new object
    kept = 0  # number of open <pre>
    while node is not None:
        tag = node.tag or ""
        if node.is_text_node:
            text = node.text_content or ""
            parts.add(text.expandtabs().translate(_KEPT) if kept else _SPACE.sub(" ", text))
        elif tag == "br":
            parts.add(_KEPT_LINE if kept else "\n")
        elif not (tag == "a" and _is_permalink(node)):
            kept += tag == "pre"
            _break(tag, parts)
            if node.child is not None:
                node = node.child
                continue
            kept -= tag == "pre"
        while node.mem_id != last and (following := node.next) is None:
            above = node.parent
            if above is None:
                return
            node = above
            kept -= node.tag == "pre"
            _break(node.tag or "", parts)
        if node.mem_id == last:
            return
        node = following


def _break(tag: str, parts: Parts) -> None:
    if tag in _APART:
        parts.add("\n\n")
    elif tag in _BLOCKS:
        parts.add("\n")
    elif tag in _CELLS:
        parts.add(" ")


def _is_permalink(node: LexborNode) -> bool:
    """Whether a link is the permalink sign beside a heading in generated documentation."""
    child = node.child
    return child is not None and child.next is None and (child.text_content or "").strip() in _PERMALINKS
