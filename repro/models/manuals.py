"""The prose of software manuals, from packages to a collection in BEIR's layout: computing, and the sciences
and engineering that the software is for.

    pip download --no-deps --only-binary :all: -d PACKAGES -r manuals.txt
    python manuals.py --packages PACKAGES --out DIR/manuals

What a module, class or function says of itself is a document, less its code, parameters, examples and
references. Only packages whose metadata name a permissive licence are read; licences.tsv beside the corpus
names them.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import random
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

from tamis.cli import status_of

SEED = 20261116
EACH = 1_500  # documents of a package: none should be most of what is read
WORDS = range(30, 701)  # of a document
_PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|NCSA|PSF|Python Software Foundation|Unlicense|CC0)\b", re.IGNORECASE
)
_OTHER = re.compile(r"\b([LA]?GPL|General Public|MPL|Mozilla|Proprietary|NonCommercial)", re.IGNORECASE)
_CODE = re.compile(
    r"(^|/)(tests?|testing|_?vendor(ed)?|externals?|extern|examples?|benchmarks?)/|(^|/)(test_|conftest)"
)
_PROSE = {
    "notes",
    "explanation",
    "description",
    "background",
    "details",
    "overview",
    "discussion",
    "theory",
    "summary",
}
_GOOGLE = re.compile(
    r"^(args|arguments|parameters|params|returns?|yields?|raises|examples?|attributes|references?|usage|"
    r"see also|keyword args|keyword arguments|note|warning|todo|shape|inputs?|outputs?)\s*:+\s*$",
    re.IGNORECASE,
)
_LEGAL = re.compile(r"copyright|\blicen[sc]e|permission is hereby|warranty", re.IGNORECASE)
_MARKUP = (
    (re.compile(r":[\w:+-]+:`([^`<]*?)\s*<[^`]*>`"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:+-]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"`([^`<]*?)\s*<[^`]*>`_{0,2}"), r"\1"),
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),  # Markdown's links
    (re.compile(r"\s*\[#?[\w, -]{1,12}\]_"), ""),  # citations
    (re.compile(r"[`*|]{1,2}([^`*|]+)[`*|]{1,2}_{0,2}"), r"\1"),
    (re.compile(r"https?://\S+"), ""),
    (re.compile(r"</?\w[^>]*>"), " "),
    (re.compile(r"\\(?:mathrm|mathbf|text|left|right|frac|rm)\b|[\\{}$]"), " "),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--packages", type=Path, required=True, help="folder of wheels")
    arguments.add_argument("--out", type=Path, required=True)
    given = arguments.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    read, seen = [], set[bytes]()
    with (given.out / "corpus.jsonl").open("w", encoding="utf-8") as corpus:
        for path in sorted(given.packages.glob("*.whl")):
            with zipfile.ZipFile(path) as wheel:
                name, version, licence = metadata(wheel)
                if not permissive(licence):
                    print(f"{name} {version}: left out, its licence is {licence[:60]!r}")
                    continue
                found = list(documents(wheel, seen))
            random.Random(f"{SEED} {name}").shuffle(found)
            for number, (title, text) in enumerate(found[:EACH]):
                line = {"_id": f"{name}-{number}", "title": title, "text": text}
                corpus.write(json.dumps(line, ensure_ascii=False) + "\n")
            read.append((name, version, licence, min(len(found), EACH)))
            print(f"{name} {version}: {len(found):,} documents")
    lines = "".join("\t".join(map(str, row)) + "\n" for row in read)
    (given.out / "licences.tsv").write_text(lines, encoding="utf-8")
    print(f"{sum(row[-1] for row in read):,} documents of {len(read)} packages")


def metadata(wheel: zipfile.ZipFile) -> tuple[str, str, str]:
    """Name, version and licence, in one line."""
    file = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    fields = HeaderParser().parsestr(wheel.read(file).decode("utf-8", "replace"))
    said = [fields.get("License-Expression") or "", (fields.get("License") or "")[:80]]
    said += [
        each.rpartition("::")[2] for each in fields.get_all("Classifier", []) if each.startswith("License")
    ]
    licence = "; ".join(dict.fromkeys(" ".join(each.split()) for each in said if each))
    return fields["Name"], fields["Version"], licence


def permissive(licence: str) -> bool:
    """
    >>> permissive("BSD-3-Clause"), permissive("MIT OR GPL-2.0"), permissive("")
    (True, False, False)
    """
    return bool(_PERMISSIVE.search(licence)) and not _OTHER.search(licence)


def documents(wheel: zipfile.ZipFile, seen: set[bytes]) -> Iterator[tuple[str, str]]:
    """Titles and texts, each text once."""
    for name in sorted(wheel.namelist()):
        if not name.endswith(".py") or _CODE.search(name):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of old code
                tree = ast.parse(wheel.read(name))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            title, text = document(ast.get_docstring(node, clean=False) or "")
            key = hashlib.sha1(text.encode()).digest()
            if len(text.split()) in WORDS and key not in seen:
                seen.add(key)
                yield title, text


def document(docstring: str) -> tuple[str, str]:
    """Its first line as the title, if it is one, and its prose.

    >>> title, text = document('''Drag of a sphere
    ...
    ... The drag coefficient :math:`C_D` falls with the Reynolds number [1]_.
    ...
    ... Parameters
    ... ----------
    ... re : float
    ...     Reynolds number of the flow, which is dimensionless.
    ...
    ... Notes
    ... -----
    ... Valid for ``re`` below one million.
    ... ''')
    >>> title
    'Drag of a sphere'
    >>> text
    'The drag coefficient C_D falls with the Reynolds number. Valid for re below one million.'
    """
    kept = [plain(paragraph) for paragraph in prose(inspect.cleandoc(docstring))]
    kept = [paragraph for paragraph in kept if is_prose(paragraph)]
    first = plain(docstring.strip().partition("\n\n")[0])
    is_title = 2 <= len(first.split()) <= 12 and len(kept) > (kept[:1] == [first])
    if is_title and kept[:1] == [first]:
        kept = kept[1:]
    return (first.rstrip(".") if is_title else ""), " ".join(kept)


def prose(docstring: str) -> Iterator[str]:
    """The paragraphs that are neither code, lists of parameters, examples nor references."""
    reading = True
    for paragraph in re.split(r"\n\s*\n", docstring):
        lines = paragraph.strip("\n").splitlines()
        if len(lines) > 1 and re.fullmatch(r"\s*([=\-~^*#+\"])\1{2,}\s*", lines[1]):
            reading = lines[0].strip().lower() in _PROSE or lines[1].strip()[0] != "-"
            lines = lines[2:]
        elif lines and _GOOGLE.match(lines[0].strip()):
            reading = lines[0].strip().lower().startswith("note") and len(lines) > 1
            lines = lines[1:]
        elif (
            lines
            and not lines[0].startswith((" ", "\t"))
            and re.match(r"^[A-Z].*[a-z]", lines[0])
            and not reading
        ):
            reading = len(" ".join(lines).split()) > 30  # Google's sections end where the indentation does
        if not reading or not lines:
            continue
        if lines[0].lstrip().startswith((">>>", "..", "$", "|", "+-", "==", "--", ":", "@", "%")):
            continue
        if lines[0].startswith((" " * 3, "\t")) and lines[-1].rstrip()[-1:] not in ".:;":
            continue  # an indented block is code or a formula
        yield " ".join(line.strip() for line in lines)


def plain(paragraph: str) -> str:
    for pattern, instead in _MARKUP:
        paragraph = pattern.sub(instead, paragraph)
    return re.sub(r"\s+([.,;:])", r"\1", " ".join(paragraph.split()))


def is_prose(paragraph: str) -> bool:
    """Whether most of it is words, and enough of them.

    >>> is_prose("The flow separates behind the sphere."), is_prose("x = linspace(0, 1); plot(x, y**2)")
    (True, False)
    """
    words = paragraph.split()
    plain_words = sum(bool(re.fullmatch(r"[(\"']?[A-Za-z][A-Za-z'-]*[.,;:)\"'!?]*", word)) for word in words)
    return len(words) >= 5 and plain_words >= 0.75 * len(words) and not _LEGAL.search(paragraph)


if __name__ == "__main__":
    sys.exit(status_of(main))
