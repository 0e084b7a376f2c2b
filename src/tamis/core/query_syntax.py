"""Queries as people write them for search engines: `tamis "drum sieve" +flour -soup`.

    word       counts for the score, as in a plain query
    "a phrase" must be there: its words next to each other; they count for the score too
    +word      must be there, and counts
    -word      must not be there, and adds nothing; so with +"a phrase" and -"a phrase"

What must and must not be there is a condition of the query (`tamis.base.conditions`). The text that is left
is plain: a document that satisfies the condition has the score that it has for the words alone, and models
read no operators.

An operator is one only at the beginning of a word, a quote only where it begins a phrase and another one ends
it: in `well-known`, `C++`, `a - b` and `12" pipe` there are none. So every text can be read, unless nothing
is left to look for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from tamis.base.conditions import Condition, Contains, Not, all_of
from tamis.base.documents import Query
from tamis.base.errors import InputError, quoted

QuerySyntax = Literal["plain", "simple"]

_QUOTES = '"\u201c\u201d\u201e'  # as telephones write them too
_PART = re.compile(rf"([+-]?)[{_QUOTES}]([^{_QUOTES}]*)[{_QUOTES}]|([+-])(?![+-])(\S+)|(\S+)")


class Part(NamedTuple):
    """A word or a phrase, and what stands before it."""

    sign: str
    text: str
    phrase: bool = False


def parts(text: str) -> Iterator[Part]:
    """The words and phrases of a query.

    >>> list(parts('+fine "drum sieve" -a-b - C++'))
    [Part(sign='+', text='fine', phrase=False), Part(sign='', text='drum sieve', phrase=True),
    Part(sign='-', text='a-b', phrase=False), Part(sign='', text='-', phrase=False),
    Part(sign='', text='C++', phrase=False)]
    """
    for found in _PART.finditer(text):  # white space is between them
        phrase_sign, phrase, sign, signed, word = found.groups()
        if phrase is not None:
            yield Part(phrase_sign, phrase, True)
        else:
            yield Part(sign or "", signed or word)


def simple_query(query: str | Query) -> Query:
    """A query whose text is in this syntax, with the plain text and with its conditions.

    >>> query = simple_query('tamis "drum sieve" +flour -soup')
    >>> query.text
    'tamis drum sieve flour'
    >>> print(query.where)
    contains "drum sieve" and contains flour and not contains soup
    """
    asked = query if isinstance(query, Query) else Query("0", query)
    words: list[str] = []
    conditions: list[Condition] = []
    for sign, text, phrase in parts(asked.text):
        if not text.strip():
            continue
        if sign == "-":
            conditions.append(Not(Contains(text)))
            continue
        words.append(text)
        if sign or phrase:
            conditions.append(Contains(text))
    if not words and conditions:
        raise InputError(
            f"the query {quoted(asked.text)} only says what must not be there",
            remedy="add a word to look for",
        )
    return replace(asked, text=" ".join(words), where=all_of(asked.where, *conditions))


def read_query(query: Query, syntax: QuerySyntax) -> Query:
    """A query whose text is in one of the syntaxes."""
    if syntax not in ("plain", "simple"):  # from callers without a type checker
        raise InputError(f"{syntax!r} is not a query syntax", remedy="use plain or simple")
    return simple_query(query) if syntax == "simple" else query
