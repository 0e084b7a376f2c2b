"""Write tests/assets/lucene_analysis: texts and words, with what Lucene makes of them.

    ANSERINI_JAR=anserini.jar python bench/lucene_oracle/make_assets.py --corpus 2wikimultihop/corpus.jsonl \
        --out tests/assets/lucene_analysis

The passages are from 2WikiMultihop; all other texts and words are made here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path

from oracle import Lucene

LINES = [
    "can't won't O'Neil's rock'n'roll 'quoted' ''double'' dogs' ' '' ab'c'd e'1 2'f 3'4 ye' 's",
    "John’s “curly” ’tis O’Neil’S ＇ full＇s width’ it‘s ‘open’ 5’11 a’1",
    "The THE tHe's It's IT’S AND'S a.an.the not-a-stop if then",
    "3.14 1,000 1,000.50 1.2.3 1;2 1:2 12:30 1..2 ,5 .5 5. -7 +8 1e10 0x1F 10% $5.00 1/2 1,a a,1 1.a a.1",
    "a.b.c U.S.A. e.g. i.e. www.example.com http://example.com/a_b?q=1&r=two#frag",
    "first.last+tag@mail.example.org mailto:x@y",
    "snake_case __init__ _ __ ___ _a a_ a__b _1 1_ _'a a_'b a'_b a_.b _.a 1_,2 x_y.z_w",
    "C++ C# F# .NET AT&T R&D",
    "self.method(arg, key=value); std::vector<int> a[i] = b->c; x := y; a:b c::d 1:a foo:bar: # * ~ ^ | \\ `",
    "tabs\tand\nlines\r\nand\x0bvertical\x0cfeed\x85next\u2028line\u2029para no\u00a0break thin\u2009space",
    "zero\u200bwidth\u200cnon\u200djoiner\u2060word\ufeffbom soft\u00adhyphen lrm\u200ea rlm\u200fb",
    "narrow\u202fspace 1\u202f000 under‿tie a⁀b ⁔ ＿ full＿width ﹍a﹎b﹏ ︳ ︴",
    "cafe\u0301 naïve Ångström A\u030angstro\u0308m",
    "\u0301alone a\u0301'b\u0308 1\u0301,2 a\u0301\u0302\u0303.b",
    "fi ﬁ ﬀ Straße STRASSE ẞ ſ Ĳ İstanbul Iğdır ıI ΟΔΟΣ ΣΑΣ ὈΔΥΣΣΕΎΣ ǅ ᾼ K Å Ω",
    "１２３ ４，５６７ ３．１４ ＡＢＣ ａｂｃ ａ．ｂ ①②③ Ⅷ ⅷ ½ ² ³ 10² x₁ ª º µ",
    "Привет, мир! Ёлка и ёж. Українська мова п'ять об’єкт. Ћирилица",
    "Ελληνικά κείμενο· ερώτηση; τόνος ΄ ᾿ ΑΎΡΙΟ",
    "עברית צה\"ל ג'ורג' ד\"ר ר' א\"ב\"ג א''ב \"אב\" א״ב א׳ גרש׳ א.ב א:ב א,ב a'א' a\"א א\"a אָלֶף א_ב ב'_ 'א",
    "العربية نص مُشَكَّل ٣٫١٤ ١٬٠٠٠ ٪ ۱۲۳ لا إله ، ؛ ؟ فارسی می‌خواهم",
    "हिन्दी में लिखा हुआ पाठ क्षत्रिय १२३ ।  বাংলা ভাষা  தமிழ் மொழி  తెలుగు  ಕನ್ನಡ  മലയാളം  ગુજરાતી  ਪੰਜਾਬੀ  සිංහල",
    "ภาษาไทย ไม่มีช่องว่าง ๑๒๓ ก a กa ัก aั ລາວ ພາສາ ຂ່າວ ភាសាខ្មែរ មនុស្ស မြန်မာဘာသာ စကား ၁၂၃",
    "中文分词 日本語のテキスト 東京タワー カタカナ ｶﾀｶﾅ ひらがな",
    "ー 々 〇 ㈱ ㍿ カ_ナ カa aカ ア'イ ㄅㄆㄇ 〆切 𠀀𠮷",
    "한국어 문장입니다. 서울특별시 ㅋㅋㅋ 한국's ᄒ\u1161ᆫ 가a나1",
    "ქართული ᲥᲐᲠᲗᲣᲚᲘ Հայերեն բառ՝ ՞ ՚ አማርኛ ቋንቋ። བོད་སྐད་ ᠮᠣᠩᠭᠣᠯ ᏣᎳᎩ ꭰ ᐃᓄᒃᑎᑐᑦ",
    "😀 😀😀 👩‍🚀 👨‍👩‍👧‍👦 👍🏽 🏽 👍🏽🏽 ❤️ ❤ ❤︎ ☎️a ©2020 ® ™ a™ 🏳️‍🌈 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🏴\ufe0f󠁧󠁢󠁥󠁮󠁧󠁿 🇫🇷 🇫🇷🇩🇪 🇫 🇫🇷🇩 1️⃣ #️⃣ *️⃣ #⃣ * # 1⃣2",
    "Ⓜ️ ⓂⓂ Ⓜa ℹ️ ℹ\u200d👩 Ⓜ\u200dⓂ\u200d😀 Ⓜ\u200d\ufe0f",
    "🅰️ 🆎 \u200d😀 \u200d\u200d😀\u200d a\u200d😀 😀\ufe0f\u200d🏽 😀\ufe0f\u200d\u200d🏽",
    "𝐀𝐁𝐂 𝐀's 𝐀s 𝟏𝟐.𝟑 𐐀𐐨 𒀀𒁀 𐤀𐤁 𝄞 𓀀 🀄 🂡 \U0010ffff \U000e0001 a\U000e0100b",
    "nul\x00byte bell\x07 esc\x1b del\x7f \ufffd \ufffe \ufffc \ue000",
    "a\ud800b \udc00c \ud83d x\udfff lone surrogates end",
    "x" * 254 + " " + "y" * 255 + " " + "z" * 256 + " " + "w" * 600,
    "a." * 200 + " " + "1," * 300 + " " + "_" * 300 + "a " + "_" * 300,
    "é" * 300
    + " "
    + "e\u0301" * 200
    + " "
    + "𝐀" * 200
    + " b"
    + "𝐀" * 200
    + " "
    + "カ" * 300
    + " "
    + "ก" * 300,
    "running ran runner easily fairly happiness nationality generalization archaeology possibly as us is",
    "",
    " ",
    "...",
]
# First code points of blocks: Latin, Greek, Cyrillic, Hebrew, Arabic, ... emoji, ideographs, tags.
BLOCKS = """
    0 100 370 400 590 600 900 E00 1000 1100 1780 2000 2600 3000 3100 4E00 A000 AC00 FB00 FE00 FF00 10400 11700
    1D400 1F100 1F300 1F600 1F900 20000 E0000
"""
SCRIPTS = [int(block, 16) for block in BLOCKS.split()]
ODD = "'\"’.,:;_-# \u200d\ufe0f\u20e3\u0301\u00ad\U0001f3fd\U0001f1eb"
_ENDINGS = """
    ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness ousness
    aliti iviti biliti logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment
    ent ion sion tion ou ism ate iti ous ive ize sses ies ss s eed ed ing ated bled ized y yed e ll led tted
    lled yy
"""
ENDINGS = _ENDINGS.split()


def random_lines(count: int, generator: random.Random) -> Iterable[str]:
    """Lines of two blocks of 256 code points, with the characters that the rules are about among them."""
    for _ in range(count):
        blocks = generator.sample(SCRIPTS, 2)
        line = ""
        for _ in range(generator.randint(20, 60)):
            odd = generator.random() < 0.3
            line += generator.choice(ODD) if odd else chr(generator.choice(blocks) + generator.randrange(256))
        yield line


def random_words(count: int, generator: random.Random) -> Iterable[str]:
    for _ in range(count):
        head = "".join(generator.choice("aeiouyybcdlstwxzé𝐀1'") for _ in range(generator.randint(0, 4)))
        yield head + "".join(generator.choice(ENDINGS) for _ in range(generator.randint(1, 3)))


def write(path: Path, lines: Iterable[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="2WikiMultihop's")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is there")
    arguments = parser.parse_args()
    lucene, generator = Lucene(), random.Random(29)

    with arguments.corpus.open(encoding="utf-8") as corpus:
        passages = [f"{record['title']}\n{record['text']}" for record in map(json.loads, corpus)]
    accented = [passage for passage in passages if not passage.isascii()]
    chosen = generator.sample(accented, 120) + generator.sample(passages, 80)
    texts = [*chosen, *LINES, *random_lines(250, generator)]
    write(
        arguments.out / "texts.jsonl.gz",
        (json.dumps({"text": t, "surfaces": lucene.standard(t), "terms": lucene.english(t)}) for t in texts),
    )

    surfaces = {surface.lower() for passage in passages for surface in lucene.standard(passage)}
    words = sorted({*generator.sample(sorted(surfaces), 4000), *random_words(3000, generator)})
    write(
        arguments.out / "stems.tsv.gz",
        (f"{word}\t{stem}" for word, stem in zip(words, lucene.stems(words), strict=True)),
    )


if __name__ == "__main__":
    main()
