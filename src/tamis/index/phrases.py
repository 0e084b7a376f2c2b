"""Which documents of a segment contain words next to each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tamis.base.arrays import Array
from tamis.base.conditions import next_to_each_other
from tamis.index.fields import Parts
from tamis.index.places import AT_ONCE, Places, count_ordered
from tamis.index.segment import Segment, Term
from tamis.text.analyze import Analyzer

_READ = 8  # texts that are analysed between looks at the clock


def containing(segment: Segment, words: Sequence[str | None], analyzer: Analyzer) -> Array:
    """The documents with these analysed words next to each other in their title and text, and any word where
    there is None: by the positions that the index keeps, or else by the texts of the documents that have all
    of the words."""
    segment.check_sizes()
    terms: dict[str, Term] = {}
    for word in words:
        if word is not None and word not in terms:
            term = segment.term(word)  # here, because it may be given up, and what is begun below may not
            if term is None:
                return np.zeros(len(segment), dtype=bool)
            terms[word] = term

    def work() -> Parts[Array]:
        found = yield from _with_all(segment, terms.values())
        if len(words) > 1 and segment.has_positions and len(found):
            found = yield from _by_positions(segment, words, terms)
        elif len(words) > 1:
            found = yield from _by_texts(segment, words, found, analyzer)
        mask = np.zeros(len(segment), dtype=bool)
        mask[found] = True
        return mask

    return segment.fields.mask(("contains", *words), work)


def _with_all(segment: Segment, terms: Collection[Term]) -> Parts[Array]:
    """The documents that have all of the terms."""
    rarest, *others = sorted(terms, key=lambda term: term.postings)
    yield
    found, _ = segment.decode(rarest)
    for term in others if len(found) else ():
        yield
        documents, _ = segment.decode(term)
        found = found[documents[np.minimum(np.searchsorted(documents, found), len(documents) - 1)] == found]
    return found


def _by_positions(segment: Segment, words: Sequence[str | None], terms: Mapping[str, Term]) -> Parts[Array]:
    places: dict[str | None, Places] = {}
    for word, term in terms.items():
        places[word] = Places.of(segment, term)
        yield
    found = []
    for start in range(0, len(segment), AT_ONCE):
        stop = min(start + AT_ONCE, len(segment))
        here = {word: each.between(start, stop) for word, each in places.items()}
        last = here[words[0]]
        for each in words[1:]:
            # where the word before stands, of the places where all words before stand as they must
            last = last + 1 if each is None else count_ordered(last, here[each]) + 1
        found.append(np.unique(last >> 32))
        yield
    return np.concatenate(found)


def _by_texts(
    segment: Segment, words: Sequence[str | None], among: Array, analyzer: Analyzer
) -> Parts[Array]:
    found = []
    for count, number in enumerate(among.tolist()):
        if next_to_each_other(words, analyzer.places(segment.store.document(number).contents)):
            found.append(number)
        if count % _READ == 0:
            yield
    return np.array(found, np.int64)
