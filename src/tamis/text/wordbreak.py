"""The words of Lucene's StandardTokenizer: Unicode's word boundaries (UAX #29) with Lucene's additions.

The additions: a Han or Hiragana character is one token, a run of Thai, Lao, Khmer or Burmese is one token, an
emoji sequence is one token, and text without a letter, digit, ideograph or emoji is not a token. Rule numbers
below (WB4, WB7a, ...) are those of https://www.unicode.org/reports/tr29/.

All the rules are in `_general`, a pattern over the classes of the characters. Indexing spends much of its
time here, so plain text, the usual case, is split by one of two fast paths, which return the same tokens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from functools import cache

from tamis.text.wordbreak_data import RANGES

MAX_LENGTH = 255  # UTF-16 units: Lucene's default maximum token length


def split(text: str) -> list[str]:
    """The tokens of `text`, unchanged.

    >>> split("O'Neil's 3.14 snake_case, C++ and e-mail: 東京タワー")
    ["O'Neil's", '3.14', 'snake_case', 'C', 'and', 'e', 'mail', '東', '京', 'タワー']
    """
    if text.isascii():
        tokens, longest = _split_ascii(text), MAX_LENGTH
    else:
        tokens, longest = _split_unicode(text), MAX_LENGTH // 2  # some characters take two UTF-16 units
    return _chop(text, tokens) if _has_long_run(text, longest) else tokens


# ASCII ------------------------------------------------------------------------------------------------------
#
# Word characters are kept, all others become spaces, and `str.split` does the rest: this is 1.6 times as fast
# as finding all matches of a pattern. A separator between two letters (. ' :) or two digits (. ' , ;) is kept
# too (WB6, WB7, WB11, WB12). To test both neighbours of all characters at once, the kinds of all characters
# are stored in one integer, one byte per character, so that a shift by 8 bits aligns each character with its
# neighbour.

_LETTER, _DIGIT = 0x40, 0x10
_BETWEEN_LETTERS, _BETWEEN_DIGITS = _LETTER << 1, _DIGIT << 1


def _ascii_tables() -> tuple[bytes, bytes, bytes]:
    """Three tables: byte -> kind, byte -> masked byte, and masked byte with the bits of a joint -> byte."""
    kinds, masked, unmasked = bytearray(256), bytearray(b" " * 256), bytearray(range(256))
    for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz":
        kinds[byte], masked[byte] = _LETTER, byte
    for byte in b"0123456789":
        kinds[byte], masked[byte] = _DIGIT, byte
    masked[ord("_")] = ord("_")
    # Separators get the codes 1 to 5, so that with a bit of a joint set they differ from all other
    # characters.
    for code, byte in enumerate(b".':,;", start=1):
        kinds[byte] |= _BETWEEN_LETTERS if byte in b".':" else 0
        kinds[byte] |= _BETWEEN_DIGITS if byte in b".',;" else 0
        masked[byte], unmasked[code] = code, ord(" ")
        for joint in (_BETWEEN_LETTERS, _BETWEEN_DIGITS, _BETWEEN_LETTERS | _BETWEEN_DIGITS):
            unmasked[code | joint] = byte
    return bytes(kinds), bytes(masked), bytes(unmasked)


_ASCII_KINDS, _ASCII_MASKED, _ASCII_UNMASKED = _ascii_tables()


def _split_ascii(text: str) -> list[str]:
    raw = text.encode("ascii")
    kinds = int.from_bytes(raw.translate(_ASCII_KINDS), "little")
    # A letter between two digit separators gets the bit 0x40 here, which every letter already has.
    joints = ((kinds << 8 & kinds >> 8) << 1) & kinds
    masked = int.from_bytes(raw.translate(_ASCII_MASKED), "little") | joints
    tokens = masked.to_bytes(len(raw), "little").translate(_ASCII_UNMASKED).decode("ascii").split()
    if "_" in text:
        return [token for token in tokens if token.strip("_")]  # underscores alone are not a token
    return tokens


# Plain words of any alphabet --------------------------------------------------------------------------------


@cache
def _plain() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The patterns of a word of letters, digits and underscores, and of an `other` character.

    A word is a first character, a run of word characters, and, rarely, a separator that joins the next run.
    Underscores alone are not a token; because of the lookbehind for a previous underscore, a line of them is
    not tried again from each character. The loop stops at 255 rounds because no token is longer, and `re`
    stores a record for each round. If an `other` character comes first, the match extends to the end of the
    text.
    """
    sets: defaultdict[str, str] = defaultdict(str)
    for first, last, code in _spans():
        if last < 0x10000:
            sets[code] += f"\\u{first:04x}-\\u{last:04x}"
    a, d, joiner = sets.pop("a"), sets.pop("d"), sets.pop("_")
    mid_letter, mid_digit, mid_both, quote = (sets.pop(code) for code in ":,.'")
    mid_a, mid_d = mid_letter + mid_both + quote, mid_digit + mid_both + quote
    del sets[" "], sets["#"], sets['"']  # these matter only next to an `other` character
    # All characters beyond U+FFFF are `other`, because `re` searches them range by range.
    other = "".join(sets.values()) + joiner.replace("\\u005f-\\u005f", "") + "\U00010000-\U0010ffff"
    word = (
        f"[{a}{d}_{other}](?:(?<![_{other}])|(?<=[{other}])(?s:.*)|(?<!__)_*[{a}{d}])[{a}{d}_]*"
        f"(?:[{mid_a}{mid_d}][{a}{d}](?:(?<=[{a}][{mid_a}][{a}])|(?<=[{d}][{mid_d}][{d}]))[{a}{d}_]*"
        f"(?:(?:(?<=[{a}])[{mid_a}](?=[{a}])|(?<=[{d}])[{mid_d}](?=[{d}]))[{a}{d}_]+){{0,255}}|)"
    )
    return re.compile(word), re.compile(f"[{other}]")


def _split_unicode(text: str) -> list[str]:
    """Split plain words by the plain pattern, and parts between two spaces that are not plain by the general
    one."""
    plain, other = _plain()
    tokens: list[str] = []
    start = 0
    for _ in range(4):  # with more parts that are not plain, the general pattern is faster for the whole rest
        found = plain.findall(text, start)
        if not found or not other.match(found[-1]):
            return tokens + found
        reached = len(text) - len(found.pop())
        chunk_start = max(start, text.rfind(" ", start, reached) + 1)
        chunk_end = text.find(" ", reached)
        tokens += found[: len(found) - len(plain.findall(text, chunk_start, reached))]
        start = chunk_start
        if chunk_end < 0:
            break
        tokens += _split_general(text[chunk_start:chunk_end])
        start = chunk_end
    return tokens + _split_general(text[start:])


# Any text ---------------------------------------------------------------------------------------------------

# The code of each kind of character in the pattern; a space stands for any other character.
_CODES = {
    "ALETTER": "a",
    "HEBREW_LETTER": "h",
    "NUMERIC": "d",
    "KATAKANA": "k",
    "HIRAGANA": "c",
    "HAN": "c",
    "COMPLEX_CONTEXT": "s",
    "COMPLEX_MARK": "S",
    "EXTEND_NUM_LET": "_",
    "MID_LETTER": ":",
    "MID_NUM": ",",
    "MID_NUM_LET": ".",
    "EXTEND": "x",
    "EMOJI": "e",
    "EMOJI_LETTER": "E",
    "EMOJI_MODIFIER": "f",
    "REGIONAL_INDICATOR": "r",
    "TAG": "t",
}
_SINGLE_CODES = {
    "'": "'",
    '"': '"',
    "#": "#",
    "*": "#",
    "\u200d": "z",  # zero width joiner
    "\u20e3": "K",  # combining enclosing keycap
    "\ufe0e": "v",  # text style
    "\ufe0f": "V",  # emoji style
    "\U000e007f": "T",  # end of a tag sequence
}
_token_start = re.compile("[adhkcsS_eEfrz#]")


@cache
def _spans() -> list[tuple[int, int, str]]:
    """The first character, the last character and the code of each range of characters, in order."""
    spans = [(0, 0x1F, " ")] + [(ord(c), ord(c), code) for c, code in _SINGLE_CODES.items()]
    for name, ranges in RANGES.items():
        for span in ranges.split():
            first, _, last = span.partition("-")
            spans.append((int(first, 16), int(last or first, 16), _CODES[name]))
    return sorted(spans)


class _Kinds(dict[int, str]):
    """Code point -> code, for `str.translate`; filled when a character first occurs."""

    def __missing__(self, point: int) -> str:
        spans = _spans()
        _, last, code = spans[bisect_right(spans, (point, 0x110000, "")) - 1]
        self[point] = code if point <= last else " "
        return self[point]


_kinds = _Kinds()


@cache
def _general() -> re.Pattern[str]:
    """The pattern of a token, in the codes of its characters.

    The ordered alternatives find the longest match, as a scanner does, because the next character determines
    each choice. Loops stop at 255 rounds, as above.
    """
    # WB4: marks, format characters and joiners belong to the character before them. In an emoji sequence the
    # two presentation selectors have their own position.
    mark, emoji_mark = "xSzfKtTvV", "xSzfKtT"
    x, ex = f"[{mark}]*+", f"[{emoji_mark}]*+"
    # WB5-WB12. A Hebrew letter also takes a single quote, or a double quote and a letter, after it (WB7a-c).
    letters = f"{x}(?:[:.']{x}[aEh]{x}){{0,255}}"
    digits = f"{x}(?:[,.']{x}d{x}){{0,255}}"
    hebrew = f"{x}(?:'{x}|\"{x}h{x}|[:.]{x}[aEh]{letters}|)"
    run = f"(?:[aE]+{letters}|d+{digits}|h+{hebrew}){{1,255}}"
    katakana = f"k[k{mark}]*+"  # WB13
    joiners = f"_[_{mark}]{{0,254}}+"  # WB13a, WB13b
    word = f"(?:{run}|{katakana}|{joiners}(?:{run}|{katakana}))(?:{joiners}(?:{run}|{katakana}|)){{0,255}}"
    # Emoji sequences of UTS #51, linked by zero width joiners. A circled M and similar characters are also
    # letters: they begin an emoji sequence only if a plain emoji follows, because otherwise the word is at
    # least as long.
    style = f"{ex}V?"
    link = "(?:(?<=z)|z++)"
    links = f"(?:{link}[eE]{style}|zf{ex}){{0,255}}"
    sequence = f"{style}(?:t++T|{links})"
    return re.compile(
        f"c{x}"
        f"|[sS][s{mark}]*+"
        f"|E{style}(?:{link}E{style}|zf{ex}){{0,255}}{link}e{style}{links}"
        f"|{word}"
        f"|e{sequence}"
        f"|f{ex}{links}"
        f"|(?<!z)z++[eE]{sequence}"
        f"|r{x}r{x}"  # WB15, WB16
        f"|#(?:{ex}VK|[xSzftT]*+K){ex}"
    )


def _split_general(text: str) -> list[str]:
    return [text[start:end] for start, end in map(re.Match.span, _general().finditer(text.translate(_kinds)))]


# Long words -------------------------------------------------------------------------------------------------


def _has_long_run(text: str, length: int) -> bool:
    """Whether the text has more than `length` characters without a space; faster than measuring tokens."""
    start = 0
    while len(text) - start > length:
        space = text.rfind(" ", start, start + length + 1)
        if space < 0:
            return True
        start = space + 1
    return False


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _chop(text: str, tokens: list[str]) -> list[str]:
    """The tokens of a text that may contain words longer than the maximum.

    Lucene reads at most 255 UTF-16 units from the start of a token, and takes the longest token in them.
    """
    longest = max(tokens, key=len, default="")
    if len(longest) <= MAX_LENGTH // 2 or max(map(_utf16_length, tokens)) <= MAX_LENGTH:
        return tokens
    kinds = text.translate(_kinds)
    chopped: list[str] = []
    position = 0
    while start := _token_start.search(kinds, position):
        position = start.start()
        end = position + MAX_LENGTH
        if _utf16_length(text[position:end]) > MAX_LENGTH:
            units = text[position:end].encode("utf-16-le", "surrogatepass")[: 2 * MAX_LENGTH]
            end = position + len(units.decode("utf-16-le", "ignore"))
        # On a copy, because the pattern must not look behind the position where Lucene restarts.
        piece = _general().match(kinds[position:end])
        if piece:
            chopped.append(text[position : position + piece.end()])
        position += piece.end() if piece else 1
    return chopped
