"""The Porter stemmer, as implemented in Lucene.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the changes of Porter's own later
programs, which Lucene follows: `bli` becomes `ble` (in the paper `abli`, `able`), `logi` becomes `log`, and
words of one or two letters are not changed. The measure m of a stem is the number of times that vowels are
followed by consonants in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Rules = Mapping[str, Sequence[tuple[str, str]]]


class _Letters(dict[int, str]):
    def __missing__(self, point: int) -> str:
        # Every character that is not a vowel counts as a consonant, including digits and letters of other
        # scripts. Lucene counts UTF-16 units, so a character beyond U+FFFF is two consonants.
        return "c" if point <= 0xFFFF else "cc"


_LETTERS = _Letters({ord(letter): "v" for letter in "aeiou"} | {ord("y"): "y"})


def _shape(word: str) -> str:
    """The word with v for each vowel and c for each consonant; y is a vowel after a consonant."""
    shape = word.translate(_LETTERS)
    if "y" not in shape:
        return shape
    kinds = list(shape)
    for i, kind in enumerate(kinds):
        if kind == "y":
            kinds[i] = "v" if i > 0 and kinds[i - 1] == "c" else "c"
    return "".join(kinds)


def _measure(stem: str) -> int:
    return _shape(stem).count("vc")


def _ends_in_double_consonant(stem: str) -> bool:
    # The two UTF-16 units of a character beyond U+FFFF differ.
    return len(stem) > 1 and stem[-1] == stem[-2] <= "\uffff" and _shape(stem)[-1] == "c"


def _ends_in_cvc(stem: str) -> bool:
    return _shape(stem)[-3:] == "cvc" and stem[-1] not in "wxy"


def _by_last_but_one(rules: str) -> Rules:
    """Rules by the second to last letter of their suffixes, as the paper recommends."""
    filed: dict[str, list[tuple[str, str]]] = {}
    for rule in rules.split():
        suffix, _, replacement = rule.partition(">")
        filed.setdefault(suffix[-2], []).append((suffix, replacement))
    return filed


_STEP_2 = _by_last_but_one(
    "ational>ate tional>tion enci>ence anci>ance izer>ize bli>ble alli>al entli>ent eli>e ousli>ous"
    " ization>ize ation>ate ator>ate alism>al iveness>ive fulness>ful ousness>ous aliti>al iviti>ive"
    " biliti>ble logi>log"
)
_STEP_3 = _by_last_but_one("icate>ic ative> alize>al iciti>ic ical>ic ful> ness>")
_STEP_4 = _by_last_but_one(
    "al> ance> ence> er> ic> able> ible> ant> ement> ment> ent> ion> ou> ism> ate> iti> ous> ive> ize>"
)

# only words that end in these can change: plurals, -ed and -ing, y, the suffixes above, e and ll
_LAST_LETTERS = frozenset("sdgyel") | {
    suffix[-1] for step in (_STEP_2, _STEP_3, _STEP_4) for rules in step.values() for suffix, _ in rules
}


def stem(word: str) -> str:
    """The stem of a word in lower case.

    >>> [stem(word) for word in ("running", "relational", "happy", "possibly", "archaeology", "is")]
    ['run', 'relat', 'happi', 'possibl', 'archaeolog', 'is']
    """
    if len(word) < 3 and len(_shape(word)) < 3:
        return word
    if word[-1] not in _LAST_LETTERS:
        return word
    word = _plural(word)
    word = _past_and_progressive(word)
    if word[-1] == "y" and "v" in _shape(word[:-1]):  # step 1c
        word = word[:-1] + "i"
    word = _replace_suffix(word, _STEP_2, more_than=0)
    word = _replace_suffix(word, _STEP_3, more_than=0)
    word = _replace_suffix(word, _STEP_4, more_than=1)
    return _tidy(word)


def _plural(word: str) -> str:
    """Step 1a."""
    if word[-1] == "s":
        if word.endswith(("sses", "ies")):
            return word[:-2]
        if word[-2] != "s":
            return word[:-1]
    return word


def _past_and_progressive(word: str) -> str:
    """Step 1b."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    if word.endswith("ed"):
        stem = word[:-2]
    elif word.endswith("ing"):
        stem = word[:-3]
    else:
        return word
    if "v" not in _shape(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _ends_in_double_consonant(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _ends_in_cvc(stem) and _measure(stem) == 1 else stem


def _replace_suffix(word: str, rules: Rules, more_than: int) -> str:
    """Steps 2 to 4: apply the first rule whose suffix the word has, if the measure m of the rest is large
    enough."""
    for suffix, replacement in rules.get(word[-2:-1], ()):
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            if suffix == "ion" and not stem.endswith(("s", "t")):
                return word
            return stem + replacement if _measure(stem) > more_than else word
    return word


def _tidy(word: str) -> str:
    """Step 5."""
    if word[-1] == "e":
        stem = word[:-1]
        m = _measure(stem)
        if m > 1 or (m == 1 and not _ends_in_cvc(stem)):
            word = stem
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word
