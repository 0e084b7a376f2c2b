"""The query of a TREC topic: its title, description or narrative, complete or shortened.

    title              the topic's few keywords
    desc               a sentence
    narr               a paragraph: what is relevant, and what is not
    title+desc         several of them, concatenated
    desc-keywords      without punctuation and stop words; also title-keywords and narr-keywords
    narr-noneg         without the sentences that say what is not relevant

Dai & Callan 2019 compare them: a model that reads sentences is better with the description, and worse if stop
words are removed from it; for a bag-of-words model it is the opposite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

from tamis.base.errors import InputError
from tamis.text.segment import sentences

TopicField = Literal[
    "title",
    "desc",
    "narr",
    "title+desc",
    "title+desc+narr",
    "title-keywords",
    "desc-keywords",
    "narr-keywords",
    "narr-noneg",
]

_FUNCTION_WORDS = """
    a about above after again against all also am an and any are aren't as at be because been before being
    below between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down
    during each either etc few for from further had hadn't has hasn't have haven't having he her here hers
    herself him himself his how however i if in into is isn't it it's its itself just may me might mine more
    most must mustn't my myself neither no nor not now of off on once only or other others otherwise ought our
    ours ourselves out over own per rather same shall shan't she should shouldn't since so some such than that
    that's the their theirs them themselves then there there's therefore these they this those through thus to
    too toward towards under until up upon us very via was wasn't we were weren't what what's whatever when
    where whether which while who who's whom whose why will with within without won't would wouldn't yet you
    your yours yourself yourselves
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Words that say nothing about a topic. More than the index drops: a topic is a sentence, and asks."""

_KEYWORD = re.compile(r"\w+(?:['’.&-]\w+)*")
_NOT = r"(?:\b(?:not|never|nor|neither|cannot)\b|n['’]t\b)"
_NEGATION = re.compile(
    r"\b(?:ir|non-?)relevant\b"
    # "are not considered relevant"; not "whether or not it works is relevant"
    rf"|(?<!or ){_NOT}(?:\s[\w-]+){{0,6}}\s(?:relevant|acceptable|sufficient|enough|wanted|count)\b"
    r"|\bno (?:\w+ )?relevance\b|\b(?:excluded|unacceptable|disregarded|ignored)\b",
    re.IGNORECASE,
)


def title(fields: Mapping[str, str]) -> str:
    """A topic's title.

    >>> title({"title": "Black Bear Attacks"})
    'Black Bear Attacks'
    """
    return _part(fields, "title")


def description(fields: Mapping[str, str]) -> str:
    """A topic's description.

    >>> description({"desc": "How frequent are attacks by black bears?"})
    'How frequent are attacks by black bears?'
    """
    return _part(fields, "desc")


def narrative(fields: Mapping[str, str]) -> str:
    """A topic's narrative.

    >>> narrative({"narr": "Attacks on cattle are not relevant."})
    'Attacks on cattle are not relevant.'
    """
    return _part(fields, "narr")


def keywords(text: str) -> str:
    """A text without punctuation and stop words; the remaining words are not changed.

    >>> keywords("What are the effects of U.S. aid, if any, on al-Qaeda's growth?")
    "effects U.S aid al-Qaeda's growth"
    """
    found = _KEYWORD.findall(text)
    return " ".join(word for word in found if word.lower().replace("’", "'") not in FUNCTION_WORDS)


def without_negation(text: str) -> str:
    """A text without the sentences that say what is not relevant.

    >>> without_negation("Attacks on people are relevant. Attacks on cattle are not relevant.")
    'Attacks on people are relevant.'
    """
    found = [text[start:stop] for start, stop in sentences(text)]
    return " ".join(sentence for sentence in found if not _NEGATION.search(sentence))


def represented(fields: Mapping[str, str], field: TopicField) -> str:
    """The query that represents a topic in the form `field`.

    >>> topic = {"title": "bear attacks", "desc": "How frequent are they?"}
    >>> represented(topic, "title+desc"), represented(topic, "desc-keywords")
    ('bear attacks How frequent are they?', 'frequent')
    """
    names, _, how = field.partition("-")
    text = " ".join(_part(fields, name) for name in names.split("+"))
    query = _SHORTENED[how](text)
    if not query:
        raise InputError(f"nothing is left of the query as {field}", remedy=f"use {names}")
    return query


_SHORTENED: dict[str, Callable[[str], str]] = {
    "": str,
    "keywords": keywords,
    "noneg": without_negation,
}


def _part(fields: Mapping[str, str], name: str) -> str:
    text = fields.get(name)
    if not text:
        raise InputError(f"the query has no {name}", remedy="choose another field")
    return text
