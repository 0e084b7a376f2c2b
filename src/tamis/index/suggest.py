"""Did you mean: the words of a query that no document has, replaced by similar ones that documents have.

The vocabulary holds what the analyzer has left of the words (`retriev`), and a person types and reads the
words themselves. So the terms that are like a beginning of the word lead to documents, and words of these
documents that are a typing error away from it are suggested. Nothing is prepared: the index is read when a
query has such a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tamis.base.arrays import Array, ranges
from tamis.base.documents import Document
from tamis.base.interrupt import check
from tamis.index.embedded import EmbeddedIndex
from tamis.index.postings import BLOCK
from tamis.index.vocabulary import encoded
from tamis.text.analyze import Analyzer, lower_case

if TYPE_CHECKING:
    from tamis.index.index import Index
    from tamis.index.segment import Segment

MOST_WORDS = 3  # unknown words of a query that is corrected: one with more is in another language
SHORTEST, LONGEST = 3, 40  # letters of a word that is corrected
LEAST_DF = 2  # documents that have what is suggested: a word of a single one may be an error itself
_ONE_EDIT = 5  # letters: two edits make almost any word of one that is so short
_TERMS = 8  # similar terms whose documents are read
_DOCUMENTS = 30  # that are read of a term, at most
_CHARACTERS = 50_000  # that are read of a term, in all its documents
_KEPT = 64  # terms of a block that are looked at further
_AT_ONCE = 1 << 18  # terms that are compared between two looks at the time
#: A bit for each byte of ASCII, shared by some: which letters a term has, to leave out most terms quickly.
_BITS = np.array([1 << (byte & 31) if byte < 128 else 0 for byte in range(256)], np.uint32)


class Suggestion(NamedTuple):
    """A query to try instead, and the words that it replaces, which no document has."""

    query: str
    unknown: tuple[str, ...]


def suggest(index: Index, query: str) -> Suggestion | None:
    """The query with its unknown words replaced; None where it has none, too many, or none that can be, and
    for an index that is not on disk.

    >>> import tempfile, tamis
    >>> texts = ["a transformer model", "Transformers of graphs", "the fine sieve"]
    >>> documents = [tamis.Document(str(number), text) for number, text in enumerate(texts)]
    >>> index = tamis.Index.build(documents, tempfile.mkdtemp() + "/idx")
    >>> suggest(index, "fine transfomers")
    Suggestion(query='fine transformers', unknown=('transfomers',))
    >>> suggest(index, "fine transformers")
    """
    if not isinstance(index, EmbeddedIndex):
        return None
    places = list(unknown_words(index, query))
    words = dict.fromkeys(query[start:stop] for start, stop in places)
    if not 0 < len(words) <= MOST_WORDS:
        return None
    instead = {
        word: _as_typed(word, similar, index.analyzer)
        for word in words
        if (similar := similar_word(index, word))
    }
    if not instead:
        return None
    pieces, end = [], 0
    for start, stop in places:
        pieces += [query[end:start], instead.get(query[start:stop], query[start:stop])]
        end = stop
    return Suggestion("".join([*pieces, query[end:]]), tuple(instead))


def unknown_words(index: EmbeddedIndex, query: str) -> Iterator[tuple[int, int]]:
    """Start and end of the words that no document has, if they are nothing but letters."""
    end = 0
    for word in index.analyzer.split(query):
        start = query.index(word, end)
        end = start + len(word)
        if SHORTEST <= len(word) <= LONGEST and word.isalpha():
            term = index.analyzer.term(word)
            if term is not None and not index.df(term):
                yield start, end


def similar_word(index: EmbeddedIndex, word: str) -> str | None:
    """The word of the documents that is most similar to one that they do not have: by the edits between the
    two, then by the number of documents."""
    analyzer = index.analyzer
    fold = lower_case if analyzer.term("Q") == analyzer.term("q") else str
    word, found = fold(word), Counter[str]()
    # most words are in many documents
    similar = cache(lambda other: other.isalpha() and is_near(word, other))
    for term in similar_terms(index, word):
        left = _CHARACTERS
        for document in _documents(index, term):
            text = document.contents[:left]
            left -= len(text)
            near = [each for each in {fold(each) for each in analyzer.split(text)} if similar(each)]
            found.update(near)
            if not left or any(distance(word, each) == 1 and analyzer.term(each) == term for each in near):
                break
    ranked = []
    for each, count in found.items():
        df = index.df(analyzer.term(each) or "")
        if df >= LEAST_DF:
            ranked.append((distance(word, each), -df, -count, each))
    return min(ranked)[-1] if ranked else None


def _as_typed(word: str, similar: str, analyzer: Analyzer) -> str:
    """With a capital where the word has one, if that is the same to the analyzer."""
    capital = similar.capitalize()
    same = word.istitle() and similar.islower() and analyzer.term(capital) == analyzer.term(similar)
    return capital if same else similar


def similar_terms(index: EmbeddedIndex, word: str) -> list[str]:
    """The terms of which the word may be a misspelt form, the likeliest first: those with many letters in
    common with a beginning of it, or of its own term."""
    totals: dict[str, tuple[int, int]] = {}
    least = LEAST_DF if len(index.segments) == 1 else 1  # of a segment: each may have some of the documents
    term = index.analyzer.term(word) or word
    beginnings = [word] if word.startswith(term) else [word, term]
    for segment in index.segments:
        segment.check_sizes()
        for term, common, df in _similar(segment, beginnings, edits_allowed(word), least):
            totals[term] = (common, totals.get(term, (0, 0))[1] + df)
    ranked = sorted(totals, key=lambda term: (*(-each for each in totals[term]), term))
    often = (term for term in ranked if totals[term][1] >= LEAST_DF and index.df(term) >= LEAST_DF)
    return list(islice(often, _TERMS))


def _similar(
    segment: Segment, beginnings: Sequence[str], most: int, least: int
) -> Iterator[tuple[str, int, int]]:
    """Terms of a segment that at least so many of its documents have, deleted ones included; how many letters
    each has in common with the beginning of a word, and how many documents have it."""
    text, ends = segment.column("terms.text"), segment.column("terms.ends")
    postings = segment.column("postings.term_postings")
    word = beginnings[0]
    shortest, longest = max(2, len(word) // 3), len(word) + most
    others = ~np.bitwise_or.reduce([_BITS[byte] for each in encoded(beginnings) for byte in each])
    for start in range(0, len(ends) - 1, _AT_ONCE):
        check()
        bounds = ends[start : start + _AT_ONCE + 1].astype(np.int64)
        dfs = np.diff(postings[start : start + _AT_ONCE + 1].astype(np.int64))
        sizes = np.diff(bounds)
        here = (dfs >= least) & (sizes >= shortest) & (sizes <= 4 * longest)
        numbers = np.flatnonzero(here)
        raw = _BITS[text[ranges(bounds[numbers], sizes[numbers])]]
        if not len(raw):
            continue
        letters = np.bitwise_or.reduceat(raw, np.cumsum(sizes[numbers]) - sizes[numbers])
        numbers = numbers[np.bitwise_count(letters & others) <= most]
        terms, lengths = _code_points(text, bounds[numbers], sizes[numbers], longest)
        edits = np.min([edits_to_beginning(each, terms, lengths, most) for each in beginnings], axis=0)
        fit = edits <= np.where(lengths <= _ONE_EDIT, 1, most)
        fit &= (lengths >= shortest) & (lengths <= longest)
        numbers, common = numbers[fit], lengths[fit] - 2 * edits[fit].astype(np.int64)
        for best in np.lexsort((-dfs[numbers], -common))[:_KEPT].tolist():
            number = int(numbers[best])
            term = text[int(bounds[number]) : int(bounds[number + 1])].tobytes()
            yield term.decode("utf-8", "surrogatepass"), int(common[best]), int(dfs[number])


def _code_points(text: Array, starts: Array, sizes: Array, most: int) -> tuple[Array, Array]:
    """The first code points of the strings that begin there, a column each, and how many each has."""
    raw = text[ranges(starts, sizes)]
    points = raw.tobytes().decode("utf-8", "surrogatepass").encode("utf-32-le", "surrogatepass")
    before = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])
    ends = np.cumsum(sizes)
    first, lengths = before[ends - sizes], before[ends] - before[ends - sizes]
    inside = np.arange(min(int(lengths.max(initial=1)), most))[:, None] < lengths
    columns = np.zeros(inside.shape, dtype=np.uint32)
    at = np.minimum(np.arange(len(columns))[:, None] + first, max(len(points) // 4 - 1, 0))
    np.copyto(columns, np.frombuffer(points, "<u4")[at] if points else 0, where=inside)
    return columns, lengths


def _documents(index: EmbeddedIndex, term: str) -> Iterator[Document]:
    """The first documents of a term."""
    left = _DOCUMENTS
    for segment in index.segments:
        if (entry := segment.term(term)) is None:
            continue
        if segment.live is None:  # of a long list the beginning will do
            entry = replace(entry, postings=min(entry.postings, BLOCK))
        numbers, _ = segment.decode(entry)
        if segment.live is not None:
            numbers = numbers[segment.live[numbers]]
        for number in numbers[:left].tolist():
            check()
            yield segment.store.document(number)
        left -= min(left, len(numbers))


def edits_allowed(word: str) -> int:
    """How many edits away from the word a similar one is.

    >>> edits_allowed("seive"), edits_allowed("transfomer")
    (1, 2)
    """
    return 1 if len(word) <= _ONE_EDIT else 2


def distance(one: str, other: str) -> int:
    """Edits between two words: a letter more, less or another one, or two neighbours swapped (the restricted
    Damerau-Levenshtein distance, "optimal string alignment").

    >>> distance("sieve", "seive"), distance("sieve", "sieves"), distance("sieve", "strainer")
    (1, 1, 6)
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        last, before, row = before, row, [i]
        for j, to in enumerate(other, start=1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != to))
            if i > 1 and j > 1 and letter == other[j - 2] and to == one[i - 2]:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def is_near(word: str, other: str) -> bool:
    """Whether the edits between them are as few as `edits_allowed`.

    >>> is_near("transfomer", "transformer"), is_near("transfomer", "transport")
    (True, False)
    """
    most = edits_allowed(word)
    return (
        abs(len(word) - len(other)) <= most
        and len(set(other) - set(word)) <= most
        and distance(word, other) <= most
    )


def edits_to_beginning(word: str, terms: Array, lengths: Array, most: int) -> Array:
    """For each term the edits (as of `distance`) to the most similar beginning of the word; more than `most`
    where these are more. A term is a column of code points, of which `lengths` are its own.

    >>> terms = np.array([[*map(ord, "inform")], [*map(ord, "infrom")], [*map(ord, "pasta\\0")]]).T
    >>> edits_to_beginning("informaton", terms, np.array([6, 6, 5]), 2).tolist()
    [0, 1, 3]
    """
    far = np.full(len(lengths), most + 1, dtype=np.uint8)
    result = far.copy()
    before: dict[int, Array] = {}
    row = {j: np.full_like(far, j) for j in range(min(most, len(word)) + 1)}
    for i, letters in enumerate(terms, start=1):
        last, before, row = before, row, {}
        for j in range(max(0, i - most), min(len(word), i + most) + 1):  # elsewhere it is more than `most`
            if j == 0:
                row[0] = np.full_like(far, i)
                continue
            cost = np.minimum(before.get(j, far), row.get(j - 1, far)) + np.uint8(1)
            np.minimum(cost, before[j - 1] + (letters != ord(word[j - 1])), out=cost)
            if i > 1 and j > 1:
                swapped = (letters == ord(word[j - 2])) & (terms[i - 2] == ord(word[j - 1]))
                np.minimum(cost, np.where(swapped, last[j - 2] + np.uint8(1), far), out=cost)
            row[j] = np.minimum(cost, far)
        ended = lengths == i
        for cost in row.values():
            np.minimum(result, cost, out=result, where=ended)
    return result
