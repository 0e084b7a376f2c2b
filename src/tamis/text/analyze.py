"""Converts texts to terms: an analyzer splits a text into tokens and passes each through a chain of filters.

The term of a token depends only on that token, so that an index can analyse each distinct token once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache

from tamis.base.errors import InputError
from tamis.text import porter, wordbreak

Filter = Callable[[str], str | None]
"""From a token to what becomes of it; None drops it."""

_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these
    they this to was will with
"""
ENGLISH_STOP_WORDS = frozenset(_STOP_WORDS.split())
"""The 33 words that Lucene's EnglishAnalyzer drops."""

_MOST_KNOWN = 1 << 17  # maximum number of tokens whose terms an analyzer caches


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A function that splits a text, and the filters for its tokens; `get_analyzer` returns the named ones.

    >>> own = Analyzer("own", str.split, (lower_case, stop_words({"the"}), lambda token: token[:4]))
    >>> own.tokens("The tamis sieves the flour")
    ['tami', 'siev', 'flou']
    """

    name: str
    split: Callable[[str], list[str]]
    filters: tuple[Filter, ...] = ()
    _known: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    def term(self, surface: str) -> str | None:
        """The term of a token of `split`; None if a filter drops the token."""
        term: str | None = surface
        for each in self.filters:
            if not term:
                return None
            term = each(term)
        return term or None

    def tokens(self, text: str) -> list[str]:
        """The terms of a text, in order."""
        return [term for term in self.places(text) if term is not None]

    def places(self, text: str) -> list[str | None]:
        """What each token of a text becomes, in order: its term, or None where it is dropped.

        >>> get_analyzer("english").places("The cook's sieve")
        [None, 'cook', 'siev']
        """
        known = self._known
        terms = []
        for surface in self.split(text):
            try:
                term = known[surface]
            except KeyError:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                term = known[surface] = self.term(surface)
            terms.append(term)
        return terms


def lower_case(token: str) -> str:
    """Lower-case each character independently, as Java and Lucene do.

    Python considers context in two cases: a sigma at the end of a word, and a dotted I.

    >>> lower_case("ΟΔΟΣ İstanbul"), "ΟΔΟΣ İstanbul".lower()
    ('οδοσ istanbul', 'οδος i̇stanbul')
    """
    if token.isascii():
        return token.lower()
    return token.replace("Σ", "σ").replace("İ", "i").lower()


def english_possessive(token: str) -> str:
    """The token without a final 's.

    >>> english_possessive("O'Neil’s")
    "O'Neil"
    """
    return token[:-2] if token.endswith(("'s", "’s", "＇s", "'S", "’S", "＇S")) else token


def stop_words(words: Collection[str]) -> Filter:
    """A filter that drops these words.

    >>> stop_words({"the", "of"})("the") is None
    True
    """
    dropped = frozenset(words)
    return lambda token: None if token in dropped else token


def snowball(algorithm: str) -> Filter:
    """A filter that stems, with one of the Snowball stemmers of PyStemmer.

    >>> snowball("german")("häusern")
    'haus'
    """
    import Stemmer

    stem: Filter = Stemmer.Stemmer(algorithm).stemWord
    return stem


def _whole(text: str) -> list[str]:
    return [text] if text else []


ENGLISH = Analyzer(
    "english",
    wordbreak.split,
    (english_possessive, lower_case, stop_words(ENGLISH_STOP_WORDS), porter.stem),
)
"""The terms of Lucene's EnglishAnalyzer, which is Anserini's default."""

_BUILT_IN = {
    "english": ENGLISH,
    "plain": Analyzer("plain", wordbreak.split, (lower_case,)),
    "whitespace": Analyzer("whitespace", str.split),
    "keyword": Analyzer("keyword", _whole),
}


@cache
def _snowball_names() -> dict[str, str]:
    """Analyzer name -> Snowball algorithm. The two for English have a prefix, because "english" is
    Lucene's."""
    import Stemmer

    algorithms: list[str] = Stemmer.algorithms()
    names = {f"snowball-{name}" if name in ("english", "porter") else name: name for name in algorithms}
    return names | {"porter2": "english"}


def analyzer_names() -> list[str]:
    """The names of the analyzers of `get_analyzer`.

    >>> analyzer_names()[:4], "french" in analyzer_names()
    (['english', 'plain', 'whitespace', 'keyword'], True)
    """
    return [*_BUILT_IN, *sorted(_snowball_names())]


def get_analyzer(name: str) -> Analyzer:
    """The analyzer with this name. "english" returns the terms of Lucene's EnglishAnalyzer; "plain" returns
    words in lower case; "whitespace" splits at white space; "keyword" returns the whole text as one term;
    "french", "german" and so on return words in lower case, stemmed by Snowball; "snowball-english" or
    "porter2" does the same for English.

    >>> get_analyzer("english").tokens("The cook's sieves are running")
    ['cook', 'siev', 'run']
    >>> get_analyzer("french").tokens("Les tamis des cuisinières")
    ['le', 'tam', 'de', 'cuisini']
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    algorithm = _snowball_names().get(name)
    if algorithm is None:
        choice = ", ".join(analyzer_names())
        raise InputError(f"{name!r} is not an analyzer", remedy=f"choose from {choice}")
    return Analyzer(name, wordbreak.split, (lower_case, snowball(algorithm)))
