"""Decodes web pages and old texts as browsers do (the WHATWG's Encoding and HTML standards): by a byte order
mark, the encoding that the page declares, UTF-8 if it is valid, else Windows-1252."""

from __future__ import annotations

import codecs
import re

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_LOOKED_AT = 1024  # bytes in which browsers search for a declaration
_DECLARED = re.compile(
    rb"""<meta\s[^>]{0,500}?charset\s*=\s*["']?\s*([\w.:-]{2,40})"""
    rb"""|^\s*<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{2,40})["']""",
    re.IGNORECASE,
)
# Names for which browsers use a larger encoding than Python.
_WIDER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    # a page whose declaration is readable as ASCII is not in UTF-16
    "utf-16": "utf-8",
    "utf-16-le": "utf-8",
    "utf-16-be": "utf-8",
    "utf-32": "utf-8",
}


def decoded(data: bytes) -> str:
    r"""Decode a page. Bytes that are invalid in its encoding become U+FFFD, as in a browser.

    >>> decoded("café".encode()), decoded(b"caf\xe9 \x93quoted\x94")
    ('café', 'café “quoted”')
    >>> decoded(b'<meta charset="iso-8859-2"><p>\xb1')[-1]
    'ą'
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace")
    encoding = declared(data)
    if encoding is not None and encoding != "cp1252":
        return data.decode(encoding, "replace")
    if encoding is None:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return data.decode("cp1252", _CONTROL)


def declared(data: bytes) -> str | None:
    """Python's name of the encoding that a page declares in its first kilobyte; None if there is no known
    one.

    >>> declared(b'<meta http-equiv=content-type content="text/html; charset=latin1">')
    'cp1252'
    >>> declared(b"<?xml version='1.0' encoding='utf-8'?>"), declared(b"<p>charset=utf-8</p>")
    ('utf-8', None)
    """
    found = _DECLARED.search(data[:_LOOKED_AT])
    if found is None:
        return None
    try:
        codec = codecs.lookup((found[1] or found[2]).decode("ascii"))
    except (LookupError, UnicodeDecodeError):
        return None
    name = _WIDER.get(codec.name, codec.name)
    # Python also has encodings that are not character sets, such as hex and zip
    return name if codec._is_text_encoding else None


def _as_control(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(map(chr, error.object[error.start : error.end])), error.end


_CONTROL = "tamis-control"
codecs.register_error(_CONTROL, _as_control)
