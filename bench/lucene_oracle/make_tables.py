"""Write src/tamis/text/wordbreak_data.py: the kinds of characters that StandardTokenizer tells apart.

    ANSERINI_JAR=anserini.jar python bench/lucene_oracle/make_tables.py src/tamis/text/wordbreak_data.py

Lucene 9 follows the properties of Unicode 12.1, an older version than Python's or Java's own tables, so the
kinds are read from its scanner. Each is named here after one of its members.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path

from oracle import jpype, start

# name -> one member of each of the scanner's classes that make it up
MEMBERS = {
    "ALETTER": "A\uac00",  # the scanner tells Hangul from other letters only to type the token
    "HEBREW_LETTER": "\u05d0",
    "NUMERIC": "0\u0660",
    "KATAKANA": "\u30a2",
    "HIRAGANA": "\u3042",
    "HAN": "\u4e00",
    "COMPLEX_CONTEXT": "\u0e01",
    "COMPLEX_MARK": "\u0e31",
    "EXTEND_NUM_LET": "_",
    "MID_LETTER": ":",
    "MID_NUM": ",",
    "MID_NUM_LET": ".",
    "EXTEND": "\u0300",
    "EMOJI": "\U0001f600",
    "EMOJI_LETTER": "\u24c2",
    "EMOJI_MODIFIER": "\U0001f3fb",
    "REGIONAL_INDICATOR": "\U0001f1e6",
    "TAG": "\U000e0020",
}
# Classes of a few characters, written out where they are used.
SINGLE = "\"'#\u200d\u20e3\ufe0e\ufe0f\U000e007f"

HEADER = '''"""Kinds of characters in Unicode 12.1 that decide where a word ends.

Made by bench/lucene_oracle/make_tables.py. The property values are those of Unicode (Word_Break, Line_Break,
Script and the emoji properties): Copyright 1991-2019 Unicode, Inc., https://www.unicode.org/license.txt.
Ranges of code points, in hexadecimal.
"""
'''


def scanner_classes() -> bytes:
    """The class number that the scanner gives to each code point."""
    start()
    scanner = jpype.JClass("org.apache.lucene.analysis.standard.StandardTokenizerImpl").class_

    def table(name: str) -> list[int]:
        field = scanner.getDeclaredField(name)
        field.setAccessible(True)
        return list(field.get(None))

    top, blocks = table("ZZ_CMAP_TOP"), table("ZZ_CMAP_BLOCKS")
    return bytes(blocks[top[c >> 8] | c & 0xFF] for c in range(0x110000))


def ranges(classes: bytes, wanted: set[int]) -> Iterator[tuple[int, int]]:
    start = None
    for c, number in enumerate((*classes, -1)):
        if number in wanted and start is None:
            start = c
        elif number not in wanted and start is not None:
            yield start, c - 1
            start = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="the file to write")
    out = parser.parse_args().out
    classes = scanner_classes()
    named = {classes[ord(c)] for c in "".join(MEMBERS.values()) + SINGLE}
    if named != set(classes) - {classes[0]}:
        raise SystemExit(f"classes without a name: {sorted(set(classes) - named)}")
    lines = [HEADER, "RANGES = {"]
    for name, members in MEMBERS.items():
        spans = ranges(classes, {classes[ord(c)] for c in members})
        text = " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in spans)
        lines += [f'    "{name}": """']
        lines += ["        " + line for line in textwrap.wrap(text, 100)]
        lines += ['    """,']
    out.write_text("\n".join([*lines, "}", ""]))


if __name__ == "__main__":
    main()
