"""Reads manual pages: their text without roff's requests, good enough for searching and reading."""

from __future__ import annotations

import re

from tamis.base.errors import InputError
from tamis.formats.pages import Page, Parts, page

#: The suffixes of such files: `ls.1`, `open.3p`, `perlfunc.1perl`.
NAME = re.compile(r"\.(?:[1-9n][a-z]*|man)$")

_BEGINS = re.compile(rb"\s*(?:'\\\"|\.\\\"|\.TH\b|\.Dd\b|\.so\b|\.SH\b|\.Sh\b|\.de\b|\.nr\b|\.if\b|\.ds\b)")
_REQUEST = re.compile(r"[.'][ \t]*([A-Za-z]\w*|\d\w?)?[ \t]*(.*)")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')
_SPECIAL = {
    "-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "'": "'", "`": "`", "&": "", "|": "",
    "^": "", "{": "", "}": "", "c": "", "%": "", ":": "", "/": "", ",": "", "!": "", "d": "", "u": "",
    "t": "\t", "p": "",
}  # fmt: skip
_NAMED = {
    "em": "—", "en": "–", "bu": "•", "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'", "dq": '"',
    "co": "©", "rg": "®", "tm": "™", "ti": "~", "ha": "^", "rs": "\\", "->": "→", "<-": "←", ">=": "≥",
    "<=": "≤", "!=": "≠", "mu": "×", "+-": "±", "hy": "-", "ga": "`", "ul": "_", "at": "@", "sh": "#",
    "de": "°", "ss": "ß", ":a": "ä", ":o": "ö", ":u": "ü", "'e": "é", "`e": "è", "'a": "á", "R": "®",
    "lB": "[", "rB": "]", "lC": "{", "rC": "}", "la": "⟨", "ra": "⟩", "or": "|", "ba": "|", "Tm": "™",
}  # fmt: skip
# strings that pod2man and others define, in most pages alike
_STRINGS = {"Aq": "'", "lq": "“", "rq": "”", 'L"': '"', 'R"': '"', "--": "--", "R": "®", "Tm": "™"}
_ESCAPE = re.compile(
    r"\\(?:"
    r"\*(?:\((?P<string>..)|\[(?P<long_string>[^\]\n]*)\])"
    r"|[fFgkmMnY*](?:\(..|\[[^\]\n]*\]|[+-]?.)"  # fonts, registers, strings
    r"|s(?:[+-]?\d|[+-]?\(\d\d|\[[^\]\n]*\]|'[^'\n]*')"  # sizes
    r"|[ABCDHLNRSVXZbhlovwx]'[^'\n]*'"  # with an argument in quotes
    r"|z|[\"#].*"  # and comments
    r"|\((?P<special>..)|\[(?P<name>[^\]\n]*)\]|(?P<single>.)|$)"
)
_NAME_HEADINGS = ("NAME", "BEZEICHNUNG", "NOM", "NOMBRE", "NOME", "ИМЯ", "名前", "名称")
# of macros, and parts that are not formatted: until ".." (or ".  ."), or the macro that they name
_DEFINITIONS = frozenset(("de", "de1", "dei", "am", "am1", "ami", "ig"))
_TABLE_FORMAT = re.compile(r"\.\s*$|^\.T&")  # its last line; the rows follow
# besides roff's own requests, which are in lower case, these contain no text
_NO_TEXT = frozenset(("TP", "HP", "Os", "PD", "RS", "RE", "UE", "UC", "LINKSTYLE"))
_BREAK_NAMES = "SH SS Sh Ss PP P LP TP IP HP TQ Pp It RS RE Bl El Bd Ed EX EE SY YS"
_BREAKS = frozenset(_BREAK_NAMES.split())
_BESIDE = frozenset(("BR", "BI", "IB", "IR", "RB", "RI"))  # their arguments are joined without spaces
_MDOC_NAMES = """
    Ad An Ap Ar Bx Cd Cm Dl Dq Dv Em Er Ev Fa Fl Fn Ft Fx Ic In Li Lk Ms Mt Nm Nd Ns Nx No Op Ox Pa Pf Pq Ql
    Qq Sc So Sq St Sx Sy Tn Ux Va Vt Xr Xo Xc Oo Oc Bro Brc Po Pc Qo Qc Do Dc Aq Ao Ac Bq Bo Bc Eo Ec Sm Bk
    Ek Ta
"""
_MDOC = frozenset(_MDOC_NAMES.split())


def looks_like_roff(start: bytes) -> bool:
    r"""Whether a file with the suffix of a manual page is one: `libc.so.6` is not.

    >>> looks_like_roff(b".TH LS 1\n"), looks_like_roff(b"\x7fELF")
    (True, False)
    """
    return bool(_BEGINS.match(start)) or b"\n.TH " in start or b"\n.Dd " in start


def read_man(text: str) -> Page:
    r"""The title is the line below NAME, such as "ls - list directory contents".

    >>> read_man('.TH LS 1\n.SH NAME\nls \\- list files\n.SH OPTIONS\n.TP\n.B \\-a\nall of \\fIthem\\fP\n')
    Page(title='ls - list files', text='NAME\nls - list files\n\nOPTIONS\n\n-a\nall of them', url='')
    """
    parts = Parts()
    is_mdoc = bool(re.search(r"^\.Dd\b", text[: 1 << 16], re.MULTILINE))
    until: re.Pattern[str] | None = None  # the line that ends the part that is left out
    macro = ""  # that is defined in this part
    silent: set[str] = set()  # the page's own macros that do not print their arguments
    name, section = "", ""
    for line in text.split("\n"):
        if until is not None:
            until = None if until.search(line) else until
            if "\\$" in line and _prints(line):
                silent.discard(macro)
            continue
        if not line.startswith((".", "'")):
            parts.add(unescaped(line) + "\n")
            continue
        found = _REQUEST.match(line)
        request, rest = (found[1] or "", found[2]) if found else ("", "")
        if request == "so" and not parts.text().strip():
            raise InputError(f"a reference to another page ({rest.strip()[:100]})", remedy="index that one")
        if request in _DEFINITIONS:
            words = rest.split('\\"')[0].split()
            macro = words[0] if words and request.startswith("de") else ""
            silent.add(macro)
            ends = words[request != "ig" :][:1] or ["."]
            until = re.compile(rf"^[.'][ \t]*{re.escape(ends[0])}(?:\s|$)")
        elif request == "TS":
            until = _TABLE_FORMAT
        elif request in ("TH", "Dt", "Dd"):
            if request != "Dd":
                name, section = ([*_arguments(rest), "", ""])[:2]
        elif request not in silent and (request in _BREAKS or request[:1].isupper()):
            apart = "\n" if request in _BREAKS else ""
            parts.add(apart + _words(request, rest, is_mdoc) + "\n")
    told = page("", parts.text())
    if not told.text:
        raise InputError("no text in it", remedy="check that it is a manual page")
    return page(_title(told.text) or (f"{name.lower()}({section})" if name else ""), told.text)


def _prints(line: str) -> bool:
    """Whether a line of a macro's definition prints the arguments that are in it."""
    found = _REQUEST.match(line)
    return found is None or ((found[1] or "")[:1].isupper() and found[1] not in _NO_TEXT)


def _words(request: str, rest: str, is_mdoc: bool) -> str:
    if request in _NO_TEXT:
        return ""
    arguments = _arguments(rest)[: 1 if request == "IP" else None]
    if is_mdoc:
        arguments = [request, *arguments] if request in ("Fl", "Nd") else arguments
        signs = {"Fl": "-", "Nd": "-"}
        arguments = [signs.get(each, each) for each in arguments if each not in _MDOC or each in signs]
        return " ".join(arguments).replace("- ", "-" if request != "Nd" else "- ")
    return ("" if request in _BESIDE else " ").join(arguments)


def _arguments(rest: str) -> list[str]:
    rest = rest.split('\\"', 1)[0]
    return [unescaped((quoted or plain).replace('""', '"')) for quoted, plain in _ARGUMENT.findall(rest)]


def _title(text: str) -> str:
    """The line below the heading NAME."""
    lines = text[: 1 << 12].split("\n")
    place = next(
        (number for number, line in enumerate(lines) if line.strip().upper() in _NAME_HEADINGS), None
    )
    below = "" if place is None else "\n".join(lines[place + 1 :])
    return " ".join(below.strip().split("\n\n", 1)[0].split())[:200]


def unescaped(text: str) -> str:
    r"""A line with roff's escapes replaced.

    >>> unescaped(r"\fBls\fR [\-a] \(em lists \[lq]files\[rq]\&.")
    'ls [-a] — lists “files”.'
    """
    return _ESCAPE.sub(_replaced, text) if "\\" in text else text


def _replaced(found: re.Match[str]) -> str:
    if (string := found["string"] or found["long_string"]) is not None:
        return _STRINGS.get(string, "")
    if (single := found["single"]) is not None:
        return _SPECIAL.get(single, single)
    name = found["special"] or found["name"]
    if name is None:
        return ""
    if name.startswith("u") and (code := re.fullmatch(r"u([0-9A-Fa-f]{4,6})", name)):
        number = int(code[1], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    return _NAMED.get(name, "")
