"""Queries to learn from: real questions, the shorter forms that people type of them, and pseudo-queries made
of the words of a passage. What a passage is worth for any of them, the teachers say."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from passages import Passage, sentences

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9'’.-]*[A-Za-z0-9]|[A-Za-z0-9]")
_STOP_WORDS = """
a an the of in on at to for from by with and or but is are was were be been being do does did has have
had it its this that these those he she his her they their them as which who whom whose what when where
why how if then than so not no i you your my me we our us can could will would shall should may might
must there also into about over under between during after before he's it's up out s t
"""
_STOP = frozenset(_STOP_WORDS.split())
_VERBS = "is|are|was|were|do|does|did|can|could|will|would|has|have|had|should"
_QUESTION_WORDS = re.compile(
    r"^(?:(?:in|on|at|for|from|of|to|by|with|during|under) )?"
    r"(?:what|which|who|whom|whose|when|where|why|how)\b"
    rf"(?: (?:{_VERBS}|many|much|long|to)\b)*(?: (?:the|a|an)\b)?\s*"
    rf"|^(?:{_VERBS})\b(?: (?:the|a|an|there|it|you)\b)?\s*",
    re.IGNORECASE,
)
_BEGINNINGS = """
what is, what is, what is, what are, what does, how to, how does, how do, how many, how much, how long,
how long is, who is, who was, where is, when was, when is, why is, why do, cost of, definition of,
define, definition, meaning of, symptoms of, causes of, cause of, types of, difference between, example
of, average, is, can, does, which, what type of, what kind of, what causes, what county is, treatment
for, history of, facts about
"""
_ENDINGS = """
definition, meaning, symptoms, causes, cost, history, age, population, location, treatment, facts,
examples, types, vs
"""
_REQUESTS = """
find information on, i am looking for articles about, documents that discuss, papers on, what has been
written about, i am interested in, any work on the following, describe, please explain
"""
_BEFORE, _AFTER, _LONG = (
    [" ".join(each.split()) for each in text.split(",")] for text in (_BEGINNINGS, _ENDINGS, _REQUESTS)
)


def forms(question: str, rng: random.Random) -> list[str]:
    """A question as it is (half of them without their question mark), its key words, and what is left
    without its question words; only those that differ."""
    bare = question.rstrip(" ?")
    keywords = " ".join(word for word in _WORD.findall(question) if word.lower() not in _STOP)
    rest = _QUESTION_WORDS.sub("", bare)
    found = [bare if rng.random() < 0.5 else question]
    found += [form for form in (keywords, rest) if len(form.split()) > 1 and form.lower() != bare.lower()]
    return list(dict.fromkeys(found))


class PseudoQueries:
    """Queries made of a passage: its title with words of it, words that are rare elsewhere, a span, or a span
    behind words with which people begin."""

    def __init__(self, texts: Iterable[str], rng: random.Random) -> None:
        self.rng = rng
        frequency: Counter[str] = Counter()
        count = 0
        for text in texts:
            frequency.update({word.lower() for word in _WORD.findall(text)})
            count += 1
        self.idf = {word: math.log(count / each) for word, each in frequency.items()}

    def of(self, passage: Passage, title: str) -> str | None:
        """One of them; None where the passage gives none. `title` is its document's."""
        rng, words = self.rng, _WORD.findall(passage.text)
        if len(words) < 5:
            return None
        title = re.sub(r"\s*\(.*\)", "", title)
        kind = rng.random()
        if kind < 0.22 and title:
            key = self._salient(words, rng.randint(1, 3))
            named = title.lower().split()
            both = [title, *(word for word in key if word not in named)]
            query = both if rng.random() < 0.7 else [*key, title]
        elif kind < 0.45:
            query = self._salient(words, rng.randint(2, 6))
        elif kind < 0.62:
            query = self._span(words, rng.randint(3, 9))
        elif kind < 0.85 or not title:
            span = self._span(words, rng.randint(1, 5))
            query = [rng.choice(_BEFORE), *span] if span else []
        elif rng.random() < 0.5:
            query = [rng.choice(_BEFORE), title, *(self._salient(words, 1) if rng.random() < 0.5 else [])]
        else:
            query = [title, *([rng.choice(_AFTER)] if rng.random() < 0.6 else self._salient(words, 1))]
        text = " ".join(query)
        if len(text.split()) < 2 and rng.random() < 0.7:
            return None
        return (text.lower() if rng.random() < 0.8 else text) or None

    def told(self, text: str) -> str | None:
        """Whole sentences of a text, for some people say at length what they look for; half of them behind a
        request. None where it has no sentence of eight words."""
        rng, split = self.rng, sentences(text)
        starts = [number for number, sentence in enumerate(split) if len(sentence) >= 8]
        if not starts:
            return None
        at, wanted = rng.choice(starts), rng.randint(8, 36)
        words = list(split[at])
        for sentence in split[at + 1 :]:
            if len(words) >= wanted:
                break
            words += sentence
        query = " ".join([*([rng.choice(_LONG)] if rng.random() < 0.5 else []), *words[:45]])
        return query.lower() if rng.random() < 0.5 else query

    def _span(self, words: Sequence[str], length: int) -> list[str]:
        """Words in a row, with one among them that says something, without stop words at the ends."""
        telling = [
            i for i, word in enumerate(words) if word.lower() not in _STOP and self._rarity(word) > 3.5
        ]
        around = self.rng.choice(telling) if telling else self.rng.randrange(len(words))
        start = max(0, min(around - self.rng.randrange(length), len(words) - length))
        span = list(words[start : start + length])
        while span and span[0].lower() in _STOP:
            span.pop(0)
        while span and span[-1].lower() in _STOP:
            span.pop()
        return span

    def _salient(self, words: Sequence[str], count: int) -> list[str]:
        """Different words, rarer ones likelier: a weighted sample without replacement (Efraimidis and
        Spirakis 2006); mostly in the order of the text."""
        place: dict[str, int] = {}
        for number, word in enumerate(words):
            if word.lower() not in _STOP and len(word) > 2:
                place.setdefault(word.lower(), number)
        keys = {
            word: self.rng.random() ** (1 / max(0.1, min(self._rarity(word), 8.5)) ** 2) for word in place
        }
        chosen = sorted(place, key=lambda word: -keys[word])[:count]
        return sorted(chosen, key=place.__getitem__) if self.rng.random() < 0.7 else chosen

    def _rarity(self, word: str) -> float:
        return self.idf.get(word.lower(), 0.0)
