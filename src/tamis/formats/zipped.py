"""Reads zip archives of XML, as office programs write them, from untrusted sources.

The standard library reads both. This module adds the protection: no member is decompressed beyond a limit,
whatever its header says; entity declarations are errors, so that entities can be neither multiplied (the
"billion laughs") nor fetched; and elements are passed on one by one, so that deep nesting cannot fill the
memory.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from xml.parsers import expat

from tamis.base.errors import InputError

LARGEST_MEMBER = 1 << 26  # bytes, decompressed
MOST_EXPANDED = 1 << 28  # bytes, of all members that are read
_OLD_OFFICE = b"\xd0\xcf\x11\xe0"  # also the container of an encrypted docx
_REMEDY = "save it again"
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, RuntimeError)


class Handler(Protocol):
    """Receives the elements of an XML text, by their names without prefixes."""

    def start(self, name: str, attributes: dict[str, str]) -> None: ...
    def end(self, name: str) -> None: ...
    def data(self, text: str) -> None: ...


class Archive:
    """The members of an open archive, by name."""

    def __init__(self, file: zipfile.ZipFile) -> None:
        self._file = file
        self._room = MOST_EXPANDED
        self.names = set(file.namelist())

    def read(self, name: str) -> bytes:
        """The bytes of a member; empty if there is none with this name."""
        if name not in self.names:
            return b""
        if self._file.getinfo(name).flag_bits & 1:
            raise encrypted()
        limit = min(LARGEST_MEMBER, self._room)
        with self._file.open(name) as stream:
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise InputError(f"a part of it expands to over {limit >> 20} MiB", remedy="split it")
        self._room -= len(data)
        return data

    def parse(self, name: str, handler: Handler) -> None:
        """Pass the XML of a member to a handler."""
        if data := self.read(name):
            parse_xml(data, handler)


def encrypted() -> InputError:
    """The error for a file that needs a password.

    >>> print(encrypted())
    encrypted: save it without a password
    """
    return InputError("encrypted", remedy="save it without a password")


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open a zip archive; any problem with it raises an `InputError`.

    >>> file = getfixture("tmp_path") / "a.docx"
    >>> _ = file.write_bytes(b"nothing")
    >>> with open_archive(file) as archive:
    ...     pass
    Traceback (most recent call last):
    tamis.base.errors.InputError: damaged (File is not a zip file): save it again
    """
    try:
        with path.open("rb") as raw:
            if raw.read(4) == _OLD_OFFICE:
                raise InputError("encrypted, or of an old version", remedy="save it anew without a password")
            raw.seek(0)
            with zipfile.ZipFile(raw) as file:
                yield Archive(file)
    except _DAMAGED as error:
        raise InputError(f"damaged ({error})", remedy=_REMEDY) from None
    except (OverflowError, UnicodeError, ValueError) as error:
        raise InputError(f"damaged ({type(error).__name__})", remedy=_REMEDY) from None


def parse_xml(data: bytes, handler: Handler) -> None:
    """Pass the elements and the texts of an XML document to a handler, in order.

    >>> class Printed:
    ...     def start(self, name, attributes): print(name, attributes)
    ...     def end(self, name): pass
    ...     def data(self, text): print(text)
    >>> parse_xml(b"<w:p xmlns:w='urn:w' w:id='1'>soup</w:p>", Printed())
    p {'id': '1'}
    soup
    >>> parse_xml(b"<!DOCTYPE a [<!ENTITY lol 'lol'>]><a>&lol;</a>", Printed())
    Traceback (most recent call last):
    tamis.base.errors.InputError: XML that declares entities: save it again
    """
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True

    def refuse(*_: object) -> None:
        raise InputError("XML that declares entities", remedy=_REMEDY)

    def start(name: str, attributes: dict[str, str]) -> None:
        handler.start(_local(name), {_local(key): value for key, value in attributes.items()})

    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = _refuse_entity
    parser.StartElementHandler = start
    end: Callable[[str], None] = lambda name: handler.end(_local(name))  # noqa: E731
    parser.EndElementHandler = end
    parser.CharacterDataHandler = handler.data
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise InputError(f"damaged XML ({error})", remedy=_REMEDY) from None


def _refuse_entity(*_: object) -> int:
    raise InputError("XML that refers to other files", remedy=_REMEDY)


def _local(name: str) -> str:
    return name.rpartition(" ")[2]
