"""What changes of a text do to scores, with rankers whose answer can be worked out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest

from tamis import Document, Query, Ranking
from tamis.base.errors import InputError
from tamis.core.candidates import placed
from tamis.core.language import Call
from tamis.core.ranking import ScoreKind
from tamis.core.stage import Stage
from tamis.evaluate.diagnose import (
    CHANGES,
    Change,
    Setting,
    effects,
    shuffled_prepositions,
    shuffled_sentences,
    shuffled_words,
    shuffled_words_of_sentences,
    twice,
    with_other_sentence,
    with_query_term,
)

TEXT = "Flour falls through the sieve. Lumps stay on top of it. Soup goes from a pot into a bowl."

OTHER = "Horses eat hay. Carts carry it to them. Farmers cut it in June. Then it dries. Rain is bad for it."


class By(Stage):
    """Scores a text by a function of it."""

    def __init__(self, function: Callable[[str], float], kind: ScoreKind = ScoreKind.LOGIT) -> None:
        self.function, self.kind = function, kind

    @property
    def expression(self) -> Call:
        return Call("by")

    def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
        return [
            ranking.rescored(np.array([self.function(each.text) for each in ranking.documents()]), self.kind)
            for ranking in rankings
        ]


def candidates(**texts: str) -> list[Ranking]:
    """One query a word, with its texts between bars."""
    return [
        placed(Query(query, query), [Document(str(i), text) for i, text in enumerate(joined.split(" | "))])
        for query, joined in texts.items()
    ]


def setting(
    seed: int = 0, *, query: str = "the sieve", other: str = "Horses eat grass. Carts carry it."
) -> Setting:
    return Setting(query, other, Random(seed))


@pytest.mark.parametrize("change", [shuffled_words, shuffled_words_of_sentences, shuffled_sentences])
def test_shuffling_keeps_every_word_and_changes_their_order(change: Change) -> None:
    changed = change(TEXT, setting())
    assert changed != TEXT
    assert Counter(changed.split()) == Counter(TEXT.split())
    assert changed == change(TEXT, setting()) != change(TEXT, setting(1))


def test_sentences_keep_their_words_or_each_other() -> None:
    sentences = [
        "Flour falls through the sieve.",
        "Lumps stay on top of it.",
        "Soup goes from a pot into a bowl.",
    ]
    within = shuffled_words_of_sentences(TEXT, setting()).split()
    assert sorted(within[:5]) == sorted(sentences[0].split())
    assert sorted(within[5:11]) == sorted(sentences[1].split())
    shuffled = shuffled_sentences(TEXT, setting())
    assert all(sentence in shuffled for sentence in sentences)


def test_prepositions_change_places_and_nothing_else_moves() -> None:
    found = {shuffled_prepositions("From a pot into a bowl", setting(seed)) for seed in range(20)}
    assert found == {"From a pot into a bowl", "into a pot From a bowl"}


def test_what_is_added() -> None:
    assert {with_other_sentence("Soup.", setting(seed)) for seed in range(20)} == {
        "Soup. Horses eat grass.",
        "Soup. Carts carry it.",
    }
    assert with_other_sentence("Soup.", setting(other="")) == "Soup."
    assert {with_query_term("Soup.", setting(seed)) for seed in range(20)} == {"Soup. sieve"}
    assert with_query_term("Soup.", setting(query="the")) == "Soup."
    assert twice("Soup.", setting()) == "Soup. Soup."


def test_effects_are_differences_over_queries() -> None:
    longer = By(lambda text: len(text.split()))
    found = candidates(one="a b | c d e f", two="g")
    [effect] = effects(longer, found, {"twice": twice})
    # query one: +2 and +4, mean 3; query two: +1
    assert (effect.change, effect.pairs, effect.mean) == ("twice", 3, 2.0)
    assert (effect.raised, effect.lowered) == (1.0, 0.0)
    assert 1 <= effect.low <= effect.mean <= effect.high <= 3
    [shorter] = effects(By(lambda text: -len(text.split())), found, {"twice": twice})
    assert (shorter.mean, shorter.raised, shorter.lowered) == (-2.0, 0.0, 1.0)


def test_probabilities_are_compared_as_log_odds() -> None:
    certain = By(lambda text: 0.9 if " " in text else 0.5, ScoreKind.PROBABILITY)
    [effect] = effects(certain, candidates(one="a", two="b"), {"twice": twice})
    assert effect.mean == pytest.approx(np.log(9))


def test_a_text_that_a_change_leaves_as_it_is_does_not_count() -> None:
    found = candidates(one="a b | c", two="d  d")
    [effect] = effects(By(len), found, {"words shuffled": lambda text, _: " ".join(text.split()[::-1])})
    assert effect.pairs == 1
    [none] = effects(By(len), found, {"nothing": lambda text, _: text})
    assert (none.pairs, none.mean, none.raised) == (0, 0.0, 0.0)


def test_a_ranker_that_cannot_tell_order_is_not_moved_by_it() -> None:
    bag = By(lambda text: len(set(text.lower().split())))
    found = {effect.change: effect for effect in effects(bag, candidates(one=TEXT, two=OTHER))}
    assert list(found) == list(CHANGES)
    for change in ("words shuffled", "sentences shuffled", "prepositions shuffled", "the text twice"):
        assert found[change].pairs and found[change].mean == 0
    assert found["a query term at the end"].raised == 1


def test_the_other_sentence_is_of_another_query() -> None:
    seen: list[str] = []

    def note(text: str, given: Setting) -> str:
        seen.append(f"{given.query}: {given.other}")
        return text

    effects(By(len), candidates(one="a | b", two="c"), {"noted": note})
    assert seen[:2] == ["one: c", "one: c"] and seen[2] in ("two: a", "two: b")


def test_what_cannot_be_diagnosed() -> None:
    class First(By):
        def apply(self, rankings: Sequence[Ranking], depth: int | None = None) -> list[Ranking]:
            return [ranking.head(1) for ranking in rankings]

    with pytest.raises(InputError, match="fewer than two queries: give rankings of more queries"):
        effects(By(len), candidates(one="a | b"))
    with pytest.raises(InputError, match="by drops candidates: give a stage that scores all"):
        effects(First(len), candidates(one="a | b", two="c"))
