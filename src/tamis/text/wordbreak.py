"""Words as Lucene's StandardTokenizer finds them: Unicode's word boundaries (UAX #29) with its additions.

The additions: a Han or Hiragana character stands alone, a run of Thai, Lao, Khmer or Burmese is one token, an
emoji sequence is one token, and what holds no letter, digit, ideograph or emoji is no token. Rule numbers
below (WB4, WB7a, ...) are those of https://www.unicode.org/reports/tr29/.

The rules stand once, in `_general`: a pattern over the kinds of the characters, one code a character. Text whose
characters are all letters, digits, underscores and punctuation, most text by far, takes one `findall` instead.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache

from tamis.text.wordbreak_data import RANGES

MAX_LENGTH = 255  # UTF-16 units: Lucene's default maximum token length


def split(text: str) -> list[str]:
    """The tokens of `text`, as they are written there.

    >>> split("O'Neil's 3.14 snake_case, C++ and e-mail: 東京タワー")
    ["O'Neil's", '3.14', 'snake_case', 'C', 'and', 'e', 'mail', '東', '京', 'タワー']
    """
    if text.isascii():
        tokens = _ascii.findall(text)
    elif _intricate().search(text) is None:
        tokens = _plain().findall(text)
    else:
        tokens = _split_general(text)
    return _chop(text, tokens) if _has_long_run(text) else tokens


# Plain words ------------------------------------------------------------------------------------------------

_ASCII_SETS = {"a": "A-Za-z", "d": "0-9", "mid_a": ".':", "mid_d": ".',;"}


def _plain_words(a: str, d: str, mid_a: str, mid_d: str) -> re.Pattern[str]:
    """The pattern of words of the letters `a`, the digits `d` and the underscore, given as members of sets.

    The first character, a run of word characters, and, seldom, a separator that joins the run to the next one:
    between two letters (WB6, WB7) or two digits (WB11, WB12). Underscores alone are no token; looking behind for
    an earlier one keeps a line of them from being tried again from each of its characters. The loop stops at
    255 rounds because no token is longer, and `re` keeps a record for each round.
    """
    return re.compile(
        f"[{a}{d}_](?:(?<!_)|(?<!__)_*[{a}{d}])[{a}{d}_]*"
        f"(?:[{mid_a}{mid_d}][{a}{d}](?:(?<=[{a}][{mid_a}][{a}])|(?<=[{d}][{mid_d}][{d}]))[{a}{d}_]*"
        f"(?:(?:(?<=[{a}])[{mid_a}](?=[{a}])|(?<=[{d}])[{mid_d}](?=[{d}]))[{a}{d}_]+){{0,255}}|)"
    )


_ascii = _plain_words(**_ASCII_SETS)


def _members(*names: str) -> str:
    """The members of the named kinds, in the Basic Multilingual Plane, as in a set of `re`."""
    spans = [span for span in _spans() if span[2] in map(_CODES.__getitem__, names) and span[1] < 0x10000]
    return "".join(f"\\u{low:04x}-\\u{high:04x}" for low, high, _ in spans)


@cache
def _plain() -> re.Pattern[str]:
    return _plain_words(
        a=_members("ALETTER"),
        d=_members("NUMERIC"),
        mid_a="'" + _members("MID_LETTER", "MID_NUM_LET"),
        mid_d="'" + _members("MID_NUM", "MID_NUM_LET"),
    )


@cache
def _intricate() -> re.Pattern[str]:
    """One character that the plain pattern does not know; all those beyond U+FFFF, to keep the set small."""
    plain = {"ALETTER", "NUMERIC", "MID_LETTER", "MID_NUM", "MID_NUM_LET", "EXTEND_NUM_LET"}
    joiners = _members("EXTEND_NUM_LET").replace("\\u005f-\\u005f", "")
    return re.compile(f"[{_members(*RANGES.keys() - plain)}{joiners}\u200d\u20e3\ufe0e\ufe0f\U00010000-\U0010ffff]")


# Any text ---------------------------------------------------------------------------------------------------

# The code of each kind of character in the pattern; a space is any other character.
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


@cache
def _spans() -> list[tuple[int, int, str]]:
    """First, last and code of each range of characters, in order."""
    spans = [(0, 0x1F, " ")] + [(ord(c), ord(c), code) for c, code in _SINGLE_CODES.items()]
    for name, ranges in RANGES.items():
        for span in ranges.split():
            first, _, last = span.partition("-")
            spans.append((int(first, 16), int(last or first, 16), _CODES[name]))
    return sorted(spans)


class _Kinds(dict[int, str]):
    """Code point -> code, filled as characters are met: what `str.translate` asks for."""

    def __missing__(self, point: int) -> str:
        spans = _spans()
        _, last, code = spans[bisect_right(spans, (point, 0x110000, "")) - 1]
        self[point] = code if point <= last else " "
        return self[point]


_kinds = _Kinds()


@cache
def _general() -> re.Pattern[str]:
    """A token, in the codes of its characters.

    Longest match, as a scanner has it, comes out of ordered alternatives because the next character settles
    each choice. Loops stop at 255 rounds, as above.
    """
    # WB4: marks, format characters and joiners belong to the character before them. In an emoji sequence the
    # two presentation selectors have a place of their own.
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
    # Emoji sequences of UTS #51, linked by zero width joiners. A circled M and its like are letters as well:
    # they begin an emoji sequence only if a plain emoji follows, for otherwise the word is at least as long.
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


def _has_long_run(text: str) -> bool:
    """Whether some stretch without a space could be a token that is too long; cheaper than measuring tokens."""
    length = MAX_LENGTH // 2  # characters beyond U+FFFF take two UTF-16 units
    start = 0
    while len(text) - start > length:
        space = text.rfind(" ", start, start + length + 1)
        if space < 0:
            return True
        start = space + 1
    return False


def _chop(text: str, tokens: list[str]) -> list[str]:
    """The tokens of a text that may hold words longer than the maximum.

    Lucene reads at most 255 UTF-16 units from where a token starts, and takes the longest token in them.
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
        # Of a copy, because the pattern must not look behind the place where Lucene starts afresh.
        piece = _general().match(kinds[position:end])
        if piece:
            chopped.append(text[position : position + piece.end()])
        position += piece.end() if piece else 1
    return chopped


_token_start = re.compile("[ahdkcsSeEfrz_#]")


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
