"""The stemmer by the examples of the paper, and where Lucene departs from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.text.porter import _measure, stem

# The examples that Porter (1980) gives for each step, here after all steps.
PAPER = """
    caresses caress   ponies poni   ties ti   caress caress   cats cat   feed feed   agreed agre
    plastered plaster   bled bled   motoring motor   sing sing   conflated conflat   troubled troubl
    sized size   hopping hop   tanned tan   falling fall   hissing hiss   fizzed fizz   failing fail
    filing file   happy happi   sky sky   relational relat   conditional condit   rational ration
    valenci valenc   hesitanci hesit   digitizer digit   conformabli conform   radicalli radic
    differentli differ   vileli vile   analogousli analog   vietnamization vietnam
    predication predic   operator oper   feudalism feudal   decisiveness decis   hopefulness hope
    callousness callous   formaliti formal   sensitiviti sensit   sensibiliti sensibl
    triplicate triplic   formative form   formalize formal   electriciti electr   electrical electr
    hopeful hope   goodness good   revival reviv   allowance allow   inference infer   airliner airlin
    gyroscopic gyroscop   adjustable adjust   defensible defens   irritant irrit   replacement replac
    adjustment adjust   dependent depend   adoption adopt   homologou homolog   communism commun
    activate activ   angulariti angular   homologous homolog   effective effect   bowdlerize bowdler
    probate probat   rate rate   cease ceas   controll control   roll roll
"""


def test_the_paper_s_examples() -> None:
    words = PAPER.split()
    assert [stem(word) for word in words[::2]] == words[1::2]


@pytest.mark.parametrize(
    ("stems", "m"),
    [
        (["", "tr", "ee", "tree", "y", "by"], 0),
        (["trouble", "oats", "trees", "ivy"], 1),
        (["troubles", "private", "oaten", "orrery"], 2),
    ],
)
def test_the_paper_s_measures(stems: list[str], m: int) -> None:
    assert [_measure(stem) for stem in stems] == [m] * len(stems)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("possibly", "possibl"),  # bli, ble: the paper's abli would leave "possibli"
        ("archaeology", "archaeolog"),  # logi, log
        ("is", "is"),  # two letters
        ("us", "us"),
        ("ies", "i"),
        ("ion", "ion"),  # ion needs s or t before it
        ("ééed", "ééed"),  # é is no vowel
        ("aééed", "aé"),  # and doubles as a consonant
        ("𝐀s", "𝐀"),  # two characters, but three UTF-16 units
        ("a𝐀𝐀ed", "a𝐀𝐀"),  # no double consonant in UTF-16 units
    ],
)
def test_as_lucene_does(word: str, expected: str) -> None:
    assert stem(word) == expected


@given(st.text())
def test_any_text_has_a_stem_that_is_not_longer(word: str) -> None:
    assert len(stem(word)) <= len(word)
    assert bool(stem(word)) == bool(word)
