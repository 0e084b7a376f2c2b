"""The content of a file that is one document, of any kind: its title, its text and its address."""

from __future__ import annotations

import re
from typing import NamedTuple

from tamis.base.errors import InputError

#: Maximum bytes of a file that is one document, and maximum characters of its text.
LARGEST_FILE = 1 << 28
LONGEST_TEXT = 1 << 25

_SURROGATES = re.compile("[\ud800-\udfff]")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n){2,}")
_LOOKED_AT = 1 << 13
_MOST_CONTROLS = 0.3  # of the characters of a text


class Page(NamedTuple):
    """The title, the text and, if the file says it, the address (`url`) of a document."""

    title: str
    text: str
    url: str = ""


def page(title: str, text: str, url: str = "") -> Page:
    r"""A page whose text can be stored: the title on one line, several empty lines reduced to one, and halves
    of surrogate pairs, which some PDF files have, replaced.

    >>> page(" A\n sieve ", "one\n\n\n \ntwo\ud83c ")
    Page(title='A sieve', text='one\n\ntwo\ufffd', url='')
    """
    text = _SURROGATES.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    title = _SURROGATES.sub("\ufffd", " ".join(title.split()))
    return Page(title, _BLANK_LINES.sub("\n\n", text).strip(), _SURROGATES.sub("\ufffd", url))


def looks_binary(text: str) -> bool:
    r"""Whether a text consists largely of control characters, as programs and images do.

    >>> looks_binary("one\n\ttwo\0"), looks_binary("\0\1\2\3ELF\0\0")
    (False, True)
    """
    start = text[:_LOOKED_AT]
    return len(_CONTROLS.findall(start)) > _MOST_CONTROLS * len(start)


class Parts:
    r"""A text joined from pieces. More text than a document may have is an error, so that a small file that
    repeats a text a million times cannot fill the memory.

    >>> parts = Parts()
    >>> for piece in ("one", "\n", "two"):
    ...     parts.add(piece)
    >>> parts.text()
    'one\ntwo'
    """

    def __init__(self, limit: int = LONGEST_TEXT) -> None:
        self._limit = self._room = limit
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self._room -= len(piece) or 1
        if self._room < 0:
            raise InputError(f"holds over {self._limit >> 20} million characters of text", remedy="split it")
        self._pieces.append(piece)

    def text(self) -> str:
        return "".join(self._pieces)
