"""The passages that earned a document its score, as people read them: in whole sentences."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from tamis.ranking import Span
from tamis.text.segment import Passage, sentences, trimmed

_LONGEST = 1_000  # characters of a sentence that a passage is completed by


def whole_sentences(text: str, spans: Sequence[Span]) -> list[Span]:
    """The passages of a text, best first, each with the whole of the sentences that it begins and ends in. A
    sentence that two of them share is shown with the better one. Their scores are those of what was read.

    >>> text = "Soup is hot. A tamis is a fine sieve. Onions are sweet."
    >>> [text[start:stop] for start, stop, _ in whole_sentences(text, [Span(15, 26, 0.9)])]
    ['A tamis is a fine sieve.']
    """
    shown = apart(grown(span, _around(text, span)) for span in spans)
    return [Span(*trimmed(text, start, stop), score) for start, stop, score in shown]


def grown(span: Span, among: Sequence[Passage]) -> Span:
    """A passage with the whole of the sentences that it begins and ends in, where they are among these.

    >>> grown(Span(15, 26, 0.9), [Passage(0, 12), Passage(13, 37)])
    Span(start=13, stop=37, score=0.9)
    """
    starts = [each.start for each in among]
    first, last = bisect_right(starts, span.start) - 1, bisect_left(starts, span.stop) - 1
    start, stop, score = span
    if first >= 0 and start < among[first].stop:
        start = among[first].start
    if last >= 0:
        stop = max(stop, among[last].stop)
    return Span(start, stop, score)


def apart(spans: Iterable[Span]) -> list[Span]:
    """Without what a better one, which stands before, has too.

    >>> apart([Span(10, 20, 0.9), Span(15, 30, 0.8), Span(12, 18, 0.7)])
    [Span(start=10, stop=20, score=0.9), Span(start=20, stop=30, score=0.8)]
    """
    found: list[Span] = []
    for start, stop, score in spans:
        for other in found:
            if start < other.start:
                stop = min(stop, other.start)
            else:
                start = max(start, other.stop)
        if start < stop:
            found.append(Span(start, stop, score))
    return found


def _around(text: str, span: Span) -> list[Passage]:
    """The sentences that a passage may begin and end in. Not of the whole text, which may be a book."""
    left, right = max(0, span.start - _LONGEST), min(len(text), span.stop + _LONGEST)
    near = [Passage(left + start, left + stop) for start, stop in sentences(text[left:right])]
    # one at an end of this part may go on beyond it
    return near[left > 0 : len(near) - (right < len(text))]
