"""Markdown and reStructuredText: texts as they are, with their first heading as the title."""

from __future__ import annotations

import re

from tamis.formats.lines import unescaped
from tamis.formats.pages import Page, page

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HASHES = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
# as many README files begin: a heading in HTML, over a few lines
_HTML_OPEN = re.compile(r" {0,3}<h([1-6])(?=[\s>])[^>]{0,500}>(.*)", re.IGNORECASE)
_HTML_CLOSE = re.compile(r"(.*?)</h[1-6]>", re.IGNORECASE)
_LONGEST_HEADING = 20  # lines
_TAG = re.compile(r"<[^<>]{0,2000}>")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_FRONT_TITLE = re.compile(r"""title[ \t]*[:=][ \t]*(?:"(.*)"|'(.*)'|(.*?))[ \t]*$""", re.IGNORECASE)
_FRONT = ("---", "+++")  # of YAML and of TOML
_LONGEST_FRONT = 200  # lines
_MARKUP = re.compile(r"!?\[([^\[\]]{0,500})\]\([^()]{0,2000}\)|(?<!\w)[*_`]{1,3}|[*_`]{1,3}(?!\w)")
_ADORNMENT = re.compile(r"""([!-/:-@\[-`{-~])\1+\s*$""")
_ROLE = re.compile(r":[\w:.+-]{1,40}:`([^`<]{0,500})[^`]{0,500}`|`{1,2}|\*{1,2}")


def read_markdown(text: str) -> Page:
    r"""The title is the `title` of a front matter, or else the first heading, which is removed from the text.

    >>> read_markdown("# The *drum* sieve\n\nFine.\n\n## Use\n")
    Page(title='The drum sieve', text='Fine.\n\n## Use', url='')
    >>> read_markdown("---\ntitle: Soup\n---\nOnions.").title
    'Soup'
    """
    lines = text.split("\n")
    start, title = _front_matter(lines)
    if title:
        return page(title, "\n".join(lines[start:]))
    fence = ""
    for number in range(start, len(lines)):
        line = lines[number]
        if found := _FENCE.match(line):
            if not fence:
                fence = found[1]
            elif line.strip().startswith(fence):
                fence = ""
        elif fence or line.startswith(("    ", "\t")):
            continue
        elif found := _HASHES.match(line):
            if name := _plain(found[1] or ""):
                return page(name, "\n".join(lines[:number] + lines[number + 1 :]))
        elif found := _HTML_OPEN.match(line):
            name, end = _html_heading([found[2], *lines[number + 1 : number + _LONGEST_HEADING]])
            if name:
                return page(name, "\n".join(lines[:number] + lines[number + end :]))
        elif number > start and _UNDERLINE.match(line) and _is_paragraph(lines, number - 1, start):
            name = _plain(lines[number - 1])
            return page(name, "\n".join(lines[: number - 1] + lines[number + 1 :]))
    return page("", text)


def _front_matter(lines: list[str]) -> tuple[int, str]:
    """The index of the line where the text begins, and the title in the front matter above it."""
    if not lines or (sign := lines[0].rstrip()) not in _FRONT:
        return 0, ""
    for end in range(1, min(len(lines), _LONGEST_FRONT)):
        if lines[end].rstrip() == sign:
            named = (_FRONT_TITLE.match(line) for line in lines[1:end])
            title = next((found[1] or found[2] or found[3] or "" for found in named if found), "")
            return (end + 1 if title else 0), title
    return 0, ""


def _is_paragraph(lines: list[str], number: int, start: int) -> bool:
    """Whether a line is a separate paragraph, so that the line below it underlines it."""
    line = lines[number]
    alone = number == start or not lines[number - 1].strip()
    return alone and bool(line.strip()) and not line.lstrip().startswith(("|", ">", "-", "*", "+", "<"))


def _html_heading(lines: list[str]) -> tuple[str, int]:
    """The text of a heading that these lines begin with, and how many of them it takes; none if it does not
    end."""
    for number, line in enumerate(lines):
        if found := _HTML_CLOSE.match(line):
            text = _TAG.sub(" ", "\n".join([*lines[:number], found[1]]))
            return " ".join(unescaped(text).split()), number + 1
    return "", 0


def _plain(heading: str) -> str:
    """A heading without marks of emphasis; links are replaced by their text."""
    return _MARKUP.sub(lambda found: found[1] or "", heading).strip()


def read_rst(text: str) -> Page:
    r"""The title is the first line that is underlined (or also overlined), which is removed from the text.

    >>> read_rst(".. _top:\n\n=====\nSieve\n=====\n\nFine.\n\nUse\n---\n")
    Page(title='Sieve', text='.. _top:\n\nFine.\n\nUse\n---', url='')
    """
    lines = text.split("\n")
    for number in range(len(lines) - 1):
        line, under = lines[number].rstrip(), lines[number + 1].rstrip()
        if not line.strip() or not _ADORNMENT.match(under) or _ADORNMENT.match(line):
            continue
        if len(under) < len(line.strip()) or under.startswith(("..", "::")):
            continue
        over = number > 0 and lines[number - 1].rstrip() == under
        if not over and (line[0].isspace() or (number > 0 and lines[number - 1].strip())):
            continue
        name = _ROLE.sub(lambda found: (found[1] or "").strip(), line).strip()
        return page(name, "\n".join(lines[: number - over] + lines[number + 2 :]))
    return page("", text)
