"""Word boundaries, rule by rule, and that the short cuts for plain text change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.text import wordbreak
from tamis.text.wordbreak import MAX_LENGTH, split
from tamis.text.wordbreak_data import RANGES


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        (" .,;-_ __ #*", []),
        ("can't O'Neil's 'quoted' dogs'", ["can't", "O'Neil's", "quoted", "dogs"]),
        ("it’s “so” ’tis", ["it’s", "so", "tis"]),
        ("a.b.c U.S.A. end. e-mail", ["a.b.c", "U.S.A", "end", "e", "mail"]),
        ("3.14 1,000.50 1;2 1:2 5'6", ["3.14", "1,000.50", "1;2", "1", "2", "5'6"]),
        ("a:b a,b a;b a.1 1.a", ["a:b", "a", "b", "a", "b", "a", "1", "1", "a"]),
        ("a..b a.'b 1.,2", ["a", "b", "a", "b", "1", "2"]),
        ("x1.y2 x1.2y 1a.b2", ["x1", "y2", "x1.2y", "1a.b2"]),
        ("snake_case _a __1 a_ _ a_.b", ["snake_case", "_a", "__1", "a_", "a_", "b"]),
        ("C++ me@x.org/?q=1", ["C", "me", "x.org", "q", "1"]),
        ("cafe\u0301s soft\u00adhyphen \u0301 a", ["cafe\u0301s", "soft\u00adhyphen", "a"]),  # WB4
        ("e\u0301'a 1\u0301,2", ["e\u0301'a", "1\u0301,2"]),
        ('צה"ל ר\' "אב"', ['צה"ל', "ר'", "אב"]),  # WB7a-c
        ("א\"ב\"ג a'א'", ['א"ב', "ג", "a'א"]),  # a quote needs a Hebrew letter of its own
        ("東京タワーひら ｶﾅ カ_ナ カa", ["東", "京", "タワー", "ひ", "ら", "ｶﾅ", "カ_ナ", "カ", "a"]),  # WB13
        ("ภาษาไทย ๑๒ กa", ["ภาษาไทย", "๑๒", "ก", "a"]),
        ("한국어 가a", ["한국어", "가a"]),
        ("1\u202f000 a‿b", ["1\u202f000", "a‿b"]),  # WB13a, WB13b
        ("👩‍🚀👍🏽 ❤️ 🇫🇷🇩🇪🇫 1️⃣ #️⃣ a©", ["👩‍🚀", "👍🏽", "❤️", "🇫🇷", "🇩🇪", "1️⃣", "#️⃣", "a", "©"]),
        ("Ⓜa Ⓜ\u200d😀", ["Ⓜa", "Ⓜ\u200d😀"]),
        ("１２，３ ＡＢ", ["１２，３", "ＡＢ"]),
        ("a\x00b \ud800c\udfff", ["a", "b", "c"]),
        ("\U0001fae8", ["\U0001fae8"]),  # an emoji of a later Unicode, in a range kept free for emoji
        ("\u1c8a", []),  # a letter of a later Unicode than Lucene's
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert split(text) == tokens


# One to three characters of every kind, so that what the rules are about comes up often.
KINDS = "".join(
    chr(int(span.partition("-")[0], 16))
    for ranges in RANGES.values()
    for span in (ranges.split()[0], ranges.split()[len(ranges.split()) // 2], ranges.split()[-1])
)
MIXED = st.text(st.sampled_from(KINDS + "'\"#*\u200d\u20e3\ufe0e\ufe0f\U000e007f  é$-"), max_size=30)
ASCII = st.text(st.sampled_from("ab1Z9_.':,; -#\n"), max_size=30) | st.text(st.characters(codec="ascii"))


@given(ASCII)
def test_ascii_short_cut(text: str) -> None:
    assert wordbreak._split_ascii(text) == wordbreak._split_general(text)
    assert split(text) == wordbreak._split_general(text)


@given(ASCII)
def test_plain_pattern_on_ascii(text: str) -> None:
    assert wordbreak._split_unicode(text) == wordbreak._split_general(text)


@given(MIXED | st.lists(MIXED, max_size=8).map(" ".join) | st.text())
def test_unicode_short_cut(text: str) -> None:
    assert wordbreak._split_unicode(text) == wordbreak._split_general(text)
    assert split(text) == wordbreak._split_general(text)


@given(st.text(st.characters(), max_size=50) | st.text(st.characters(categories=["Cs"])))
def test_tokens_stand_in_the_text_in_order(text: str) -> None:
    position = 0
    for token in split(text):
        assert token
        position = text.index(token, position) + len(token)


@given(MIXED, st.integers(0, 9))
def test_a_space_separates(text: str, at: int) -> None:
    assert split(f"{text[:at]} {text[at:]}") == split(text[:at]) + split(text[at:])


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("a" * 255, [255]),
        ("a" * 600, [255, 255, 90]),
        ("é" * 600, [255, 255, 90]),
        ("a." * 300, [255, 255, 87]),  # a full stop where Lucene starts afresh is dropped
        ("_" * 300 + "a", [255]),  # the last 254 underscores, and the letter
        ("𝐀" * 300, [127, 127, 46]),  # two UTF-16 units each
        ("a" + "𝐀" * 300, [128, 127, 46]),
        ("a " * 300, [1] * 300),
        ("x\n" + "y" * 256 + "\nz", [1, 255, 1, 1]),
    ],
)
def test_long_words_are_chopped(text: str, lengths: list[int]) -> None:
    assert [len(token) for token in split(text)] == lengths


@given(st.lists(st.sampled_from(["a", "1", "_", ".", "é", "\u0301", "𝐀", "א", "'", "ก", " "]), max_size=5))
def test_no_token_is_longer_than_the_maximum(pieces: list[str]) -> None:
    text = "".join(piece * 200 for piece in pieces)
    assert all(len(token.encode("utf-16-le")) <= 2 * MAX_LENGTH for token in split(text))


HOSTILE = [
    *(
        "a",
        "_",
        "é",
        "a.",
        "e\u0301",
        "_\u0301",
        "_\u0e31",
        "\u200d",
        "😀\u200d",
        "Ⓜ\u200d",
        "#\u0301",
        'א"',
        "カ_",
    ),
    *("1,", "🇫", "🏴\ufe0f\U000e0067", "東", "\x00", "\ud800", "𝐀", ".", "a_."),
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_grows_with_the_length_of_hostile_text_only(unit: str) -> None:
    """200,000 characters of each: quadratic time would be hours, and deep recursion a crash."""
    text = unit * (200_000 // len(unit))
    split(text)
    split(text + "é")
