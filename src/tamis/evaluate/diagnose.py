"""Behavioural tests of a ranker: how its scores react when texts are changed in one known way.

MacAvaney et al. (2020) found that shuffled words lower monoBERT's scores much, shuffled sentences a little
and shuffled prepositions hardly, and that sentences on another topic raise them. The last two changes test
axioms of retrieval that BERT is known to violate: one more query term, or a repeated text, should not lower a
score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

import numpy as np

from tamis.base.arrays import Array
from tamis.base.documents import Document
from tamis.base.errors import InputError
from tamis.core.candidates import placed
from tamis.core.ranking import Ranking
from tamis.core.stage import Stage
from tamis.evaluate.significance import bootstrap_interval
from tamis.text.analyze import ENGLISH
from tamis.text.segment import sentences

_PREPOSITIONS = """
    about above across after against along among around at before behind below beneath beside between
    beyond by down during for from in inside into near of off on onto out outside over past since through
    throughout to toward towards under until up upon with within without
"""
PREPOSITIONS = frozenset(_PREPOSITIONS.split())


@dataclass(frozen=True, slots=True)
class Setting:
    """What a change may use besides the text: its query, a text found for another query, and random
    numbers."""

    query: str
    other: str
    random: Random


Change = Callable[[str, Setting], str]


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a change on scores; on log-odds if they are probabilities, which are limited to 0..1."""

    change: str
    pairs: int  # of a query and a text that was altered by the change
    mean: float  # of the changed text's score minus the original's: the mean over queries of their means
    low: float  # and its 95 % interval
    high: float
    raised: float  # share of the pairs
    lowered: float


# -- changes
# ------------------------------------------------------------------------------------------------------------


def shuffled_words(text: str, setting: Setting) -> str:
    """All words in random order.

    >>> shuffled_words("flour falls through", Setting("", "", Random(1)))
    'flour through falls'
    """
    return " ".join(_shuffled(text.split(), setting.random))


def shuffled_words_of_sentences(text: str, setting: Setting) -> str:
    """The words of each sentence in random order."""
    return " ".join(shuffled_words(sentence, setting) for sentence in _sentences(text))


def shuffled_sentences(text: str, setting: Setting) -> str:
    """The sentences in random order."""
    return " ".join(_shuffled(_sentences(text), setting.random))


def shuffled_prepositions(text: str, setting: Setting) -> str:
    """The prepositions exchanged at random with each other.

    >>> shuffled_prepositions("from flour to bread", Setting("", "", Random(0)))
    'to flour from bread'
    """
    words = text.split()
    places = [place for place, word in enumerate(words) if word.lower() in PREPOSITIONS]
    for place, word in zip(places, _shuffled([words[i] for i in places], setting.random), strict=True):
        words[place] = word
    return " ".join(words)


def with_other_sentence(text: str, setting: Setting) -> str:
    """The text with a sentence of another query's text at the end."""
    others = _sentences(setting.other)
    return f"{text} {setting.random.choice(others)}" if others else text


def with_query_term(text: str, setting: Setting) -> str:
    """The text with one of the query's words at the end (the axiom TFC1)."""
    words = [word for word in setting.query.split() if ENGLISH.tokens(word)]
    return f"{text} {setting.random.choice(words)}" if words else text


def twice(text: str, setting: Setting) -> str:
    """The text repeated once (the axiom LNC2)."""
    return f"{text} {text}"


CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "words shuffled": shuffled_words,
        "words of each sentence shuffled": shuffled_words_of_sentences,
        "sentences shuffled": shuffled_sentences,
        "prepositions shuffled": shuffled_prepositions,
        "a sentence on something else at the end": with_other_sentence,
        "a query term at the end": with_query_term,
        "the text twice": twice,
    }
)


# -- their effects
# ------------------------------------------------------------------------------------------------------------


def effects(
    stage: Stage, rankings: Iterable[Ranking], changes: Mapping[str, Change] = CHANGES, *, seed: int = 0
) -> list[Effect]:
    """The effect of each change on a stage's scores of these candidates. Titles are left out, because the
    changes do not apply to them.

    >>> import tamis
    >>> texts = [tamis.Document("d1", "A sieve. Flour falls through."), tamis.Document("d2", "Soup.")]
    >>> index = tamis.Index.build(texts, getfixture("tmp_path") / "idx")
    >>> found = [(index.bm25() % 1)(query) for query in ("sieve", "soup")]
    >>> [change] = effects(tamis.Mono(), found, {"the text twice": twice})
    >>> change.pairs
    2
    """
    found = [ranking for ranking in rankings if len(ranking)]
    if len({ranking.query.text for ranking in found}) < 2:
        raise InputError("candidates of fewer than two queries", remedy="give rankings of more queries")
    texts = [[document.text for document in ranking.documents()] for ranking in found]
    before = _scores(stage, found, texts)
    return [_effect(stage, name, change, found, texts, before, seed) for name, change in changes.items()]


def _effect(
    stage: Stage,
    name: str,
    change: Change,
    rankings: Sequence[Ranking],
    texts: Sequence[Sequence[str]],
    before: Sequence[Array],
    seed: int,
) -> Effect:
    random = Random(seed)
    changed = []
    for ranking, own in zip(rankings, texts, strict=True):
        elsewhere = [i for i, other in enumerate(rankings) if other.query.text != ranking.query.text]
        changed.append(
            [
                change(
                    text, Setting(ranking.query.text, random.choice(texts[random.choice(elsewhere)]), random)
                )
                for text in own
            ]
        )
    after = _scores(stage, rankings, changed)
    altered = [
        np.array([one.split() != other.split() for one, other in zip(*pair, strict=True)], bool)
        for pair in zip(texts, changed, strict=True)
    ]
    of_queries = [(b - a)[here] for a, b, here in zip(before, after, altered, strict=True) if here.any()]
    if not of_queries:
        return Effect(name, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    every = np.concatenate(of_queries)
    means = np.array([differences.mean() for differences in of_queries])
    low, high = bootstrap_interval(means, seed=seed)
    raised, lowered = float((every > 0).mean()), float((every < 0).mean())
    return Effect(name, len(every), float(means.mean()), low, high, raised, lowered)


def _scores(stage: Stage, rankings: Sequence[Ranking], texts: Sequence[Sequence[str]]) -> list[Array]:
    """The stage's scores of these texts, in their order."""
    given = [
        placed(ranking.query, [Document(str(i), text) for i, text in enumerate(own)])
        for ranking, own in zip(rankings, texts, strict=True)
    ]
    scores = []
    for candidates, ranking in zip(given, stage.apply(given), strict=True):
        if len(ranking) != len(candidates):
            raise InputError(
                f"{stage!r} drops candidates", remedy="give a stage that scores all, as mono does"
            )
        of = dict(zip(ranking.ids, ranking.log_odds().tolist(), strict=True))
        scores.append(np.array([of[doc_id] for doc_id in candidates.ids]))
    return scores


def _shuffled(parts: Sequence[str], random: Random) -> list[str]:
    return random.sample(parts, len(parts))


def _sentences(text: str) -> list[str]:
    return [text[start:stop] for start, stop in sentences(text)]
